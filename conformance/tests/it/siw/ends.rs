//! The end of a connection in every phase of its life, by a peer of siw's without a stack, by siw, and by us.
//!
//! A peer that leaves before siw has taken its TCP connection takes siw's listener with it, and one that leaves between peer-to-peer Reply and
//! RTR indication the kernel: see `table::LIMITS`. Both have a VM of their own.

use core::time::Duration;
use std::net::TcpListener;

use dgiwarp::{MpaConfig, RcEnd, WcOpcode, WcStatus};
use dgiwarp_conform::siw::{GuestCommand, HOST_IP, Vm};

use super::LIMIT;
use super::ops::{FLUSHED, HELLO, Initiator, LEAVE, Ops, READ, READ_AND_ABORT, Siw};
use super::raw::{CLIENT_SERVER, Raw};

/// How a peer leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// It closes TCP.
    Close,
    /// It resets TCP.
    Reset,
}

const WAYS: [Way; 2] = [Way::Close, Way::Reset];

impl Way {
    fn leave(self, raw: Raw) {
        match self {
            Self::Close => drop(raw),
            Self::Reset => raw.reset(),
        }
    }
}

/// How far the connection is when the peer leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// TCP is connected.
    BeforeStartup,
    /// A part of the peer's startup frame is there.
    InStartup,
    /// The Initiator has sent its Request.
    AfterRequest,
    /// Both startup frames are there, but no FPDU.
    AfterReply,
    /// FPDUs went both ways, nothing is under way.
    Idle,
    /// An RDMA Read of siw's awaits its Response.
    Reading,
}

/// The peer is the Initiator.
fn to_siw(siw: &Siw<'_>, phase: Phase, way: Way) {
    eprintln!("{phase:?}, {way:?}, to siw");
    let mut raw = Raw::connect(siw);
    match phase {
        Phase::BeforeStartup => until_siw_has_it(),
        Phase::InStartup => {
            raw.write(&Raw::request(b"", CLIENT_SERVER)[..10]);
            until_siw_has_it();
        }
        Phase::AfterRequest => {
            // To be ignored.
            raw.write(&Raw::request(b"I", CLIENT_SERVER));
            siw.says("ignored\n");
        }
        Phase::AfterReply | Phase::Idle | Phase::Reading => {
            raw.write(&Raw::request(b"", CLIENT_SERVER));
            raw.startup_frame();
        }
    }
    under_way(&mut raw, phase);
    way.leave(raw);
}

/// Until siw has taken the TCP connection from its listener, which nothing tells.
#[expect(clippy::disallowed_methods, reason = "nothing tells")]
fn until_siw_has_it() {
    std::thread::sleep(Duration::from_secs(1));
}

/// FPDUs up to this phase.
fn under_way(raw: &mut Raw, phase: Phase) {
    let opcode = match phase {
        Phase::BeforeStartup | Phase::InStartup | Phase::AfterRequest | Phase::AfterReply => return,
        Phase::Idle => {
            raw.command(HELLO, 0);
            0x43
        }
        Phase::Reading => {
            raw.command(READ, 8);
            0x41
        }
    };
    assert_eq!(raw.ulpdu().unwrap()[1], opcode);
}

/// siw is the Initiator. Gives what its program said.
fn from_siw(siw: &Siw<'_>, phase: Phase, way: Way) -> String {
    eprintln!("{phase:?}, {way:?}, from siw");
    let listener = siw.vm.in_network(|| TcpListener::bind((HOST_IP, 0)));
    let listener = listener.unwrap().unwrap();
    let port = listener.local_addr().unwrap().port();
    let client = client(siw, port);
    let mut raw = Raw::on(listener.accept().unwrap().0);
    raw.startup_frame();
    let reply = Raw::reply(b"", CLIENT_SERVER);
    match phase {
        Phase::BeforeStartup | Phase::AfterRequest => {}
        Phase::InStartup => raw.write(&reply[..10]),
        Phase::AfterReply => raw.write(&reply),
        Phase::Idle | Phase::Reading => {
            raw.write(&reply);
            assert_eq!(raw.ulpdu().unwrap()[1], 0x43, "siw's hello");
            under_way(&mut raw, phase);
        }
    }
    way.leave(raw);
    client.wait().unwrap().stdout
}

fn client(siw: &Siw<'_>, port: u16) -> GuestCommand {
    let command = format!("siw-ops client {HOST_IP} {port}");
    siw.vm.spawn(&command, LIMIT).unwrap()
}

const REFUSED: &str = "cannot rdma_connect: Connection refused\nevent RDMA_CM_EVENT_REJECTED\n";
const READ_FLUSHED: &str = "read: Work Request Flushed Error\n";

fn of_a_bare_peer(siw: &Siw<'_>) {
    for way in WAYS {
        siw.tried(|| of_an_initiator(siw, way));
        siw.tried(|| of_a_responder(siw, way));
    }
}

fn of_an_initiator(siw: &Siw<'_>, way: Way) {
    for (phase, last_words) in [
        (Phase::AfterReply, FLUSHED),
        (Phase::Idle, FLUSHED),
        (Phase::Reading, READ_FLUSHED),
    ] {
        to_siw(siw, phase, way);
        let said = siw.says("over\n");
        assert!(said.contains(last_words), "{said}");
    }
}

