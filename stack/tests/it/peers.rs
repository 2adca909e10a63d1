//! Many peers, many pieces, many threads.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::node::{Node, SEND, SOON};
use crate::common::strangers::dropped;
use crate::common::{self, Process, given, now, role, wait_until};
use dgiwarp::{Config, Operation, Rnic, Sge, UdQpAttr, WcOpcode, WcStatus};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Queue pairs of the crowd, in two processes, and rounds of messages from each.
const CROWD: u32 = 64;
const ROUNDS: u32 = 30;
/// Octets that each of the crowd writes; each has a place of its own.
const WRITTEN: u32 = 3000;

/// One of the two processes of the crowd: each queue pair sends and writes a message in every round, and a Send back from
/// the receiver lets it go on.
fn crowd() {
    let words: Vec<u64> = given("CROWD")
        .split(' ')
        .map(|word| word.parse().unwrap())
        .collect();
    let [first, qpn, rkey, addr] = words[..] else {
        panic!("{words:?}");
    };
    let first = u32::try_from(first).unwrap();
    let rnic = Rnic::open(Config::default()).unwrap();
    let members: Vec<_> = (first..first + CROWD / 2)
        .map(|index| {
            let cq = rnic.create_cq(16).unwrap();
            let node = Node::on(rnic.clone(), cq, 8192, |_| ());
            node.post_recv(100, 0..64);
            println!("member {index} {}", node.qp.qpn());
            (index, node)
        })
        .collect();
    let to = members[0]
        .1
        .to_port(Ipv4Addr::LOCALHOST.into(), u16::try_from(qpn).unwrap());
    for round in 0..ROUNDS {
        for (index, node) in &members {
            node.memory.write(64, &pattern(*index, round));
            let immediate = Some(index << 16 | round);
            let write = Operation::WriteRecord {
                rkey: u32::try_from(rkey).unwrap(),
                remote_addr: addr + u64::from(index * WRITTEN),
                immediate,
            };
            let octets = usize::try_from(WRITTEN).unwrap();
            node.post(1, write, &to, &[node.mr.sge(64..64 + octets)])
                .unwrap();
            node.post(
                2,
                Operation::Send { immediate },
                &to,
                &[node.mr.sge(64..80)],
            )
            .unwrap();
        }
        for (_, node) in &members {
            let mut done: Vec<_> = (0..3).map(|_| node.wait()).collect();
            assert!(
                done.iter().all(|wc| wc.status == WcStatus::Success),
                "{done:?}"
            );
            done.sort_by_key(|wc| wc.wr_id);
            let expected = [WcOpcode::RdmaWrite, WcOpcode::Send, WcOpcode::Recv];
            assert_eq!(
                done.iter().map(|wc| wc.opcode).collect::<Vec<_>>(),
                expected
            );
            assert_eq!(
                done[2].source,
                Some(SocketAddr::from((Ipv4Addr::LOCALHOST, to.qpn)))
            );
            node.post_recv(100, 0..64);
        }
    }
}

fn pattern(index: u32, round: u32) -> Vec<u8> {
    (0..WRITTEN)
        .map(|at| (at * 7 + index * 31 + round * 101).to_le_bytes()[0])
        .collect()
}

