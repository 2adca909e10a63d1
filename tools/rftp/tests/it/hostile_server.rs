//! FTP servers that break rules.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::thread;

use crate::common::{fail, names, rftp};

/// Behaviour of a server.
#[derive(Clone, Default)]
pub(crate) struct Script {
    /// The whole of what it sends instead of a greeting, again and again.
    flood: Option<&'static str>,
    /// Replies of commands, by the beginning of their lines; else those of a server with one file `f` of three octets and a directory `d` with a file `x`.
    replies: Vec<(&'static str, String)>,
    /// Its listing.
    listing: Vec<u8>,
    /// Octets of each file.
    content: Vec<u8>,
    /// Nothing comes over data connections.
    no_data: bool,
}

pub(crate) fn serve(script: Script) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let script = script.clone();
            thread::spawn(move || client(&script, stream.unwrap()));
        }
    });
    address
}

/// Serves one client, until it is gone.
fn client(script: &Script, mut stream: TcpStream) -> Option<()> {
    while let Some(flood) = script.flood {
        if flood.is_empty() {
            thread::park();
        }
        stream.write_all(flood.as_bytes()).ok()?;
    }
    stream.write_all(b"220 Hello\r\n").ok()?;
    let data = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = data.local_addr().unwrap().port();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    while let Some(Ok(line)) = lines.next() {
        let own = script
            .replies
            .iter()
            .find(|(begins, _)| line.starts_with(begins));
        let [high, low] = port.to_be_bytes();
        if let Some((_, reply)) = own {
            let reply = reply.replace("PORT", &format!("{high},{low}"));
            stream.write_all(reply.as_bytes()).ok()?;
            continue;
        }
        let (verb, name) = line.split_once(' ').unwrap_or((&line, ""));
        let reply = match verb {
            "USER" => "230 In\r\n".to_owned(),
            "FEAT" => "211-\r\n MLST type*;\r\n211 End\r\n".to_owned(),
            "PWD" => "257 \"/\"\r\n".to_owned(),
            "EPSV" => format!("229 Passive (|||{port}|)\r\n"),
            "MLST" if name.ends_with('d') => "250-\r\n type=dir; d\r\n250 End\r\n".to_owned(),
            "CWD" if name.ends_with('d') => "250 In\r\n".to_owned(),
            "MLST" => {
                "250-\r\n type=file;size=3;modify=20200101000000; f\r\n250 End\r\n".to_owned()
            }
            "MLSD" | "RETR" => {
                stream.write_all(b"150 Here\r\n").ok()?;
                let (mut data, _) = data.accept().ok()?;
                if script.no_data {
                    thread::park();
                }
                let octets = if verb == "MLSD" {
                    &script.listing
                } else {
                    &script.content
                };
                // The client may have enough.
                let _ = data.write_all(octets);
                "226 Done\r\n".to_owned()
            }
            "TYPE" | "REST" => "200 Yes\r\n".to_owned(),
            _ => "550 No\r\n".to_owned(),
        };
        stream.write_all(reply.as_bytes()).ok()?;
    }
    Some(())
}

pub(crate) fn listed(text: &str) -> Script {
    Script {
        listing: text.as_bytes().to_vec(),
        content: b"abc".to_vec(),
        ..Script::default()
    }
}

/// Fetches `path` into a directory: what it says, and the names that are there then.
#[track_caller]
fn fetch(script: Script, path: &str, here: &Path, with: &str) {
    let url = format!("ftp://{}/{path}", serve(script));
    let to = here.to_str().unwrap();
    fail(&mut rftp(&["--timeout", "2", &url, to]), with);
}

