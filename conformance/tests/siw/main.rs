//! Our connected queue pairs against the Linux kernel's siw, in one VM.
//!
//! The guest's ends are Debian's `rdma_client` and `rdma_server`, whose messages are sixteen zeros, and `siw-echo`, which sends a
//! pattern and inverts what it is sent; both sides check the contents.

#![expect(clippy::unwrap_used, reason = "what the VM cannot do fails the test")]

mod operations;
mod ours;

use core::time::Duration;
use std::net::SocketAddr;

use dgiwarp::{MpaConfig, RcEnd, RcListener, ReadDepths, RtrSet, WcStatus};
use dgiwarp_conform::siw::{self, GUEST_IP, GuestCommand, HOST_IP, Output, Vm};
use ours::End;

const LIMIT: Duration = Duration::from_secs(30);
const DEPTHS: ReadDepths = ReadDepths { ird: 4, ord: 4 };

/// What `siw-echo` sends: byte i is 31 i + 7.
fn pattern(len: u32) -> Vec<u8> {
    (0..len)
        .map(|i| i.wrapping_mul(31).wrapping_add(7).to_le_bytes()[0])
        .collect()
}

fn inverted(octets: &[u8]) -> Vec<u8> {
    octets.iter().map(|octet| !octet).collect()
}

fn fnv1a(octets: &[u8]) -> u32 {
    octets.iter().fold(0x811c_9dc5, |hash, octet| {
        (hash ^ u32::from(*octet)).wrapping_mul(0x0100_0193)
    })
}