/// Both messages of a member's round came: then its memory is checked, and it may go on.
#[test]
fn a_crowd_sends_and_writes_to_one_queue_pair() {
    let name = here!("a_crowd_sends_and_writes_to_one_queue_pair");
    if role().is_some() {
        return crowd();
    }
    let octets = usize::try_from(CROWD * WRITTEN).unwrap();
    let node = Node::with(octets + 64 * 256, Config::default(), |attr| {
        attr.record_slots = 256
    });
    for slot in 0..256 {
        let start = octets + slot * 64;
        node.post_recv(u64::try_from(start).unwrap(), start..start + 64);
    }
    let mut ports = BTreeMap::new();
    let mut processes: Vec<_> = [0, CROWD / 2]
        .into_iter()
        .map(|first| {
            let told = format!(
                "{first} {} {} {}",
                node.qp.qpn(),
                node.mr.rkey(),
                node.mr.addr()
            );
            Process::start(name, "crowd", &[("CROWD", told)])
        })
        .collect();
    for process in &mut processes {
        for _ in 0..CROWD / 2 {
            let told = process.tells("member ", SOON);
            let (index, port) = told.split_once(' ').unwrap();
            ports.insert(index.parse::<u32>().unwrap(), port.parse::<u16>().unwrap());
        }
    }
    let ways: Vec<_> = ports
        .values()
        .map(|port| node.to_port(Ipv4Addr::LOCALHOST.into(), *port))
        .collect();
    let mut came: BTreeMap<u32, u32> = BTreeMap::new();
    let mut rounds = 0;
    while rounds < CROWD * ROUNDS {
        let wc = node.wait();
        assert_eq!(wc.status, WcStatus::Success);
        if wc.opcode == WcOpcode::Send {
            continue;
        }
        let immediate = wc.immediate.expect("every message has one");
        let (index, round) = (immediate >> 16, immediate & 0xffff);
        let source = SocketAddr::from((Ipv4Addr::LOCALHOST, ports[&index]));
        assert_eq!(wc.source, Some(source), "{wc:?}");
        assert_eq!(wc.destination, Some(Ipv4Addr::LOCALHOST.into()));
        if wc.opcode == WcOpcode::WriteRecord {
            assert_eq!(wc.byte_len, WRITTEN);
            let record = node.qp.record(wc.record()).unwrap();
            assert_eq!(record.source, Some(source));
            assert_eq!(
                record.remote_addr,
                node.mr.addr() + u64::from(index * WRITTEN)
            );
            assert!(node.qp.release_record(wc.record()));
        } else {
            let start = usize::try_from(wc.wr_id).unwrap();
            assert_eq!(node.memory.to_vec(start, 16), pattern(index, round)[..16]);
            node.post_recv(wc.wr_id, start..start + 64);
        }
        let count = came.entry(immediate).or_default();
        *count += 1;
        if *count == 2 {
            rounds += 1;
            let start = usize::try_from(index * WRITTEN).unwrap();
            let expected = pattern(index, round);
            assert!(
                node.memory.to_vec(start, expected.len()) == expected,
                "member {index} round {round}"
            );
            node.send(1, &ways[usize::try_from(index).unwrap()], 0..1);
        }
    }
    for process in processes {
        process.finish(SOON);
    }
    assert!(came.values().all(|count| *count == 2), "nothing came twice");
    assert_eq!(dropped(&node.qp.counters()), 0);
}

/// Remote ports of the connected sockets on a local port, from the kernel's table.
fn connected_to(port: u16) -> BTreeSet<u16> {
    let table = fs::read_to_string("/proc/net/udp").unwrap();
    let port_of = |address: &str| {
        let (_, port) = address.split_once(':').unwrap();
        u16::from_str_radix(port, 16).unwrap()
    };
    let sockets = table.lines().skip(1).map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1).map(port_of);
        (words.next().unwrap(), words.next().unwrap())
    });
    // A socket that changed hands is kept for a while, connected to the discard port.
    let connected = sockets.filter(|(local, remote)| *local == port && ![0, 9].contains(remote));
    connected.map(|(_, remote)| remote).collect()
}

