//! One-sided copies: Writes and Reads of a peer that does not poll, which keeps every right over its memory.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::limits::this_program;
use super::{AT, End, LONGEST, RECEIVES, SEND, SOON, Waits, at_once, connect, listen};
use crate::common::{self, Process, now, role, skip};
use dgiwarp::{Access, Buffer, MpaConfig, Mr, RcOperation, RcSendWr, SameHostMode, Wc, WcStatus};
use nix::sys::prctl::set_dumpable;
use nix::unistd::{Uid, geteuid, setuid};

/// Octets behind which work requests have their local memory.
const LOCAL: usize = RECEIVES * LONGEST;

/// A client, and a server whose program does not poll.
fn pair(modes: [SameHostMode; 2]) -> (End, End) {
    let [client, server] = modes.map(|mode| End::with(at_once(mode)));
    connect(&client, &server);
    (client, server)
}

fn copied(end: &End) -> u64 {
    end.rnic.counters().one_sided_operations
}

fn octets(number: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| u8::try_from((at * 5 + number * 11 + 1) % 251).unwrap())
        .collect()
}

fn write(to: (&Mr, usize)) -> RcOperation {
    RcOperation::Write {
        rkey: to.0.rkey(),
        remote_addr: to.0.addr() + to.1 as u64,
        immediate: None,
    }
}

fn read(from: (&Mr, usize)) -> RcOperation {
    RcOperation::Read {
        rkey: from.0.rkey(),
        remote_addr: from.0.addr() + from.1 as u64,
    }
}

/// Posts a work request on `len` octets of local memory, and returns its completion.
fn run(end: &End, operation: RcOperation, len: usize) -> Wc {
    let sges = [end.mr.sge(LOCAL..LOCAL + len)];
    end.qp
        .post_send(&[RcSendWr::new(7, operation, &sges)])
        .unwrap();
    completion(end)
}

/// The next completion of a send.
fn completion(end: &End) -> Wc {
    let until = now() + SOON;
    loop {
        match end.cq.poll_one().unwrap() {
            Some(wc) if wc.wr_id == 7 => return wc,
            Some(_) | None => assert!(now() < until, "no completion in time"),
        }
    }
}

/// Has the client write a region of the server until it does so alone.
fn warm_up(client: &End, to: (&Mr, usize)) {
    let before = copied(client);
    common::wait_until(SOON, "a Write is done alone", || {
        assert_eq!(run(client, write(to), 8).status, WcStatus::Success);
        copied(client) > before
    });
}

/// Octets of all lengths get where they belong, both ways, whatever the carrier.
#[test]
fn writes_and_reads_of_a_sleeper_are_done_alone() {
    let (client, server) = pair([SameHostMode::Auto; 2]);
    warm_up(&client, (&server.mr, 0));
    let lengths = [
        0,
        1,
        7,
        8,
        9,
        64,
        4095,
        4096,
        32 << 10,
        (32 << 10) + 1,
        LONGEST,
    ];
    for (number, len) in lengths.into_iter().enumerate() {
        for at in [0, 1, 4093] {
            let before = copied(&client);
            let sent = octets(number, len);
            client.memory.write(LOCAL, &sent);
            server.memory.write(at, &vec![0xee; len + 1]);
            assert_eq!(
                run(&client, write((&server.mr, at)), len).status,
                WcStatus::Success
            );
            assert!(server.memory.to_vec(at, len) == sent, "Write of {len}");
            assert_eq!(server.memory.to_vec(at + len, 1), [0xee]);
            let is_short = len <= 32 << 10;
            assert_eq!(
                copied(&client) - before,
                u64::from(is_short),
                "Write of {len}"
            );
            let expected = octets(number + 50, len);
            server.memory.write(at, &expected);
            assert_eq!(
                run(&client, read((&server.mr, at)), len).status,
                WcStatus::Success
            );
            assert!(
                client.memory.to_vec(LOCAL, len) == expected,
                "Read of {len}"
            );
        }
    }
    let counters = client.rnic.counters();
    assert!(counters.one_sided_octets > 500_000, "{counters}");
    assert_eq!(copied(&server), 0);
}

