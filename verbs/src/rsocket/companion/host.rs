//! Addresses of the host, and UDP sockets that share a port.

use nix::ifaddrs::getifaddrs;
use std::collections::HashSet;
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

/// Readings of the kernel's tables that have a socket of the port: a reading while other sockets come and go may repeat sockets and leave some out.
const READINGS: usize = 5;
/// Readings at most.
const MOST_READINGS: usize = 32;

/// Whether no other UDP socket of the network namespace has the port: one with the same address, or a more specific one, might be the kernel's choice.
pub(super) fn has_port_alone(port: u16) -> bool {
    let mut sockets = HashSet::new();
    let mut readings = 0;
    for _ in 0..MOST_READINGS {
        let Ok(v4) = fs::read_to_string("/proc/net/udp") else {
            return false;
        };
        let v6 = fs::read_to_string("/proc/net/udp6").unwrap_or_default();
        let found = inodes_in(&v4, port).chain(inodes_in(&v6, port));
        let mut is_empty = true;
        sockets.extend(found.inspect(|_| is_empty = false));
        readings += usize::from(!is_empty);
        if sockets.len() > 1 || readings == READINGS {
            break;
        }
    }
    sockets.len() == 1
}

/// Inodes of the sockets in a table of the kernel's whose local port is this one.
fn inodes_in(text: &str, port: u16) -> impl Iterator<Item = u64> {
    let of_port = move |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (_, found) = fields.nth(1)?.rsplit_once(':')?;
        let inode = fields.nth(7)?.parse().ok()?;
        (u16::from_str_radix(found, 16) == Ok(port)).then_some(inode)
    };
    text.lines().skip(1).filter_map(of_port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::net::UdpSocket;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn sockets_of_a_port_are_found() {
        let text = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n\
             100: 0100007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 77 2 0 0\n\
             101: 00000000:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 78 2 0 0\n\
             102: 00000000:3500 00000000:0035 07 00000000:00000000 00:00000000 00000000     0        0 79 2 0 0\n\
             103: 00000000:3500 00000000:0035 07\nx\n";
        let found = |port| inodes_in(text, port).collect::<Vec<_>>();
        assert_eq!(found(0x35), [77, 78]);
        assert_eq!(found(0x3500), [79]);
        assert_eq!(found(1), []);
    }

    /// The kernel's tables have sockets twice, and not at all, while others come and go.
    #[test]
    fn other_sockets_that_come_and_go_change_nothing() {
        let alone = UdpSocket::bind("127.0.0.1:0").unwrap();
        let shared = UdpSocket::bind("127.0.0.1:0").unwrap();
        let [alone, port] = [&alone, &shared].map(|it| it.local_addr().unwrap().port());
        let _second = UdpSocket::bind(("127.0.0.2", port)).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut all = VecDeque::new();
                while !over.load(Ordering::Relaxed) {
                    all.push_back(UdpSocket::bind("0.0.0.0:0").unwrap());
                    all.truncate(300);
                    if all.len() == 300 {
                        all.drain(..50);
                    }
                }
            });
            let found: Vec<_> = (0..300)
                .map(|_| [has_port_alone(alone), has_port_alone(port)])
                .collect();
            over.store(true, Ordering::Relaxed);
            assert!(found.iter().all(|it| *it == [true, false]), "{found:?}");
        });
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
