//! Engines over a shim with other overhead, contents and datagrams than plain ones; and datagrams in memory that is no slice.

use super::*;
use dgiwarp_llp_udp::ShimConfig;

const KEY: u64 = 0x0123_4567_89ab_cdef;

fn at(port: u16) -> Peer {
    Peer::ip(([192, 0, 2, 1], port).into())
}

fn keyed(seed: u64, number: u32) -> End {
    let mut end = End::new(seed);
    let config = end.engine.config;
    end.engine = UdEngine::new(UdConfig {
        shim: ShimConfig::Keyed(KEY),
        random: Random {
            seed: [number, number, number],
            ..config.random
        },
        ..config
    });
    end
}

/// Hands all that one end sends to the other.
fn pass(from: (&mut End, u16), to: &mut End, time: Instant) -> usize {
    let mut network = Network::default();
    let (end, port) = from;
    end.engine
        .transmit(time, 1000, &end.mrs, &mut network, &mut end.wcs);
    for octets in &network.datagrams {
        deliver(to, at(port), octets, time);
    }
    network.datagrams.len()
}

fn deliver<P: Placeable + ?Sized>(
    end: &mut End,
    from: Peer,
    octets: &P,
    time: Instant,
) -> Option<DropReason> {
    let arrival = Arrival {
        by_memory: false,
        from,
        to: None,
        to_group: false,
        octets,
        stride: octets.len(),
    };
    let tables = Tables {
        mrs: &end.mrs,
        recv_queue: &end.recv_queue,
    };
    end.engine.handle_input(time, arrival, tables, &mut end.wcs)
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length)
        .map(|i| (i * 7 + i / 256).to_le_bytes()[0])
        .collect()
}

/// Sends, Write-Records and Reads of all sizes work over a keyed shim: sizes leave room for its overhead, large segments are
/// staged, and its acknowledgements travel beside.
#[test]
fn everything_works_over_another_shim() {
    let (mut source, mut target) = (keyed(1, 3), keyed(2, 9));
    let octets = pattern(200_000);
    source.buffer.write(0, &octets);
    let route = path(9000);
    let receive = [target.sge(500_000, 50_000)];
    let wr = RecvWr {
        wr_id: 9,
        sges: &receive,
    };
    target.recv_queue.post(&wr).unwrap();
    let write = Operation::WriteRecord {
        rkey: target.rkey,
        remote_addr: 0,
        immediate: Some(5),
    };
    let long = [source.sge(0, 200_000)];
    source.post(1, write, &route, &long);
    let sges = [source.sge(0, 50_000)];
    source.post(2, SEND, &route, &sges);
    let time = now();
    let datagrams = pass((&mut source, 1), &mut target, time);
    assert!(datagrams > 25, "{datagrams} datagrams");
    assert_eq!(target.buffer.to_vec(0, 200_000), octets);
    assert_eq!(target.buffer.to_vec(500_000, 50_000), octets[..50_000]);
    let lengths: Vec<u32> = target.wcs.received.iter().map(|wc| wc.byte_len).collect();
    assert_eq!(lengths, [200_000, 50_000]);

    // The acknowledgement of all of them has a timer, is a datagram of its own, and ends in the other shim.
    assert!(!target.engine.has_output());
    let due = target.engine.poll_timeout().unwrap();
    let tables = Tables {
        mrs: &target.mrs,
        recv_queue: &target.recv_queue,
    };
    target.engine.handle_timeout(due, tables, &mut target.wcs);
    assert!(target.engine.has_output());
    assert_eq!(pass((&mut target, 2), &mut source, due), 1);
    let Shim::Keyed(shim) = &source.engine.shim else {
        panic!("it is keyed");
    };
    let last = u32::try_from(datagrams - 1).unwrap();
    assert_eq!(shim.acknowledged(at(2)), Some(last));
    assert_eq!(source.engine.counters().dropped_in_all(), 0);

    let region = target.buffer.region();
    let keys = target.mrs.register(region, 0, Access::REMOTE_READ, PD);
    let read = Operation::Read {
        rkey: keys.rkey,
        remote_addr: 0,
        timeout: None,
    };
    source.buffer.write(0, &vec![0; 200_000]);
    source.engine.accept(SendWqe {
        peer: at(2),
        ..wqe(3, read, &route, &long)
    });
    for _ in 0..100 {
        pass((&mut source, 1), &mut target, time);
        pass((&mut target, 2), &mut source, time);
    }
    let ended = source.wcs.sent.last().map(|wc| (wc.wr_id, wc.status));
    assert_eq!(ended, Some((3, WcStatus::Success)));
    assert_eq!(source.buffer.to_vec(0, 200_000), octets);
}

