//! Addresses of programs that speak HTTP/2.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::str::FromStr;
use std::task::{Context, Poll};

use nix::sys::stat::{Mode, umask};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// Prefix of a path, as gRPC has it.
const UNIX: &str = "unix:";
/// Bits of the mode that the socket does not get: others than its owner do not connect.
const NOT_OWNER: Mode = Mode::from_bits_truncate(0o177);

/// Address of a program, at this end or another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "neither unix:PATH nor ADDRESS:PORT".to_owned();
        match text.strip_prefix(UNIX) {
            Some("") => Err(wrong()),
            Some(path) => Ok(Self::Unix(PathBuf::from(
                path.strip_prefix("//").unwrap_or(path),
            ))),
            None => text.parse().map(Self::Tcp).map_err(|_| wrong()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
            Self::Tcp(address) => address.fmt(f),
        }
    }
}

/// Octets in both directions.
trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection of either kind.
pub(crate) struct Stream(Box<dyn Duplex>);

impl Address {
    pub(crate) async fn connect(&self) -> io::Result<Stream> {
        Ok(match self {
            Self::Unix(path) => Stream(Box::new(UnixStream::connect(path).await?)),
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Stream(Box::new(stream))
            }
        })
    }

    /// Listens, also where a socket is left of a program that is gone.
    pub(crate) async fn listen(&self) -> io::Result<Listener> {
        match self {
            Self::Tcp(address) => Ok(Listener::Tcp(TcpListener::bind(address).await?)),
            Self::Unix(path) => {
                remove_abandoned(path);
                let before = umask(NOT_OWNER);
                let bound = UnixListener::bind(path);
                umask(before);
                Ok(Listener::Unix(bound?, path.clone()))
            }
        }
    }
}

/// Removes a socket that no program listens at.
fn remove_abandoned(path: &Path) {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
    let refuses = || {
        let connected = std::os::unix::net::UnixStream::connect(path);
        connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    if is_socket && refuses() {
        // Binding reports why it is still there.
        let _ = std::fs::remove_file(path);
    }
}

/// Socket that programs connect to. A path is removed with it.
#[derive(Debug)]
pub(crate) enum Listener {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
}

impl Listener {
    pub(crate) fn address(&self) -> io::Result<Address> {
        match self {
            Self::Unix(_, path) => Ok(Address::Unix(path.clone())),
            Self::Tcp(listener) => listener.local_addr().map(Address::Tcp),
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<Stream> {
        Ok(match self {
            Self::Unix(listener, _) => Stream(Box::new(listener.accept().await?.0)),
            Self::Tcp(listener) => {
                let stream = listener.accept().await?.0;
                stream.set_nodelay(true)?;
                Stream(Box::new(stream))
            }
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        octets: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, octets)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        let path = |text: &str| Address::Unix(PathBuf::from(text));
        for (text, address) in [
            ("unix:/run/a", path("/run/a")),
            ("unix:///run/a", path("/run/a")),
            ("unix:a", path("a")),
            ("127.0.0.1:50", Address::Tcp(([127, 0, 0, 1], 50).into())),
        ] {
            assert_eq!(text.parse(), Ok(address), "{text}");
        }
        for text in [
            "",
            "unix:",
            "/run/a",
            "localhost",
            "localhost:50",
            "1.2.3.4",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
        assert_eq!(path("/run/a").to_string(), "unix:/run/a");
    }

    #[tokio::test]
    async fn an_abandoned_socket_is_replaced_and_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let address = Address::Unix(path.clone());
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let listener = address.listen().await.unwrap();
        assert!(address.listen().await.is_err(), "it is in use");
        drop(listener);
        assert!(!path.exists());
        std::fs::write(&path, "kept").unwrap();
        assert!(address.listen().await.is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"kept");
    }
}
