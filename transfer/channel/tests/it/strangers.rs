//! Peers that break the protocol, made of queue pairs alone.

use std::net::SocketAddr;
use std::thread;

use dgiwarp::{
    Access, Buffer, Cq, MpaConfig, Mr, RcListener, RcQp, RcQpAttr, RcSendWr, ReadDepths, RecvWr,
    Rnic,
};
use dgiwarp_channel::wire::{Announce, Kind, Notice};
use dgiwarp_channel::{Channel, Error, Listener};

use super::{SOON, config};

const DEPTHS: ReadDepths = ReadDepths { ird: 4, ord: 4 };

struct Stranger {
    qp: RcQp,
    _cq: Cq,
    mr: Mr,
    _memory: Buffer,
}

impl Stranger {
    fn new() -> Self {
        let rnic = Rnic::open(dgiwarp::Config::default()).unwrap();
        let pd = rnic.alloc_pd();
        let cq = rnic.create_cq(1024).unwrap();
        let memory = Buffer::zeroed(4096).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mr = pd.register(memory.region(), access).unwrap();
        let qp = pd.create_rc_qp(&RcQpAttr::new(&cq, &cq)).unwrap();
        for wr_id in 0..64 {
            let sges = [mr.sge(0..64)];
            let wr = RecvWr { wr_id, sges: &sges };
            qp.post_recv(&[wr]).unwrap();
        }
        Self {
            qp,
            _cq: cq,
            mr,
            _memory: memory,
        }
    }

    fn announce(&self) -> Announce {
        Announce {
            slots: 4,
            slot_size: 1000,
            stag: self.mr.rkey(),
            offset: self.mr.addr(),
        }
    }

    fn connect(&self, to: SocketAddr, private_data: &[u8]) -> bool {
        let connected = self.qp.connect(to, &MpaConfig::default(), private_data);
        connected.is_ok()
    }

    fn send(&self, octets: &[u8]) {
        let wr = RcSendWr {
            inline: octets,
            ..RcSendWr::send(0, &[])
        };
        self.qp.post_send(&[wr]).unwrap();
    }
}

fn notice(kind: Kind, released: &[u16]) -> Vec<u8> {
    let mut octets = Vec::new();
    Notice::emit(kind, released.iter().copied(), &mut octets);
    octets
}

fn block(slot: u16, length: u32) -> Vec<u8> {
    notice(Kind::Block { slot, length }, &[])
}

#[test]
fn notices_that_break_the_protocol_end_the_channel() {
    let listener = Listener::bind(([127, 0, 0, 1], 0).into(), config(4, 1000)).unwrap();
    let end_of = |notices: &[Vec<u8>]| {
        let stranger = Stranger::new();
        let octets = stranger.announce().to_bytes();
        thread::scope(|scope| {
            let connects = scope.spawn(|| stranger.connect(listener.local_addr(), &octets));
            let channel = listener.accept(SOON).unwrap();
            assert!(connects.join().unwrap());
            for notice in notices {
                stranger.send(notice);
            }
            let mut blocks = Vec::new();
            loop {
                match channel.next(SOON) {
                    Ok(Some(block)) => blocks.push(block),
                    Ok(None) => break (blocks.len(), None),
                    Err(error) => break (blocks.len(), Some(error.to_string())),
                }
            }
        })
    };
    let violation = |why: &str| Some(format!("the peer broke the protocol: {why}"));
    for (notices, blocks, why) in [
        (vec![block(4, 1)], 0, "a slot that the ring has not"),
        (vec![block(3, 1001)], 0, "a block longer than its slot"),
        (
            vec![block(3, 1), block(3, 1)],
            1,
            "a slot was used before its release",
        ),
        (
            vec![notice(Kind::Release, &[0])],
            0,
            "a slot without a block was released",
        ),
        (
            vec![notice(Kind::Release, &[9])],
            0,
            "a slot without a block was released",
        ),
        (vec![vec![0; 7]], 0, "a notice without its header"),
        (
            vec![vec![0; 9]],
            0,
            "a notice of another length than its count's",
        ),
        (
            vec![vec![7; 8]],
            0,
            "a notice of another length than its count's",
        ),
        (
            vec![[7, 0, 0, 0, 0, 0, 0, 0].to_vec()],
            0,
            "a notice of unknown kind",
        ),
    ] {
        assert_eq!(end_of(&notices), (blocks, violation(why)));
    }
    // Longer than its receive: the connection ends for that.
    let (blocks, error) = end_of(&[vec![0; 65]]);
    let error = error.unwrap();
    assert!(blocks == 0 && error.contains("lost"), "{blocks} {error}");
    // Notices without contents are wasteful, and no violation; and an honest end is one.
    let mut many = vec![notice(Kind::Release, &[]); 200];
    many.push(block(0, 0));
    many.push(notice(Kind::End, &[]));
    assert_eq!(end_of(&many), (1, None));
}

#[test]
fn other_services_are_no_channels() {
    let listener = Listener::bind(([127, 0, 0, 1], 0).into(), config(4, 1000)).unwrap();
    for private_data in [
        &b""[..],
        &b"GET / HTTP/1.1\r\nHost: somewhere.example\r\n"[..],
        &Announce {
            slots: 1025,
            slot_size: 1,
            stag: 0,
            offset: 0,
        }
        .to_bytes(),
    ] {
        let stranger = Stranger::new();
        thread::scope(|scope| {
            let connects = scope.spawn(|| stranger.connect(listener.local_addr(), private_data));
            let error = listener.accept(SOON).unwrap_err();
            assert!(matches!(error, Error::Violation(_)), "{error}");
            assert!(!connects.join().unwrap(), "it is rejected");
        });
    }
    // The Responder is another service.
    let other = RcListener::bind(([127, 0, 0, 1], 0).into(), MpaConfig::default()).unwrap();
    let to = other.local_addr();
    let answers = thread::spawn(move || {
        let stranger = Stranger::new();
        let request = other.accept(SOON).unwrap().unwrap();
        request.accept(&stranger.qp, DEPTHS, b"hello").unwrap();
        stranger
    });
    let error = Channel::connect(to, config(4, 1000)).unwrap_err();
    assert!(matches!(error, Error::Violation(_)), "{error}");
    drop(answers.join().unwrap());
    // The listener goes on.
    let to = listener.local_addr();
    let connects = thread::spawn(move || Channel::connect(to, config(1, 1)).unwrap());
    let channel = listener.accept(SOON).unwrap();
    connects.join().unwrap().close(SOON).unwrap();
    assert!(channel.next(SOON).unwrap().is_none());
}
