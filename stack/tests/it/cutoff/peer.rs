//! The other end, in a process of its own: it carries out orders, which come as messages.

use std::net::IpAddr;
use std::time::Duration;

use dgiwarp::{Access, Config, Destination, Operation, WcOpcode};

use crate::common::node::{Node, SEND};
use crate::common::{Process, given};

/// Octets of an order.
const ORDER: usize = 21;
/// Segments as they are between hosts, also on loopback, so that a message is many of them.
const MTU: u32 = 1500;

/// A device whose messages are cut as between hosts.
pub(crate) fn config() -> Config {
    let mut config = Config::default();
    config.max_mtu = MTU;
    config
}

/// Order to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// Send the order back.
    Answer,
    /// Send as many octets as one message.
    Send,
    /// Write as many octets as one message.
    Write,
}

/// A peer in another process.
pub(crate) struct Remote {
    pub(crate) address: IpAddr,
    pub(crate) qpn: u16,
    pub(crate) rkey: u32,
    pub(crate) remote_addr: u64,
}

impl Remote {
    /// Description of the process, one word after the other.
    pub(crate) fn of(process: &mut Process, address: IpAddr) -> Self {
        let told = process.tells("peer ", Duration::from_secs(20));
        Self::parse(&told, address)
    }

    fn parse(told: &str, address: IpAddr) -> Self {
        let words: Vec<u64> = told.split(' ').map(|word| word.parse().unwrap()).collect();
        Self {
            address,
            qpn: u16::try_from(words[0]).unwrap(),
            rkey: u32::try_from(words[1]).unwrap(),
            remote_addr: words[2],
        }
    }

    pub(crate) fn from_environment() -> Self {
        Self::parse(&given("PEER"), given("PEER_ADDRESS").parse().unwrap())
    }

    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        let told = format!("{} {} {}", self.qpn, self.rkey, self.remote_addr);
        vec![("PEER", told), ("PEER_ADDRESS", self.address.to_string())]
    }

    pub(crate) fn way(&self, node: &Node) -> Destination {
        node.to_port(self.address, self.qpn)
    }

    pub(crate) fn write(&self) -> Operation {
        Operation::WriteRecord {
            rkey: self.rkey,
            remote_addr: self.remote_addr,
            immediate: None,
        }
    }

    pub(crate) fn read(&self, timeout: Duration) -> Operation {
        Operation::Read {
            rkey: self.rkey,
            remote_addr: self.remote_addr,
            timeout: Some(timeout),
        }
    }

    /// Orders the peer to do something with `length` octets at the start of this node's memory. Where there is no route, the
    /// message does not even leave.
    pub(crate) fn order(&self, node: &Node, task: Task, length: usize) {
        let length = u64::try_from(length).unwrap();
        let mut order = [0; ORDER];
        order[0] = match task {
            Task::Answer => 0,
            Task::Send => 1,
            Task::Write => 2,
        };
        order[1..9].copy_from_slice(&length.to_le_bytes());
        order[9..13].copy_from_slice(&node.mr.rkey().to_le_bytes());
        order[13..21].copy_from_slice(&node.mr.addr().to_le_bytes());
        let at = node.memory.len() - ORDER;
        node.memory.write(at, &order);
        node.send(ORDERED, &self.way(node), at..at + ORDER);
        assert_eq!(node.wait().wr_id, ORDERED);
    }
}

/// The number of a work request that carries an order.
const ORDERED: u64 = 0x0bde;

/// Octets of a peer's memory: what is written to it, and the source of the longest message.
pub(crate) const MEMORY: usize = 256 << 20;
/// Receives posted, with their room before the end of the memory.
const RECEIVES: usize = 64;

/// The life of a peer. It ends with its process.
pub(crate) fn run() {
    let node = Node::with(MEMORY, config(), |attr| attr.record_slots = 64);
    let room = |slot: u64| {
        let start = MEMORY - ORDER * RECEIVES + ORDER * usize::try_from(slot).unwrap();
        start..start + ORDER
    };
    for slot in 0..u64::try_from(RECEIVES).unwrap() {
        node.post_recv(slot, room(slot));
    }
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let open = node.pd.register(node.memory.region(), access).unwrap();
    println!("peer {} {} {}", node.qp.qpn(), open.rkey(), open.addr());
    loop {
        let Some(wc) = node.cq.wait(Duration::from_secs(60)).unwrap() else {
            return;
        };
        match wc.opcode {
            WcOpcode::WriteRecord => {
                node.qp.release_record(wc.record());
            }
            WcOpcode::Recv => {
                let order = node.memory.to_vec(room(wc.wr_id).start, ORDER);
                node.post_recv(wc.wr_id, room(wc.wr_id));
                let source = wc.source.unwrap();
                let to = node.to_port(source.ip(), source.port());
                obey(&node, &to, &order);
            }
            WcOpcode::Send | WcOpcode::RdmaWrite => {}
            other => panic!("{other:?}"),
        }
    }
}

fn obey(node: &Node, to: &Destination, order: &[u8]) {
    let length = u64::from_le_bytes(order[1..9].try_into().unwrap());
    let length = usize::try_from(length).unwrap();
    let operation = match order[0] {
        2 => Operation::WriteRecord {
            rkey: u32::from_le_bytes(order[9..13].try_into().unwrap()),
            remote_addr: u64::from_le_bytes(order[13..21].try_into().unwrap()),
            immediate: None,
        },
        _ => SEND,
    };
    node.post(1, operation, to, &[node.mr.sge(..length)])
        .unwrap();
}
