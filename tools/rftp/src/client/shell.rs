//! Commands from standard input, one a line, as of `ftp(1)`.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, BufRead, IsTerminal as _, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use dgiwarp_transfer_cli::Failed;

use super::control::{Control, Reply};
use super::copy::{self, Copy};
use super::ftp;
use super::url::{Place, Scheme, Url};
use crate::path::matches;

/// Longest line.
const LINE_LIMIT: u64 = 64 << 10;

const HELP: &str = "\
open URL             connect: ftp://[USER[:PASSWORD]@]HOST[:PORT], rftp://…, or HOST
user NAME [PASSWORD] log in as another user
ls [PATH]            list a directory of the server
cd PATH, pwd         its working directory
lcd [PATH]           working directory of this host
get FILE [AS]        fetch a file or tree by FTP
put FILE [AS]        send one
mget PATTERN…        fetch what matches * and ?
mput FILE…           send several
rget, rput, rmput    as get, put and mput, by a session of rftpd: RDMA, or TCP with --tcp
mkdir, rmdir, rm     PATH
rename FROM TO
quit
";

/// A conversation with a server.
#[derive(Debug)]
struct Shell<'a> {
    /// Options of copies; their sources and destination are of no account.
    copy: &'a Copy,
    here: PathBuf,
    server: Option<(Url, Control)>,
}

/// Obeys the lines of an input to their end. Sources of the order are URLs to begin with.
///
/// # Errors
/// [`Failed::Session`] with the number of commands that failed.
pub fn shell(order: &Copy, input: &mut dyn BufRead) -> Result<(), Failed> {
    let here = std::env::current_dir().map_err(Failed::of)?;
    let mut shell = Shell {
        copy: order,
        here,
        server: None,
    };
    let mut failures = 0;
    if let Some(Place::There(url)) = order.sources.first() {
        shell.connect(url.clone()).map_err(Failed::Session)?;
    }
    let is_terminal = io::stdin().is_terminal();
    loop {
        if is_terminal {
            print!("rftp> ");
            io::stdout().flush().map_err(Failed::of)?;
        }
        let mut line = Vec::new();
        let read = io::Read::take(&mut *input, LINE_LIMIT).read_until(b'\n', &mut line);
        if read.map_err(Failed::of)? == 0 {
            break;
        }
        let words = match words(&line) {
            Ok(words) => words,
            Err(text) => {
                eprintln!("rftp: {text}");
                failures += 1;
                continue;
            }
        };
        let Some((command, arguments)) = words.split_first() else {
            continue;
        };
        match shell.obey(command, arguments) {
            Ok(true) => {}
            Ok(false) => break,
            Err(text) => {
                eprintln!("rftp: {text}");
                failures += 1;
            }
        }
    }
    match failures {
        0 => Ok(()),
        count => Err(Failed::Session(format!("{count} commands failed"))),
    }
}

