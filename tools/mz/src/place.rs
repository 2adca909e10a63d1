//! Addresses of ends.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};

use dgiwarp_transfer::Port;
use dgiwarp_transfer_cli::{Carriage, Failed};

/// Port of the end that listens.
pub const PORT: u16 = 2120;

/// Listens at an address; without one at all of IPv6 and IPv4.
pub(crate) fn listen(
    carriage: &Carriage,
    address: Option<SocketAddr>,
    port: u16,
) -> Result<(Port, SocketAddr), Failed> {
    match address {
        Some(address) => carriage.listen(address),
        // A host without IPv6.
        None => carriage
            .listen((Ipv6Addr::UNSPECIFIED, port).into())
            .or_else(|_| carriage.listen((Ipv4Addr::UNSPECIFIED, port).into())),
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
