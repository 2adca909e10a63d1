//! `rftp://[USER[:PASSWORD]@]HOST[:PORT]/PATH`, `ftp://` (RFC 1738) and `ftps://`, with `%XX` for octets.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Protocol of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// `rftpd`, with sessions of their own for the data.
    Rftp,
    /// Any FTP server.
    Ftp,
    /// One at a port of its own for TLS.
    Ftps,
}

impl Scheme {
    const ALL: [Self; 3] = [Self::Rftp, Self::Ftp, Self::Ftps];

    fn prefix(self) -> &'static str {
        match self {
            Self::Rftp => "rftp://",
            Self::Ftp => "ftp://",
            Self::Ftps => "ftps://",
        }
    }

    /// Port of a URL without one.
    fn port(self) -> u16 {
        match self {
            Self::Rftp => 2121,
            Self::Ftp => 21,
            Self::Ftps => 990,
        }
    }
}

/// A file or directory of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// Protocol.
    pub scheme: Scheme,
    /// User and password; anonymous without.
    pub user: Option<(String, String)>,
    /// Name or address of the host.
    pub host: String,
    /// Port of the control connection.
    pub port: u16,
    /// Path from the server's root, or, of `ftp://`, from the directory of the log-in; not empty, begins with `/`.
    pub path: Vec<u8>,
}

/// A source or destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// On this host.
    Here(PathBuf),
    /// At a server.
    There(Url),
}

impl Place {
    /// Parses an argument: what does not begin with `rftp://`, `ftp://` or `ftps://` is a path of this host.
    ///
    /// # Errors
    /// The reason, for a URL that is none.
    pub fn parse(argument: &OsStr) -> Result<Self, String> {
        let octets = argument.as_bytes();
        for scheme in Scheme::ALL {
            let prefix = scheme.prefix();
            let Some(rest) = octets.strip_prefix(prefix.as_bytes()) else {
                continue;
            };
            let url = Url::parse(scheme, rest).map(Self::There);
            return url.ok_or_else(|| {
                let argument = argument.display();
                format!("{argument}: not {prefix}[USER[:PASSWORD]@]HOST[:PORT]/PATH")
            });
        }
        let is_other = [&b"sftp:"[..], b"http:", b"https:"];
        if is_other.iter().any(|it| octets.starts_with(it)) {
            let argument = argument.display();
            return Err(format!(
                "{argument}: only rftp://, ftp:// and ftps:// are supported"
            ));
        }
        Ok(Self::Here(Path::new(argument).to_owned()))
    }
}

impl Url {
    fn parse(scheme: Scheme, rest: &[u8]) -> Option<Self> {
        let end = rest.iter().position(|it| *it == b'/').unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let authority = std::str::from_utf8(authority).ok()?;
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => {
                let (name, password) = user.split_once(':').unwrap_or((user, ""));
                (Some((text(name)?, text(password)?)), host)
            }
            None => (None, authority),
        };
        let (host, port) = if let Some(bracketed) = host.strip_prefix('[') {
            let (host, rest) = bracketed.split_once(']')?;
            let port = if rest.is_empty() {
                None
            } else {
                Some(rest.strip_prefix(':')?)
            };
            (host, port)
        } else {
            host.split_once(':')
                .map_or((host, None), |(host, port)| (host, Some(port)))
        };
        let port = port.map_or_else(|| Some(scheme.port()), |port| port.parse().ok())?;
        let mut path = decode(path)?;
        if path.is_empty() {
            path.push(b'/');
        }
        // A line of the control connection ends with them.
        let is_line = !path.iter().any(|it| matches!(it, b'\r' | b'\n' | 0));
        (!host.is_empty() && is_line).then(|| Self {
            scheme,
            user,
            host: host.to_owned(),
            port,
            path,
        })
    }

    /// Last component of the path; empty for the root.
    #[must_use]
    pub fn name(&self) -> OsString {
        let path = Path::new(OsStr::from_bytes(&self.path));
        path.file_name().unwrap_or_default().to_owned()
    }

    /// A URL, or the name of a host alone for `ftp://`.
    ///
    /// # Errors
    /// The reason, for one that is none.
    pub fn of_host(argument: &OsStr) -> Result<Self, String> {
        let mut whole = OsString::new();
        if !argument.as_bytes().windows(3).any(|it| it == b"://") {
            whole.push("ftp://");
        }
        whole.push(argument);
        match Place::parse(&whole)? {
            Place::There(url) => Ok(url),
            Place::Here(path) => Err(format!("{}: not a URL", path.display())),
        }
    }

    /// The path as a server has it, relative to the directory of the log-in for `ftp://`.
    pub(super) fn server_path(&self) -> &[u8] {
        match self.scheme {
            Scheme::Rftp => &self.path,
            Scheme::Ftp | Scheme::Ftps => self.path.strip_prefix(b"/").unwrap_or(&self.path),
        }
    }

    /// Whether the path ends with `/`.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.path.ends_with(b"/")
    }
}

fn text(encoded: &str) -> Option<String> {
    let text = String::from_utf8(decode(encoded.as_bytes())?).ok()?;
    (!text.contains(['\r', '\n', '\0'])).then_some(text)
}

fn decode(mut octets: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(octets.len());
    while let [first, rest @ ..] = octets {
        octets = rest;
        if *first != b'%' {
            out.push(*first);
            continue;
        }
        let (digits, rest) = rest.split_first_chunk::<2>()?;
        let digits = std::str::from_utf8(digits).ok()?;
        out.push(u8::from_str_radix(digits, 16).ok()?);
        octets = rest;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<Url> {
        match Place::parse(OsStr::new(text)) {
            Ok(Place::There(url)) => Some(url),
            Ok(Place::Here(_)) => panic!("{text} is here"),
            Err(_) => None,
        }
    }

    #[test]
    fn urls_have_their_parts() {
        let url = parse("rftp://ann:a%40b@[::1]:2122/a%20b/c").unwrap();
        assert_eq!(url.user, Some(("ann".into(), "a@b".into())));
        assert_eq!(
            (url.host.as_str(), url.port, &url.path[..]),
            ("::1", 2122, &b"/a b/c"[..])
        );
        assert_eq!(url.name(), "c");
        let url = parse("rftp://host").unwrap();
        assert_eq!(
            (url.user.clone(), url.port, &url.path[..]),
            (None, 2121, &b"/"[..])
        );
        assert!(url.is_directory());
        for bad in [
            "rftp://",
            "rftp:///x",
            "rftp://h:x/",
            "rftp://h/%",
            "rftp://h/%0a",
            "rftp://h/%zz",
            "ftp://",
            "sftp://h/x",
            "https://h/x",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        let url = parse("ftp://host/%2Fa").unwrap();
        assert_eq!((url.scheme, url.port), (Scheme::Ftp, 21));
        assert_eq!(&url.path[..], b"//a");
        let here = Place::parse(OsStr::new("a:b")).unwrap();
        assert_eq!(here, Place::Here("a:b".into()));
    }
}
