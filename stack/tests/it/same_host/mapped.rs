//! Writes through memory that both processes map, which keeps every right of its owner.

use std::net::SocketAddr;
use std::time::Duration;

use super::limits::this_program;
use super::{End, SEND, SOON, Waits, at_once, connect, listen};
use crate::common::{self, Process, now, role};
use dgiwarp::{
    Access, Buffer, Config, MpaConfig, Mr, RcOperation, RcSendWr, RegionSlice, SameHostMode,
    WcStatus,
};

const HERE: &str = "127.0.0.1:1";
const RIGHTS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);
/// Octets of a target.
const LEN: usize = 300_000;

fn pair(modes: [SameHostMode; 2]) -> (End, End) {
    let [client, server] = modes.map(|mode| End::with(at_once(mode)));
    connect(&client, &server);
    (client, server)
}

/// A target of the server, in memory for a peer at an address.
fn target(server: &End, peer: &str, access: Access) -> (Buffer, Mr) {
    let peer: SocketAddr = peer.parse().unwrap();
    let memory = server.rnic.create_buffer_for(peer, LEN).unwrap();
    let mr = server.qp.pd().register(memory.region(), access).unwrap();
    (memory, mr)
}

/// Writes `octets` at an offset of the target, if that is mapped.
fn write(client: &End, (rkey, addr): (u32, u64), at: usize, octets: &[u8]) -> bool {
    let length = u32::try_from(octets.len()).unwrap();
    let fill = |memory: &RegionSlice<'_>| memory.place(octets);
    client
        .qp
        .write_mapped(rkey, addr.wrapping_add(at as u64), length, fill)
}

/// Writes to the target, which is mapped, once no other thread is at work on the queue pair.
fn writes(client: &End, to: (u32, u64), at: usize, octets: &[u8]) {
    let what = format!("{} octets at {at} are written", octets.len());
    common::wait_until(SOON, &what, || write(client, to, at, octets));
}

/// Posts a Write of eight octets, behind which the target may be granted.
fn post(client: &End, mr: &Mr) {
    let operation = RcOperation::Write {
        rkey: mr.rkey(),
        remote_addr: mr.addr(),
        immediate: None,
    };
    run(client, operation);
}

/// Posts a work request on eight octets, and takes its completion.
fn run(client: &End, operation: RcOperation) {
    let sges = [client.mr.sge(0..8)];
    let wr = RcSendWr::new(7, operation, &sges);
    client.qp.post_send(&[wr]).unwrap();
    while client.next(Waits::Polling).wr_id != 7 {}
}

/// Posts Writes until the target is written through its mapping.
fn warm_up(client: &End, mr: &Mr) {
    common::wait_until(SOON, "a target is mapped", || {
        post(client, mr);
        write(client, (mr.rkey(), mr.addr()), 0, &[1; 8])
    });
}

/// Posts Writes for a while, behind none of which the target is written through a mapping.
fn is_never_mapped(client: &End, mr: &Mr) -> bool {
    (0..200).all(|_| {
        post(client, mr);
        !write(client, (mr.rkey(), mr.addr()), 0, &[1; 8])
    })
}

#[test]
fn octets_are_where_they_belong_before_the_message_behind_them() {
    let (client, server) = pair([SameHostMode::Auto; 2]);
    let (memory, mr) = target(&server, HERE, RIGHTS);
    warm_up(&client, &mr);
    let to = (mr.rkey(), mr.addr());
    let before = client.rnic.counters();
    for (number, len) in [0, 1, 8, 4096, 65_537, LEN - 1].into_iter().enumerate() {
        for at in [0, 1] {
            let octets = vec![u8::try_from(number * 2 + at + 10).unwrap(); len];
            writes(&client, to, at, &octets);
            let message = RcSendWr {
                inline: b"there",
                ..RcSendWr::new(7, SEND, &[])
            };
            client.qp.post_send(&[message]).unwrap();
            let received = server.next(Waits::Polling);
            assert_eq!((received.status, received.byte_len), (WcStatus::Success, 5));
            assert!(memory.to_vec(at, len) == octets, "{len} at {at}");
            server.post_recv(usize::try_from(received.wr_id).unwrap());
        }
    }
    let after = client.rnic.counters();
    assert_eq!(after.one_sided_operations - before.one_sided_operations, 12);
    // Outside of the target, and with another key.
    for (at, len) in [(LEN, 1), (1, LEN), (usize::MAX, 1), (0, LEN + 1)] {
        assert!(!write(&client, to, at, &vec![0; len]), "{len} at {at}");
    }
    assert!(!write(&client, (to.0 ^ 1, to.1), 0, &[0]));
}