impl Shell<'_> {
    fn connect(&mut self, url: Url) -> Result<(), String> {
        self.server = None;
        let mut control = Control::open(&url, self.copy.patience, self.copy.tls.as_ref())?;
        if url.path != b"/" {
            good(&control.ask(&[b"CWD ", url.server_path()])?)?;
        }
        self.server = Some((url, control));
        Ok(())
    }

    fn control(&mut self) -> Result<&mut Control, String> {
        let server = self.server.as_mut().ok_or("not connected: open URL")?;
        Ok(&mut server.1)
    }

    /// Whether the conversation goes on.
    fn obey(&mut self, command: &[u8], arguments: &[Vec<u8>]) -> Result<bool, String> {
        match (command, arguments) {
            (b"quit" | b"bye" | b"exit", []) => return Ok(false),
            (b"help" | b"?", _) => print!("{HELP}"),
            (b"open", [url]) => self.connect(Url::of_host(OsStr::from_bytes(url))?)?,
            (b"user", [name, rest @ ..]) if rest.len() < 2 => {
                let text = |it: &Vec<u8>| String::from_utf8_lossy(it).into_owned();
                let password = rest.first().map(text).unwrap_or_default();
                let (url, _) = self.server.as_ref().ok_or("not connected: open URL")?;
                let user = Some((text(name), password));
                self.connect(Url {
                    user,
                    ..url.clone()
                })?;
            }
            (b"ls" | b"dir", [] | [_]) => {
                let path = arguments.first().map(|it| self.path(it)).transpose()?;
                let path = path.map_or_else(|| self.directory(), Ok)?;
                let url = self.url(&path, Scheme::Ftp)?;
                let listing = ftp::list(self.copy, &url).map_err(|it| it.to_string())?;
                let clean = |it: &u8| {
                    if it.is_ascii_control() && *it != b'\n' {
                        b'?'
                    } else {
                        *it
                    }
                };
                let listing: Vec<_> = listing
                    .iter()
                    .filter(|it| **it != b'\r')
                    .map(clean)
                    .collect();
                io::stdout()
                    .write_all(&listing)
                    .map_err(|it| it.to_string())?;
            }
            (b"cd", [path]) => good(&self.control()?.ask(&[b"CWD ", path])?)?,
            (b"pwd", []) => println!("{}", self.directory()?.escape_ascii()),
            (b"lcd", [path]) => {
                let path = self.here.join(OsStr::from_bytes(path));
                let path =
                    fs::canonicalize(&path).map_err(|it| format!("{}: {it}", path.display()))?;
                std::env::set_current_dir(&path)
                    .map_err(|it| format!("{}: {it}", path.display()))?;
                self.here = path;
            }
            (b"lcd", []) => println!("{}", self.here.display()),
            (b"mkdir", [path]) => good(&self.control()?.ask(&[b"MKD ", path])?)?,
            (b"rmdir", [path]) => good(&self.control()?.ask(&[b"RMD ", path])?)?,
            (b"rm" | b"delete", [path]) => good(&self.control()?.ask(&[b"DELE ", path])?)?,
            (b"rename", [from, to]) => {
                good(&self.control()?.ask(&[b"RNFR ", from])?)?;
                good(&self.control()?.ask(&[b"RNTO ", to])?)?;
            }
            (b"get", [from]) => self.get(&[from], b".", Scheme::Ftp)?,
            (b"get", [from, to]) => self.get(&[from], to, Scheme::Ftp)?,
            (b"rget", [from]) => self.get(&[from], b".", Scheme::Rftp)?,
            (b"rget", [from, to]) => self.get(&[from], to, Scheme::Rftp)?,
            (b"mget", [_, ..]) => self.get_matching(arguments)?,
            (b"put", [from]) => self.put(&[from], b"./", Scheme::Ftp)?,
            (b"put", [from, to]) => self.put(&[from], to, Scheme::Ftp)?,
            (b"rput", [from]) => self.put(&[from], b"./", Scheme::Rftp)?,
            (b"rput", [from, to]) => self.put(&[from], to, Scheme::Rftp)?,
            (b"mput", [_, ..]) => {
                let all: Vec<_> = arguments.iter().collect();
                self.put(&all, b"./", Scheme::Ftp)?;
            }
            (b"rmput", [_, ..]) => {
                let all: Vec<_> = arguments.iter().collect();
                self.put(&all, b"./", Scheme::Rftp)?;
            }
            _ => {
                let command = command.escape_ascii();
                return Err(format!(
                    "{command}: not a command, or not so: help lists them"
                ));
            }
        }
        Ok(true)
    }

    /// The server's working directory.
    fn directory(&mut self) -> Result<Vec<u8>, String> {
        let reply = self.control()?.ask(&[b"PWD"])?;
        ftp::directory(&reply).ok_or_else(|| format!("PWD: {reply}"))
    }

    /// A path at the server, from its root.
    fn path(&mut self, name: &[u8]) -> Result<Vec<u8>, String> {
        if name.starts_with(b"/") {
            return Ok(name.to_vec());
        }
        let name = name.strip_prefix(b"./").unwrap_or(name);
        Ok(ftp::join(&self.directory()?, name))
    }

    fn url(&self, path: &[u8], scheme: Scheme) -> Result<Url, String> {
        let (url, control) = self.server.as_ref().ok_or("not connected: open URL")?;
        if scheme == Scheme::Rftp && !control.has("RDMA dgiwarp/1") {
            return Err("the server is no rftpd: it does not announce RDMA dgiwarp/1".into());
        }
        let scheme = match (scheme, url.scheme) {
            (Scheme::Ftp, Scheme::Ftps) => Scheme::Ftps,
            _ => scheme,
        };
        // A second slash of ftp:// is the root, wherever the log-in leads.
        let before: &[u8] = if scheme == Scheme::Rftp { b"" } else { b"/" };
        Ok(Url {
            scheme,
            path: [before, path].concat(),
            ..url.clone()
        })
    }

    fn get(&mut self, from: &[&Vec<u8>], to: &[u8], scheme: Scheme) -> Result<(), String> {
        let mut sources = Vec::new();
        for name in from {
            let path = self.path(name)?;
            sources.push(Place::There(self.url(&path, scheme)?));
        }
        self.run(sources, Place::Here(OsStr::from_bytes(to).into()))
    }

    /// Fetches what matches patterns in their last components.
    fn get_matching(&mut self, patterns: &[Vec<u8>]) -> Result<(), String> {
        let mut sources = Vec::new();
        for pattern in patterns {
            let path = self.path(pattern)?;
            let at = path.iter().rposition(|it| *it == b'/').unwrap_or(0);
            let (folder, last) = (&path[..at], &path[at + 1..]);
            let folder = if folder.is_empty() { b"/" } else { folder };
            let url = self.url(folder, Scheme::Ftp)?;
            for name in ftp::names(self.copy, &url).map_err(|it| it.to_string())? {
                if matches(last, &name) {
                    let path = ftp::join(folder, &name);
                    sources.push(Place::There(self.url(&path, Scheme::Ftp)?));
                }
            }
        }
        if sources.is_empty() {
            return Err("nothing matches".into());
        }
        self.run(sources, Place::Here("./".into()))
    }

    fn put(&mut self, from: &[&Vec<u8>], to: &[u8], scheme: Scheme) -> Result<(), String> {
        let path = self.path(to)?;
        let destination = Place::There(self.url(&path, scheme)?);
        let here = |it: &&Vec<u8>| Place::Here(PathBuf::from(OsString::from_vec((*it).clone())));
        self.run(from.iter().map(here).collect(), destination)
    }

    fn run(&self, sources: Vec<Place>, destination: Place) -> Result<(), String> {
        let copy = Copy {
            sources,
            destination,
            ..self.copy.clone()
        };
        copy::run(&copy).map_err(|it| it.to_string())
    }
}

