//! Peers that are killed, restarted or hostile, and messages that fail.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use dgiwarp::{Config, WcOpcode, WcStatus};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::end::{End, ROOM, SEND, octets_of};
use crate::common::node::SOON;
use crate::common::{Process, given, now, role, wait_until};

/// Time after which silence ends an association, by default, and what timers and a loaded machine add.
const UNREACHABLE: Duration = Duration::from_secs(4);

/// A peer in a process of its own, which echoes nothing and takes everything.
fn victim() {
    let port: u16 = given("PORT").parse().unwrap();
    let bind = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let end = End::with(Config::default(), 64, |attr| attr.bind = bind);
    println!("port {}", end.qp.qpn());
    loop {
        if let Some(wc) = end.cq.wait(SOON * 6).unwrap() {
            assert_eq!(wc.opcode, WcOpcode::Recv);
            end.post_recv(wc.wr_id);
        }
    }
}

fn start_victim(test: &str, port: u16) -> (Process, u16) {
    let mut process = Process::start(test, "victim", &[("PORT", port.to_string())]);
    let port = process.tells("port ", SOON).parse().unwrap();
    (process, port)
}

/// Takes the port of a process that was killed, and answers nothing there: strangers that get the port would.
fn hold(port: u16) -> UdpSocket {
    let mut held = None;
    wait_until(SOON, "the port", || {
        held = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).ok();
        held.is_some()
    });
    held.unwrap()
}

/// A killed peer fails what is posted to it within 4 s and its timers, or a quarter of a second where ICMP tells in between that nobody has its port.
#[test]
fn a_killed_peer_fails_alone_and_may_come_back() {
    if role().is_some() {
        return victim();
    }
    let test = here!("a_killed_peer_fails_alone_and_may_come_back");
    let end = |victim: Process, port| {
        drop(victim);
        hold(port)
    };
    fails_alone(test, end, Duration::from_millis(250));
}

/// Of a stopped peer nothing is known but its silence.
#[test]
fn a_stopped_peer_fails_alone_and_may_come_back() {
    if role().is_some() {
        return victim();
    }
    let test = here!("a_stopped_peer_fails_alone_and_may_come_back");
    let stop = |victim: Process, _| {
        let id = Pid::from_raw(i32::try_from(victim.id()).unwrap());
        kill(id, Signal::SIGSTOP).unwrap();
        // Each thread stops when it leaves the kernel (`proc_pid_stat(5)`).
        wait_until(SOON, "a stopped process", || {
            let threads = fs::read_dir(format!("/proc/{id}/task")).unwrap();
            threads.flatten().all(|thread| {
                let state = fs::read_to_string(thread.path().join("stat"));
                state.is_ok_and(|it| it.contains(") T "))
            })
        });
        victim
    };
    fails_alone(test, stop, UNREACHABLE);
}

/// A peer that `falls_silent` fails what is posted to it, `least` behind its last datagram or later, and others notice nothing. One that comes up at its port, when what
/// `falls_silent` returns is gone, is served.
fn fails_alone<T>(test: &str, falls_silent: impl FnOnce(Process, u16) -> T, least: Duration) {
    let (victim, port) = start_victim(test, 0);
    let sender = End::new(Config::default(), 0);
    let other = End::new(Config::default(), 64);
    // Silence counts from the latest datagram of the peer, which comes behind this.
    let greeted = now();
    sender.post(0, port, 1000).unwrap();
    assert_eq!(sender.wait().status, WcStatus::Success);
    let held = falls_silent(victim, port);
    let killed = now();
    sender.post(1, port, ROOM).unwrap();
    sender.post(2, port, 64).unwrap();
    let mut failed = Vec::new();
    let mut slowest = Duration::ZERO;
    let mut number = 3;
    let mut begun = None;
    while failed.len() < 2 {
        assert!(now() < killed + SOON, "{failed:?}");
        if begun.is_none() {
            sender.post(number, other.qp.qpn(), 500).unwrap();
            begun = Some(now());
        }
        while let Some(wc) = other.poll() {
            assert_eq!(wc.status, WcStatus::Success);
            other.post_recv(wc.wr_id);
        }
        while let Some(wc) = sender.poll() {
            let (ended, to) = End::posted(wc.wr_id);
            if to == port {
                failed.push((ended, wc.status, greeted.elapsed()));
                continue;
            }
            assert_eq!((ended, wc.status), (number, WcStatus::Success));
            slowest = slowest.max(begun.take().unwrap().elapsed());
            number += 1;
        }
    }
    println!("{failed:?}; {number} messages to the other, the slowest in {slowest:?}");
    assert_eq!((failed[0].0, failed[0].1), (1, WcStatus::RetryExceeded));
    assert_eq!(failed[1].0, 2);
    assert_ne!(failed[1].1, WcStatus::Success);
    assert!(failed[1].2 >= least, "{failed:?}");
    assert!(number > 20, "{number}");
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    // Another process at the same port.
    drop(held);
    let (_again, same) = start_victim(test, port);
    assert_eq!(same, port);
    sender.post(7, port, ROOM).unwrap();
    let ended = std::iter::repeat_with(|| sender.wait()).find(|wc| End::posted(wc.wr_id).1 == port);
    assert_eq!(ended.unwrap().status, WcStatus::Success);
}