#[track_caller]
fn ended_well(command: GuestCommand) -> Output {
    let output = command.wait().unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

/// The harness itself: siw talks to siw, and statuses and output come through.
fn harness(vm: &Vm) {
    let pair = r#"pair 7174 "rping -s -a $GUEST_IP -C 3" "rping -c -a $GUEST_IP -C 3 -v""#;
    let output = vm.run(pair, LIMIT).unwrap();
    let pings = output
        .stdout
        .lines()
        .filter(|line| line.starts_with("ping data"))
        .count();
    assert_eq!((output.status.code(), pings), (Some(0), 3), "{output:?}");
    let output = vm.run("echo out; echo err >&2; exit 7", LIMIT).unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!((output.stdout.trim(), output.stderr.trim()), ("out", "err"));
    drop(vm.spawn("sleep 100", Duration::from_secs(200)).unwrap());
    let output = vm.run("ps | grep -c '[s]leep 100'", LIMIT).unwrap();
    assert_eq!(
        output.stdout.trim(),
        "0",
        "a dropped command is ended in the guest"
    );
}

/// We connect and send `len` bytes, siw sends them back inverted; then we leave.
fn we_connect(vm: &Vm, mpa: &MpaConfig, port: u16, len: u32) {
    eprintln!("we connect, {len} bytes: {mpa:?}");
    let mut server = vm.spawn(&format!("siw-echo server {port}"), LIMIT).unwrap();
    vm.wait_listening(port).unwrap();
    let end = End::new(len);
    end.post_recv(1);
    let to = SocketAddr::from((GUEST_IP, port));
    let established = vm
        .in_network(|| end.qp.connect(to, mpa, b"hello siw"))
        .unwrap()
        .unwrap();
    assert!(established.private_data.starts_with(b"hello from siw"));
    assert_eq!(established.negotiation.crc, mpa.crc);
    assert_eq!(established.send_rtr.is_some(), mpa.peer_to_peer);
    let message = inverted(&pattern(len));
    end.post_send(2, &message);
    assert_eq!(end.wait_sent(), 2);
    assert_eq!(end.wait_received(), (1, inverted(&message)));
    // siw's Send fails if we leave before it has completed it, though we have it.
    server.wait_for("answered").unwrap();
    end.qp.disconnect();
    let output = ended_well(server);
    assert!(
        output.stdout.contains("private data hello siw"),
        "{output:?}"
    );
    assert!(
        output
            .stdout
            .contains(&format!("received {len} {:08x}", fnv1a(&message))),
        "{output:?}"
    );
    assert!(output.stdout.contains("disconnected"), "{output:?}");
}

/// siw connects and sends `len` bytes, we send them back inverted; then siw leaves.
fn siw_connects(vm: &Vm, mpa: &MpaConfig, len: u32) {
    eprintln!("siw connects, {len} bytes: {mpa:?}");
    let listener = listen(vm, mpa, 0);
    let port = listener.local_addr().port();
    let client = vm
        .spawn(&format!("siw-echo client {HOST_IP} {port} {len}"), LIMIT)
        .unwrap();
    let end = End::new(len);
    end.post_recv(1);
    end.post_recv(2);
    let request = listener.accept(LIMIT).unwrap().expect("siw connects");
    assert!(
        request
            .request()
            .private_data
            .starts_with(b"hello from siw")
    );
    let negotiation = request.accept(&end.qp, DEPTHS, b"hello siw").unwrap();
    assert_eq!(negotiation.crc, mpa.crc);
    assert_eq!(end.wait_received(), (1, pattern(len)));
    end.post_send(3, &inverted(&pattern(len)));
    assert_eq!(end.wait_sent(), 3);
    let output = ended_well(client);
    assert!(
        output.stdout.contains("private data hello siw"),
        "{output:?}"
    );
    assert!(
        output.stdout.contains(&format!("echoed {len}")),
        "{output:?}"
    );
    // siw has left: what was still posted is flushed.
    assert_eq!(end.wait_failed(), (2, WcStatus::Flushed));
    assert_eq!(end.qp.end(), Some(RcEnd::PeerClosed));
}

fn listen(vm: &Vm, mpa: &MpaConfig, port: u16) -> RcListener {
    let address = SocketAddr::from((HOST_IP, port));
    vm.in_network(|| RcListener::bind(address, mpa.clone()))
        .unwrap()
        .unwrap()
}

/// Debian's own programs, both ways.
fn rdma_client_and_server(vm: &Vm) {
    let server = vm.spawn("rdma_server -p 7471", LIMIT).unwrap();
    vm.wait_listening(7471).unwrap();
    let end = End::new(16);
    end.post_recv(1);
    let to = SocketAddr::from((GUEST_IP, 7471));
    vm.in_network(|| end.qp.connect(to, &MpaConfig::default(), b""))
        .unwrap()
        .unwrap();
    end.post_send(2, &pattern(16));
    assert_eq!(end.wait_sent(), 2);
    assert_eq!(end.wait_received(), (1, vec![0; 16]));
    // rdma_server leaves by itself; see above.
    ended_well(server);
    drop(end);

    let listener = listen(vm, &MpaConfig::default(), 7471);
    let client = vm
        .spawn(&format!("rdma_client -s {HOST_IP} -p 7471"), LIMIT)
        .unwrap();
    let end = End::new(16);
    end.post_recv(1);
    let request = listener
        .accept(LIMIT)
        .unwrap()
        .expect("rdma_client connects");
    request.accept(&end.qp, DEPTHS, b"").unwrap();
    assert_eq!(end.wait_received(), (1, vec![0; 16]));
    end.post_send(2, &pattern(16));
    assert_eq!(end.wait_sent(), 2);
    ended_well(client);
}

/// Peer-to-peer mode with a zero-length Read as RTR indication, which siw does if told so; both ends connect.
fn rtr_by_read() {
    let vm = Vm::boot(&["peer_to_peer=1", "rtr_mode=2"]).unwrap();
    let mpa = MpaConfig {
        peer_to_peer: true,
        rtr: RtrSet {
            read: true,
            ..RtrSet::NONE
        },
        ..MpaConfig::default()
    };
    we_connect(&vm, &mpa, 7500, 16);
    siw_connects(&vm, &mpa, 16);
    // A side that offers both; siw has only this one.
    let mpa = MpaConfig {
        peer_to_peer: true,
        ..MpaConfig::default()
    };
    siw_connects(&vm, &mpa, 5001);
}

#[test]
fn siw() {
    if let Some(reason) = siw::obstacle() {
        return xtask::skips::skip("siw", reason);
    }
    let vm = Vm::boot(&[]).unwrap();
    harness(&vm);
    rdma_client_and_server(&vm);
    let bare = MpaConfig {
        crc: false,
        ..MpaConfig::default()
    };
    let revision_1 = MpaConfig {
        revision: dgiwarp::MpaRevision::One,
        ..MpaConfig::default()
    };
    let peer_to_peer = MpaConfig {
        peer_to_peer: true,
        ..MpaConfig::default()
    };
    for (port, mpa) in (7500..).zip([&MpaConfig::default(), &bare, &revision_1, &peer_to_peer]) {
        we_connect(&vm, mpa, port, 16);
        // Several segments, the last one with a pad.
        we_connect(&vm, mpa, port, 5001);
    }
    for mpa in [&MpaConfig::default(), &bare] {
        siw_connects(&vm, mpa, 16);
        siw_connects(&vm, mpa, 5001);
    }
    operations::all(&vm);
    drop(vm);
    rtr_by_read();
}