fn of_a_responder(siw: &Siw<'_>, way: Way) {
    for phase in [Phase::AfterRequest, Phase::InStartup] {
        let said = from_siw(siw, phase, way);
        assert!(said.starts_with(REFUSED), "{said}");
    }
    // Whether the program hears of a connection that was there for a moment is a race in the guest.
    let said = from_siw(siw, Phase::AfterReply, way);
    let connected = said.contains("event RDMA_CM_EVENT_DISCONNECTED\n") || said.contains(FLUSHED);
    assert!(connected || said.starts_with(REFUSED), "{said}");
    let said = from_siw(siw, Phase::Idle, way);
    assert!(said.contains(FLUSHED), "{said}");
    let said = from_siw(siw, Phase::Reading, way);
    assert!(said.contains(READ_FLUSHED), "{said}");
}

/// Everything posted here has ended, and how.
fn all_end(ops: &Ops<'_>, posted: usize) {
    for _ in 0..posted {
        let wc = ops.wait();
        let may_succeed = wc.opcode == WcOpcode::RdmaRead;
        let ended = matches!(wc.status, WcStatus::Flushed | WcStatus::RetryExceeded);
        assert!(
            ended || (may_succeed && wc.status == WcStatus::Success),
            "{wc:?}"
        );
    }
}

const READS: usize = 4;

fn post_reads(ops: &Ops<'_>) {
    for _ in 0..READS {
        ops.post(ops.their_read(0), 0..8 << 20);
    }
}

/// siw leaves: with nothing under way, with a Read of its own, amid Reads of ours.
fn of_siw(siw: &Siw<'_>, initiator: Initiator) {
    eprintln!("siw leaves, initiator {initiator:?}");
    let mpa = MpaConfig::default();
    let ops = Ops::connect(siw, &mpa, initiator, 4096);
    ops.command(LEAVE, 0, 0);
    assert_eq!(ops.wait().status, WcStatus::Flushed, "the receive");
    assert_eq!(ops.qp.end(), Some(RcEnd::PeerClosed));
    ops.over();

    let ops = Ops::connect(siw, &mpa, initiator, 1 << 20);
    ops.command(READ_AND_ABORT, 0, 1 << 20);
    assert_eq!(ops.wait().status, WcStatus::Flushed, "the receive");
    let end = ops.qp.end().unwrap();
    assert!(matches!(end, RcEnd::PeerClosed | RcEnd::Mpa(_)), "{end}");
    ops.over();

    let ops = Ops::connect(siw, &mpa, initiator, 8 << 20);
    ops.command(LEAVE, 0, 0);
    post_reads(&ops);
    all_end(&ops, READS + 1);
    let end = ops.qp.end().unwrap();
    assert!(matches!(end, RcEnd::PeerClosed | RcEnd::Mpa(_)), "{end}");
    ops.over();
}

/// We leave amid Reads of ours, and siw's program is killed amid them.
fn of_ours(siw: &Siw<'_>, initiator: Initiator) {
    eprintln!("we leave, initiator {initiator:?}");
    let mpa = MpaConfig::default();
    let ops = Ops::connect(siw, &mpa, initiator, 8 << 20);
    ops.post_answer_receive();
    post_reads(&ops);
    ops.qp.disconnect();
    all_end(&ops, READS + 1);
    assert_eq!(ops.qp.end(), Some(RcEnd::Closed));
    assert!(ops.over().contains(FLUSHED));

    let ops = Ops::connect(siw, &mpa, initiator, 8 << 20);
    ops.post_answer_receive();
    post_reads(&ops);
    ops.kill_guest();
    all_end(&ops, READS + 1);
    let end = ops.qp.end().unwrap();
    assert!(matches!(end, RcEnd::PeerClosed | RcEnd::Mpa(_)), "{end}");
}

pub(crate) fn all(siw: &Siw<'_>) {
    of_a_bare_peer(siw);
    for initiator in [Initiator::We, Initiator::Siw] {
        siw.tried(|| of_siw(siw, initiator));
        siw.tried(|| of_ours(siw, initiator));
    }
}

/// Seconds until the kernel has fallen over what it cannot take, if it does.
const FALLS_WITHIN: u32 = 4;

/// Peers that leave before there is a connection, and at last one that leaves where siw cannot bear it.
pub(crate) fn impolite() {
    let vm = Vm::boot(&[]).unwrap();
    let siw = Siw::new(&vm);
    for way in WAYS {
        for phase in [Phase::BeforeStartup, Phase::InStartup, Phase::AfterRequest] {
            to_siw(&siw, phase, way);
            let ops = Ops::connect(&siw, &MpaConfig::default(), Initiator::We, 4096);
            ops.leave();
        }
    }
    siw.kernel_is_well();

    // Between peer-to-peer Reply and RTR indication, which is to be a Write.
    let mut raw = Raw::connect(&siw);
    raw.write(&Raw::request(b"", [0x80, 0x80]));
    let (_, data) = raw.startup_frame();
    assert_eq!(data, [0x80, 4, 0x80, 4], "peer-to-peer, by a Write");
    drop(raw);
    // The kernel may fall over that: at once, some seconds later, or so hard that the machine ends.
    for _ in 0..FALLS_WITHIN {
        let output = siw.vm.run("sleep 1; dmesg", LIMIT).unwrap();
        if !output.status.success() {
            eprintln!("siw: its machine has ended: {output:?}");
            return;
        }
        if output.stdout.contains("BUG") {
            let known = "kernel BUG at drivers/infiniband/core/iwcm.c";
            assert!(output.stdout.contains(known), "{}", output.stdout);
            return;
        }
    }
    siw.restart();
    Ops::connect(&siw, &MpaConfig::default(), Initiator::We, 4096).leave();
}
