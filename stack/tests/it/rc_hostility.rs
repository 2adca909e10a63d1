//! Peers of connected queue pairs that send what no peer should.
//!
//! The kernel's siw had memory-safety faults of this kind in 2026, which any peer could provoke. Each has its test here, named `siw_2026_…`:
//!
//! | fault of siw | test |
//! |---|---|
//! | an FPDU length below that of the headers, which underflowed (May) | `siw_2026_short_fpdu_length` |
//! | a Read Response longer than was asked for, without the L bit (June) | `siw_2026_read_response_overrun` |
//! | a header that cannot be parsed, and what had been set up for it (January) | `siw_2026_header_parse_failure` |
//! | a malformed MPA Request, then a new connection: use after free (June) | `siw_2026_malformed_mpa_then_reconnect` |
//!
//! `rdmap::stream` and `engine::rc` test the same without sockets, for more octets.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use dgiwarp::{
    Access, Buffer, ChannelListener, Config, ConnectionChannel, ConnectionEvent, ConnectionSink,
    Cq, CrcPreference, MpaConfig, MpaRevision, Mr, Pd, RcEnd, RcListener, RcOperation, RcOptions,
    RcQp, RcQpAttr, RcSendWr, ReadDepths, RecvWr, Rnic, WcStatus,
};
use dgiwarp_codec::crc;
use dgiwarp_memory::tcp_progress;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha20Rng;
use socket2::SockRef;

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

    /// Waits until the receive is flushed or failed. Returns why the connection is over.
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

/// Terminate in the last FPDU of the stream: layer and type, code.
fn terminate(stream: &mut TcpStream) -> [u8; 2] {
    let mut octets = Vec::new();
    stream.read_to_end(&mut octets).unwrap();
    // The length, then the untagged header of a Terminate: queue 2, the first message.
    let head = [0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0];
    assert_eq!(octets[2..20], head, "{octets:x?}");
    [octets[20], octets[21]]
}

/// An FPDU length below that of the headers.
#[test]
fn siw_2026_short_fpdu_length() {
    let target = Target::new();
    for ulpdu in [&[][..], &[0xc1], &[0xc1, 0x40], &[0x41; 17], &[0xc1; 13]] {
        let (qp, mut stream) = target.accept();
        stream.write_all(&fpdu(ulpdu)).unwrap();
        assert_eq!(terminate(&mut stream), [0x02, 0xff]);
        assert!(matches!(target.end_of(&qp), RcEnd::Stream(_)));
    }
}

/// Headers that cannot be parsed.
#[test]
fn siw_2026_header_parse_failure() {
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

/// A Read Response that nobody asked for is placed nowhere.
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

/// A QP of ours that connects to a bare TCP stream, with `length` octets being read into the middle of its memory; the stream has the
/// Read Request, whose sink STag is given.
fn reading(target: &Target, length: u32) -> (RcQp, TcpStream, [u8; 4]) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let options = RcOptions {
        hello: false,
        ..RcOptions::default()
    };
    let attr = RcQpAttr {
        options: Some(options),
        ..RcQpAttr::new(&target.cq, &target.cq)
    };
    let qp = target.pd.create_rc_qp(&attr).unwrap();
    let mpa = MpaConfig {
        crc: CrcPreference::Always,
        revision: MpaRevision::One,
        ..MpaConfig::default()
    };
    let mut stream = thread::scope(|scope| {
        let peer = scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(SOON)).unwrap();
            let mut request = [0; 20];
            stream.read_exact(&mut request).unwrap();
            assert_eq!(request, REQUEST);
            stream.write_all(b"MPA ID Rep Frame\x40\x01\0\0").unwrap();
            stream
        });
        qp.connect(address, &mpa, b"").unwrap();
        peer.join().unwrap()
    });
    let sges = [target.mr.sge(4096..4096 + usize::try_from(length).unwrap())];
    let read = RcOperation::Read {
        rkey: 1,
        remote_addr: 0,
    };
    qp.post_send(&[RcSendWr::new(7, read, &sges)]).unwrap();
    // Length, untagged header, Read Request, pad to a multiple of four, CRC.
    let mut request = [0; 2 + 18 + 28 + 4];
    stream.read_exact(&mut request).unwrap();
    let sink = request[20..24].try_into().unwrap();
    (qp, stream, sink)
}

