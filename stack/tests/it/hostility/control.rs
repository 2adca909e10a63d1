//! Orders to the other processes, and their reports, beside the queue pairs: words over a socket of the test.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use crate::common::Process;
use crate::common::node::SOON;

fn socket() -> UdpSocket {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

fn encode(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn decode(octets: &[u8]) -> Vec<u64> {
    let words = octets.chunks_exact(8);
    words
        .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
        .collect()
}

/// Reports where orders go, and obeys them for ever.
pub(crate) fn serve(name: &str, mut obey: impl FnMut(&[u64]) -> Vec<u64>) {
    let server = Server::new(name);
    loop {
        server.obey_next(&mut obey);
    }
}

/// Takes orders between other work.
pub(crate) struct Server(UdpSocket);

impl Server {
    pub(crate) fn new(name: &str) -> Self {
        let socket = socket();
        println!("{name} {}", socket.local_addr().unwrap().port());
        Self(socket)
    }

    /// Waits for an order.
    pub(crate) fn obey_next(&self, obey: &mut impl FnMut(&[u64]) -> Vec<u64>) {
        self.0.set_nonblocking(false).unwrap();
        let mut buffer = [0; 64];
        let (length, from) = self.0.recv_from(&mut buffer).unwrap();
        let report = obey(&decode(&buffer[..length]));
        self.0.send_to(&encode(&report), from).unwrap();
    }

    /// Whether there is an order.
    pub(crate) fn is_asked(&self) -> bool {
        self.0.set_nonblocking(true).unwrap();
        self.0.peek(&mut [0]).is_ok()
    }
}

/// Gives orders to a process.
pub(crate) struct Client {
    socket: UdpSocket,
    _process: Process,
}

impl Client {
    pub(crate) fn start(test: &str, role: &str, variables: &[(&str, String)]) -> Self {
        Self::of(Process::start(test, role, variables), role)
    }

    /// To a process that reports its port under `name`.
    pub(crate) fn of(mut process: Process, name: &str) -> Self {
        let port: u16 = process.tells(&format!("{name} "), SOON).parse().unwrap();
        let socket = socket();
        socket
            .connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
            .unwrap();
        socket.set_nonblocking(true).unwrap();
        Self {
            socket,
            _process: process,
        }
    }

    pub(crate) fn order(&self, words: &[u64]) {
        self.socket.send(&encode(words)).unwrap();
    }

    /// The report, if it is there.
    pub(crate) fn report(&self) -> Option<Vec<u64>> {
        let mut buffer = [0; 64];
        let length = self.socket.recv(&mut buffer).ok()?;
        Some(decode(&buffer[..length]))
    }
}
