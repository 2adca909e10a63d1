//! The good peer, in a process of its own: Write-Records and Sends by turns, with a window that the target's credits move.

use std::net::Ipv4Addr;
use std::time::Duration;

use dgiwarp::{Config, Destination, Operation, WcOpcode, WcStatus};

use super::control::Server;
use crate::common::node::Node;
use crate::common::{given, now};

/// Messages that may be under way.
const WINDOW: u32 = 32;
/// Messages for which the target gives one credit.
pub(crate) const CREDIT: u32 = 8;
/// Octets of a Write-Record, and of a Send.
pub(crate) const WRITE: usize = 4096;
pub(crate) const SEND_LENGTH: usize = 1024;
/// Places in the target's memory that are written in turn.
pub(crate) const SLOTS: usize = 64;
/// Without a credit for so long, what was under way is taken for lost.
const GIVE_UP: Duration = Duration::from_millis(20);

/// Value of every octet of the good peer's Write-Records.
pub(crate) const CONTENT: u8 = 0xa5;

pub(crate) fn run() {
    let words: Vec<u64> = given("TARGET")
        .split(' ')
        .map(|word| word.parse().unwrap())
        .collect();
    let node = Node::with(WRITE + 1024, Config::default(), |attr| {
        attr.qkey = u32::try_from(words[2]).unwrap();
    });
    node.memory.write(0, &[CONTENT; WRITE]);
    let to = Destination {
        qkey: node.qp.qkey(),
        ..node.to_port(Ipv4Addr::LOCALHOST.into(), u16::try_from(words[3]).unwrap())
    };
    println!("port {}", node.qp.qpn());
    let server = Server::new("good");
    (0..128).for_each(|_| node.post_recv(0, WRITE..WRITE + 64));
    let write = |number: usize| Operation::WriteRecord {
        rkey: u32::try_from(words[0]).unwrap(),
        remote_addr: words[1] + u64::try_from(number % SLOTS * WRITE).unwrap(),
        immediate: Some(0),
    };
    let send = Operation::Send { immediate: None };
    let (mut under_way, mut last_credit) = (0_u32, now());
    for number in 0.. {
        // A pause: reports what was sent, and waits for the next order.
        if number % 64 == 0 && server.is_asked() {
            let mut report = |_: &[u64]| vec![node.qp.counters().segments_sent];
            server.obey_next(&mut report);
            server.obey_next(&mut report);
        }
        loop {
            match node.cq.poll_one().unwrap() {
                Some(wc) if wc.opcode == WcOpcode::Recv => {
                    assert_eq!(wc.status, WcStatus::Success);
                    node.post_recv(0, WRITE..WRITE + 64);
                    under_way = under_way.saturating_sub(CREDIT);
                    last_credit = now();
                }
                Some(wc) => assert_eq!(wc.status, WcStatus::Success),
                None if under_way < WINDOW => break,
                None if now() - last_credit > GIVE_UP => {
                    (under_way, last_credit) = (0, now());
                }
                None => {}
            }
        }
        let (operation, length) = if number % 2 == 0 {
            (write(number / 2), WRITE)
        } else {
            (send, SEND_LENGTH)
        };
        node.post(1, operation, &to, &[node.mr.sge(..length)])
            .unwrap();
        under_way += 1;
    }
}