/// A segment of a Read Response.
fn response(sink: [u8; 4], offset: u8, octets: usize, last: bool) -> Vec<u8> {
    let mut ulpdu = vec![0x81 | u8::from(last) << 6, 0x42];
    ulpdu.extend(sink);
    ulpdu.extend([0, 0, 0, 0, 0, 0, 0, offset]);
    ulpdu.resize(ulpdu.len() + octets, 0xee);
    fpdu(&ulpdu)
}

/// A Read Response that is longer than what was asked for, with the L bit and without, at once and after a good segment.
#[test]
fn siw_2026_read_response_overrun() {
    for (good, more, last) in [
        (0, 65, false),
        (0, 65, true),
        (0, 1400, false),
        (64, 1, false),
        (32, 33, false),
        (32, 33, true),
    ] {
        let target = Target::new();
        let (qp, mut stream, sink) = reading(&target, 64);
        let mut octets = Vec::new();
        if good > 0 {
            octets = response(sink, 0, good, false);
        }
        let offset = u8::try_from(good).unwrap();
        octets.extend(response(sink, offset, more, last));
        stream.write_all(&octets).unwrap();
        let wc = target.cq.wait(SOON).unwrap().expect("a completion");
        assert_ne!(wc.status, WcStatus::Success);
        assert_eq!(terminate(&mut stream), [0x11, 0x01]);
        let end = qp.end().expect("the connection is over");
        assert_eq!(end.to_string(), "tagged segment: base or bounds violation");
        let memory = target.memory.to_vec(0, 8192);
        let outside = memory[..4096].iter().chain(&memory[4096 + good..]);
        assert!(outside.into_iter().all(|octet| *octet == 0));
        assert_eq!(memory[4096..4096 + good], vec![0xee; good]);
    }
}