/// More busy peers than there are connected sockets, by turns, so that sockets change hands while datagrams are under way.
#[test]
fn busy_peers_take_turns_and_lose_nothing() {
    let node = Node::new(64 * 64);
    let peers: Vec<_> = (0..7).map(|_| Node::new(64)).collect();
    let ways: Vec<_> = peers
        .iter()
        .map(|peer| (peer.to(&node.qp), node.to(&peer.qp)))
        .collect();
    let window = 8;
    let mut ever_connected = BTreeSet::new();
    for turn in 0..21 {
        let turn_peer = turn % peers.len();
        // Longer than a connected socket must be idle before another peer gets it.
        if turn % 4 == 3 {
            common::sleep(Duration::from_millis(120));
        }
        for burst in 0..12 {
            for slot in 0..window {
                node.post_recv(slot, 0..64);
            }
            // The one whose turn it is, with one message of each other peer among its own.
            let other = (turn_peer + 1 + burst % (peers.len() - 1)) % peers.len();
            for slot in 0..window {
                let from = if slot == window / 2 { other } else { turn_peer };
                let peer = &peers[from];
                peer.post(
                    slot,
                    Operation::Send {
                        immediate: u32::try_from(from).ok(),
                    },
                    &ways[from].0,
                    &[peer.mr.sge(..1)],
                )
                .unwrap();
                assert_eq!(peer.wait().status, WcStatus::Success);
            }
            for _ in 0..window {
                let wc = node.wait();
                let from = usize::try_from(wc.immediate.unwrap()).unwrap();
                let source = SocketAddr::from((Ipv4Addr::LOCALHOST, peers[from].qp.qpn()));
                assert_eq!((wc.status, wc.source), (WcStatus::Success, Some(source)));
            }
            let peer = &peers[turn_peer];
            peer.post_recv(9, 0..64);
            node.send(10, &ways[turn_peer].1, 0..64);
            assert_eq!(node.wait().wr_id, 10);
            assert_eq!(peer.wait().wr_id, 9);
        }
        let connected = connected_to(node.qp.qpn());
        assert!(connected.len() <= 4, "{connected:?}");
        ever_connected.extend(connected);
    }
    assert_eq!(dropped(&node.qp.counters()), 0);
    assert!(
        ever_connected.len() > 4,
        "no socket changed hands: {ever_connected:?}"
    );
}

#[test]
fn sixteen_pieces_are_gathered_and_others_scattered() {
    let sender = Node::with(1 << 20, Config::default(), |attr| attr.qp.max_sge = 16);
    let receiver = Node::with(1 << 20, Config::default(), |attr| {
        attr.qp.max_sge = 16;
        attr.record_slots = 4;
    });
    let content: Vec<u8> = (0..1u32 << 20)
        .map(|at| (at ^ at >> 9).to_le_bytes()[0])
        .collect();
    sender.memory.write(0, &content);
    // Small: staged; large: gathered where they lie.
    for unit in [1, 13, 700, 4096, 6001] {
        let mut sent = Vec::new();
        let mut at = 5;
        let gather: Vec<Sge> = (0..16)
            .map(|piece| {
                // One is empty.
                let length = if piece == 7 { 0 } else { unit + piece * 3 };
                let range = at..at + length;
                sent.extend_from_slice(&content[range.clone()]);
                at += length + 11;
                sender.mr.sge(range)
            })
            .collect();
        let to = sender.to(&receiver.qp);
        let third = sent.len() / 3;
        let scatter = [
            receiver.mr.sge(500_000..500_000 + third),
            receiver.mr.sge(0..1),
            receiver.mr.sge(300_000..300_000),
            receiver.mr.sge(100_000..100_000 + 2 * third + 2),
        ];
        receiver.memory.write(0, &vec![0xee; 1 << 20]);
        receiver
            .qp
            .post_recv(&[dgiwarp::RecvWr {
                wr_id: 3,
                sges: &scatter,
            }])
            .unwrap();
        sender.post(1, SEND, &to, &gather).unwrap();
        assert_eq!(sender.wait().status, WcStatus::Success);
        let wc = receiver.wait();
        assert_eq!(
            (wc.status, wc.byte_len),
            (WcStatus::Success, u32::try_from(sent.len()).unwrap())
        );
        let rest = sent.len() - third - 1;
        let mut expected = vec![0xee; 1 << 20];
        expected[500_000..500_000 + third].copy_from_slice(&sent[..third]);
        expected[0] = sent[third];
        expected[100_000..100_000 + rest].copy_from_slice(&sent[third + 1..]);
        assert!(
            receiver.memory.to_vec(0, 1 << 20) == expected,
            "unit {unit}"
        );

        sender
            .post(2, sender.write_to(&receiver, 10), &to, &gather)
            .unwrap();
        assert_eq!(sender.wait().status, WcStatus::Success);
        let wc = receiver.wait();
        assert_eq!(wc.opcode, WcOpcode::WriteRecord);
        assert!(receiver.qp.release_record(wc.record()));
        assert!(
            receiver.memory.to_vec(10, sent.len()) == sent,
            "unit {unit}"
        );
    }
}

