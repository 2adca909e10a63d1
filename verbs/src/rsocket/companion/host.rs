//! Addresses of the host, and UDP sockets that share a port.

use nix::ifaddrs::getifaddrs;
use std::fs;
use std::net::IpAddr;

/// Whether an address is one of this network namespace's.
pub(super) fn is_own(ip: IpAddr) -> bool {
    if ip.is_loopback() {
        return true;
    }
    let Ok(mut all) = getifaddrs() else {
        return false;
    };
    all.any(|it| {
        let address = it.address;
        address.is_some_and(|address| {
            let v4 = address.as_sockaddr_in().map(|it| IpAddr::V4(it.ip()));
            let v6 = address.as_sockaddr_in6().map(|it| IpAddr::V6(it.ip()));
            v4.or(v6) == Some(ip)
        })
    })
}

/// Whether no other UDP socket of the network namespace has the port: one with the same address, or a more specific one, might be the kernel's choice.
pub(super) fn has_port_alone(port: u16) -> bool {
    let count = |path: &str| {
        let text = fs::read_to_string(path).ok();
        text.map(|text| count_in(&text, port))
    };
    match (count("/proc/net/udp"), count("/proc/net/udp6")) {
        (Some(v4), v6) => v4 + v6.unwrap_or(0) == 1,
        (None, _) => false,
    }
}

/// Sockets in a table of the kernel's whose local port is this one.
fn count_in(text: &str, port: u16) -> usize {
    let local = |line: &str| {
        let address = line.split_ascii_whitespace().nth(1)?;
        let (_, port) = address.rsplit_once(':')?;
        u16::from_str_radix(port, 16).ok()
    };
    let lines = text.lines().skip(1);
    lines.filter(|line| local(line) == Some(port)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn sockets_of_a_port_are_counted() {
        let text = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n\
             100: 0100007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0\n\
             101: 00000000:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0\n\
             102: 00000000:3500 00000000:0035 07\nx\n";
        assert_eq!(count_in(text, 0x35), 2);
        assert_eq!(count_in(text, 0x3500), 1);
        assert_eq!(count_in(text, 1), 0);
    }

    #[test]
    fn addresses_of_others_are_not_own() {
        for (ip, own) in [("127.0.0.9", true), ("::1", true), ("192.0.2.77", false)] {
            assert_eq!(is_own(ip.parse().unwrap()), own, "{ip}");
        }
        let routes = UdpSocket::bind("0.0.0.0:0").unwrap();
        // Nothing is sent.
        if routes.connect("192.0.2.77:9").is_ok() {
            assert!(is_own(routes.local_addr().unwrap().ip()));
        }
    }

    #[test]
    fn a_second_socket_is_a_rival() {
        let first = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = first.local_addr().unwrap().port();
        assert!(has_port_alone(port));
        let _second = UdpSocket::bind(("127.0.0.2", port)).unwrap();
        assert!(!has_port_alone(port));
    }
}