#[test]
fn floods_and_silence_end() {
    let here = tempfile::tempdir().unwrap();
    for (flood, with) in [
        (
            "xxxxxxxxxxxxxxxxxxxxxxxx",
            "a line of more than 8192 octets",
        ),
        ("220-x\r\n", "a reply without end"),
        ("SSH-2.0-x\r\n", "no FTP server"),
        ("+12 x\r\n", "no FTP server"),
        ("421 Busy\r\n", "Busy"),
        ("", "the server does not reply"),
    ] {
        let flood = Some(flood);
        let script = Script {
            flood,
            ..Script::default()
        };
        fetch(script, "f", here.path(), with);
    }
    let mut silent = listed("");
    silent.no_data = true;
    fetch(silent.clone(), "f", here.path(), "makes no progress");
    fetch(silent, "d", here.path(), "makes no progress");
    let mut endless = listed("");
    endless.listing = b"type=file;size=3; x\r\n".repeat(3_400_000);
    fetch(endless, "d", here.path(), "a listing of more than");
    fetch(listed("total chaos\r\n"), "d", here.path(), "no known form");
    let mut lines = listed("");
    lines.replies.push(("EPSV", "229 x (|||0|)\r\n".into()));
    fetch(lines, "f", here.path(), "PASV: No");
    let there = names(here.path());
    assert!(there.iter().all(|it| it == "d"), "{there:?}");
}

#[test]
fn names_do_not_leave_the_directory() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().join("here");
    fs::create_dir_all(here.join("d")).unwrap();
    symlink(folder.path(), here.join("d/out")).unwrap();
    // The server has a directory where a link leads out here.
    let script = listed(
        "type=file;size=3; ../x\r\ntype=file;size=3; ..\r\ntype=file;size=3; /tmp/x\r\n\
         type=dir; out\r\ntype=file;size=3; f\r\n",
    );
    fetch(
        script.clone(),
        "d",
        &here,
        "a name that leaves its directory",
    );
    assert_eq!(names(&here.join("d")), ["f", "out"]);
    assert_eq!(names(folder.path()), ["here"]);
    fetch(script, "d", &here, "the name leaves the root");
}

#[test]
fn lengths_that_are_not_kept_are_found() {
    for (content, with) in [(&b"ab"[..], "became shorter"), (b"abcd", "became longer")] {
        let here = tempfile::tempdir().unwrap();
        let mut script = listed("");
        script.content = content.to_vec();
        fetch(script, "f", here.path(), with);
        assert!(names(here.path()).is_empty());
    }
}

#[test]
fn hashes_are_compared_where_that_is_asked_for() {
    let here = tempfile::tempdir().unwrap();
    let to = here.path().to_str().unwrap();
    let url = |script| format!("ftp://{}/f", serve(script));
    let verify = |script| rftp(&["--verify", &url(script), to]);
    fail(&mut verify(listed("")), "the server has no HASH");
    let hashing = |hash: &str| {
        let mut script = listed("");
        let features = "211-\r\n MLST type*;\r\n HASH MD5*;SHA-256\r\n211 End\r\n";
        script.replies.push(("FEAT", features.into()));
        let chosen = "200 SHA-256\r\n";
        script.replies.push(("OPTS HASH SHA-256", chosen.into()));
        script.replies.push(("HASH", format!("213 {hash} f\r\n")));
        script
    };
    let right = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    for wrong in [
        format!("SHA-256 0-2 {}", right.replace('b', "c")),
        format!("SHA-256 0-1 {right}"),
        format!("MD5 0-2 {right}"),
    ] {
        fail(&mut verify(hashing(&wrong)), "its SHA-256 is another one");
        assert!(names(here.path()).is_empty());
    }
    // No part of a longer file is kept: the next run would go on with it.
    let mut long = hashing(right);
    long.content = vec![0; 3 << 20];
    let facts = " type=file;size=3145728;modify=20200101000000; f";
    long.replies
        .push(("MLST", format!("250-\r\n{facts}\r\n250 End\r\n")));
    fail(&mut verify(long), "its SHA-256 is another one");
    assert!(names(here.path()).is_empty());
    let right = format!("SHA-256 0-2 {}", right.to_uppercase());
    crate::common::succeed(&mut verify(hashing(&right)));
    assert_eq!(names(here.path()), ["f"]);
}

/// An address of a reply to PASV is not connected to: the data connection goes where the control connection does.
#[test]
fn the_data_connection_goes_to_the_server_alone() {
    let here = tempfile::tempdir().unwrap();
    let mut script = listed("");
    script.replies.push(("EPSV", "500 No\r\n".into()));
    script
        .replies
        .push(("PASV", "227 Passive (127,0,0,2,PORT)\r\n".into()));
    let url = format!("ftp://{}/f", serve(script));
    crate::common::succeed(&mut rftp(&[&url, here.path().to_str().unwrap()]));
    assert_eq!(fs::read(here.path().join("f")).unwrap(), b"abc");
}
