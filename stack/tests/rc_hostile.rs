//! What a peer can do to a connected queue pair that does not keep to the protocol: it ends its own connection and nothing else.
//!
//! The peer is a TCP socket that says what the test wants, octet by octet. Some of these crashed other implementations: a ULPDU
//! shorter than its header, a header that cannot be parsed, a malformed startup followed by another connection.

#![expect(clippy::unwrap_used, reason = "what the system refuses fails the test")]

mod common;

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::time::Duration;

use common::crc32c;
use dgiwarp::{
    Access, Buffer, Config, ConnectError, Cq, MpaConfig, Mr, Pd, RcEnd, RcListener, RcQp, RcQpAttr,
    ReadDepths, RecvWr, Rnic, WcStatus,
};
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

const SOON: Duration = Duration::from_secs(5);
const DEPTHS: ReadDepths = ReadDepths { ird: 4, ord: 4 };
/// Octets of the posted receives, in the middle of as many more on either side that nobody may write.
const ROOM: usize = 256;
const RECEIVES: u64 = 3;

/// A device that takes connections, one after the other.
struct Victim {
    listener: RcListener,
    cq: Cq,
    memory: Buffer,
    mr: Mr,
    pd: Pd,
}

impl Victim {
    fn new(mpa: MpaConfig) -> Self {
        let rnic = Rnic::open(Config::default()).unwrap();
        let pd = rnic.alloc_pd();
        let memory = Buffer::zeroed(3 * ROOM).unwrap();
        Self {
            cq: rnic.create_cq(64).unwrap(),
            listener: RcListener::bind((Ipv4Addr::LOCALHOST, 0).into(), mpa).unwrap(),
            mr: pd.register(memory.region(), Access::LOCAL_WRITE).unwrap(),
            memory,
            pd,
        }
    }

    fn stranger(&self) -> TcpStream {
        TcpStream::connect(self.listener.local_addr()).unwrap()
    }

    /// A peer whose startup is as it should be, and the queue pair that it is connected to.
    fn connected(&self) -> (TcpStream, RcQp) {
        while self.cq.poll_one().unwrap().is_some() {}
        let mut peer = self.stranger();
        peer.write_all(b"MPA ID Req Frame\x40\x01\0\0").unwrap();
        let qp = self
            .pd
            .create_rc_qp(&RcQpAttr::new(&self.cq, &self.cq))
            .unwrap();
        for wr_id in 0..RECEIVES {
            let sges = [self.mr.sge(ROOM..2 * ROOM)];
            qp.post_recv(&[RecvWr { wr_id, sges: &sges }]).unwrap();
        }
        let request = self.listener.accept(SOON).unwrap().expect("a request");
        request.accept(&qp, DEPTHS, b"").unwrap();
        let mut reply = [0; 20];
        peer.read_exact(&mut reply).unwrap();
        assert_eq!(&reply[..16], b"MPA ID Rep Frame");
        (peer, qp)
    }

    /// The connection ends, and with it every receive; how many of them got a message.
    #[track_caller]
    fn ended(&self, qp: &RcQp, what: &str) -> (RcEnd, u64) {
        let mut delivered = 0;
        for _ in 0..RECEIVES {
            let wc = self.cq.wait(SOON).unwrap();
            let wc = wc.unwrap_or_else(|| panic!("{what}: nothing ended"));
            delivered += u64::from(wc.status == WcStatus::Success);
        }
        let end = qp
            .end()
            .unwrap_or_else(|| panic!("{what}: still connected"));
        for guard in [0, 2 * ROOM] {
            assert_eq!(self.memory.to_vec(guard, ROOM), [0; ROOM], "{what}");
        }
        (end, delivered)
    }
}

/// An FPDU with a right CRC around whatever ULPDU.
fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let mut fpdu = u16::try_from(ulpdu.len()).unwrap().to_be_bytes().to_vec();
    fpdu.extend_from_slice(ulpdu);
    fpdu.resize(fpdu.len().next_multiple_of(4), 0);
    let crc = crc32c(&fpdu);
    fpdu.extend_from_slice(&crc.to_le_bytes());
    fpdu
}

