//! Peers of connected queue pairs that send what no peer should.
//!
//! The kernel's siw had four memory-safety faults of this kind in 2026; each has its test here, or in `rdmap::stream` where an exact answer is
//! expected.

#![expect(clippy::unwrap_used, reason = "what the system refuses fails the test")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use dgiwarp::{
    Access, Buffer, Config, Cq, MpaConfig, Mr, Pd, RcEnd, RcListener, RcQp, RcQpAttr, ReadDepths,
    RecvWr, Rnic, WcStatus,
};
use dgiwarp_codec::crc;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha20Rng;

const SOON: Duration = Duration::from_secs(10);
/// "MPA ID Req Frame", CRC, revision 1, no private data.
const REQUEST: &[u8] = b"MPA ID Req Frame\x40\x01\0\0";

/// The end under attack, with memory around what the peer may use.
struct Target {
    pd: Pd,
    cq: Cq,
    memory: Buffer,
    mr: Mr,
    listener: RcListener,
}

impl Target {
    fn new() -> Self {
        let rnic = Rnic::open(Config::default()).unwrap();
        let pd = rnic.alloc_pd();
        let cq = rnic.create_cq(64).unwrap();
        let memory = Buffer::zeroed(8192).unwrap();
        let all = Access::all();
        let mr = pd.register(memory.region(), all).unwrap();
        let mpa = MpaConfig::default();
        let listener = RcListener::bind((Ipv4Addr::LOCALHOST, 0).into(), mpa).unwrap();
        Self {
            pd,
            cq,
            memory,
            mr,
            listener,
        }
    }

    fn address(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Accepts a bare TCP stream that has sent `REQUEST`, and reads the answer there.
    fn accept(&self) -> (RcQp, TcpStream) {
        let mut stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.write_all(REQUEST).unwrap();
        let qp = self
            .pd
            .create_rc_qp(&RcQpAttr::new(&self.cq, &self.cq))
            .unwrap();
        let sges = [self.mr.sge(..100)];
        qp.post_recv(&[RecvWr {
            wr_id: 0,
            sges: &sges,
        }])
        .unwrap();
        let request = self.listener.accept(SOON).unwrap().expect("a request");
        let depths = ReadDepths { ird: 2, ord: 2 };
        request.accept(&qp, depths, b"").unwrap();
        let mut reply = [0; 20];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(&reply[..16], b"MPA ID Rep Frame");
        (qp, stream)
    }

    /// Waits until the receive is flushed or failed, and tells why the connection is over.
    fn end_of(&self, qp: &RcQp) -> RcEnd {
        let wc = self.cq.wait(SOON).unwrap().expect("a completion");
        assert_ne!(wc.status, WcStatus::Success);
        qp.end().expect("the connection is over")
    }
}

/// An FPDU with its right CRC.
fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let mut out = u16::try_from(ulpdu.len()).unwrap().to_be_bytes().to_vec();
    out.extend(ulpdu);
    out.resize(out.len().next_multiple_of(4), 0);
    let sum = crc::crc32c(&out);
    out.extend(crc::to_wire(sum));
    out
}

/// What the peer is told in the last FPDU of the stream: layer and type, code.
fn terminate(stream: &mut TcpStream) -> [u8; 2] {
    let mut octets = Vec::new();
    stream.read_to_end(&mut octets).unwrap();
    // The length, then the untagged header of a Terminate: queue 2, the first message.
    let head = [0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0];
    assert_eq!(octets[2..20], head, "{octets:x?}");
    [octets[20], octets[21]]
}

/// siw, 2026-05: an FPDU length below that of the headers.
#[test]
fn fpdus_that_are_shorter_than_their_headers() {
    let target = Target::new();
    for ulpdu in [&[][..], &[0xc1], &[0xc1, 0x40], &[0x41; 17], &[0xc1; 13]] {
        let (qp, mut stream) = target.accept();
        stream.write_all(&fpdu(ulpdu)).unwrap();
        assert_eq!(terminate(&mut stream), [0x02, 0xff]);
        assert!(matches!(target.end_of(&qp), RcEnd::Stream(_)));
    }
}