/// Inline octets, several elements, and elements without octets.
#[test]
fn gathered_and_inline_octets_are_written_in_order() {
    let (client, server) = pair([SameHostMode::Auto; 2]);
    warm_up(&client, (&server.mr, 0));
    let before = copied(&client);
    let wr = RcSendWr {
        inline: b"inline octets",
        ..RcSendWr::new(7, write((&server.mr, 3)), &[])
    };
    client.qp.post_send(&[wr]).unwrap();
    assert_eq!(completion(&client).status, WcStatus::Success);
    assert_eq!(server.memory.to_vec(3, 13), b"inline octets");
    client.memory.write(LOCAL, b"0123456789abcdef");
    let part = |from: usize, to: usize| client.mr.sge(LOCAL + from..LOCAL + to);
    for sges in [
        vec![part(10, 16), part(0, 10)],
        vec![part(10, 15), part(3, 3), part(15, 16), part(0, 10)],
    ] {
        server.memory.write(100, &[0; 16]);
        let wr = RcSendWr::new(7, write((&server.mr, 100)), &sges);
        client.qp.post_send(&[wr]).unwrap();
        assert_eq!(completion(&client).status, WcStatus::Success);
        assert_eq!(server.memory.to_vec(100, 16), b"abcdef0123456789");
        client.memory.write(LOCAL, &[0; 16]);
        let wr = RcSendWr::new(7, read((&server.mr, 100)), &sges);
        client.qp.post_send(&[wr]).unwrap();
        assert_eq!(completion(&client).status, WcStatus::Success);
        assert_eq!(client.memory.to_vec(LOCAL, 16), b"0123456789abcdef");
    }
    assert_eq!(copied(&client) - before, 5);
}

/// The peer wakes up for the Send anyway. Alone, the same Write is copied.
#[test]
fn a_write_that_a_send_is_behind_goes_with_it() {
    let (client, server) = pair([SameHostMode::Auto; 2]);
    warm_up(&client, (&server.mr, 0));
    let before = copied(&client);
    for number in 0..RECEIVES {
        let sent = octets(number, 64);
        client.memory.write(LOCAL, &sent);
        let sges = [client.mr.sge(LOCAL..LOCAL + 64)];
        let wrs = [
            RcSendWr {
                signaled: false,
                ..RcSendWr::new(7, write((&server.mr, LOCAL)), &sges)
            },
            RcSendWr::new(7, SEND, &sges),
        ];
        client.qp.post_send(&wrs).unwrap();
        assert_eq!(completion(&client).status, WcStatus::Success);
        assert_eq!(server.memory.to_vec(LOCAL, 64), sent);
    }
    assert_eq!(copied(&client), before);
    warm_up(&client, (&server.mr, 0));
}

/// An end that is set to `ring` copies nothing, and lets its peer copy nothing.
#[test]
fn either_end_may_do_without() {
    for modes in [
        [SameHostMode::Ring, SameHostMode::Auto],
        [SameHostMode::Auto, SameHostMode::Ring],
        [SameHostMode::Ring, SameHostMode::Direct],
    ] {
        let (client, server) = pair(modes);
        let both = || {
            for operation in [write((&server.mr, 0)), read((&server.mr, 0))] {
                assert_eq!(run(&client, operation, 100).status, WcStatus::Success);
            }
        };
        common::wait_until(SOON, "the connection is in memory", || {
            both();
            client.lane_octets() > (0, 0)
        });
        (0..200).for_each(|_| both());
        assert_eq!(copied(&client), 0, "{modes:?}");
    }
}

