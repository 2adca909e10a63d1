//! Programs of `tests/c` with RC queue pairs or rdma_cm, by reliable datagrams (`DGIWARP_RC=rd`): a user may set that for everything.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use crate::common::RUN;
use crate::common::each::{compiled, gids, prints_ok};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c");

/// Arguments that stand for the GID index of the loopback address, and for the address.
const GID: &str = "{gid}";
const ADDRESS: &str = "{address}";

/// The programs, each with its arguments in every run.
const PROGRAMS: &[(&str, &[&[&str]])] = &[
    ("access", &[&[GID]]),
    ("batch", &[&[GID]]),
    ("behind", &[&[ADDRESS, GID]]),
    ("burst", &[&[GID]]),
    ("cancel", &[&[GID]]),
    ("chain", &[&[GID]]),
    ("cm", &[&[ADDRESS]]),
    ("dm", &[&[GID]]),
    ("dmabuf", &[&[GID]]),
    ("drain", &[&[GID]]),
    ("early", &[&[GID]]),
    ("established", &[&[GID]]),
    ("events", &[&[GID]]),
    ("exit", &[&[GID]]),
    ("fork", &[&[GID]]),
    // Silence alone would take three seconds.
    ("killed", &[&[ADDRESS, GID, "2500"]]),
    ("memory", &[&[GID]]),
    ("null_mr", &[&[GID]]),
    ("on_demand", &[&[GID]]),
    ("places", &[&[GID]]),
    ("port", &[&[ADDRESS]]),
    ("rc", &[&[GID]]),
    ("readable", &[&[GID]]),
    ("reset", &[&[GID]]),
    ("rnr", &[&[GID, "1"]]),
    ("rnr_cm", &[&["1", "1"], &["0", "0"], &["7", "0"]]),
    ("sleeps", &[&[GID, "off", "13"], &[GID, "auto", "17"]]),
    ("threads", &[&[GID]]),
    ("timewait", &[&["1"]]),
    ("twice", &[&[]]),
];

/// Programs that have such queue pairs or identifiers, and need not run so.
const ELSEWHERE: &[(&str, &str)] = &[
    ("checked", "makes mistakes with memory for the sanitizers"),
    (
        "checked_cm",
        "makes mistakes with events for the sanitizers",
    ),
    ("closed", "closes the descriptors of the background thread"),
    ("cmud", "has datagram services alone"),
    ("denied", "is denied the system calls of listeners at TCP"),
    ("direct", "is about the functions of dgiwarp"),
    ("linking", "sends nothing"),
    ("memory_limit", "sends nothing"),
    ("random", "has this way among its own"),
    ("reliable", "is about reliable datagrams themselves"),
    ("removal", "connects nothing"),
];

/// Programs that run at a time. They wait most of their time.
const AT_A_TIME: usize = 4;

fn run(name: &str, source: &str, runs: &[&[&str]], loopback: (IpAddr, usize)) {
    let Some(program) = compiled(&format!("rc_rd_{name}"), source) else {
        return;
    };
    for arguments in runs {
        let mut command = Command::new("timeout");
        command
            .env("DGIWARP_PERSONA", "roce")
            .env("DGIWARP_RC", "rd")
            .args(["120", RUN])
            .arg(&program);
        command.args(arguments.iter().map(|argument| match *argument {
            GID => loopback.1.to_string(),
            ADDRESS => loopback.0.to_string(),
            other => other.to_owned(),
        }));
        prints_ok(&mut command);
    }
}

#[test]
fn c_programs_run_by_reliable_datagrams_too() {
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let gids = gids();
    let index = gids.iter().find(|(_, gid)| gid.address == address);
    let loopback = (address, index.unwrap().0);
    let left = Mutex::new(PROGRAMS.iter());
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                let next = || left.lock().unwrap().next();
                while let Some((name, runs)) = next() {
                    let path = Path::new(SOURCES).join(name).with_extension("c");
                    let source = fs::read_to_string(&path).unwrap();
                    run(name, &source, runs, loopback);
                }
            });
        }
    });
}

/// Every program that is added runs so, or has a reason.
#[test]
fn no_c_program_is_forgotten() {
    const SIGNS: [&str; 3] = ["IBV_QPT_RC", "rdma/rdma_cma.h", "rdma/rdma_verbs.h"];
    let files = fs::read_dir(SOURCES).unwrap().map(|it| it.unwrap().path());
    let sources = files.filter(|path| path.extension().is_some_and(|it| it == "c"));
    let concerned = sources.filter(|path| {
        let source = fs::read_to_string(path).unwrap();
        SIGNS.iter().any(|sign| source.contains(sign))
    });
    let concerned: BTreeSet<String> = concerned
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    let run = PROGRAMS.iter().map(|(name, _)| *name);
    let listed = run.chain(ELSEWHERE.iter().map(|(name, _)| *name));
    let listed: BTreeSet<String> = listed.map(str::to_owned).collect();
    assert_eq!(concerned, listed);
}
