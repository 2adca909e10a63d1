//! The target: one thread that polls, as a program does, for what the good peer and the attacker send.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use dgiwarp::{
    Access, Buffer, Config, Cq, Destination, DropReason, Mr, Operation, QpCounters, Rnic, UdQp, Wc,
    WcOpcode, WcStatus,
};

use super::good::{CONTENT, CREDIT, SEND_LENGTH, SLOTS, WRITE};
use crate::common::node::{Node, SOON};
use crate::common::{now, overruns, waiting};

/// The Q_Key, which the attacker has too.
const QKEY: u32 = 0x5eed;
/// Receives of a queue pair.
const RECEIVES: usize = 256;
/// Without a new datagram for this long, none is under way.
const SETTLED: Duration = Duration::from_millis(20);

pub(crate) struct Target {
    cq: Cq,
    /// Where the good peer and the attacker send to.
    attacked: Node,
    /// Where the attacker sends to when it behaves.
    other: Node,
    /// Memory that the attacker may write to.
    prey: (Buffer, Mr),
    way_to_good: Option<Destination>,
    good_messages: u32,
    good_octets: u64,
}

/// Counts of the datagrams for the attacked queue pair.
#[derive(Debug, Clone)]
pub(crate) struct Ledger {
    pub(crate) counters: QpCounters,
    /// Lost in full sockets.
    pub(crate) overruns: u64,
}

impl Ledger {
    /// All datagrams that ever came.
    pub(crate) fn datagrams(&self) -> u64 {
        // These two count messages whose segments were used.
        let messages = [
            DropReason::ReassemblyTimeout,
            DropReason::ReassemblySuperseded,
        ]
        .map(|reason| self.counters.dropped(reason));
        self.counters.segments_received + self.counters.dropped_in_all() + self.overruns
            - messages.iter().sum::<u64>()
    }
}

impl Target {
    pub(crate) fn new() -> Self {
        let rnic = Rnic::open(Config::default()).unwrap();
        let cq = rnic.create_cq(1 << 14).unwrap();
        let room = WRITE * SLOTS + SEND_LENGTH * RECEIVES;
        let [attacked, other] = [(); 2].map(|()| {
            Node::on(rnic.clone(), cq.clone(), room, |attr| {
                attr.qkey = QKEY;
                attr.record_slots = 256;
                attr.qp.max_recv_wr = RECEIVES;
            })
        });
        let buffer = Buffer::zeroed(1 << 30).unwrap();
        let mr = attacked
            .pd
            .register(buffer.region(), Access::REMOTE_READ | Access::REMOTE_WRITE)
            .unwrap();
        let this = Self {
            cq,
            attacked,
            other,
            prey: (buffer, mr),
            way_to_good: None,
            good_messages: 0,
            good_octets: 0,
        };
        for slot in 0..u64::try_from(RECEIVES).unwrap() {
            post(&this.attacked, slot);
            post(&this.other, slot);
        }
        this
    }

    /// Addresses and keys for the good peer.
    pub(crate) fn for_good(&self) -> String {
        let mr = &self.attacked.mr;
        format!(
            "{} {} {QKEY} {}",
            mr.rkey(),
            mr.addr(),
            self.attacked.qp.qpn()
        )
    }

    /// Addresses and keys that the attacker found out.
    pub(crate) fn for_attacker(&self) -> String {
        let mr = &self.prey.1;
        format!("{} {} {QKEY}", mr.rkey(), mr.addr())
    }

    pub(crate) fn attacked(&self) -> &UdQp {
        &self.attacked.qp
    }

    pub(crate) fn other(&self) -> &UdQp {
        &self.other.qp
    }

    pub(crate) fn meet(&mut self, good: u16) {
        self.way_to_good = Some(Destination {
            qkey: QKEY,
            ..self.attacked.to_port(Ipv4Addr::LOCALHOST.into(), good)
        });
    }

    /// Works until `done`. Returns the good peer's octets per second meanwhile.
    pub(crate) fn work_until(&mut self, mut done: impl FnMut() -> bool) -> f64 {
        let began = now();
        let before = self.good_octets;
        let mut completions = [Wc::default(); 16];
        let mut polls = 0_u32;
        loop {
            let count = self.cq.poll(&mut completions).unwrap();
            completions[..count].iter().for_each(|wc| self.take(wc));
            polls += 1;
            if polls.is_multiple_of(64) {
                if done() {
                    break;
                }
                assert!(now() < began + SOON, "this takes too long");
            }
        }
        let octets = u32::try_from(self.good_octets - before).unwrap();
        f64::from(octets) / (now() - began).as_secs_f64()
    }

    pub(crate) fn work_for(&mut self, time: Duration) -> f64 {
        let until = now() + time;
        self.work_until(|| now() >= until)
    }

    fn take(&mut self, wc: &Wc) {
        let node = if wc.qpn == u32::from(self.attacked.qp.qpn()) {
            &self.attacked
        } else {
            &self.other
        };
        assert_eq!(wc.status, WcStatus::Success);
        match wc.opcode {
            WcOpcode::WriteRecord => assert!(node.qp.release_record(wc.record())),
            WcOpcode::Recv => post(node, wc.wr_id),
            WcOpcode::Send | WcOpcode::RdmaWrite => return,
            other => panic!("{other:?}"),
        }
        let Some(way) = &self.way_to_good else {
            return;
        };
        if wc.source.is_some_and(|source| source.port() == way.qpn) {
            self.good_octets += u64::from(wc.byte_len);
            self.good_messages += 1;
            if self.good_messages.is_multiple_of(CREDIT) {
                let credit = Operation::Send { immediate: None };
                self.attacked.post(0, credit, way, &[]).unwrap();
            }
        }
    }

    /// Works until nothing is under way any more. Returns what came so far.
    pub(crate) fn settle(&mut self) -> Ledger {
        let mut quiet_since: Option<(u64, Instant)> = None;
        let port = self.attacked.qp.qpn();
        loop {
            self.work_for(Duration::from_millis(2));
            let ledger = Ledger {
                counters: self.attacked.qp.counters(),
                overruns: overruns(port),
            };
            match quiet_since {
                Some((datagrams, since))
                    if datagrams == ledger.datagrams() && waiting(port) == 0 =>
                {
                    if now() - since > SETTLED {
                        return ledger;
                    }
                }
                Some(_) | None => quiet_since = Some((ledger.datagrams(), now())),
            }
        }
    }

    /// The good peer's memory is as it wrote it.
    pub(crate) fn check_memory(&self) {
        let written = self.attacked.memory.to_vec(0, WRITE * SLOTS);
        assert!(written.iter().all(|octet| *octet == CONTENT));
    }
}

fn post(node: &Node, slot: u64) {
    let start = WRITE * SLOTS + SEND_LENGTH * usize::try_from(slot).unwrap();
    node.post_recv(slot, start..start + SEND_LENGTH);
}
