//! Addresses of ends, ways to them, and failures.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};

use dgiwarp::Rnic;
use dgiwarp_transfer::{Connection, Error, Options, Port, rc_config};

/// Port of the end that listens.
pub const PORT: u16 = 2120;

/// How data moves, and by how much memory.
#[derive(Debug, Clone, Copy)]
pub struct Carriage {
    /// A TCP connection carries the data instead of a queue pair.
    pub tcp: bool,
    /// Sizes of the session.
    pub options: Options,
}

/// A transfer that failed, wholly or for some entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failed {
    /// The command line makes no sense.
    Usage(String),
    /// The transfer ended early.
    Session(String),
    /// Some entries failed, each of which was reported.
    Entries(u64),
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) | Self::Session(text) => f.write_str(text),
            Self::Entries(count) => write!(f, "{count} entries failed"),
        }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        let hint = match &error {
            Error::Carrier(_) | Error::Silent | Error::Ended { .. } | Error::Cancelled => {
                "; the same command goes on from there"
            }
            _ => "",
        };
        Self::Session(format!("{error}{hint}"))
    }
}

impl Carriage {
    /// Connects to the first address that answers.
    pub(crate) fn dial(&self, addresses: &[SocketAddr]) -> Result<Connection, Failed> {
        let rnic = self.rnic()?;
        let mut failed = Failed::Usage("the host has no address".into());
        for address in addresses {
            let connected = match &rnic {
                Some(rnic) => Connection::rc(rnic, *address),
                None => Connection::tcp(*address),
            };
            match connected {
                Ok(connection) => return Ok(connection),
                Err(error) => failed = Failed::Session(error.to_string()),
            }
        }
        Err(failed)
    }

    /// Listens at an address; without one at all of IPv6 and IPv4.
    pub(crate) fn listen(
        &self,
        address: Option<SocketAddr>,
        port: u16,
    ) -> Result<(Port, SocketAddr), Failed> {
        let rnic = self.rnic()?;
        let open = |address: SocketAddr| {
            let port = match &rnic {
                Some(rnic) => Port::rc(rnic, address),
                None => Port::tcp(address),
            };
            let opened = port.and_then(|port| {
                let local = port.local_addr()?;
                Ok((port, local))
            });
            opened.map_err(|error| Failed::Session(format!("{address}: {error}")))
        };
        match address {
            Some(address) => open(address),
            // A host without IPv6.
            None => open((Ipv6Addr::UNSPECIFIED, port).into())
                .or_else(|_| open((Ipv4Addr::UNSPECIFIED, port).into())),
        }
    }

    fn rnic(&self) -> Result<Option<Rnic>, Failed> {
        if self.tcp {
            return Ok(None);
        }
        let rnic = Rnic::open(rc_config());
        rnic.map(Some)
            .map_err(|error| Failed::Session(error.to_string()))
    }
}

/// `ADDRESS` or `ADDRESS:PORT` of this host, IPv6 addresses with a port in brackets.
///
/// # Errors
/// The reason.
pub fn listen_address(text: &str, port: u16) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok((address, port).into());
    }
    text.parse()
        .map_err(|_| format!("{text}: not ADDRESS or ADDRESS:PORT"))
}

/// Addresses of `HOST`, `HOST:PORT`, `[ADDRESS]:PORT` or an address.
///
/// # Errors
/// The reason.
pub fn peer_addresses(text: &str) -> Result<Vec<SocketAddr>, String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(vec![(address, PORT).into()]);
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => {
            let port = port.parse().map_err(|_| format!("{text}: no port"))?;
            (host, port)
        }
        None => (text, PORT),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() || host.contains('/') {
        return Err(format!("{text}: not HOST or HOST:PORT"));
    }
    let found = (host, port).to_socket_addrs();
    Ok(found.map_err(|error| format!("{text}: {error}"))?.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_with_and_without_port() {
        let four: SocketAddr = "127.0.0.1:9".parse().unwrap();
        assert_eq!(listen_address("127.0.0.1", 9), Ok(four));
        assert_eq!(listen_address("127.0.0.1:9", 1), Ok(four));
        assert_eq!(listen_address("::1", 9), Ok("[::1]:9".parse().unwrap()));
        assert!(listen_address("host", 9).is_err());
        assert_eq!(peer_addresses("127.0.0.1:9").unwrap(), [four]);
        assert_eq!(
            peer_addresses("[::1]:9").unwrap(),
            ["[::1]:9".parse().unwrap()]
        );
        assert_eq!(
            peer_addresses("::1").unwrap(),
            ["[::1]:2120".parse().unwrap()]
        );
        for bad in ["127.0.0.1:x", ":9", "a/b", "127.0.0.1:70000"] {
            assert!(peer_addresses(bad).is_err(), "{bad}");
        }
    }
}
