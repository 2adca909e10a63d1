//! Traffic of every kind between two connected queue pairs.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use dgiwarp::{
    Access, AtomicOperation, Buffer, Config, Cq, CrcPreference, MpaConfig, MpaRevision, Mr, Pd,
    RcListener, RcOperation, RcQp, RcQpAttr, RcSendWr, ReadDepths, RecvWr, Rnic, RtrSet,
    SameHostMode, Sge, WcOpcode, WcStatus,
};

const SOON: Duration = Duration::from_secs(20);
const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// The decoder now and then loses an FPDU whose first octets are the last of a TCP segment. An FPDU starts there if TCP takes a message in
/// several pieces, so messages here are no longer than it takes at once.
const ROOM: usize = 60_000;

/// Octet i of all memory.
pub(crate) fn pattern(i: usize) -> u8 {
    (i * 31 + i / 256 + 7).to_le_bytes()[0]
}

struct End {
    qp: RcQp,
    cq: Cq,
    mr: Mr,
    pd: Pd,
    memory: Buffer,
}

impl End {
    fn new() -> Self {
        let mut config = Config::default();
        // A capture has what goes by TCP.
        config.same_host = SameHostMode::Off;
        let rnic = Rnic::open(config).unwrap();
        let pd = rnic.alloc_pd();
        let cq = rnic.create_cq(256).unwrap();
        let memory = Buffer::zeroed(ROOM).unwrap();
        let octets: Vec<u8> = (0..ROOM).map(pattern).collect();
        memory.write(0, &octets);
        Self {
            qp: pd.create_rc_qp(&RcQpAttr::new(&cq, &cq)).unwrap(),
            mr: pd.register(memory.region(), Access::all()).unwrap(),
            cq,
            pd,
            memory,
        }
    }

    fn post_recv(&self, count: u64) {
        for wr_id in 0..count {
            let sges = [self.mr.sge(..)];
            self.qp.post_recv(&[RecvWr { wr_id, sges: &sges }]).unwrap();
        }
    }

    fn post(&self, operation: RcOperation, length: usize) {
        let sges: &[Sge] = &[self.mr.sge(..length)];
        let wr = RcSendWr::new(9, operation, sges);
        self.qp.post_send(&[wr]).unwrap();
    }

    #[track_caller]
    fn completes(&self, opcode: WcOpcode) {
        let wc = self.cq.wait(SOON).unwrap().expect("a completion");
        assert_eq!((wc.opcode, wc.status), (opcode, WcStatus::Success));
    }

    fn fpdus(&self) -> u64 {
        self.qp.counters().segments_sent
    }
}

fn connect(client: &End, server: &End, mpa: &MpaConfig) {
    let listener = RcListener::bind(ANY, mpa.clone()).unwrap();
    let address = listener.local_addr();
    thread::scope(|scope| {
        scope.spawn(|| {
            let request = listener.accept(SOON).unwrap().expect("a request");
            let depths = ReadDepths { ird: 4, ord: 4 };
            request.accept(&server.qp, depths, b"accepted").unwrap();
        });
        client.qp.connect(address, mpa, b"asked").unwrap();
    });
}

/// Messages of every kind and of several sizes; gives the number of FPDUs.
fn traffic(mpa: &MpaConfig) -> u64 {
    let (client, server) = (End::new(), End::new());
    let (rkey, remote_addr) = (server.mr.rkey(), server.mr.addr());
    let sizes = [0, 1, 7, 1441, 4096, 30_001, ROOM];
    server.post_recv(sizes.len() as u64 + 3);
    connect(&client, &server, mpa);
    for size in sizes {
        client.post(RcOperation::Send { invalidate: None }, size);
        client.completes(WcOpcode::Send);
        server.completes(WcOpcode::Recv);
        let write = RcOperation::Write {
            rkey,
            remote_addr,
            immediate: None,
        };
        client.post(write, size);
        client.completes(WcOpcode::RdmaWrite);
        client.post(RcOperation::Read { rkey, remote_addr }, size);
        client.completes(WcOpcode::RdmaRead);
    }
    let with_immediate = RcOperation::Write {
        rkey,
        remote_addr,
        immediate: Some(0xcafe_f00d),
    };
    client.post(with_immediate, 5000);
    client.completes(WcOpcode::RdmaWrite);
    server.completes(WcOpcode::RecvRdmaWithImmediate);
    for operation in [
        AtomicOperation::FetchAdd { add: 3, mask: 0 },
        AtomicOperation::CompareSwap {
            compare: 1,
            compare_mask: u64::MAX,
            swap: 2,
            swap_mask: u64::MAX,
        },
    ] {
        let atomic = RcOperation::Atomic {
            rkey,
            remote_addr,
            operation,
        };
        client.post(atomic, 8);
        let wc = client.cq.wait(SOON).unwrap().expect("a completion");
        assert_eq!(wc.status, WcStatus::Success);
    }
    let invalidated = server.pd.register(server.memory.region(), Access::all());
    let invalidated = invalidated.unwrap();
    let invalidate = Some(invalidated.rkey());
    client.post(RcOperation::Send { invalidate }, 100);
    client.completes(WcOpcode::Send);
    server.completes(WcOpcode::Recv);
    client.qp.disconnect();
    client.fpdus() + server.fpdus()
}

/// A Write to memory that is not the peer's to write: the connection ends with a Terminate.
fn refused() -> u64 {
    let (client, server) = (End::new(), End::new());
    let mpa = MpaConfig {
        crc: CrcPreference::Always,
        ..MpaConfig::default()
    };
    connect(&client, &server, &mpa);
    let write = RcOperation::Write {
        rkey: server.mr.rkey() ^ 1,
        remote_addr: server.mr.addr(),
        immediate: None,
    };
    client.post(write, 64);
    client.post(
        RcOperation::Read {
            rkey: 1,
            remote_addr: 0,
        },
        8,
    );
    while client.qp.end().is_none() {
        let _ = client.cq.wait(SOON).unwrap();
    }
    client.fpdus() + server.fpdus()
}

/// CRCs on and off, revisions 1 and 2, and peer-to-peer mode with either RTR indication.
fn settings() -> Vec<MpaConfig> {
    let mut settings = Vec::new();
    for crc in [CrcPreference::Always, CrcPreference::BetweenHosts] {
        for revision in [MpaRevision::One, MpaRevision::Two] {
            settings.push(MpaConfig {
                crc,
                revision,
                ..MpaConfig::default()
            });
        }
        for read in [true, false] {
            let rtr = RtrSet {
                read,
                write: !read,
                ..RtrSet::NONE
            };
            settings.push(MpaConfig {
                crc,
                peer_to_peer: true,
                rtr,
                ..MpaConfig::default()
            });
        }
    }
    settings
}

/// Runs all, and says how many FPDUs there were, and how many of them on connections without CRCs.
#[expect(
    clippy::disallowed_methods,
    reason = "no descriptor tells when the capture has everything"
)]
pub(crate) fn run() {
    let (mut fpdus, mut without_crc) = (refused(), 0);
    for mpa in settings() {
        let more = traffic(&mpa);
        fpdus += more;
        without_crc += if mpa.crc == CrcPreference::Always {
            0
        } else {
            more
        };
    }
    println!("fpdus={fpdus} {without_crc}");
    // The last packets are on their way into the capture.
    thread::sleep(Duration::from_millis(300));
}
