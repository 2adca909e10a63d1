//! Short Sends through memory that both ends share do what all others do, and nothing else.

use super::*;
use crate::sq_drain::SqDrain;
use crate::types::ShortData;
use dgiwarp_llp_udp::Format;
use dgiwarp_rdmap::datagram::Cookie;
use std::net::IpAddr;

/// A Send that is posted.
#[derive(Debug, Clone)]
struct Short {
    length: usize,
    inline: bool,
    bad_key: bool,
    signaled: bool,
    solicited: bool,
    mtu: u32,
    /// Whether memory has room.
    room: bool,
}

fn short() -> impl Strategy<Value = Short> {
    let length = prop_oneof![0..80usize, 1000..1100usize, Just(1024), Just(1025)];
    let mtu = prop_oneof![Just(1500u32), Just(600), Just(65_535)];
    let flags = (any::<[bool; 3]>(), 0..8u8, 0..6u8);
    (length, mtu, flags).prop_map(|(length, mtu, (flags, bad_key, room))| {
        let [inline, signaled, solicited] = flags;
        Short {
            length,
            inline,
            bad_key: bad_key == 0,
            signaled,
            solicited,
            mtu,
            room: room > 0,
        }
    })
}

impl End {
    /// Posts it and has it sent at once, where that is possible and wanted. Returns its datagrams.
    fn post_any(&mut self, wr_id: u64, short: &Short, at_once: bool) -> (Vec<Vec<u8>>, bool) {
        let route = path(short.mtu);
        let offset = 100 + usize::try_from(wr_id).unwrap();
        let mut sge = self.sge(offset, short.length);
        sge.lkey ^= u32::from(short.bad_key && !short.inline);
        let octets = self.buffer.to_vec(offset, short.length);
        let wr = ShortSend {
            wr_id,
            peer: Peer::ip("192.0.2.2:2".parse().unwrap()),
            route: &route,
            qkey: QKEY,
            data: if short.inline {
                ShortData::Inline(&octets)
            } else {
                ShortData::Sge(sge)
            },
            signaled: short.signaled,
            solicited: short.solicited,
        };
        let mut datagrams = Vec::new();
        let send = |octets: &[u8], train: &Train| {
            assert_eq!((train.len(), train.octets()), (1, octets.len()));
            if short.room {
                datagrams.push(octets.to_vec());
            }
            short.room
        };
        if at_once
            && self
                .engine
                .post_short(now(), &wr, &self.mrs, &mut self.wcs, send)
        {
            return (datagrams, true);
        }
        assert!(datagrams.is_empty());
        self.engine.accept(SendWqe {
            signaled: short.signaled,
            solicited: short.solicited,
            ..wqe(wr_id, SEND, &route, &[sge])
        });
        let mut network = Network::default();
        assert_eq!(self.transmit(&mut network), Transmitted::All);
        (network.datagrams, false)
    }
}

proptest! {
    #[test]
    fn what_is_posted_at_once_leaves_as_what_is_queued(
        shorts in proptest::collection::vec(short(), 1..20),
    ) {
        let [mut one, mut other] = [End::new(1), End::new(1)];
        let octets: Vec<u8> = (0..4096u32).map(|i| (i * 7 % 251) as u8).collect();
        for end in [&one, &other] {
            end.buffer.write(0, &octets);
        }
        for (wr_id, short) in (0..).zip(&shorts) {
            let (sent, at_once) = one.post_any(wr_id, short, true);
            let (expected, _) = other.post_any(wr_id, short, false);
            prop_assert_eq!(sent, expected);
            let fits = short.length <= 1024 && short.length + 70 <= short.mtu as usize;
            prop_assert_eq!(at_once, fits && short.room && (short.inline || !short.bad_key));
        }
        prop_assert_eq!(&one.wcs.sent, &other.wcs.sent);
        prop_assert_eq!(one.wcs.retired, other.wcs.retired);
        prop_assert_eq!(one.engine.counters(), other.engine.counters());
    }
}