/// A Write is in memory before the Send behind it is received, and behind the Send before it: none overtakes another, whichever way each takes.
#[test]
fn nothing_overtakes() {
    let (client, server) = pair([SameHostMode::Auto; 2]);
    warm_up(&client, (&server.mr, 0));
    let before = copied(&client);
    let rounds = 300_usize;
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=rounds {
                let waits = [Waits::Sleeping, Waits::Polling][round % 2];
                let wc = server.next(waits);
                let slot = usize::try_from(wc.wr_id).unwrap();
                assert_eq!(wc.byte_len, 8);
                let number = server.memory.to_vec(slot * LONGEST, 8);
                let number = u64::from_ne_bytes(number.try_into().unwrap());
                assert_eq!(number, round as u64);
                // The Write before the message, or a later one.
                let written = server.memory.to_vec(LOCAL, 8);
                let written = u64::from_ne_bytes(written.try_into().unwrap());
                assert!(written >= number, "{written} behind {number}");
                server.post_recv(slot);
            }
        });
        for round in 1..=rounds {
            client.memory.write(LOCAL, &(round as u64).to_ne_bytes());
            let sges = [client.mr.sge(LOCAL..LOCAL + 8)];
            let wrs = [
                RcSendWr {
                    signaled: round % 3 > 0,
                    ..RcSendWr::new(5, write((&server.mr, LOCAL)), &sges)
                },
                RcSendWr::new(7, SEND, &sges),
            ];
            if round % 2 == 0 {
                client.qp.post_send(&wrs).unwrap();
            } else {
                wrs.iter()
                    .for_each(|wr| client.qp.post_send(&[*wr]).unwrap());
            }
            assert_eq!(completion(&client).status, WcStatus::Success);
            if round % 7 == 0 {
                // The target sleeps before the next one.
                thread::yield_now();
            }
        }
    });
    assert!(copied(&client) > before, "no Write was done alone");
}

/// A region of its own for the peer to write.
fn apart(server: &End, access: Access) -> (Buffer, Mr) {
    let memory = Buffer::zeroed(4096).unwrap();
    let mr = server.qp.pd().register(memory.region(), access).unwrap();
    (memory, mr)
}

/// Not an octet lands behind a deregistration, a reset, an end or a denial, amid Writes that are done alone.
#[test]
fn whatever_ends_the_right_ends_the_copies() {
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    for round in 0..40_u32 {
        let (client, server) = pair([SameHostMode::Auto; 2]);
        let (memory, mr) = apart(&server, rights);
        warm_up(&client, (&mr, 0));
        let writes = AtomicUsize::new(0);
        let to = (mr.rkey(), mr.addr());
        let started = copied(&client);
        thread::scope(|scope| {
            let refused = scope.spawn(|| {
                client.memory.write(LOCAL, &[0x77; 4096]);
                let operation = RcOperation::Write {
                    rkey: to.0,
                    remote_addr: to.1,
                    immediate: None,
                };
                let until = now() + SOON;
                loop {
                    let wc = run(&client, operation, 4096);
                    if wc.status != WcStatus::Success {
                        return wc.status;
                    }
                    writes.fetch_add(1, Ordering::Relaxed);
                    assert!(now() < until, "the region is written still");
                }
            });
            common::wait_until(SOON, "Writes", || writes.load(Ordering::Relaxed) > 20);
            let pause = now() + Duration::from_micros(u64::from(round * 7 % 50));
            while now() < pause {}
            let mut kept = None;
            match round % 4 {
                0 => mr.deregister().unwrap(),
                1 => {
                    server.qp.flush();
                    kept = Some(mr);
                }
                2 => {
                    server.qp.reset();
                    kept = Some(mr);
                }
                _ => {
                    server.qp.allow(Access::REMOTE_READ);
                    kept = Some(mr);
                }
            }
            memory.write(0, &[1; 4096]);
            let status = refused.join().unwrap();
            assert!(
                memory.to_vec(0, 4096) == [1; 4096],
                "round {round}: {status:?}"
            );
            drop(kept);
        });
        assert!(
            copied(&client) > started,
            "round {round}: no Write was done alone"
        );
    }
}

/// Memory that takes the place of other memory under one key is written from then on, and that of before never again.
#[test]
fn memory_of_before_a_new_registration_is_not_written() {
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let (client, server) = pair([SameHostMode::Auto; 2]);
    let (mut memory, mut mr) = apart(&server, rights);
    for round in 0..20 {
        warm_up(&client, (&mr, 0));
        let next = Buffer::zeroed(4096).unwrap();
        let addr = mr.addr();
        mr.reregister(server.qp.pd(), next.region(), addr, rights)
            .unwrap();
        memory.write(0, &[1; 4096]);
        client.memory.write(LOCAL, &[9; 8]);
        warm_up(&client, (&mr, 8));
        assert_eq!(next.to_vec(8, 8), [9; 8], "round {round}");
        assert!(memory.to_vec(0, 4096) == [1; 4096], "round {round}");
        memory = next;
    }
}

