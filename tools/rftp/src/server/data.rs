//! Data connections: PASV, EPSV, PORT and EPRT. Nobody but the client's host is connected to or taken.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use crate::tcp::{is_same, watch};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Time for a data connection to come up.
pub(super) const CONNECT: Duration = Duration::from_secs(20);
/// Time without progress after which a data connection is given up.
const STALL: Duration = Duration::from_secs(120);

/// Time without an acknowledgement after which the client's host is gone.
pub(super) const GONE: Duration = Duration::from_secs(5);

/// How the next data connection comes up.
#[derive(Debug, Default)]
pub(super) enum Data {
    /// Not agreed on.
    #[default]
    None,
    /// The client connects.
    Passive(TcpListener),
    /// The server connects.
    Active(SocketAddr),
}

/// Listens for the client at the address of the control connection.
pub(super) fn listen(
    local: IpAddr,
    ports: Option<&RangeInclusive<u16>>,
) -> io::Result<TcpListener> {
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for port in ports.cloned().unwrap_or(0..=0) {
        match TcpListener::bind((local, port)) {
            Ok(listener) => {
                listener.set_nonblocking(true)?;
                return Ok(listener);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl Data {
    /// Brings the connection up.
    pub(super) fn open(self, client: IpAddr) -> io::Result<TcpStream> {
        let stream = match self {
            Self::None => return Err(io::ErrorKind::NotConnected.into()),
            Self::Active(to) => TcpStream::connect_timeout(&to, CONNECT)?,
            Self::Passive(listener) => accept(&listener, client)?,
        };
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(STALL))?;
        stream.set_write_timeout(Some(STALL))?;
        watch(&stream, GONE)?;
        Ok(stream)
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "an edge: a client has so long to connect"
)]
fn accept(listener: &TcpListener, client: IpAddr) -> io::Result<TcpStream> {
    let end = Instant::now() + CONNECT;
    loop {
        match listener.accept() {
            Ok((stream, peer)) if is_same(peer.ip(), client) => return Ok(stream),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                let millis = u16::try_from(left.as_millis() + 1).unwrap_or(u16::MAX);
                let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
                poll(&mut fds, PollTimeout::from(millis))?;
            }
            Err(error) => return Err(error),
        }
    }
}

/// `h1,h2,h3,h4,p1,p2` of PORT.
pub(super) fn parse_port(text: &str) -> Option<SocketAddr> {
    let numbers: Option<Vec<u8>> = text.split(',').map(|it| it.trim().parse().ok()).collect();
    let [a, b, c, d, high, low] = numbers?[..] else {
        return None;
    };
    let port = u16::from_be_bytes([high, low]);
    Some((Ipv4Addr::new(a, b, c, d), port).into())
}

/// `|1|address|port|` of EPRT (RFC 2428), any delimiter.
pub(super) fn parse_eprt(text: &str) -> Option<SocketAddr> {
    let delimiter = text.chars().next()?;
    let fields: Vec<_> = text.split(delimiter).collect();
    let ["", family, address, port, ""] = fields[..] else {
        return None;
    };
    let address: IpAddr = address.parse().ok()?;
    let fits = match family {
        "1" => address.is_ipv4(),
        "2" => address.is_ipv6(),
        _ => false,
    };
    Some(SocketAddr::new(address, port.parse().ok()?)).filter(|_| fits)
}

/// The reply's argument of PASV; `None` for an IPv6 address.
pub(super) fn pasv(address: SocketAddr) -> Option<String> {
    let IpAddr::V4(ip) = address.ip().to_canonical() else {
        return None;
    };
    let [a, b, c, d] = ip.octets();
    let [high, low] = address.port().to_be_bytes();
    Some(format!("{a},{b},{c},{d},{high},{low}"))
}

/// A moment for a lack of descriptors or memory to pass.
#[expect(
    clippy::disallowed_methods,
    reason = "the listener would spin where descriptors are exhausted"
)]
pub(super) fn pause() {
    std::thread::sleep(Duration::from_millis(50));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_the_commands() {
        let four = "127.0.0.1:258".parse().unwrap();
        assert_eq!(parse_port("127,0,0,1,1,2"), Some(four));
        assert_eq!(pasv(four).unwrap(), "127,0,0,1,1,2");
        for bad in ["", "1,2,3,4,5", "1,2,3,4,5,256", "1,2,3,4,5,6,7"] {
            assert_eq!(parse_port(bad), None, "{bad}");
        }
        assert_eq!(parse_eprt("|1|127.0.0.1|258|"), Some(four));
        assert_eq!(
            parse_eprt("!2!::1!258!"),
            Some("[::1]:258".parse().unwrap())
        );
        for bad in [
            "",
            "|1|::1|258|",
            "|2|::1|70000|",
            "|3|::1|1|",
            "|1|127.0.0.1|258",
            "éé",
        ] {
            assert_eq!(parse_eprt(bad), None, "{bad}");
        }
        assert_eq!(pasv("[::1]:1".parse().unwrap()), None);
        assert!(is_same("::ffff:127.0.0.1".parse().unwrap(), four.ip()));
    }
}