#[test]
fn messages_over_ipv6() {
    if UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        return common::skip("messages_over_ipv6", "IPv6 is off");
    }
    let localhost = IpAddr::from(Ipv6Addr::LOCALHOST);
    let only_ipv6 = Node::with(1 << 17, Config::default(), |attr| {
        attr.bind = Some((Ipv6Addr::LOCALHOST, 0).into());
        attr.record_slots = 4;
    });
    let both = Node::with(1 << 17, Config::default(), |attr| attr.record_slots = 4);
    for (from, to) in [(&only_ipv6, &both), (&both, &only_ipv6)] {
        let way = from.to_port(localhost, to.qp.qpn());
        // Often enough for a connected socket.
        for wr_id in 0..40 {
            to.post_recv(wr_id, 0..100);
            from.send(wr_id, &way, 0..100);
            assert_eq!(from.wait().status, WcStatus::Success);
            let wc = to.wait();
            assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
            assert_eq!(wc.source, Some((localhost, from.qp.qpn()).into()));
            assert_eq!(wc.destination, Some(localhost));
        }
        from.memory.write(0, &vec![9; 1 << 17]);
        from.post(1, from.write_to(to, 0), &way, &[from.mr.sge(..)])
            .unwrap();
        assert_eq!(from.wait().status, WcStatus::Success);
        assert_eq!(to.wait().byte_len, 1 << 17);
        assert!(to.memory.to_vec(0, 1 << 17) == vec![9; 1 << 17]);
    }
    let ipv4 = only_ipv6.to(&both.qp);
    let refused = only_ipv6.post(1, SEND, &ipv4, &[]).unwrap_err();
    assert_eq!(refused.source, dgiwarp::PostError::AddressFamily);
}

#[test]
fn receives_begin_with_a_header_where_asked() {
    let sender = Node::new(64);
    let receiver = Node::with(256, Config::default(), |attr| attr.grh = true);
    receiver.memory.write(0, &[0xee; 256]);
    receiver.post_recv(1, 0..100);
    sender.memory.write(0, b"after the header");
    sender.send(1, &sender.to(&receiver.qp), 0..16);
    let wc = receiver.wait();
    assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 16));
    let received = receiver.memory.to_vec(0, 60);
    assert_eq!(received[..20], [0; 20]);
    // Version and length, protocol UDP, both addresses.
    assert_eq!(received[20], 0x45);
    assert_eq!(received[29], 17);
    assert_eq!(received[32..40], [127, 0, 0, 1, 127, 0, 0, 1]);
    assert_eq!(&received[40..56], b"after the header");
    assert_eq!(received[56..], [0xee; 4]);
}

