//! Short messages through memory that both ends share, without framing and acknowledgements.

use super::*;
use dgiwarp_memory::Piece;

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
    let sges = [end.sge(0, 64)];
    end.engine.accept(RcSendWqe {
        wr_id,
        work: RcWork::Send { invalidate: None },
        data: RcData::Sges(copy_sges(&sges)),
        length: 64,
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