/// A mapping holds as long as the grant: a deregistration ends it, and another region, of other memory, has the next one.
#[test]
fn a_deregistration_ends_a_mapping() {
    let (client, server) = pair([SameHostMode::Auto; 2]);
    for round in 0..40 {
        let (memory, mr) = target(&server, HERE, RIGHTS);
        warm_up(&client, &mr);
        let to = (mr.rkey(), mr.addr());
        writes(&client, to, 7, &[round; 9]);
        mr.deregister().unwrap();
        assert!(!write(&client, to, 7, &[0xee; 9]));
        assert_eq!(memory.to_vec(7, 9), [round; 9]);
    }
}

#[test]
fn what_is_not_granted_is_not_mapped() {
    // Memory of its own, a peer on another host, no right to write.
    let (client, server) = pair([SameHostMode::Auto; 2]);
    let elsewhere = "192.0.2.1:1";
    let (_memory, mr) = target(&server, elsewhere, RIGHTS);
    assert!(is_never_mapped(&client, &mr));
    assert!(is_never_mapped(&client, &server.mr));
    let read = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let (memory, mr) = target(&server, HERE, read);
    let before = client.rnic.counters().one_sided_operations;
    common::wait_until(SOON, "the target is granted", || {
        let operation = RcOperation::Read {
            rkey: mr.rkey(),
            remote_addr: mr.addr(),
        };
        run(&client, operation);
        client.rnic.counters().one_sided_operations > before
    });
    assert!((0..100).all(|_| !write(&client, (mr.rkey(), mr.addr()), 0, &[1])));
    assert_eq!(memory.load(0), 0);
    // Ends that do not copy.
    for modes in [
        [SameHostMode::Auto, SameHostMode::Ring],
        [SameHostMode::Ring, SameHostMode::Auto],
        [SameHostMode::Off, SameHostMode::Auto],
    ] {
        let (client, server) = pair(modes);
        let (_memory, mr) = target(&server, HERE, RIGHTS);
        assert!(is_never_mapped(&client, &mr), "{modes:?}");
    }
    // A connection that is over.
    let (client, server) = pair([SameHostMode::Auto; 2]);
    let (_memory, mr) = target(&server, HERE, RIGHTS);
    warm_up(&client, &mr);
    server.qp.disconnect();
    common::wait_until(SOON, "the end", || client.qp.end().is_some());
    assert!(!write(&client, (mr.rkey(), mr.addr()), 0, &[1]));
}

/// Without a descriptor for it, memory is as any other.
#[test]
fn memory_is_there_without_descriptors() {
    let server = End::with(Config::default());
    let test = here!("memory_is_there_without_descriptors");
    if role().is_none() {
        let child = Process::start_as(this_program(), test, "alone", &[]);
        return child.finish(SOON);
    }
    let fewer = nix::sys::resource::Resource::RLIMIT_NOFILE;
    let (_, most) = nix::sys::resource::getrlimit(fewer).unwrap();
    nix::sys::resource::setrlimit(fewer, 0, most).unwrap();
    let (memory, _mr) = target(&server, HERE, RIGHTS);
    assert_eq!(memory.region().memory_file(), None);
    memory.write(LEN - 1, &[1]);
}

/// The process that is written, until it is killed.
fn killed_target() {
    let server = End::with(at_once(SameHostMode::Auto));
    let (_memory, mr) = target(&server, HERE, RIGHTS);
    let listener = listen();
    println!("at {} {} {}", listener.local_addr(), mr.rkey(), mr.addr());
    let request = listener.accept(SOON).unwrap().expect("a request");
    request.accept(&server.qp, super::DEPTHS, b"").unwrap();
    loop {
        common::sleep(Duration::from_secs(1));
        let _ = server.cq.poll_one();
    }
}

/// A process that is killed amid Writes through its memory harms nobody: they end with the connection.
#[test]
fn a_killed_peer_ends_its_mappings() {
    let test = here!("a_killed_peer_ends_its_mappings");
    if role().is_some() {
        return killed_target();
    }
    for _ in 0..5 {
        let mut target = Process::start_as(this_program(), test, "target", &[]);
        let named = target.tells("at ", SOON);
        let named: Vec<&str> = named.split(' ').collect();
        let client = End::with(at_once(SameHostMode::Auto));
        let mpa = MpaConfig::default();
        client
            .qp
            .connect(named[0].parse().unwrap(), &mpa, b"")
            .unwrap();
        let to = (named[1].parse().unwrap(), named[2].parse().unwrap());
        let operation = RcOperation::Write {
            rkey: to.0,
            remote_addr: to.1,
            immediate: None,
        };
        common::wait_until(SOON, "a target is mapped", || {
            run(&client, operation);
            write(&client, to, 0, &[1; LEN])
        });
        target.kill();
        let until = now() + SOON;
        while client.qp.end().is_none() {
            assert!(now() < until, "the connection goes on");
            write(&client, to, 0, &[2; LEN]);
            let _ = client.cq.poll_one();
        }
        assert!(!write(&client, to, 0, &[2; LEN]));
    }
}
