//! The target, in a process of its own: memory that peers read, and one of the ways in which a program makes progress.

use std::time::Duration;

use dgiwarp::{Access, Buffer, Mr, SameHostMode, Wc, WcOpcode};

use crate::common::node::{Node, SOON};
use crate::common::{given, sleep};

/// Octets that peers may read.
pub(crate) const SOURCE: usize = 1 << 20;
/// Receives of a queue pair.
const RECEIVES: usize = 256;
/// Octets of a receive.
const RECEIVE: usize = 64;

/// Progress of the target's program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It polls its completion queue.
    Polls,
    /// It waits for completions.
    Waits,
    /// It does nothing: the background thread answers.
    Sleeps,
}

impl Progress {
    pub(crate) const ALL: [Self; 3] = [Self::Polls, Self::Waits, Self::Sleeps];
}

/// Serves Reads until its process is ended.
pub(crate) fn run() {
    let progress = given("PROGRESS");
    let progress = Progress::ALL
        .into_iter()
        .find(|it| format!("{it:?}") == progress)
        .unwrap();
    let same_host = match given("SAME_HOST").as_str() {
        "Off" => SameHostMode::Off,
        _ => SameHostMode::Auto,
    };
    let rnic = super::device(same_host);
    let cq = rnic.create_cq(1 << 13).unwrap();
    let [attacked, other] = [(); 2].map(|()| {
        Node::on(rnic.clone(), cq.clone(), RECEIVE * RECEIVES, |attr| {
            attr.qp.max_recv_wr = RECEIVES;
            attr.record_slots = 64;
        })
    });
    let memory = Buffer::zeroed(SOURCE).unwrap();
    let source: Mr = attacked
        .pd
        .register(memory.region(), Access::REMOTE_READ)
        .unwrap();
    for slot in 0..RECEIVES {
        post(&attacked, slot);
        post(&other, slot);
    }
    println!(
        "TARGET {} {} {} {}",
        attacked.qp.qpn(),
        other.qp.qpn(),
        source.rkey(),
        source.addr()
    );
    let take = |wc: &Wc| {
        let node = if wc.qpn == u32::from(other.qp.qpn()) {
            &other
        } else {
            &attacked
        };
        if wc.opcode == WcOpcode::Recv {
            post(node, usize::try_from(wc.wr_id).unwrap());
        }
    };
    let mut completions = [Wc::default(); 16];
    loop {
        match progress {
            Progress::Polls => {
                let count = cq.poll(&mut completions).unwrap();
                completions[..count].iter().for_each(take);
            }
            Progress::Waits => {
                if let Some(wc) = cq.wait(Duration::from_secs(1)).unwrap() {
                    take(&wc);
                }
            }
            Progress::Sleeps => sleep(SOON),
        }
    }
}

fn post(node: &Node, slot: usize) {
    let start = RECEIVE * slot;
    node.post_recv(u64::try_from(slot).unwrap(), start..start + RECEIVE);
}