/// A whole Send: DDP untagged, last, queue 0, this MSN.
fn send(msn: u32, payload: &[u8]) -> Vec<u8> {
    let mut ulpdu = vec![0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0];
    ulpdu.extend_from_slice(&msn.to_be_bytes());
    ulpdu.extend_from_slice(&[0; 4]);
    ulpdu.extend_from_slice(payload);
    ulpdu
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_ulpdu_shorter_than_its_header_ends_the_connection() {
    let victim = Victim::new(MpaConfig::default());
    let whole = send(1, b"");
    for length in 0..whole.len() {
        let what = format!("{length} octets of a header");
        let (mut peer, qp) = victim.connected();
        peer.write_all(&fpdu(&whole[..length])).unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        let (end, delivered) = victim.ended(&qp, &what);
        assert!(matches!(end, RcEnd::Stream(_)), "{what}: {end}");
        assert_eq!(delivered, 0, "{what}");
    }
}

/// Each octet of both headers set to each of its wrong values that this test can think of.
#[test]
fn a_header_that_says_something_else_does_no_harm() {
    let victim = Victim::new(MpaConfig::default());
    let whole = send(1, &[0xaa; 32]);
    for at in 0..18 {
        for flip in [0x01, 0x10, 0x80, 0xff] {
            let what = format!("octet {at} xor {flip:#x}");
            let (mut peer, qp) = victim.connected();
            let mut ulpdu = whole.clone();
            ulpdu[at] ^= flip;
            peer.write_all(&fpdu(&ulpdu)).unwrap();
            peer.shutdown(Shutdown::Write).unwrap();
            let (_, delivered) = victim.ended(&qp, &what);
            // What RFC 5041 and RFC 5040 have a receiver ignore: reserved bits, and RsvdULP of an untagged Send.
            let ignored = matches!((at, flip), (0, 0x10) | (1, 0x10) | (2..=5, _));
            let may_pass = ignored || at == 1;
            assert!(delivered == 0 || may_pass, "{what}: {delivered} delivered");
        }
    }
}

/// A stream cut at any octet ends everything that was posted; what came whole before counts.
#[test]
fn a_stream_may_be_cut_at_any_octet() {
    let victim = Victim::new(MpaConfig::default());
    let stream = [fpdu(&send(1, b"first")), fpdu(&send(2, b"second, longer"))];
    let first = stream[0].len() as u64;
    let whole = stream.concat();
    for cut in 0..=whole.len() {
        let (mut peer, qp) = victim.connected();
        peer.write_all(&whole[..cut]).unwrap();
        drop(peer);
        let (end, delivered) = victim.ended(&qp, &format!("cut at {cut}"));
        let expected = u64::from(cut as u64 >= first) + u64::from(cut == whole.len());
        assert_eq!(delivered, expected, "cut at {cut}");
        let between = cut == 0 || cut as u64 == first || cut == whole.len();
        assert_eq!(end == RcEnd::PeerClosed, between, "cut at {cut}: {end}");
    }
}

/// A wrong CRC, also of an FPDU that comes behind a right one.
#[test]
fn nothing_is_delivered_behind_a_wrong_crc() {
    let victim = Victim::new(MpaConfig::default());
    for octet in 0..fpdu(&send(2, b"bad")).len() {
        let (mut peer, qp) = victim.connected();
        let mut bad = fpdu(&send(2, b"bad"));
        bad[octet] ^= 4;
        let stream = [fpdu(&send(1, b"good")), bad, fpdu(&send(3, b"late"))].concat();
        peer.write_all(&stream).unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        let (end, delivered) = victim.ended(&qp, &format!("octet {octet}"));
        assert_eq!(delivered, 1, "octet {octet}");
        assert!(matches!(end, RcEnd::Mpa(_)), "octet {octet}: {end}");
    }
}

#[test]
fn noise_in_well_made_frames_does_no_harm() {
    let seed = u64::from(std::process::id());
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let victim = Victim::new(MpaConfig::default());
    for round in 0..300 {
        let (mut peer, qp) = victim.connected();
        for _ in 0..random.random_range(1..8) {
            let mut ulpdu = vec![0; random.random_range(0..600)];
            random.fill_bytes(&mut ulpdu);
            if let [first, control, ..] = &mut *ulpdu
                && random.random_bool(0.8)
            {
                // Versions that are right, so that more is looked at.
                *first = *first & !3 | 1;
                *control = *control & !0xc0 | 0x40;
            }
            // The victim may have closed already.
            let _ = peer.write_all(&fpdu(&ulpdu));
        }
        let _ = peer.shutdown(Shutdown::Write);
        victim.ended(&qp, &format!("seed {seed}, round {round}"));
    }
}

/// A thousand malformed startups leave nothing behind, and the next proper one works.
#[test]
fn a_malformed_startup_does_not_spoil_the_next() {
    let victim = Victim::new(MpaConfig::default());
    let key = *b"MPA ID Req Frame";
    drop(victim.connected());
    let before = descriptors();
    for round in 0..1000usize {
        let mut frame = [&key[..], b"\x40\x01\0\0"].concat();
        match round % 4 {
            0 => frame[round / 4 % 16] ^= 0x20,
            1 => frame[17] = [0, 3, 255][round / 4 % 3],
            2 => frame[18..].copy_from_slice(&[2, 1 + u8::try_from(round % 255).unwrap()]),
            _ => frame.truncate(round / 4 % 20),
        }
        let mut stranger = victim.stranger();
        stranger.write_all(&frame).unwrap();
        stranger.shutdown(Shutdown::Write).unwrap();
        let failed = victim.listener.accept(SOON);
        assert!(
            matches!(failed, Err(ConnectError::Mpa(_))),
            "round {round}: {failed:?}"
        );
        if round % 100 == 0 {
            let (mut peer, qp) = victim.connected();
            peer.write_all(&fpdu(&send(1, b"works"))).unwrap();
            drop(peer);
            let (_, delivered) = victim.ended(&qp, &format!("after round {round}"));
            assert_eq!(delivered, 1);
        }
    }
    assert_eq!(descriptors(), before);
}