/// siw, 2026-01: headers that cannot be parsed.
#[test]
fn headers_that_mean_nothing() {
    let target = Target::new();
    let untagged = |opcode: u8, queue: u8| {
        let mut header = [0; 18];
        (header[0], header[1], header[9], header[13]) = (0x41, opcode, queue, 1);
        header.to_vec()
    };
    let rows = [
        (untagged(0xc3, 0), [0x02, 0x05]),
        (untagged(0x4f, 0), [0x02, 0x06]),
        (untagged(0x43, 9), [0x12, 0x01]),
        (untagged(0x41, 1), [0x02, 0xff]),
        (untagged(0x4a, 1), [0x02, 0xff]),
        (untagged(0x4b, 3), [0x02, 0xff]),
        (vec![0xc2; 20], [0x11, 0x04]),
        (vec![0xc1; 20], [0x02, 0x05]),
    ];
    for (ulpdu, told) in rows {
        let (qp, mut stream) = target.accept();
        stream.write_all(&fpdu(&ulpdu)).unwrap();
        assert_eq!(terminate(&mut stream), told, "{ulpdu:x?}");
        target.end_of(&qp);
    }
}

/// siw, 2026-06: a Read Response that nobody asked for, and more than was asked for, is placed nowhere.
#[test]
fn read_responses_that_nobody_asked_for() {
    let target = Target::new();
    let [k0, k1, k2, k3] = target.mr.rkey().to_be_bytes();
    for key in [[0, 0, 0, 1], [k0, k1, k2, k3]] {
        let (qp, mut stream) = target.accept();
        let mut ulpdu = vec![0xc1, 0x42];
        ulpdu.extend(key);
        ulpdu.extend(target.mr.addr().to_be_bytes());
        ulpdu.extend([0xee; 64]);
        stream.write_all(&fpdu(&ulpdu)).unwrap();
        assert_eq!(terminate(&mut stream), [0x11, 0x00]);
        target.end_of(&qp);
        assert_eq!(target.memory.to_vec(0, 8192), vec![0; 8192]);
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// siw, 2026-06: a malformed MPA request, then a good one from the same host, again and again. Nothing of either is left.
#[test]
fn malformed_requests_and_then_good_ones() {
    let target = Target::new();
    drop(target.accept());
    while target.cq.poll_one().unwrap().is_some() {}
    let before = descriptors();
    for round in 0..1000usize {
        let mut bad = REQUEST.to_vec();
        bad[round % 20] ^= 0x81;
        let mut stream = TcpStream::connect(target.address()).unwrap();
        stream.write_all(&bad).unwrap();
        drop(stream);
        // Octets with reserved bits give a good request all the same, from one who has left.
        if let Ok(Some(request)) = target.listener.accept(SOON) {
            drop(request);
        }
        if round % 10 == 9 {
            let (qp, mut stream) = target.accept();
            let mut send = [0; 18];
            (send[0], send[1], send[13]) = (0x41, 0x43, 1);
            stream.write_all(&fpdu(&send)).unwrap();
            let wc = target.cq.wait(SOON).unwrap().expect("a completion");
            assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 0));
            drop(stream);
            drop(qp);
        }
    }
    // Other tests of this program have sockets of their own.
    assert!(descriptors() < before + 100);
}

/// A whole Send with this MSN.
fn send(msn: u8, payload: &[u8]) -> Vec<u8> {
    let mut ulpdu = vec![0; 18];
    (ulpdu[0], ulpdu[1], ulpdu[13]) = (0x41, 0x43, msn);
    ulpdu.extend(payload);
    fpdu(&ulpdu)
}

/// A stream cut at any octet ends what was posted; what came whole before counts.
#[test]
fn a_stream_cut_at_any_octet() {
    let target = Target::new();
    let stream = [send(1, b"first"), send(2, b"the second, which is longer")];
    let whole = stream.concat();
    for cut in 0..whole.len() {
        let (qp, mut peer) = target.accept();
        let sges = [target.mr.sge(..100)];
        let second = RecvWr {
            wr_id: 1,
            sges: &sges,
        };
        qp.post_recv(&[second]).unwrap();
        peer.write_all(&whole[..cut]).unwrap();
        drop(peer);
        let wc = target.cq.wait(SOON).unwrap().expect("a completion");
        let first = cut >= stream[0].len();
        assert_eq!(wc.status == WcStatus::Success, first, "cut at {cut}");
        let wc = target.cq.wait(SOON).unwrap().expect("a completion");
        assert_eq!(wc.status, WcStatus::Flushed, "cut at {cut}");
        let between = cut == 0 || cut == stream[0].len();
        let end = qp.end().expect("the connection is over");
        assert_eq!(end == RcEnd::PeerClosed, between, "cut at {cut}: {end}");
    }
}