/// Two threads post on one queue pair and two poll its completion queue.
#[test]
fn threads_share_a_queue_pair() {
    const EACH: u32 = 3000;
    let receiver = Node::new(64 * 256);
    let sender = Node::new(64);
    let to = sender.to(&receiver.qp);
    for slot in 0..256 {
        receiver.post_recv(slot, 0..8);
    }
    let (sent, received, completed) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    let seen: Vec<_> = (0..2 * EACH).map(|_| AtomicU32::new(0)).collect();
    thread::scope(|scope| {
        for thread in 0..2 {
            let (sender, to, sent, received) = (&sender, &to, &sent, &received);
            let (receiver, completed, seen) = (&receiver, &completed, &seen);
            scope.spawn(move || {
                let deadline = now() + SOON * 3;
                for message in thread * EACH..(thread + 1) * EACH {
                    // No more under way than there are receives, and room in the send queue.
                    while sent.load(Ordering::SeqCst) - received.load(Ordering::SeqCst) > 100 {
                        assert!(now() < deadline, "stuck");
                        thread::yield_now();
                    }
                    sent.fetch_add(1, Ordering::SeqCst);
                    let operation = Operation::Send {
                        immediate: Some(message),
                    };
                    sender
                        .post(message.into(), operation, to, &[sender.mr.sge(..8)])
                        .unwrap();
                }
            });
            scope.spawn(move || {
                let deadline = now() + SOON * 3;
                while received.load(Ordering::SeqCst) < 2 * EACH
                    || completed.load(Ordering::SeqCst) < 2 * EACH
                {
                    assert!(now() < deadline, "stuck at {received:?} {completed:?}");
                    let mut out = [dgiwarp::Wc::default(); 4];
                    let count = receiver.cq.poll(&mut out).unwrap();
                    for wc in &out[..count] {
                        assert_eq!(wc.status, WcStatus::Success);
                        let message = usize::try_from(wc.immediate.unwrap()).unwrap();
                        seen[message].fetch_add(1, Ordering::SeqCst);
                        receiver.post_recv(wc.wr_id, 0..8);
                        received.fetch_add(1, Ordering::SeqCst);
                    }
                    let count = sender.cq.poll(&mut out).unwrap();
                    completed.fetch_add(u32::try_from(count).unwrap(), Ordering::SeqCst);
                    if count == 0 {
                        thread::yield_now();
                    }
                }
            });
        }
    });
    assert!(seen.iter().all(|count| count.load(Ordering::SeqCst) == 1));
    assert_eq!(completed.into_inner(), 2 * EACH);
}

/// The target only reads its memory: the background thread places what comes.
#[test]
fn a_program_that_never_polls_is_written_to() {
    let name = here!("a_program_that_never_polls_is_written_to");
    let octets = 100_000;
    if role().is_some() {
        let target = Node::with(octets, Config::default(), |attr| attr.record_slots = 1);
        println!(
            "target {} {} {}",
            target.qp.qpn(),
            target.mr.rkey(),
            target.mr.addr()
        );
        for round in 1..=20u8 {
            wait_until(SOON, "the last octet changes", || {
                target.memory.to_vec(octets - 1, 1) == [round]
            });
            println!("round {round}");
        }
        return;
    }
    let sender = Node::new(octets);
    let mut target = Process::start(name, "target", &[]);
    let told = target.tells("target ", SOON);
    let words: Vec<u64> = told.split(' ').map(|word| word.parse().unwrap()).collect();
    let to = sender.to_port(Ipv4Addr::LOCALHOST.into(), u16::try_from(words[0]).unwrap());
    let write = Operation::WriteRecord {
        rkey: u32::try_from(words[1]).unwrap(),
        remote_addr: words[2],
        immediate: None,
    };
    for round in 1..=20u8 {
        sender.memory.write(0, &vec![round; octets]);
        sender.post(1, write, &to, &[sender.mr.sge(..)]).unwrap();
        assert_eq!(sender.wait().status, WcStatus::Success);
        assert_eq!(target.tells("round ", SOON), round.to_string());
    }
    target.finish(SOON);
}