#[test]
fn a_full_socket_delays_the_datagrams_of_a_shim() {
    let (mut source, mut target) = (keyed(1, 3), keyed(2, 9));
    let sges = [source.sge(0, 8)];
    source.post(1, SEND, &path(1500), &sges);
    let time = now();
    pass((&mut source, 1), &mut target, time);
    let due = target.engine.poll_timeout().unwrap();
    let tables = Tables {
        mrs: &target.mrs,
        recv_queue: &target.recv_queue,
    };
    target.engine.handle_timeout(due, tables, &mut target.wcs);
    let mut network = Network {
        short_outcomes: [SendOutcome::WouldBlock].into(),
        ..Network::default()
    };
    assert_eq!(target.transmit(&mut network), Transmitted::Blocked);
    assert!(network.datagrams.is_empty() && target.engine.has_unsent());
    assert_eq!(target.transmit(&mut network), Transmitted::All);
    assert_eq!(network.datagrams.len(), 1);
}

/// A datagram of one shim is nothing for another.
#[test]
fn datagrams_of_other_shims_are_dropped() {
    let (mut plain, mut keyed) = (End::new(1), keyed(2, 9));
    let mut networks = [Network::default(), Network::default()];
    for (end, network) in [&mut plain, &mut keyed].into_iter().zip(&mut networks) {
        let sges = [end.sge(0, 8)];
        end.post(1, SEND, &path(1500), &sges);
        end.transmit(network);
    }
    let [of_plain, of_keyed] = &networks;
    let dropped = deliver(&mut keyed, at(1), &of_plain.datagrams[0], now());
    assert_eq!(dropped, Some(DropReason::BadCrc));
    let dropped = deliver(&mut plain, at(1), &of_keyed.datagrams[0], now());
    assert_eq!(dropped, Some(DropReason::BadCrc));
}

/// Datagrams in registered memory, as they would be in memory shared with another process, are placed like those of a receive
/// buffer, without a reference to them.
#[test]
fn datagrams_are_taken_from_a_region() {
    let (mut source, mut target) = (End::new(1), End::new(2));
    let octets = pattern(30_000);
    source.buffer.write(0, &octets);
    let receive = [target.sge(0, 20_000), target.sge(400_000, 10_000)];
    let wr = RecvWr {
        wr_id: 9,
        sges: &receive,
    };
    target.recv_queue.post(&wr).unwrap();
    let sges = [source.sge(0, 30_000)];
    source.post(1, SEND, &path(1500), &sges);
    let mut network = Network::default();
    source.transmit(&mut network);
    let size = network.datagrams[0].len();
    let train = network.datagrams.concat();
    let ring = Buffer::zeroed(train.len()).unwrap();
    ring.write(0, &train);
    let region = ring.region();
    let arrival = Arrival {
        by_memory: false,
        from: at(1),
        to: None,
        to_group: false,
        octets: &region.slice(0, train.len()).unwrap(),
        stride: size,
    };
    let tables = Tables {
        mrs: &target.mrs,
        recv_queue: &target.recv_queue,
    };
    let dropped = target
        .engine
        .handle_input(now(), arrival, tables, &mut target.wcs);
    assert_eq!((dropped, target.wcs.received.len()), (None, 1));
    assert_eq!(target.buffer.to_vec(0, 20_000), octets[..20_000]);
    assert_eq!(target.buffer.to_vec(400_000, 10_000), octets[20_000..]);
}

/// The CRC of datagrams that came through memory of one host is not checked; what is too short for one is refused.
#[test]
fn the_crc_of_datagrams_by_memory_is_not_checked() {
    let (mut source, mut target) = (End::new(1), End::new(2));
    source.buffer.write(0, &pattern(100));
    let sges = [source.sge(0, 100)];
    source.post(1, SEND, &path(1500), &sges);
    let mut network = Network::default();
    source.transmit(&mut network);
    let mut datagram = network.datagrams[0].clone();
    *datagram.last_mut().unwrap() ^= 1;
    let receive = [target.sge(0, 100)];
    for wr_id in 0..2 {
        let sges = &receive;
        target.recv_queue.post(&RecvWr { wr_id, sges }).unwrap();
    }
    let mut arrive = |octets: &[u8], by_memory| {
        let arrival = Arrival {
            by_memory,
            from: at(1),
            to: None,
            to_group: false,
            octets,
            stride: octets.len(),
        };
        let tables = Tables {
            mrs: &target.mrs,
            recv_queue: &target.recv_queue,
        };
        let dropped = target
            .engine
            .handle_input(now(), arrival, tables, &mut target.wcs);
        (dropped, target.wcs.received.len())
    };
    assert_eq!(arrive(&datagram, false), (Some(DropReason::BadCrc), 0));
    assert_eq!(arrive(&datagram, true), (None, 1));
    for short in 1..6 {
        let dropped = arrive(&datagram[..short], true);
        assert_eq!(dropped, (Some(DropReason::Malformed), 1), "{short} octets");
    }
    assert_eq!(target.buffer.to_vec(0, 100), pattern(100));
}
