//! Costs of connected queue pairs: octets that are copied on their way, and memory while nothing is on its way.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use dgiwarp::{
    Access, Buffer, Config, Cq, MpaConfig, Mr, Pd, QpCounters, RcListener, RcOperation, RcQp,
    RcQpAttr, RcSendWr, ReadDepths, RecvWr, Rnic, Wc, WcOpcode, WcStatus,
};

const SOON: Duration = Duration::from_secs(30);
const DEPTHS: ReadDepths = ReadDepths { ird: 4, ord: 4 };
const MEBI: usize = 1 << 20;

/// One test at a time: they measure the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Device {
    pd: Pd,
    cq: Cq,
    memory: Buffer,
    mr: Mr,
}

impl Device {
    fn new(config: Config, octets: usize) -> Self {
        let rnic = Rnic::open(config).unwrap();
        let pd = rnic.alloc_pd();
        let cq = rnic.create_cq(4096).unwrap();
        let memory = Buffer::zeroed(octets).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = pd.register(memory.region(), access).unwrap();
        Self { pd, cq, memory, mr }
    }

    fn qp(&self) -> RcQp {
        self.pd
            .create_rc_qp(&RcQpAttr::new(&self.cq, &self.cq))
            .unwrap()
    }

    fn post_recv(&self, qp: &RcQp) {
        let sges = [self.mr.sge(..)];
        qp.post_recv(&[RecvWr {
            wr_id: 1,
            sges: &sges,
        }])
        .unwrap();
    }

    fn post(&self, qp: &RcQp, operation: RcOperation, len: usize) {
        let sges = [self.mr.sge(..len)];
        qp.post_send(&[RcSendWr::new(2, operation, &sges)]).unwrap();
    }

    #[track_caller]
    fn wait(&self, opcode: WcOpcode) -> Wc {
        let wc = self.cq.wait(SOON).unwrap().expect("a completion");
        assert_eq!(
            (wc.opcode, wc.status),
            (opcode, WcStatus::Success),
            "{wc:?}"
        );
        wc
    }
}

fn connect(listener: &RcListener, to: SocketAddr, client: &RcQp, server: &RcQp) {
    let mpa = MpaConfig {
        peer_to_peer: true,
        ..MpaConfig::default()
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let request = listener.accept(SOON).unwrap().expect("a request");
            request.accept(server, DEPTHS, b"").unwrap();
        });
        client.connect(to, &mpa, b"").unwrap();
    });
}

fn listener() -> (RcListener, SocketAddr) {
    let mpa = MpaConfig {
        peer_to_peer: true,
        ..MpaConfig::default()
    };
    let listener = RcListener::bind((Ipv4Addr::LOCALHOST, 0).into(), mpa).unwrap();
    let address = listener.local_addr();
    (listener, address)
}

/// Counters of both sides while messages of these lengths went to the server, with `operation`, one after the other.
fn traffic(
    config: Config,
    lengths: &[usize],
    operation: impl Fn(&Mr) -> RcOperation,
) -> (QpCounters, QpCounters) {
    let client = Device::new(config.clone(), MEBI);
    let server = Device::new(config, MEBI);
    let (listener, address) = listener();
    let (from, to) = (client.qp(), server.qp());
    server.post_recv(&to);
    connect(&listener, address, &from, &to);
    let operation = operation(&server.mr);
    for &len in lengths {
        client.post(&from, operation, len);
        match operation {
            RcOperation::Send { .. } => {
                server.wait(WcOpcode::Recv);
                server.post_recv(&to);
                client.wait(WcOpcode::Send);
            }
            RcOperation::Read { .. } => {
                client.wait(WcOpcode::RdmaRead);
            }
            _ => {
                client.wait(WcOpcode::RdmaWrite);
            }
        }
    }
    drop(from);
    server.cq.wait(SOON).unwrap().expect("the flushed receive");
    (client_counters(&client), to.counters())
}

/// Counters of a device whose queue pairs are gone.
fn client_counters(device: &Device) -> QpCounters {
    device.pd.rnic().counters()
}

const SEND: RcOperation = RcOperation::Send { invalidate: None };