/// An Initiator that asks for peer-to-peer mode and leaves before its RTR indication, which crashes the kernel under siw.
#[test]
fn an_initiator_that_leaves_before_its_rtr_indication() {
    let target = Target::new();
    for reset in [false, true] {
        for flags in [[0x80, 0x80], [0x80, 0x40], [0x80, 0xc0]] {
            let mut stream = TcpStream::connect(target.address()).unwrap();
            stream.set_read_timeout(Some(SOON)).unwrap();
            let [a, b] = flags;
            stream.write_all(b"MPA ID Req Frame\x50\x02\0\x04").unwrap();
            stream.write_all(&[a, 1, b, 1]).unwrap();
            let attr = RcQpAttr::new(&target.cq, &target.cq);
            let qp = target.pd.create_rc_qp(&attr).unwrap();
            let sges = [target.mr.sge(..100)];
            let receive = RecvWr {
                wr_id: 0,
                sges: &sges,
            };
            qp.post_recv(&[receive]).unwrap();
            let request = target.listener.accept(SOON).unwrap().expect("a request");
            let depths = ReadDepths { ird: 1, ord: 1 };
            let negotiation = request.accept(&qp, depths, b"").unwrap();
            assert!(negotiation.rtr.is_some());
            // It waits for the indication.
            qp.post_send(&[RcSendWr::send(1, &sges)]).unwrap();
            let mut reply = [0; 24];
            stream.read_exact(&mut reply).unwrap();
            if reset {
                let linger = Some(Duration::ZERO);
                SockRef::from(&stream).set_linger(linger).unwrap();
            }
            drop(stream);
            let end = target.end_of(&qp);
            assert!(matches!(end, RcEnd::PeerClosed | RcEnd::Mpa(_)), "{end}");
            let wc = target.cq.wait(SOON).unwrap().expect("the other completion");
            assert_eq!(wc.status, WcStatus::Flushed);
        }
    }
    let (qp, _stream) = target.accept();
    assert_eq!(qp.end(), None, "the next one is served");
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// A malformed MPA Request, then a good one from the same host, again and again. Nothing of either is left.
#[test]
fn siw_2026_malformed_mpa_then_reconnect() {
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

/// Keeps the background thread of a device from all else until it is dropped.
struct Holdup {
    _goes_on: Sender<()>,
    _listener: ChannelListener,
    _channel: ConnectionChannel,
    _asker: TcpStream,
}

/// Does not return while there is a [`Holdup`].
#[derive(Debug)]
struct Held(Mutex<(Sender<()>, Receiver<()>)>);

impl Holdup {
    fn of(rnic: &Rnic) -> Self {
        let (sender, has_begun) = channel();
        let (goes_on, receiver) = channel();
        let sink = Arc::new(Held(Mutex::new((sender, receiver))));
        let channel = rnic.create_connection_channel_to(sink).unwrap();
        let any = (Ipv4Addr::LOCALHOST, 0).into();
        let listener = channel.listen(any, MpaConfig::default(), 0).unwrap();
        let mut asker = TcpStream::connect(listener.local_addr()).unwrap();
        asker.write_all(REQUEST).unwrap();
        has_begun.recv_timeout(SOON).unwrap();
        Self {
            _goes_on: goes_on,
            _listener: listener,
            _channel: channel,
            _asker: asker,
        }
    }
}

impl ConnectionSink for Held {
    fn happened(&self, _: ConnectionEvent) {
        let held = self.0.lock().unwrap();
        held.0.send(()).unwrap();
        let _ = held.1.recv();
    }
}

/// Octets that TCP has acknowledged count, though nobody has read them: a NIC needs nobody for that.
#[test]
fn a_flush_takes_nothing_back() {
    let target = Target::new();
    let (qp, mut peer) = target.accept();
    let held = Holdup::of(target.pd.rnic());
    peer.write_all(&send(1, b"first")).unwrap();
    let arrived = (0..10_000_000).any(|_| {
        thread::yield_now();
        let left = tcp_progress(peer.as_fd()).unwrap();
        left.unsent == 0 && left.unacknowledged == 0
    });
    assert!(arrived, "loopback is quicker");
    qp.flush();
    let wc = target.cq.poll_one().unwrap().expect("a completion");
    assert_eq!(wc.status, WcStatus::Success);
    drop(held);
}

/// A message that came whole before a reset counts, also where a Send finds the reset before anybody has read.
#[test]
fn a_reset_that_a_send_finds_takes_nothing_back() {
    let target = Target::new();
    let (qp, mut peer) = target.accept();
    peer.write_all(&send(1, b"first")).unwrap();
    let wc = target.cq.wait(SOON).unwrap().expect("a completion");
    assert_eq!(wc.status, WcStatus::Success);
    let sges = [target.mr.sge(..100)];
    let second = RecvWr {
        wr_id: 1,
        sges: &sges,
    };
    qp.post_recv(&[second]).unwrap();
    let held = Holdup::of(target.pd.rnic());
    // It arrives before the reset does.
    peer.set_nodelay(true).unwrap();
    peer.write_all(&send(2, b"second")).unwrap();
    let linger = Some(Duration::ZERO);
    SockRef::from(&peer).set_linger(linger).unwrap();
    drop(peer);
    let last = RcSendWr {
        signaled: false,
        ..RcSendWr::send(2, &[])
    };
    let mut found = (0..1_000_000).map(|_| {
        qp.post_send(&[last]).unwrap();
        thread::yield_now();
        qp.end().is_some()
    });
    assert!(found.any(|found| found), "a reset comes at once");
    let (mut sent, mut received) = (vec![], vec![]);
    while let Some(wc) = target.cq.poll_one().unwrap() {
        let of = if wc.wr_id == 1 {
            &mut received
        } else {
            &mut sent
        };
        of.push(wc.status);
    }
    assert_eq!(received, [WcStatus::Success]);
    let lost = sent.iter().find(|status| **status != WcStatus::Success);
    assert_eq!(lost, Some(&WcStatus::RetryExceeded));
    drop(held);
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
    // The peer has the key of one region; Writes to others, and beyond the end of this one, must not land.
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
        // A peer that gets a Terminate may ignore it.
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