fn good(reply: &Reply) -> Result<(), String> {
    if reply.is_good() {
        Ok(())
    } else {
        Err(reply.to_string())
    }
}

/// Words of a line: between spaces, or in quotes, with `\` before a character that stands for itself.
fn words(line: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let mut words = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut quote = None;
    let mut octets = line.iter().copied();
    while let Some(octet) = octets.next() {
        match (octet, quote) {
            (b'\\', None | Some(b'"')) => match octets.next() {
                Some(next) if next != b'\n' => word.get_or_insert_default().push(next),
                _ => return Err("nothing behind \\".into()),
            },
            (_, Some(end)) if octet == end => quote = None,
            (b'"' | b'\'', None) => {
                quote = Some(octet);
                word.get_or_insert_default();
            }
            (b' ' | b'\t' | b'\r' | b'\n', None) => words.extend(word.take()),
            _ => word.get_or_insert_default().push(octet),
        }
    }
    if quote.is_some() {
        return Err("a quote without its end".into());
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_words() {
        let words = |line: &str| {
            let words = words(line.as_bytes()).ok()?;
            let text = |it| String::from_utf8(it).unwrap();
            Some(words.into_iter().map(text).collect::<Vec<_>>().join("|"))
        };
        assert_eq!(words("get  a b\r\n").unwrap(), "get|a|b");
        assert_eq!(
            words("get \"a \\\"b\" 'c\\' \\ d ''\n").unwrap(),
            "get|a \"b|c\\| d|"
        );
        assert_eq!(words(" \n").unwrap(), "");
        assert_eq!(words("get 'a"), None);
        assert_eq!(words("get a\\\n"), None);
    }
}