#[test]
fn short_segments_are_copied_once() {
    let _alone = alone();
    let lengths = [1, 64, 1024, 4096, 8191];
    let (sender, receiver) = traffic(Config::default(), &lengths, |_| SEND);
    let octets: usize = lengths.iter().sum();
    assert_eq!(sender.octets_staged, octets as u64);
    // One at a time, they arrive whole.
    assert_eq!((receiver.octets_kept, receiver.octets_staged), (0, 0));
}

#[test]
fn long_segments_leave_uncopied_but_for_what_tcp_interrupts() {
    let _alone = alone();
    let lengths = [8192, MEBI, MEBI, MEBI, MEBI];
    let octets: usize = lengths.iter().sum();
    let (sender, receiver) = traffic(Config::default(), &lengths, |_| SEND);
    println!("sender: {sender}; receiver: {receiver}");
    assert!(sender.octets_staged < octets as u64 / 4, "{sender}");
    // Each read ends inside one FPDU at most, and whoever reads has more than one at a time.
    assert!(receiver.octets_kept < octets as u64 / 2, "{receiver}");

    let mut all = Config::default();
    all.send_copy = true;
    let (sender, _) = traffic(all, &lengths, |_| SEND);
    assert_eq!(sender.octets_staged, octets as u64);
}

#[test]
fn read_responses_are_always_copied() {
    let _alone = alone();
    let lengths = [100, 100_000, MEBI];
    let read = |mr: &Mr| RcOperation::Read {
        rkey: mr.rkey(),
        remote_addr: mr.addr(),
    };
    let (reader, target) = traffic(Config::default(), &lengths, read);
    assert_eq!(target.octets_staged, lengths.iter().sum::<usize>() as u64);
    assert_eq!(reader.octets_staged, 0);
}

#[test]
fn a_chosen_mulpdu_is_kept() {
    let _alone = alone();
    let mut config = Config::default();
    config.mulpdu = 9014;
    let write = |mr: &Mr| RcOperation::Write {
        rkey: mr.rkey(),
        remote_addr: mr.addr(),
        immediate: None,
    };
    let (sender, _) = traffic(config, &[900_000], write);
    // Nine thousand octets behind a tagged header; and a few segments of the connection's own.
    assert!((100..110).contains(&sender.segments_sent), "{sender}");
}

/// Connections of the test of idle memory; two ends each.
const IDLE: usize = 500;
/// Memory of the process that an idle end may cost.
const MOST: usize = 32 << 10;

/// Octets of the process's memory that are in use.
fn resident() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    let pages = statm.split_whitespace().nth(1).unwrap();
    pages.parse::<usize>().unwrap() * 4096
}

/// Octets that the kernel holds for all TCP sockets of this network namespace.
fn kernel() -> usize {
    let sockstat = fs::read_to_string("/proc/net/sockstat").unwrap();
    let tcp = sockstat
        .lines()
        .find(|line| line.starts_with("TCP:"))
        .unwrap();
    tcp.split_whitespace()
        .last()
        .unwrap()
        .parse::<usize>()
        .unwrap()
        * 4096
}

#[test]
fn an_idle_connection_costs_little() {
    let _alone = alone();
    let (client, server) = (
        Device::new(Config::default(), MEBI),
        Device::new(Config::default(), MEBI),
    );
    client.memory.write(0, &[7; MEBI]);
    server.memory.write(0, &[7; MEBI]);
    let (listener, address) = listener();
    let pair = || {
        let (from, to) = (client.qp(), server.qp());
        connect(&listener, address, &from, &to);
        // Messages of both kinds each way, so that everything that the way of messages needs was there once.
        for len in [100, 200_000] {
            for (a, from, b, to) in [
                (&client, &from, &server, &to),
                (&server, &to, &client, &from),
            ] {
                b.post_recv(to);
                a.post(from, SEND, len);
                b.wait(WcOpcode::Recv);
                a.wait(WcOpcode::Send);
            }
        }
        (from, to)
    };
    // Memory of threads and devices.
    let first: Vec<_> = (0..8).map(|_| pair()).collect();
    let (before, kernel_before) = (resident(), kernel());
    let pairs: Vec<_> = (0..IDLE).map(|_| pair()).collect();
    let each = resident().saturating_sub(before) / (2 * IDLE);
    let kernels = kernel().saturating_sub(kernel_before) / (2 * IDLE);
    println!("an idle end costs {each} octets, and of the kernel's for its data {kernels}");
    assert!(each <= MOST, "{each} octets");
    drop((first, pairs));
}