#[test]
fn nothing_is_posted_at_once_behind_others_or_against_a_rate() {
    let plain = Short {
        length: 64,
        inline: false,
        bad_key: false,
        signaled: true,
        solicited: false,
        mtu: 1500,
        room: true,
    };
    let mut end = End::new(1);
    assert!(end.post_any(1, &plain, true).1);
    // Behind a message that the network has not taken.
    let mut full = Network {
        outcomes: [SendOutcome::WouldBlock].into(),
        ..Network::default()
    };
    let sges = [end.sge(0, 64)];
    end.post(2, SEND, &path(1500), &sges);
    assert_eq!(end.transmit(&mut full), Transmitted::Blocked);
    let (both, at_once) = end.post_any(3, &plain, true);
    assert_eq!((both.len(), at_once), (2, false));
    assert!(end.post_any(4, &plain, true).1);
    // While the queue is drained.
    let mut drain = SqDrain::Off;
    drain.begin(false);
    end.engine.set_sq_drain(drain, &mut end.wcs);
    assert_eq!(end.post_any(5, &plain, true), (vec![], false));
    end.engine.set_sq_drain(SqDrain::Off, &mut end.wcs);
    end.transmit(&mut Network::default());
    // A rate counts all messages.
    end.engine.set_max_rate(1 << 30);
    assert!(!end.post_any(6, &plain, true).1);
    end.engine.set_max_rate(0);
    assert!(end.post_any(7, &plain, true).1);
    let ids: Vec<_> = end.wcs.sent.iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [1, 2, 3, 4, 5, 6, 7]);
}

/// A receive, and a datagram behind it.
#[derive(Debug, Clone)]
struct Step {
    /// Lengths of its elements.
    receive: Option<Vec<usize>>,
    bad_key: bool,
    length: usize,
    immediate: bool,
    solicited: bool,
    qkey: u32,
    /// An octet is another one.
    flipped: Option<(usize, u8)>,
    /// The datagram ends early.
    cut: usize,
}

fn step() -> impl Strategy<Value = Step> {
    let element = prop_oneof![4 => 40..300usize, 1 => Just(0), 1 => 0..60usize];
    let elements = prop_oneof![
        4 => proptest::collection::vec(element.clone(), 1),
        1 => proptest::collection::vec(element, 0..4),
    ];
    let receive = proptest::option::weighted(0.9, elements);
    let flags = (any::<[bool; 2]>(), 0..8u8, 0..12u8);
    let flipped = proptest::option::weighted(0.2, (0..40usize, 1..=255u8));
    let cut = prop_oneof![9 => Just(0usize), 1 => 0..40usize];
    (receive, flags, 0..200usize, flipped, cut).prop_map(
        |(receive, (flags, key, qkey), length, flipped, cut)| Step {
            receive,
            bad_key: key == 0,
            length,
            immediate: flags[0] && key % 3 == 0,
            solicited: flags[1],
            qkey: if qkey == 0 { QKEY + 1 } else { QKEY },
            flipped,
            cut,
        },
    )
}

/// A receiver whose peer shares memory with it.
fn receiver(grh: bool) -> End {
    let mut end = End::new(2);
    let config = UdConfig {
        grh,
        ..end.engine.config
    };
    end.engine = UdEngine::new(config);
    end
}

fn from() -> Peer {
    Peer::ip("192.0.2.1:1".parse().unwrap())
}

impl End {
    /// Receives a datagram by memory, at once where that is possible and wanted. Returns whether it was.
    fn receive_any(&mut self, datagram: &[u8], to: Option<IpAddr>, at_once: bool) -> bool {
        let tables = Tables {
            mrs: &self.mrs,
            recv_queue: &self.recv_queue,
        };
        if at_once
            && self
                .engine
                .receive_sole_send((from(), to), datagram, tables, &mut self.wcs)
        {
            return true;
        }
        let arrival = Arrival {
            by_memory: true,
            from: from(),
            to,
            to_group: false,
            octets: datagram,
            stride: datagram.len(),
        };
        self.engine
            .handle_input(now(), arrival, tables, &mut self.wcs);
        false
    }
}

