//! A server of rsockets under peers that are none, or that break the protocol: their connections end, and nothing else.

use crate::common::each::compiled;
use crate::common::{RUN, skip};
use dgiwarp::{
    Access, Buffer, Config, ConnectError, Cq, Established, MpaConfig, Mr, QpAttr, RcOperation,
    RcQp, RcQpAttr, RcSendWr, RecvWr, Rnic,
};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// Introduction with version 1, 384 credits, two targets, of which [`connect`] fills in the place, and memory of data that the server never has to reach.
fn introduction() -> [u8; 40] {
    let mut octets = [0; 40];
    octets[..4].copy_from_slice(&[1, 0, 1, 128]);
    octets[20..24].copy_from_slice(&2_u32.to_be_bytes());
    octets[36..40].copy_from_slice(&1000_u32.to_be_bytes());
    octets
}

/// The element at the octet `at` of private data: address, key, length.
fn element(data: &[u8], at: usize) -> (u64, u32, u32) {
    let addr = u64::from_be_bytes(data[at..at + 8].try_into().unwrap());
    let word = |at: usize| u32::from_be_bytes(data[at..at + 4].try_into().unwrap());
    (addr, word(at + 8), word(at + 12))
}

/// A peer that is made of literal octets.
struct Peer {
    qp: RcQp,
    _cq: Cq,
    _rnic: Rnic,
    _memory: (Buffer, Mr),
    /// First target of the server: address, key, length.
    target: (u64, u32, u32),
}

fn connect(to: SocketAddr, data: &[u8]) -> Result<Peer, ConnectError> {
    let rnic = Rnic::open(Config::default()).unwrap();
    let pd = rnic.alloc_pd();
    let cq = rnic.create_cq(2000).unwrap();
    let attr = QpAttr {
        max_send_wr: 1000,
        max_recv_wr: 400,
        ..QpAttr::new(&cq, &cq)
    };
    let qp = pd.create_rc_qp(&RcQpAttr::from(attr)).unwrap();
    // The server writes to the targets as soon as it likes.
    let buffer = Buffer::zeroed(32).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mr = pd.register(buffer.region(), access).unwrap();
    let mut data = data.to_vec();
    if let Some(place) = data.get_mut(8..20) {
        place[..8].copy_from_slice(&mr.addr().to_be_bytes());
        place[8..].copy_from_slice(&mr.rkey().to_be_bytes());
    }
    for n in 0..400 {
        let sges = [mr.sge(..4)];
        let wr = RecvWr {
            wr_id: n,
            sges: &sges,
        };
        qp.post_recv(&[wr]).unwrap();
    }
    let Established { private_data, .. } = qp.connect(to, &MpaConfig::default(), &data)?;
    Ok(Peer {
        qp,
        _cq: cq,
        _rnic: rnic,
        _memory: (buffer, mr),
        target: element(&private_data, 24),
    })
}

impl Peer {
    fn write(&self, addr: u64, octets: &[u8]) {
        let operation = RcOperation::Write {
            rkey: self.target.1,
            remote_addr: addr,
            immediate: None,
        };
        let wr = RcSendWr {
            inline: octets,
            ..RcSendWr::new(0, operation, &[])
        };
        let _ = self.qp.post_send(&[wr]);
    }

    fn send(&self, octets: &[u8]) {
        let wr = RcSendWr {
            inline: octets,
            ..RcSendWr::send(0, &[])
        };
        let _ = self.qp.post_send(&[wr]);
    }

    fn message(&self, word: u32) {
        self.send(&word.to_le_bytes());
    }
}

struct Server {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Server {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Acts of a peer that is connected.
type Act = fn(&Peer);

const VIOLATIONS: [(&str, Act); 10] = [
    ("no message's length", |peer| peer.send(&[0; 3])),
    ("a long message", |peer| peer.send(&[0; 5])),
    ("a type that there is none of", |peer| {
        peer.message(0x2000_0001)
    }),
    ("a control code that there is none of", |peer| {
        peer.message(0xe000_0007)
    }),
    ("data of no octets", |peer| peer.message(0)),
    // More than a buffer is ever long.
    ("more than the target has", |peer| peer.message(1 << 22)),
    ("more than the targets have", |peer| {
        // Faster than the server can read and give more.
        (0..100).for_each(|_| peer.message(peer.target.2));
    }),
    ("a map outside of the list", |peer| {
        peer.message(0xc000_0000)
    }),
    ("a write outside of the memory", |peer| {
        peer.write(peer.target.0.wrapping_add(1 << 30), &[7; 10]);
    }),
    ("credits for nothing, and the end without a word", |peer| {
        peer.message(0x8000_ffff);
        peer.qp.disconnect();
    }),
];

/// The server and its port; `None` skips the test.
fn serve(test: &str) -> Option<(Server, std::path::PathBuf, u16)> {
    if !Path::new("/usr/include/rdma/rsocket.h").is_file() {
        skip(
            test,
            "rdma/rsocket.h is missing (Debian package librdmacm-dev)",
        );
        return None;
    }
    let program = compiled(test, include_str!("../c/rsocket_server.c"))?;
    let mut child = Command::new("timeout")
        .args(["120", RUN])
        .arg(&program)
        .env("DGIWARP_LOG", "off")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    let mut server = Server { child, lines };
    let port = server.line().parse().unwrap();
    Some((server, program, port))
}

/// A program that ends without closing its sockets has sent all, as with sockets of the system, and its peer reads the end.
#[test]
fn a_process_that_exits_has_sent_what_it_sent() {
    let Some((mut server, program, port)) = serve("rsocket_exit") else {
        return;
    };
    let mut client = Command::new("timeout");
    let status = client.args(["60", RUN]).arg(program).arg(port.to_string());
    assert!(status.status().unwrap().success());
    assert_eq!(server.line(), "4321 octets, errno 0");
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn peers_that_break_the_protocol_lose_their_connection_alone() {
    let Some((mut server, _, port)) = serve("rsocket_server") else {
        return;
    };
    let to = SocketAddr::from(([127, 0, 0, 1], port));

    let mut other_version = introduction();
    other_version[0] = 2;
    let mut no_targets = introduction();
    no_targets[20..24].fill(0);
    for data in [&other_version[..], &no_targets, &introduction()[..39], &[]] {
        let refused = connect(to, data).map(drop);
        assert!(
            matches!(refused, Err(ConnectError::Rejected(_))),
            "{refused:?}"
        );
    }
    for (what, act) in VIOLATIONS {
        let peer = connect(to, &introduction()).unwrap();
        act(&peer);
        let line = server.line();
        assert!(
            line.ends_with(&format!("errno {}", nix::libc::ECONNRESET)),
            "{what}: {line}"
        );
    }
    // A proper peer.
    let peer = connect(to, &introduction()).unwrap();
    let mut sent = 0;
    while sent < 4321 {
        let some = (4321 - sent).min(200);
        peer.write(
            peer.target.0 + sent,
            &vec![9; usize::try_from(some).unwrap()],
        );
        peer.message(u32::try_from(some).unwrap());
        sent += some;
    }
    peer.message(0xe000_0000);
    assert_eq!(server.line(), "4321 octets, errno 0");
    drop(peer);
    assert!(server.child.wait().unwrap().success());
}