/// Bounds and rights are those of the region: what is outside ends the connection as by the lane.
#[test]
fn what_was_not_granted_is_refused() {
    let cases: [(Access, usize, bool); 4] = [
        (Access::LOCAL_WRITE | Access::REMOTE_WRITE, 4090, true),
        (Access::LOCAL_WRITE | Access::REMOTE_WRITE, 0, false),
        (Access::REMOTE_READ, 0, true),
        (Access::REMOTE_READ, 4090, false),
    ];
    for (access, at, writes) in cases {
        let (client, server) = pair([SameHostMode::Auto; 2]);
        let (memory, mr) = apart(&server, access);
        memory.write(0, &[1; 4096]);
        if access.contains(Access::REMOTE_WRITE) {
            client.memory.write(LOCAL, &[1; 8]);
            warm_up(&client, (&mr, 0));
        } else {
            let before = copied(&client);
            common::wait_until(SOON, "a Read is done alone", || {
                assert_eq!(run(&client, read((&mr, 0)), 8).status, WcStatus::Success);
                copied(&client) > before
            });
        }
        client.memory.write(LOCAL, &[9; 8]);
        let operation = if writes {
            write((&mr, at))
        } else {
            read((&mr, at))
        };
        let status = run(&client, operation, 8).status;
        assert_eq!(status, WcStatus::RemoteAccess, "{access:?} {at} {writes}");
        assert!(memory.to_vec(0, 4096) == [1; 4096]);
    }
}

/// The writing process that is killed.
fn writer() {
    let to = std::env::var(AT).unwrap().parse().unwrap();
    let end = End::with(at_once(SameHostMode::Auto));
    end.qp.connect(to, &MpaConfig::default(), b"").unwrap();
    let key: u64 = std::env::var("KEY").unwrap().parse().unwrap();
    let remote_addr: u64 = std::env::var("ADDRESS").unwrap().parse().unwrap();
    let operation = RcOperation::Write {
        rkey: u32::try_from(key).unwrap(),
        remote_addr,
        immediate: None,
    };
    end.memory.write(LOCAL, &[0x77; 4096]);
    let mut told = false;
    loop {
        run(&end, operation, 4096);
        if !told && copied(&end) > 100 {
            println!("writes alone");
            told = true;
        }
    }
}

