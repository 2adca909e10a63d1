//! Messages through memory that both ends share: short ones without framing and acknowledgements, long ones placed from where they lie.

use super::*;
use crate::connected::{DirectFront, DirectInput, InlineOctets, ShortWr};
use crate::types::ShortData;
use dgiwarp_ddp::{STag, TaggedOffset};
use dgiwarp_memory::Piece;
use proptest::prelude::*;

/// Memory that takes all.
#[derive(Debug, Default)]
struct Lane(Vec<u8>);

impl StreamSink for Lane {
    fn send(&mut self, _: &[Piece<'_>]) -> Taken {
        Taken::WouldBlock
    }

    fn send_whole(&mut self, pieces: &[Piece<'_>]) -> bool {
        for piece in pieces {
            match piece {
                Piece::Bytes(octets) => self.0.extend_from_slice(octets),
                Piece::Region(slice) => {
                    let at = self.0.len();
                    self.0.resize(at + slice.len(), 0);
                    slice.copy_to(&mut self.0[at..]);
                }
            }
        }
        true
    }
}

/// Posts a Send of 64 octets. Returns whether the lane took it.
fn post(end: &mut End, wr_id: u64, lane: &mut Lane) -> bool {
    post_of(end, wr_id, lane, 64)
}

fn post_of(end: &mut End, wr_id: u64, lane: &mut Lane, length: u32) -> bool {
    let sges = [end.sge(0, length)];
    end.engine.accept(RcSendWqe {
        wr_id,
        work: RcWork::Send { invalidate: None },
        data: RcData::Sges(copy_sges(&sges)),
        length,
        signaled: true,
        solicited: false,
        fence: false,
        remote_srqn: 0,
    });
    let tables = Tables {
        mrs: &end.mrs,
        recv_queue: &end.receives,
    };
    end.engine.send_short(tables, lane)
}

/// Takes what the lane has, and what the other end has placed. Returns whether all of it were short messages.
fn take(end: &mut End, lane: &mut Lane, placed: u64) -> bool {
    let octets = std::mem::take(&mut lane.0);
    let tables = Tables {
        mrs: &end.mrs,
        recv_queue: &end.receives,
    };
    let completed = &mut end.completed;
    end.engine.acknowledged_in_memory(placed, completed);
    let is_plain = end.engine.takes_short_input();
    let input = end
        .engine
        .handle_short_input(now, &octets, tables, completed);
    is_plain && input.octets == octets.len() && !input.has_work
}

fn settle(client: &mut End, server: &mut End) {
    for _ in 0..4 {
        client.carry_to(server, 1000);
        server.carry_to(client, 1000);
    }
}

/// Whether each of some Sends in turn goes as a short message, once both ends share memory.
fn short_both_ways(client: &mut End, server: &mut End) {
    settle(client, server);
    // Acknowledgements leave, also those that nobody waits for.
    for end in [&mut *client, &mut *server] {
        end.work(|engine, _, _| {
            engine.flush_acks(now(), true);
            engine.handle_timeout(now() + Duration::from_secs(1));
        });
    }
    settle(client, server);
    for end in [&mut *client, &mut *server] {
        end.engine.sends_by_memory();
        end.engine.receives_by_memory();
        end.engine.take_acks_from_memory(true);
        end.completed = RecordingSink::default();
    }
    let mut lane = Lane::default();
    for wr_id in 0..20 {
        for by_client in [true, false] {
            let (from, to) = if by_client {
                (&mut *client, &mut *server)
            } else {
                (&mut *server, &mut *client)
            };
            to.post_recv(wr_id, 100, 64);
            assert!(post(from, wr_id, &mut lane), "message {wr_id}");
            assert!(take(to, &mut lane, from.engine.placed()));
            assert!(take(from, &mut lane, to.engine.placed()));
        }
    }
    for end in [client, server] {
        let ids = |wcs: &[Wc]| wcs.iter().map(|wc| wc.wr_id).collect::<Vec<_>>();
        let all: Vec<_> = (0..20).collect();
        assert_eq!(ids(&end.completed.sent), all);
        assert_eq!(ids(&end.completed.received), all);
    }
}

/// Ends of a connection whose messages wait for the hello of the other end.
fn unknown_pair() -> (End, End) {
    pair_over(Lower::Mpa, 1, [RcOptions::default(); 2])
}

#[test]
fn an_initiator_that_is_silent_before_the_peer_is_detected() {
    let (mut client, mut server) = unknown_pair();
    client.work(|_, _, _| ());
    short_both_ways(&mut client, &mut server);
}

#[test]
fn an_initiator_with_messages_before_the_peer_is_detected() {
    let (mut client, mut server) = unknown_pair();
    server.post_recv(7, 0, 64);
    client.post_send(8, &[client.sge(0, 64)]);
    short_both_ways(&mut client, &mut server);
}

#[test]
fn a_responder_with_messages_before_the_peer_is_detected() {
    let (mut client, mut server) = unknown_pair();
    client.post_recv(7, 0, 64);
    server.post_send(8, &[server.sge(0, 64)]);
    client.work(|_, _, _| ());
    short_both_ways(&mut client, &mut server);
}

/// Takes the FPDUs of long messages from the lane, directly. Returns the last result.
fn take_direct(end: &mut End, lane: &mut Lane) -> Option<DirectInput> {
    let octets = std::mem::take(&mut lane.0);
    let tables = Tables {
        mrs: &end.mrs,
        recv_queue: &end.receives,
    };
    let (mut at, mut result) = (0, None);
    while at < octets.len() {
        // No more than the longest header is needed.
        let front = DirectFront::parse(&octets[at..octets.len().min(at + 20)])?;
        let payload = &octets[at + front.at..at + front.at + front.payload_len];
        result = Some(
            end.engine
                .handle_direct_input(&front, payload, tables, &mut end.completed),
        );
        at += front.fpdu_len;
    }
    result
}

#[test]
fn long_messages_are_placed_from_where_they_lie() {
    let (mut client, mut server) = unknown_pair();
    client.work(|_, _, _| ());
    short_both_ways(&mut client, &mut server);
    client.memory.write(0, &[7; 1300]);
    let mut lane = Lane::default();
    server.post_recv(30, 4000, 1300);
    assert!(post_of(&mut client, 30, &mut lane, 1300));
    assert!(server.engine.takes_short_input());
    assert_eq!(
        take_direct(&mut server, &mut lane),
        Some(DirectInput::Placed)
    );
    assert_eq!(
        server.memory.to_vec(4000, 1301),
        [vec![7; 1300], vec![0]].concat()
    );
    let received = server.completed.received.last().unwrap();
    assert_eq!((received.wr_id, received.byte_len), (30, 1300));
    client
        .engine
        .acknowledged_in_memory(server.engine.placed(), &mut client.completed);
    assert_eq!(client.completed.sent.last().unwrap().wr_id, 30);
}

#[test]
fn a_long_message_without_a_receive_is_left_where_it_lies() {
    let (mut client, mut server) = unknown_pair();
    client.work(|_, _, _| ());
    short_both_ways(&mut client, &mut server);
    let mut lane = Lane::default();
    assert!(post_of(&mut client, 30, &mut lane, 1300));
    let octets = lane.0.clone();
    let before = server.engine.placed();
    assert_eq!(
        take_direct(&mut server, &mut lane),
        Some(DirectInput::Other)
    );
    assert_eq!(server.engine.placed(), before);
    // It waits, as one of any carrier.
    server.arrive(&[octets]);
    assert!(!server.engine.takes_short_input());
    server.post_recv(31, 0, 1300);
    server.work(|engine, tables, completed| engine.receive_posted(now(), tables, completed));
    assert_eq!(server.completed.received.last().unwrap().wr_id, 31);
}

#[test]
fn a_long_message_that_does_not_fit_ends_the_connection() {
    let (mut client, mut server) = unknown_pair();
    client.work(|_, _, _| ());
    short_both_ways(&mut client, &mut server);
    let mut lane = Lane::default();
    server.post_recv(30, 4000, 1299);
    assert!(post_of(&mut client, 30, &mut lane, 1300));
    assert_eq!(
        take_direct(&mut server, &mut lane),
        Some(DirectInput::Ended)
    );
    assert_eq!(server.memory.to_vec(4000, 1300), vec![0; 1300]);
    let received = server.completed.received.last().unwrap();
    assert_eq!(received.status, WcStatus::LocalLength);
    server.work(|_, _, _| ());
    client.arrive(&server.take(1000));
    assert!(matches!(
        client.engine.end(),
        Some(RcEnd::Stream(StreamError::Terminated(_)))
    ));
}

proptest! {
    /// Octets of a hostile peer in shared memory end the connection, or are placed where a receive is; nothing else is written.
    #[test]
    fn hostile_octets_are_placed_in_receives_alone(
        messages in proptest::collection::vec((1u32..1300, any::<bool>()), 1..6),
        changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..12),
        receives in 0u64..4,
    ) {
        let (mut client, mut server) = unknown_pair();
        client.work(|_, _, _| ());
        short_both_ways(&mut client, &mut server);
        client.memory.write(0, &[7; 1300]);
        server.memory.write(0, &vec![1; 16_384]);
        for wr_id in 0..receives {
            server.post_recv(wr_id, 2000 + wr_id * 1500, 1000);
        }
        let mut lane = Lane::default();
        for (wr_id, (length, writes)) in (0..).zip(messages) {
            if writes {
                // A Write of zeros to a key that may be none.
                lane.0.extend_from_slice(&[0, 40, 0xc1, 0x40, 0, 0, 1, 2]);
                lane.0.resize(lane.0.len() + 40, 0);
            } else {
                post_of(&mut client, wr_id, &mut lane, length);
            }
        }
        let len = lane.0.len();
        for (at, octet) in changes {
            lane.0[usize::from(at) % len] = octet;
        }
        let octets = lane.0;
        let mut at = 0;
        while at < octets.len() && server.engine.end().is_none() {
            let rest = &octets[at..];
            let tables = Tables { mrs: &server.mrs, recv_queue: &server.receives };
            let completed = &mut server.completed;
            let mut taken = 0;
            if server.engine.takes_short_input() {
                let short = &rest[..rest.len().min(600)];
                taken = server.engine.handle_short_input(now, short, tables, completed).octets;
                let front = DirectFront::parse(rest).filter(|it| taken == 0 && it.fpdu_len <= rest.len());
                if let Some(front) = front {
                    let payload = &rest[front.at..front.at + front.payload_len];
                    let handled = server.engine.handle_direct_input(&front, payload, tables, completed);
                    taken = if handled == DirectInput::Other { 0 } else { front.fpdu_len };
                }
            }
            if taken == 0 {
                server.engine.handle_input(now(), rest, tables, completed);
                taken = rest.len();
            }
            at += taken;
        }
        let memory = server.memory.to_vec(0, 16_384);
        for (at, octet) in memory.iter().enumerate() {
            let receive = (at as u64).checked_sub(2000).map(|at| (at / 1500, at % 1500));
            let is_inside = receive.is_some_and(|(receive, at)| receive < receives && at < 1000);
            prop_assert!(*octet == 1 || is_inside, "octet {at}");
        }
    }
}

/// Posts a work request at once if that is possible, else as all others.
fn post_either(end: &mut End, wr: &ShortWr<'_>, lane: &mut Lane, at_once: bool) -> bool {
    let tables = Tables {
        mrs: &end.mrs,
        recv_queue: &end.receives,
    };
    if at_once && end.engine.post_short(1, |_| Some(*wr), tables, lane) == 1 {
        return true;
    }
    let (data, length) = match wr.data {
        ShortData::Sge(sge) => (RcData::Sges(copy_sges(&[sge])), sge.length),
        ShortData::Inline(octets) => {
            let length = u32::try_from(octets.len()).unwrap();
            (RcData::Inline(octets.into()), length)
        }
    };
    end.engine.accept(RcSendWqe {
        wr_id: wr.wr_id,
        work: wr.work,
        data,
        length,
        signaled: wr.signaled,
        solicited: wr.solicited,
        fence: false,
        remote_srqn: 0,
    });
    end.engine.send_short(tables, lane)
}

fn short_wr(wr_id: u64, data: ShortData<'_>) -> ShortWr<'_> {
    ShortWr {
        wr_id,
        work: RcWork::Send { invalidate: None },
        data,
        signaled: true,
        solicited: false,
    }
}

#[test]
fn a_message_is_posted_at_once_only_behind_all_others() {
    let (mut client, mut server) = unknown_pair();
    client.work(|_, _, _| ());
    let mut lane = Lane::default();
    let post = |end: &mut End, lane: &mut Lane, data| {
        let tables = Tables {
            mrs: &end.mrs,
            recv_queue: &end.receives,
        };
        end.engine
            .post_short(1, |_| Some(short_wr(1, data)), tables, lane)
            == 1
    };
    let octets = ShortData::Inline(&[5; 10]);
    assert!(
        !post(&mut client, &mut lane, octets),
        "memory is not shared"
    );
    short_both_ways(&mut client, &mut server);
    assert!(post(&mut client, &mut lane, octets));
    // Keys that there are not, and octets beyond the region.
    let unknown = Sge {
        lkey: client.keys.lkey ^ 1,
        ..client.sge(0, 64)
    };
    let (outside, too_long) = (client.sge(16_380, 8), client.sge(0, 16_384));
    for sge in [unknown, outside, too_long] {
        assert!(
            !post(&mut client, &mut lane, ShortData::Sge(sge)),
            "{sge:?}"
        );
    }
    // One that waits to begin.
    client.engine.accept(RcSendWqe {
        wr_id: 2,
        work: RcWork::Send { invalidate: None },
        data: RcData::Inline(InlineOctets::new()),
        length: 0,
        signaled: true,
        solicited: false,
        fence: false,
        remote_srqn: 0,
    });
    assert!(!post(&mut client, &mut lane, octets));
}

/// Posts a Send of 10 octets of the program at once. Returns whether the lane took it.
fn post_octets(end: &mut End, lane: &mut Lane) -> bool {
    let tables = Tables {
        mrs: &end.mrs,
        recv_queue: &end.receives,
    };
    let wr = short_wr(1, ShortData::Inline(&[5; 10]));
    end.engine.post_short(1, |_| Some(wr), tables, lane) == 1
}

#[test]
fn checks_are_made_again_once_anything_but_a_short_message_has_changed_the_engine() {
    let (mut client, mut server) = unknown_pair();
    client.work(|_, _, _| ());
    short_both_ways(&mut client, &mut server);
    let mut lane = Lane::default();
    for polled in [true, false, true] {
        client.engine.take_acks_from_memory(polled);
        assert_eq!(post_octets(&mut client, &mut lane), polled);
    }
    for awaits in [false, true, false] {
        server.engine.await_first_message(awaits);
        assert_eq!(server.engine.takes_short_input(), !awaits);
    }
    // Neither messages that are sent nor acknowledgements change anything.
    server.post_recv(1, 100, 64);
    server.post_recv(2, 100, 64);
    assert!(take(&mut server, &mut lane, 0));
    assert!(post_octets(&mut client, &mut lane));
    // One that waits for a receive does.
    assert!(!take(&mut server, &mut lane, 0));
    assert!(!server.engine.takes_short_input());
}

#[test]
fn a_list_is_posted_up_to_the_first_that_cannot_be() {
    let (mut client, mut server) = unknown_pair();
    client.work(|_, _, _| ());
    short_both_ways(&mut client, &mut server);
    let mut lane = Lane::default();
    let tables = Tables {
        mrs: &client.mrs,
        recv_queue: &client.receives,
    };
    let octets = [5; 10];
    let next = |number| (number != 3).then(|| short_wr(number as u64, ShortData::Inline(&octets)));
    for (most, posted) in [(0, 0), (2, 2), (9, 3)] {
        let short = client.engine.post_short(most, next, tables, &mut lane);
        assert_eq!(short, posted);
    }
    for wr_id in 0..5 {
        server.post_recv(wr_id, 100, 64);
    }
    client.completed = RecordingSink::default();
    assert!(take(&mut server, &mut lane, 0));
    assert!(take(&mut client, &mut lane, server.engine.placed()));
    let ids = client.completed.sent.iter().map(|wc| wc.wr_id);
    assert_eq!(ids.collect::<Vec<_>>(), [0, 1, 0, 1, 2]);
}

#[test]
fn a_message_for_one_element_is_placed_as_any_other() {
    let (mut client, mut server) = unknown_pair();
    client.work(|_, _, _| ());
    short_both_ways(&mut client, &mut server);
    let mut lane = Lane::default();
    server.memory.write(0, &[1; 200]);
    let sges = [server.sge(50, 64)];
    for wr_id in 0..2 {
        let wr = RecvWr { wr_id, sges: &sges };
        server.receives.post(&wr).unwrap();
    }
    let sole = short_wr(7, ShortData::Inline(&[3; 64]));
    assert!(post_either(&mut client, &sole, &mut lane, true));
    let solicited = ShortWr {
        solicited: true,
        ..short_wr(8, ShortData::Inline(&[]))
    };
    assert!(post_either(&mut client, &solicited, &mut lane, true));
    assert!(take(&mut server, &mut lane, client.engine.placed()));
    assert!(take(&mut client, &mut lane, server.engine.placed()));
    let expected = [vec![1; 50], vec![3; 64], vec![1; 86]].concat();
    assert_eq!(server.memory.to_vec(0, 200), expected);
    let received: Vec<_> = server.completed.received[20..]
        .iter()
        .map(|wc| (wc.wr_id, wc.byte_len, wc.solicited, wc.source.is_some()))
        .collect();
    assert_eq!(received, [(0, 64, false, true), (1, 0, true, true)]);
    let sent: Vec<_> = client.completed.sent[20..]
        .iter()
        .map(|wc| (wc.wr_id, wc.byte_len))
        .collect();
    assert_eq!(sent, [(7, 64), (8, 0)]);
}

/// A message of a random test: its octets, whether they are inline, signaled, solicited, written to the peer's memory.
type Drawn = (u16, bool, bool, bool, bool);

/// Handling of the messages of a random test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// Posted at once, and received where they lie.
    Short,
    /// As these, and each Send is placed from where it lies, as far as that goes.
    Soles,
    /// As messages of any carrier.
    Queues,
}

/// Carries messages between two ends. Returns octets of the lane, the memory that received them, and completions.
fn carried(
    messages: &[Drawn],
    receives: &[Vec<u16>],
    wrong_key: Option<usize>,
    by: By,
) -> (Vec<u8>, Vec<u8>, [Vec<Wc>; 2], u64, bool) {
    let (mut client, mut server) = unknown_pair();
    client.work(|_, _, _| ());
    short_both_ways(&mut client, &mut server);
    for end in [&mut client, &mut server] {
        end.completed = RecordingSink::default();
    }
    let octets: Vec<u8> = (0..16_384u32).map(|at| (at * 7).to_le_bytes()[0]).collect();
    client.memory.write(0, &octets);
    server.memory.write(0, &[1; 16_384]);
    let rkey = server.mrs.register(
        server.memory.region(),
        0,
        Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        PD,
    );
    let mut at = 0;
    for (wr_id, lengths) in (0..).zip(receives) {
        let sges: Vec<_> = lengths
            .iter()
            .map(|length| {
                let mut sge = server.sge(at, u32::from(*length));
                at += u64::from(*length) + 3;
                if wrong_key == Some(usize::try_from(wr_id).unwrap()) {
                    sge.lkey ^= 1;
                }
                sge
            })
            .collect();
        server
            .receives
            .post(&RecvWr { wr_id, sges: &sges })
            .unwrap();
    }
    let mut lane = Lane::default();
    for (number, (length, inline, signaled, solicited, writes)) in (0u64..).zip(messages) {
        let inline = *inline && *length <= 256;
        let data = if inline {
            ShortData::Inline(&octets[100..100 + usize::from(*length)])
        } else {
            ShortData::Sge(client.sge(number * 3, u32::from(*length)))
        };
        let work = if *writes {
            RcWork::Write {
                stag: STag::new(rkey.rkey),
                start: TaggedOffset::new(12_000 + number * 300),
                immediate: None,
            }
        } else {
            RcWork::Send { invalidate: None }
        };
        let wr = ShortWr {
            wr_id: number,
            work,
            data,
            signaled: *signaled,
            solicited: *solicited,
        };
        post_either(&mut client, &wr, &mut lane, by != By::Queues);
    }
    let sent = lane.0.clone();
    let tables = Tables {
        mrs: &server.mrs,
        recv_queue: &server.receives,
    };
    let completed = &mut server.completed;
    let mut taken = 0;
    if by == By::Soles {
        assert!(server.engine.takes_short_input());
        taken = receive_soles(&mut server.engine, &sent, tables, completed);
    }
    if by != By::Queues {
        assert!(server.engine.takes_short_input());
        let input = server
            .engine
            .handle_short_input(now, &sent[taken..], tables, completed);
        taken += input.octets;
    }
    server
        .engine
        .handle_input(now(), &sent[taken..], tables, completed);
    let placed = server.engine.placed();
    client
        .engine
        .acknowledged_in_memory(placed, &mut client.completed);
    let is_over = server.engine.end().is_some();
    let completions = [client.completed.sent, server.completed.received];
    (
        sent,
        server.memory.to_vec(0, 16_384),
        completions,
        placed,
        is_over,
    )
}

/// Receives Sends one by one from memory that both ends share, up to the first that is not taken so. Returns their octets.
fn receive_soles(
    engine: &mut CheckedEngine,
    octets: &[u8],
    tables: Tables<'_>,
    completed: &mut RecordingSink,
) -> usize {
    let shared = Buffer::zeroed(octets.len().max(1)).unwrap();
    shared.write(0, octets);
    let shared = shared.region();
    let mut taken = 0;
    loop {
        let front = shared.slice(taken, octets.len() - taken).unwrap();
        match engine.handle_sole_send(&front, tables, completed) {
            0 => return taken,
            octets => taken += octets,
        }
    }
}

#[test]
fn a_sole_send_is_taken_once_it_is_whole_and_has_a_receive_of_one_element() {
    let (mut client, mut server) = unknown_pair();
    client.work(|_, _, _| ());
    short_both_ways(&mut client, &mut server);
    server.completed = RecordingSink::default();
    let mut lane = Lane::default();
    assert!(post_octets(&mut client, &mut lane));
    let fpdu = lane.0.len();
    let sges = [server.sge(100, 64)];
    let tables = Tables {
        mrs: &server.mrs,
        recv_queue: &server.receives,
    };
    let placed = server.engine.placed();
    let mut receive =
        |octets: &[u8]| receive_soles(&mut server.engine, octets, tables, &mut server.completed);
    assert_eq!(receive(&lane.0), 0, "no receive");
    let post = |wr_id, sges: &[Sge]| server.receives.post(&RecvWr { wr_id, sges }).unwrap();
    post(1, &[sges[0], sges[0]]);
    assert_eq!(receive(&lane.0), 0, "two elements");
    assert!(
        server
            .receives
            .take(0, &mut RecordingSink::default())
            .is_ok()
    );
    post(2, &sges);
    for len in 0..fpdu {
        assert_eq!(receive(&lane.0[..len]), 0);
    }
    assert_eq!(server.memory.to_vec(100, 10), [0; 10]);
    lane.0.push(0);
    assert_eq!(receive(&lane.0), fpdu);
    assert_eq!(
        server.memory.to_vec(100, 11),
        [[5; 10].as_slice(), &[0]].concat()
    );
    assert_eq!(server.engine.placed(), placed + 1);
    let received = server
        .completed
        .received
        .iter()
        .map(|wc| (wc.wr_id, wc.byte_len));
    assert_eq!(received.collect::<Vec<_>>(), [(2, 10)]);
}

proptest! {
    /// Messages that are posted at once and received where they lie are on the lane, in memory and in completions as those that go by the queues.
    #[test]
    fn short_ways_and_those_of_all_messages_agree(
        messages in proptest::collection::vec((0u16..500, any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()), 1..7),
        receives in proptest::collection::vec(proptest::collection::vec(0u16..500, 0..4), 0..8),
        wrong_key in proptest::option::weighted(0.2, 0usize..4),
    ) {
        let slow = carried(&messages, &receives, wrong_key, By::Queues);
        for by in [By::Short, By::Soles] {
            prop_assert_eq!(carried(&messages, &receives, wrong_key, by), slow.clone());
        }
    }
}

/// Where acknowledgements are no longer found in memory, those of signaled messages are requested.
#[test]
fn a_signaled_message_that_is_posted_at_once_is_asked_for() {
    for signaled in [false, true] {
        let (mut client, mut server) = unknown_pair();
        client.work(|_, _, _| ());
        short_both_ways(&mut client, &mut server);
        let mut lane = Lane::default();
        let wr = ShortWr {
            signaled,
            ..short_wr(7, ShortData::Inline(&[3; 64]))
        };
        assert!(post_either(&mut client, &wr, &mut lane, true));
        client.engine.take_acks_from_memory(false);
        client.work(|_, _, _| ());
        assert_eq!(client.waiting() > 0, signaled);
    }
}