/// A peer that restarts while messages are under way fails these, at once, and takes later ones.
#[test]
fn a_restarted_peer_fails_what_was_under_way() {
    if role().is_some() {
        return victim();
    }
    let test = here!("a_restarted_peer_fails_what_was_under_way");
    let (victim, port) = start_victim(test, 0);
    let sender = End::new(Config::default(), 0);
    // The second one takes the acknowledgement of the peer's first datagram along: at a port that nobody has it would end the association.
    for number in 0..2 {
        sender.post(number, port, 1000).unwrap();
        assert_eq!(sender.wait().status, WcStatus::Success);
    }
    drop(victim);
    let (_again, same) = start_victim(test, port);
    assert_eq!(same, port);
    sender.post(2, port, 64).unwrap();
    let begun = now();
    let wc = sender.wait();
    assert_eq!(wc.status, WcStatus::RemoteAborted);
    assert!(begun.elapsed() < UNREACHABLE, "{:?}", begun.elapsed());
    sender.post(3, port, ROOM).unwrap();
    assert_eq!(sender.wait().status, WcStatus::Success);
}

/// Errors of one message fail it, those behind it are flushed, and the next ones go.
#[test]
fn a_message_that_the_peer_refuses_fails() {
    let receiver = End::with(Config::default(), 4, |attr| attr.qkey = 7);
    let sender = End::new(Config::default(), 0);
    let to = |qkey| (receiver.qp.qpn(), qkey);
    sender.post_with_key((1, SEND), to(8), 0, 100).unwrap();
    let wc = sender.wait();
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::RemoteAccess));
    sender.post_with_key((2, SEND), to(7), 0, ROOM + 1).unwrap();
    let wc = sender.wait();
    assert_eq!((wc.wr_id, wc.status), (2, WcStatus::RemoteInvalidRequest));
    let wc = receiver.wait();
    assert_eq!(wc.status, WcStatus::LocalLength);
    sender.post_with_key((3, SEND), to(7), 0, ROOM).unwrap();
    let wc = sender.wait();
    assert_eq!((wc.wr_id, wc.status), (3, WcStatus::Success));
    let wc = receiver.wait();
    assert_eq!((wc.status, wc.byte_len as usize), (WcStatus::Success, ROOM));
}

/// Octets of any kind at the port, from strangers and with the addresses of good peers' hosts, harm nobody.
#[test]
fn hostile_octets_harm_nobody() {
    let receiver = End::new(Config::default(), 16);
    let sender = End::new(Config::default(), 0);
    let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    stranger.set_nonblocking(true).unwrap();
    let mut state = 1u64;
    let mut random = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state >> 33
    };
    for number in 0..300 {
        for to in [receiver.qp.qpn(), sender.qp.qpn()] {
            for length in [0_usize, 1, 27, 28, 29, 64, 200, 1472] {
                let mut octets: Vec<u8> = (0..length).map(|_| random().to_le_bytes()[0]).collect();
                // Envelopes with a valid CRC, and frames of all types.
                if let [first, flags, ..] = &mut octets[..]
                    && random() % 4 > 0
                {
                    *first = 0x51;
                    *flags &= 3;
                }
                if let Some(head) = octets.get_mut(4..8)
                    && random() % 2 > 0
                {
                    head.fill(0);
                }
                if let Some(frame) = octets.get_mut(24..28) {
                    let body = u16::try_from(length.saturating_sub(32)).unwrap();
                    frame[0] = u8::try_from(random() % 12).unwrap();
                    frame[2..].copy_from_slice(&body.to_be_bytes());
                }
                let end = octets.len().saturating_sub(4);
                let crc = crate::common::crc32c(&octets[..end]);
                octets[end..].copy_from_slice(&crc.to_le_bytes()[..length.min(4)]);
                let _ = stranger.send_to(&octets, (Ipv4Addr::LOCALHOST, to));
            }
        }
        sender.post(number, receiver.qp.qpn(), 2000).unwrap();
        let wc = receiver.wait();
        assert_eq!(wc.status, WcStatus::Success);
        assert_eq!(receiver.received(&wc), octets_of(number, 2000));
        receiver.post_recv(wc.wr_id);
        let wc = sender.wait();
        assert_eq!(wc.status, WcStatus::Success);
    }
    wait_until(SOON, "drops", || {
        receiver.qp.counters().dropped_in_all() > 100
    });
}