proptest! {
    #[test]
    fn what_is_received_at_once_is_what_others_receive(
        steps in proptest::collection::vec(step(), 1..30),
        grh in any::<bool>(),
        known in 0..8u8,
        waits in any::<bool>(),
    ) {
        let to = (known > 0).then(|| [192, 0, 2, 2].into());
        let [mut one, mut other] = [receiver(grh), receiver(grh)];
        for end in [&mut one, &mut other] {
            end.engine.await_first_message(waits);
        }
        let mut source = End::new(1);
        source.buffer.write(0, &(0..4096u32).map(|i| (i % 253) as u8).collect::<Vec<_>>());
        let mut any = false;
        for (place, step) in steps.iter().enumerate() {
            let number = place as u64;
            if let Some(lengths) = &step.receive {
                for end in [&one, &other] {
                    let sges: Vec<_> = (1..)
                        .zip(lengths)
                        .map(|(at, length)| {
                            let mut sge = end.sge(2000 * place + at * 400, *length);
                            sge.lkey ^= u32::from(step.bad_key);
                            sge
                        })
                        .collect();
                    let wr = RecvWr { wr_id: number, sges: &sges };
                    end.recv_queue.post(&wr).unwrap();
                }
            }
            let operation = Operation::Send { immediate: step.immediate.then_some(9) };
            let sges = [source.sge(place, step.length)];
            source.engine.accept(SendWqe {
                qkey: step.qkey,
                solicited: step.solicited,
                ..wqe(number, operation, &path(1500), &sges)
            });
            let mut network = Network::default();
            source.transmit(&mut network);
            let mut datagram = network.datagrams.pop().unwrap();
            if let Some((at, flip)) = step.flipped && let Some(octet) = datagram.get_mut(at) {
                *octet ^= flip;
            }
            datagram.truncate(datagram.len().saturating_sub(step.cut).max(1));
            any |= one.receive_any(&datagram, to, true);
            other.receive_any(&datagram, to, false);
        }
        prop_assert_eq!(&one.wcs.received, &other.wcs.received);
        prop_assert_eq!(&one.wcs.events, &other.wcs.events);
        prop_assert_eq!(one.engine.counters(), other.engine.counters());
        prop_assert_eq!(one.recv_queue.len(), other.recv_queue.len());
        prop_assert!(one.buffer.to_vec(0, MEMORY) == other.buffer.to_vec(0, MEMORY));
        prop_assert!(!any || !one.wcs.received.is_empty());
    }
}

#[test]
fn a_plain_send_is_received_at_once_and_others_are_not() {
    let to = Some([192, 0, 2, 2].into());
    let cases: [(&str, bool, Operation, &[usize], usize); 5] = [
        ("plain", true, SEND, &[140], 100),
        ("no octet", true, SEND, &[40], 0),
        ("too short a receive", false, SEND, &[139], 100),
        ("two elements", false, SEND, &[100, 100], 100),
        (
            "immediate",
            false,
            Operation::Send { immediate: Some(1) },
            &[140],
            100,
        ),
    ];
    for (name, expected, operation, elements, length) in cases {
        let mut end = receiver(true);
        let mut source = End::new(1);
        let sges: Vec<_> = elements.iter().map(|length| end.sge(0, *length)).collect();
        end.recv_queue
            .post(&RecvWr {
                wr_id: 1,
                sges: &sges,
            })
            .unwrap();
        source.post(1, operation, &path(1500), &[source.sge(0, length)]);
        let mut network = Network::default();
        source.transmit(&mut network);
        let received = end.receive_any(&network.datagrams[0], to, true);
        assert_eq!(received, expected, "{name}");
    }
}

/// Octets of a cookie are none of the message.
#[test]
fn a_send_with_a_cookie_is_not_received_at_once() {
    let mut end = receiver(false);
    let sges = [end.sge(0, 200)];
    end.recv_queue
        .post(&RecvWr {
            wr_id: 1,
            sges: &sges,
        })
        .unwrap();
    let mut source = End::new(1);
    source.post(1, SEND, &path(1500), &[source.sge(0, 100)]);
    let mut network = Network::default();
    source.transmit(&mut network);
    let mut datagram = network.datagrams.pop().unwrap();
    datagram[0] = Format::Cookie.emit(datagram[0]);
    assert!(!end.receive_any(&datagram, None, true));
    assert_eq!(end.wcs.received[0].byte_len as usize, 100 - Cookie::LEN);
}