#[test]
fn a_channel_wakes_a_program_that_sleeps() {
    let sender = Node::new(64);
    let rnic = Rnic::open(Config::default()).unwrap();
    let channel = rnic.create_comp_channel().unwrap();
    let cq = rnic.create_cq_on(64, &channel).unwrap();
    let receiver = Node::on(rnic, cq, 64, |_: &mut UdQpAttr<'_>| ());
    let to = sender.to(&receiver.qp);
    assert_eq!(channel.next_event(false), None);
    thread::scope(|scope| {
        let (awake, asleep) = std::sync::mpsc::channel();
        scope.spawn(move || {
            for round in 0..20 {
                asleep.recv_timeout(SOON).unwrap();
                if round % 5 == 0 {
                    // Surely asleep by then.
                    common::sleep(Duration::from_millis(20));
                }
                sender.send(round, &to, 0..1);
                assert_eq!(sender.wait().status, WcStatus::Success);
            }
        });
        for round in 0..20 {
            receiver.post_recv(round, 0..64);
            receiver.cq.request_notification(false);
            assert_eq!(receiver.cq.poll_one(), Ok(None));
            awake.send(()).unwrap();
            let mut fds = [PollFd::new(
                std::os::fd::AsFd::as_fd(&channel),
                PollFlags::POLLIN,
            )];
            assert_eq!(
                poll(&mut fds, PollTimeout::from(10_000u16)),
                Ok(1),
                "round {round}"
            );
            assert_eq!(channel.next_event(true), Some(receiver.cq.id()));
            assert_eq!(receiver.wait().wr_id, round);
            assert_eq!(channel.next_event(false), None, "one event for one request");
        }
    });
}

/// While a peer gets a socket of its own, datagrams of another one keep coming. Each names its sender in its payload.
#[test]
fn no_datagram_is_taken_for_another_peers() {
    const QUEUE_PAIRS: usize = 600;
    let node = Node::new(8 * 256);
    let plain_send = |port: u16| {
        let mut datagram = vec![0x41, 0x43];
        datagram.extend([0; 15]);
        datagram.push(0);
        datagram.extend(port.to_be_bytes());
        datagram.extend(common::crc32c(&datagram).to_le_bytes());
        datagram
    };
    let rnic = node.pd.rnic().clone();
    let (stop, target) = (AtomicBool::new(false), AtomicU16::new(0));
    thread::scope(|scope| {
        let (stopped, target_now) = (&stop, &target);
        scope.spawn(move || {
            let peers = [0; 2].map(|_| {
                let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                let datagram = plain_send(socket.local_addr().unwrap().port());
                (socket, datagram)
            });
            while !stopped.load(Ordering::SeqCst) {
                let to = (Ipv4Addr::LOCALHOST, target_now.load(Ordering::SeqCst));
                for (socket, datagram) in &peers {
                    // Refused while one queue pair is gone and the next not there.
                    let _ = socket.send_to(datagram, to);
                }
            }
        });
        let mut mistaken = 0;
        let mut connected = 0;
        for _ in 0..QUEUE_PAIRS {
            let cq = rnic.create_cq(512).unwrap();
            let node = Node::on(rnic.clone(), cq, 8 * 256, |_| ());
            for slot in 0..256 {
                node.post_recv(u64::try_from(slot).unwrap(), slot * 8..slot * 8 + 8);
            }
            target.store(node.qp.qpn(), Ordering::SeqCst);
            for _ in 0..100 {
                let wc = node.wait();
                let start = usize::try_from(wc.wr_id).unwrap() * 8;
                let said = u16::from_be_bytes(node.memory.to_vec(start, 2).try_into().unwrap());
                mistaken += u32::from(wc.source.unwrap().port() != said);
                node.post_recv(wc.wr_id, start..start + 8);
            }
            connected += connected_to(node.qp.qpn()).len();
        }
        stop.store(true, Ordering::SeqCst);
        assert_eq!(mistaken, 0);
        assert!(connected >= QUEUE_PAIRS, "{connected} sockets of their own");
    });
}