/// The process that is written.
fn written(test: &str) {
    let mut process_number = 0_u64;
    for round in 0..15_u64 {
        let listener = listen();
        let server = End::with(at_once(SameHostMode::Auto));
        let (memory, mr) = apart(&server, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        let variables = [
            (AT, listener.local_addr().to_string()),
            ("KEY", mr.rkey().to_string()),
            ("ADDRESS", mr.addr().to_string()),
        ];
        let mut process = Process::start(test, "writer", &variables);
        let request = listener.accept(SOON).unwrap().expect("a request");
        request.accept(&server.qp, super::DEPTHS, b"").unwrap();
        process.tells("writes alone", SOON);
        assert_eq!(memory.to_vec(0, 4096), [0x77; 4096]);
        process_number = process_number.wrapping_mul(6_364_136_223_846_793_005) + round;
        common::sleep(Duration::from_micros((process_number >> 33) % 2000));
        if round % 3 == 0 {
            // The peer is stopped at any place, amid a copy or not: nothing waits for it for ever.
            super::send(&process, nix::sys::signal::Signal::SIGSTOP);
        } else if round % 3 == 1 {
            process.kill();
        }
        let begun = now();
        match mr.deregister() {
            Ok(()) => {
                memory.write(0, &[1; 4096]);
                if round % 3 == 0 {
                    super::send(&process, nix::sys::signal::Signal::SIGCONT);
                }
                common::sleep(Duration::from_millis(20));
                assert!(memory.to_vec(0, 4096) == [1; 4096], "round {round}");
            }
            // A process that was stopped just before a copy.
            Err(busy) => assert!(round % 3 == 0 && busy.windows() == 0, "{busy}"),
        }
        assert!(now() - begun < SOON);
        if round % 3 != 1 {
            process.kill();
        }
    }
}

/// Peers that are killed or stopped amid copies delay a deregistration by no more than a second, and no octet lands behind it.
#[test]
fn killed_and_stopped_writers_keep_no_region() {
    let test = here!("killed_and_stopped_writers_keep_no_region");
    match role().as_deref() {
        Some("writer") => writer(),
        Some(_) => written(test),
        None => Process::start(test, "written", &[]).finish(10 * SOON),
    }
}

/// A user that no test runs as.
const OTHER_USER: u32 = 65_533;

/// Becomes another user, if one is named, whose processes may trace this one or not.
fn become_user() {
    let Ok(user) = std::env::var("USER_NUMBER") else {
        return;
    };
    setuid(Uid::from_raw(user.parse().unwrap())).unwrap();
    // A process that changes its user cannot be traced by others than root.
    set_dumpable(std::env::var("TRACEABLE").is_ok()).unwrap();
}

/// The process that is written: it does nothing.
fn target() {
    become_user();
    let server = End::with(at_once(SameHostMode::Auto));
    let (memory, mr) = apart(&server, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let listener = listen();
    println!("at {} {} {}", listener.local_addr(), mr.rkey(), mr.addr());
    let request = listener.accept(SOON).unwrap().expect("a request");
    request.accept(&server.qp, super::DEPTHS, b"").unwrap();
    let ended = || server.qp.end().is_some();
    common::wait_until(SOON, "the end of the connection", ended);
    assert_eq!(memory.to_vec(0, 8), [0x77; 8]);
}

/// The process that writes, and tells how much of it was done alone.
fn initiator() {
    become_user();
    let named = std::env::var(AT).unwrap();
    let named: Vec<&str> = named.split(' ').collect();
    let end = End::with(at_once(SameHostMode::Auto));
    let mpa = MpaConfig::default();
    end.qp
        .connect(named[0].parse().unwrap(), &mpa, b"")
        .unwrap();
    let operation = RcOperation::Write {
        rkey: named[1].parse().unwrap(),
        remote_addr: named[2].parse().unwrap(),
        immediate: None,
    };
    end.memory.write(LOCAL, &[0x77; 8]);
    let until = now() + SOON;
    // The lanes are there, and whatever else is to be.
    let mut in_lane = 0;
    while in_lane < 300 {
        assert_eq!(run(&end, operation, 8).status, WcStatus::Success);
        in_lane += u32::from(end.lane_octets() > (0, 0));
        assert!(now() < until, "no lanes");
    }
    println!("alone {}", copied(&end));
}

/// Writes that were done alone, by an initiator and to a target that are started so.
fn alone_between(
    test: &str,
    initiator: Command,
    target: Command,
    variables: &[(&str, String)],
) -> u64 {
    let mut target = Process::start_as(target, test, "target", variables);
    let at = target.tells("at ", SOON);
    let variables = [variables, &[(AT, at)]].concat();
    let mut initiator = Process::start_as(initiator, test, "initiator", &variables);
    let alone = initiator.tells("alone ", SOON).parse().unwrap();
    initiator.finish(SOON);
    target.finish(SOON);
    alone
}

/// The kernel decides by users, namespaces and the target's own wish. Everything works by the lane where it does not let one process copy.
#[test]
fn copies_are_made_where_the_kernel_allows_them() {
    let test = here!("copies_are_made_where_the_kernel_allows_them");
    match role().as_deref() {
        Some("target") => return target(),
        Some(_) => return initiator(),
        None => {}
    }
    assert!(alone_between(test, this_program(), this_program(), &[]) > 0);
    if !geteuid().is_root() {
        return skip(test, "only root can be another user");
    }
    let user = ("USER_NUMBER", OTHER_USER.to_string());
    let traceable = ("TRACEABLE", "1".to_owned());
    let alone = |variables: &[_]| alone_between(test, this_program(), this_program(), variables);
    assert_eq!(alone(std::slice::from_ref(&user)), 0);
    assert!(alone(&[user, traceable]) > 0);
    // A process of a child user namespace may not trace one of its parent, but the other way it may. Processes without numbers for each other do not copy.
    const USER: &[&str] = &["--user", "--map-root-user"];
    const PROCESSES: &[&str] = &["--pid", "--fork", "--kill-child"];
    for (namespaces, from_outside) in [(USER, true), (PROCESSES, false)] {
        let there = || super::limits::apart(test, namespaces, "true");
        if let Some(command) = there() {
            let alone = alone_between(test, command, this_program(), &[]);
            assert_eq!(alone, 0, "{namespaces:?}");
        }
        if let Some(command) = there() {
            let alone = alone_between(test, this_program(), command, &[]);
            assert_eq!(alone > 0, from_outside, "{namespaces:?}");
        }
    }
}
