//! Listening sockets of a namespace, read from its `/proc/PID/net` tables.

use std::fs;

/// Kernel's number for a listening TCP socket in `/proc/net/tcp`.
const TCP_LISTEN: &str = "0A";

/// Whether a TCP socket listens, or a UDP socket is bound, on `port` (or, with `None`, on any port) in the network
/// namespace of process `pid`. False too if that process is gone.
#[must_use]
pub fn is_listening(pid: u32, port: Option<u16>) -> bool {
    ["tcp", "tcp6", "udp", "udp6"].iter().any(|table| {
        fs::read_to_string(format!("/proc/{pid}/net/{table}"))
            .is_ok_and(|text| has_listener(&text, table.starts_with("tcp"), port))
    })
}

/// Looks through one table: columns `sl local_address rem_address st …`, addresses as `HEX:PORT` in hexadecimal.
fn has_listener(table: &str, tcp: bool, port: Option<u16>) -> bool {
    table.lines().skip(1).any(|line| {
        let mut columns = line.split_ascii_whitespace();
        let local = columns.nth(1).and_then(|address| address.rsplit_once(':'));
        let state = columns.nth(1);
        let Some((_, local_port)) = local else {
            return false;
        };
        let Ok(local_port) = u16::from_str_radix(local_port, 16) else {
            return false;
        };
        (!tcp || state == Some(TCP_LISTEN)) && port.is_none_or(|port| port == local_port)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1C06 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0000000000000000 100 0 0 10 0
   1: 0100007F:A3F2 0100007F:1C06 01 00000000:00000000 00:00000000 00000000     0        0 1 1 0000000000000000 100 0 0 10 0
";
    const UDP6: &str = "   sl  local_address                         remote_address                        st tx_queue
 7163: 00000000000000000000000000000000:4852 00000000000000000000000000000000:0000 07 00000000:00000000
";

    #[test]
    fn only_listening_tcp_sockets_count() {
        assert!(has_listener(TCP, true, Some(7174)));
        assert!(has_listener(TCP, true, None));
        assert!(
            !has_listener(TCP, true, Some(0xA3F2)),
            "a connection is not a listener"
        );
    }

    #[test]
    fn every_bound_udp_socket_counts() {
        assert!(has_listener(UDP6, false, Some(0x4852)));
        assert!(!has_listener(UDP6, false, Some(0x4853)));
    }

    #[test]
    fn nonsense_is_nobody() {
        assert!(!has_listener("", true, None));
        assert!(!has_listener(
            "head\n 0: zz 00 0A\n 1:\n 2: 00:xyzw 00:00 0A\n",
            true,
            None
        ));
        assert!(!is_listening(u32::MAX, None));
    }

    #[test]
    fn a_real_socket_is_found() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        assert!(is_listening(std::process::id(), Some(port)));
        drop(socket);
        // A child that another test is just starting holds the socket until it executes its program.
        let deadline = crate::clock::now() + std::time::Duration::from_secs(5);
        while is_listening(std::process::id(), Some(port)) {
            assert!(crate::clock::now() < deadline, "still listening");
            crate::clock::pause(std::time::Duration::from_millis(5));
        }
    }
}