/// Whichever octet of an FPDU is wrong, nothing of it or behind it is delivered.
#[test]
fn nothing_is_delivered_behind_a_wrong_crc() {
    let target = Target::new();
    for octet in 0..send(1, b"bad").len() {
        let (qp, mut peer) = target.accept();
        let mut bad = send(1, b"bad");
        bad[octet] ^= 4;
        peer.write_all(&[bad, send(2, b"late")].concat()).unwrap();
        drop(peer);
        let end = target.end_of(&qp);
        assert!(matches!(end, RcEnd::Mpa(_)), "octet {octet}: {end}");
        assert_eq!(target.memory.to_vec(0, 100), [0; 100]);
    }
}

/// Random streams of plausible FPDUs, cut anywhere: the connection ends or goes on, and nothing outside of the registered octets changes.
#[test]
fn random_fpdus_place_nothing_outside() {
    let seed = std::env::var("SEED").map_or(5040, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let mut random = ChaCha20Rng::seed_from_u64(seed);
    let target = Target::new();
    // The peer has the key of one region; what it says of others, and beyond the end of this one, must not land.
    let middle = Buffer::zeroed(4096).unwrap();
    let mr = target.pd.register(middle.region(), Access::all()).unwrap();
    for _ in 0..60 {
        let (qp, mut stream) = target.accept();
        let mut octets = Vec::new();
        for _ in 0..random.random_range(1..20) {
            let mut ulpdu: Vec<u8> = (0..random.random_range(0..120))
                .map(|_| random.random())
                .collect();
            if random.random_bool(0.8) {
                for (octet, good) in ulpdu.iter_mut().zip([
                    0x41 | random.random_range(0..2u8) << 7,
                    0x40 | random.random_range(0..12u8),
                ]) {
                    *octet = good;
                }
                if random.random_bool(0.5) {
                    let key = mr.rkey().to_be_bytes();
                    let place = (mr.addr() + random.random_range(0..4200)).to_be_bytes();
                    for (octet, good) in ulpdu.iter_mut().skip(2).zip(key.into_iter().chain(place))
                    {
                        *octet = good;
                    }
                } else if ulpdu.len() >= 18 {
                    ulpdu[6..18].fill(0);
                    (ulpdu[9], ulpdu[13]) = (random.random_range(0..4), random.random_range(1..3));
                }
            }
            octets.extend(fpdu(&ulpdu));
        }
        // Whoever is told to go away need not listen.
        for piece in octets.chunks(random.random_range(1..400)) {
            if stream.write_all(piece).is_err() {
                break;
            }
        }
        drop(stream);
        let wc = target
            .cq
            .wait(SOON)
            .unwrap()
            .expect("the receive completes");
        let _ = wc;
        drop(qp);
        while target.cq.poll_one().unwrap().is_some() {}
        assert_eq!(target.memory.to_vec(100, 8092), vec![0; 8092]);
    }
}

/// A peer that asks for Reads without end and takes no answer holds no more than its queue.
#[test]
fn requests_beyond_what_was_agreed_on() {
    let target = Target::new();
    let (qp, mut stream) = target.accept();
    let mut request = vec![0; 46];
    (request[0], request[1], request[9]) = (0x41, 0x41, 1);
    request[30..34].copy_from_slice(&8192u32.to_be_bytes());
    request[34..38].copy_from_slice(&target.mr.rkey().to_be_bytes());
    request[38..46].copy_from_slice(&target.mr.addr().to_be_bytes());
    let writer = thread::spawn(move || {
        for msn in 1..20_000u32 {
            request[10..14].copy_from_slice(&msn.to_be_bytes());
            if stream.write_all(&fpdu(&request)).is_err() {
                break;
            }
        }
        stream
    });
    let end = target.end_of(&qp);
    assert_eq!(
        end.to_string(),
        "untagged segment: no buffer available for the message"
    );
    drop(qp);
    drop(writer.join().unwrap());
}
