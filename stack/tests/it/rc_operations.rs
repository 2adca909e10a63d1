//! Writes, Reads, atomics and Terminates of connected queue pairs over the loopback interface.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::connected::{connect, connect_with, depths};
use dgiwarp::{
    Access, AtomicOperation, Buffer, Config, Cq, CrcPreference, MAX_INLINE_DATA, MpaConfig, Mr,
    NoReceive, Pd, PostError, RcEnd, RcListener, RcOperation, RcOptions, RcQp, RcQpAttr, RcSendWr,
    ReadDepths, RecvWr, Rnic, Sge, Wc, WcOpcode, WcStatus,
};

const SOON: Duration = Duration::from_secs(20);

/// A queue pair of a device of its own, with memory that the peer may use.
struct End {
    qp: RcQp,
    cq: Cq,
    memory: Buffer,
    mr: Mr,
    pd: Pd,
}

impl End {
    fn new(octets: usize) -> Self {
        Self::with(octets, RcOptions::default())
    }

    fn with(octets: usize, options: RcOptions) -> Self {
        let rnic = Rnic::open(Config::default()).unwrap();
        let pd = rnic.alloc_pd();
        let cq = rnic.create_cq(512).unwrap();
        let attr = RcQpAttr {
            options: Some(options),
            ..RcQpAttr::new(&cq, &cq)
        };
        let qp = pd.create_rc_qp(&attr).unwrap();
        let memory = Buffer::zeroed(octets).unwrap();
        let mr = pd.register(memory.region(), Access::all()).unwrap();
        Self {
            qp,
            cq,
            memory,
            mr,
            pd,
        }
    }

    fn post(&self, wr_id: u64, operation: RcOperation, sges: &[Sge]) {
        let wr = RcSendWr::new(wr_id, operation, sges);
        self.qp.post_send(&[wr]).unwrap();
    }

    fn post_recv(&self, wr_id: u64) {
        self.qp.post_recv(&[RecvWr { wr_id, sges: &[] }]).unwrap();
    }

    /// The octets of this end at `at`, for its peer.
    fn write_at(&self, at: u64, immediate: Option<u32>) -> RcOperation {
        RcOperation::Write {
            rkey: self.mr.rkey(),
            remote_addr: self.mr.addr() + at,
            immediate,
        }
    }

    fn read_at(&self, at: u64) -> RcOperation {
        RcOperation::Read {
            rkey: self.mr.rkey(),
            remote_addr: self.mr.addr() + at,
        }
    }

    fn atomic_at(&self, at: u64, operation: AtomicOperation) -> RcOperation {
        RcOperation::Atomic {
            rkey: self.mr.rkey(),
            remote_addr: self.mr.addr() + at,
            operation,
        }
    }

    #[track_caller]
    fn wait(&self) -> Wc {
        self.cq.wait(SOON).unwrap().expect("a completion")
    }

    #[track_caller]
    fn expect(&self, wr_id: u64, opcode: WcOpcode) -> Wc {
        let wc = self.wait();
        let found = (wc.wr_id, wc.opcode, wc.status);
        assert_eq!(found, (wr_id, opcode, WcStatus::Success));
        wc
    }

    /// Waits without touching the completion queue.
    #[track_caller]
    #[expect(
        clippy::disallowed_methods,
        reason = "a test waits in real time for what no descriptor tells"
    )]
    fn wait_for_end(&self) -> RcEnd {
        let deadline = Instant::now() + SOON;
        loop {
            if let Some(end) = self.qp.end() {
                return end;
            }
            assert!(Instant::now() < deadline, "the connection goes on");
            thread::sleep(Duration::from_millis(2));
        }
    }
}

fn connected(octets: usize) -> (End, End) {
    let (client, server) = (End::new(octets), End::new(octets));
    connect(&client.qp, &server.qp, depths(4));
    (client, server)
}

fn pattern(octets: usize) -> Vec<u8> {
    (0u32..)
        .map(|i| (i.wrapping_mul(0x9e37_79b9) >> 24).to_le_bytes()[0])
        .take(octets)
        .collect()
}

/// Nobody polls at the server: its background thread places Writes and answers Reads.
#[test]
fn writes_and_reads_of_all_sizes_into_a_program_that_sleeps() {
    const ROOM: usize = 64 << 20;
    for mpa in [
        MpaConfig::default(),
        MpaConfig {
            markers: true,
            crc: CrcPreference::Never,
            ..MpaConfig::default()
        },
    ] {
        let (client, server) = (End::new(2 * ROOM), End::new(ROOM + 8));
        connect_with(&client.qp, &server.qp, &mpa, depths(4));
        let message = pattern(ROOM);
        client.memory.write(0, &message);
        for size in [0, 1, 7, 1441, 1442, 1443, 65_536, 1 << 20, ROOM] {
            let (source, sink) = (client.mr.sge(..size), client.mr.sge(ROOM..ROOM + size));
            client.post(1, server.write_at(5, None), &[source]);
            client.post(2, server.read_at(5), &[sink]);
            client.expect(1, WcOpcode::RdmaWrite);
            let wc = client.expect(2, WcOpcode::RdmaRead);
            assert_eq!(wc.byte_len as usize, size);
            assert!(server.memory.to_vec(5, size) == message[..size], "{size}");
            assert!(
                client.memory.to_vec(ROOM, size) == message[..size],
                "{size}"
            );
        }
    }
}

#[test]
fn both_sides_read_from_each_other_at_once() {
    let (client, server) = connected(8 << 20);
    client.memory.write(0, &pattern(4 << 20));
    server.memory.write(0, &pattern(4 << 20));
    // A Responder may begin once it has heard of the Initiator.
    client.post(0, server.write_at(0, None), &[]);
    client.expect(0, WcOpcode::RdmaWrite);
    for wr_id in 0..20 {
        client.post(wr_id, server.read_at(0), &[client.mr.sge(4 << 20..)]);
        server.post(wr_id, client.read_at(0), &[server.mr.sge(4 << 20..)]);
    }
    thread::scope(|scope| {
        for end in [&client, &server] {
            scope.spawn(|| {
                for wr_id in 0..20 {
                    end.expect(wr_id, WcOpcode::RdmaRead);
                }
                assert!(end.memory.to_vec(4 << 20, 4 << 20) == pattern(4 << 20));
            });
        }
    });
}

#[test]
fn atomics_of_several_connections_add_up() {
    const ADDS: u64 = 200;
    let target = End::new(64);
    let clients = [End::new(64), End::new(64), End::new(64)];
    let others: Vec<_> = clients
        .iter()
        .map(|client| {
            let qp = target
                .pd
                .create_rc_qp(&RcQpAttr::new(&target.cq, &target.cq))
                .unwrap();
            connect(&client.qp, &qp, ReadDepths { ird: 8, ord: 0 });
            qp
        })
        .collect();
    thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| {
                let add = AtomicOperation::FetchAdd { add: 1, mask: 0 };
                for wr_id in 0..ADDS {
                    client.post(wr_id, target.atomic_at(8, add), &[client.mr.sge(..8)]);
                    let wc = client.wait();
                    assert_eq!(
                        (wc.opcode, wc.status),
                        (WcOpcode::FetchAdd, WcStatus::Success)
                    );
                }
            });
        }
    });
    let sum = u64::from_ne_bytes(target.memory.to_vec(8, 8).try_into().unwrap());
    assert_eq!(sum, 3 * ADDS);
    let swap = AtomicOperation::CompareSwap {
        compare: sum,
        compare_mask: u64::MAX,
        swap: 1,
        swap_mask: u64::MAX,
    };
    clients[0].post(0, target.atomic_at(8, swap), &[clients[0].mr.sge(8..16)]);
    clients[0].expect(0, WcOpcode::CompareSwap);
    assert_eq!(clients[0].memory.to_vec(8, 8), sum.to_ne_bytes());
    assert_eq!(target.memory.to_vec(8, 8), 1u64.to_ne_bytes());
    drop(others);
}

#[test]
fn a_write_with_immediate_wakes_the_receiver() {
    let (client, server) = connected(4096);
    server.post_recv(7);
    client.memory.write(0, b"written");
    client.post(1, server.write_at(100, Some(0xfeed)), &[client.mr.sge(..7)]);
    client.expect(1, WcOpcode::RdmaWrite);
    let wc = server.expect(7, WcOpcode::RecvRdmaWithImmediate);
    assert_eq!((wc.immediate, wc.byte_len), (Some(0xfeed), 7));
    assert_eq!(server.memory.to_vec(100, 7), b"written");
}

#[test]
fn inline_data_and_selective_signalling() {
    let (client, server) = connected(4096);
    let octets = [0x5a; MAX_INLINE_DATA];
    for wr_id in 0..100 {
        let wr = RcSendWr {
            inline: &octets,
            signaled: wr_id % 10 == 9,
            ..RcSendWr::new(wr_id, server.write_at(1, None), &[])
        };
        client.qp.post_send(&[wr]).unwrap();
    }
    for wr_id in (9..100).step_by(10) {
        client.expect(wr_id, WcOpcode::RdmaWrite);
    }
    client.post(
        100,
        server.read_at(0),
        &[client.mr.sge(..MAX_INLINE_DATA + 2)],
    );
    client.expect(100, WcOpcode::RdmaRead);
    let around = [&[0][..], &octets, &[0]].concat();
    assert_eq!(client.memory.to_vec(0, MAX_INLINE_DATA + 2), around);

    let refused = |wr: RcSendWr<'_>| client.qp.post_send(&[wr]).unwrap_err().source;
    let too_long = RcSendWr {
        inline: &[0; MAX_INLINE_DATA + 1],
        ..RcSendWr::send(1, &[])
    };
    assert_eq!(refused(too_long), PostError::TooLong);
    let read = RcSendWr {
        inline: &octets,
        ..RcSendWr::new(1, server.read_at(0), &[])
    };
    assert_eq!(refused(read), PostError::Malformed);
    let add = AtomicOperation::FetchAdd { add: 1, mask: 0 };
    let sges = [client.mr.sge(..4)];
    let short = RcSendWr::new(1, server.atomic_at(0, add), &sges);
    assert_eq!(refused(short), PostError::Malformed);
}

#[test]
fn a_fenced_send_comes_after_the_read_before_it() {
    let (client, server) = connected(4 << 20);
    server.post_recv(1);
    client.post(1, server.read_at(0), &[client.mr.sge(..)]);
    let fenced = RcSendWr {
        fence: true,
        ..RcSendWr::send(2, &[])
    };
    client.qp.post_send(&[fenced]).unwrap();
    // When the server hears of it the client has all it read.
    server.expect(1, WcOpcode::Recv);
    client.expect(1, WcOpcode::RdmaRead);
    client.expect(2, WcOpcode::Send);
}

#[test]
fn a_key_can_be_used_until_a_send_takes_it() {
    let (client, server) = connected(4096);
    server.post_recv(5);
    client.memory.write(0, b"before");
    client.post(1, server.write_at(0, None), &[client.mr.sge(..6)]);
    let invalidate = Some(server.mr.rkey());
    client.post(2, RcOperation::Send { invalidate }, &[]);
    client.expect(1, WcOpcode::RdmaWrite);
    client.expect(2, WcOpcode::Send);
    let wc = server.expect(5, WcOpcode::Recv);
    assert_eq!(wc.invalidated, invalidate);
    assert_eq!(server.memory.to_vec(0, 6), b"before");
    client.post(3, server.read_at(0), &[client.mr.sge(..6)]);
    let wc = client.wait();
    assert_eq!((wc.wr_id, wc.status), (3, WcStatus::RemoteAccess));
    // Our own lkey is as good as before.
    drop(server);
}

/// RFC 5040 §4.8: the target reports a refusal in a Terminate, which arrives though the connection is closed right behind it.
#[test]
fn a_refusal_reaches_the_other_side_and_ends_what_was_posted() {
    let cases: [(&str, u64, WcStatus); 3] = [
        ("a key that is none", 1, WcStatus::RemoteAccess),
        ("octets outside", 2, WcStatus::RemoteAccess),
        (
            "an atomic that is not aligned",
            3,
            WcStatus::RemoteOperation,
        ),
    ];
    for (what, case, status) in cases {
        let (client, server) = connected(4096);
        server.post_recv(9);
        client.post_recv(8);
        let add = AtomicOperation::FetchAdd { add: 1, mask: 0 };
        let operation = match case {
            1 => RcOperation::Read {
                rkey: !server.mr.rkey(),
                remote_addr: 0,
            },
            2 => server.read_at(4090),
            _ => server.atomic_at(4, add),
        };
        client.post(1, operation, &[client.mr.sge(..8)]);
        client.post(2, server.read_at(0), &[client.mr.sge(..8)]);
        let first = client.wait();
        assert_eq!((first.wr_id, first.status), (1, status), "{what}");
        let second = client.wait();
        assert_eq!((second.wr_id, second.status), (2, WcStatus::Flushed));
        assert_eq!(client.wait().status, WcStatus::Flushed, "the receive");
        let told = client.wait_for_end();
        let found = server.wait_for_end();
        assert_ne!(told, RcEnd::PeerClosed, "{what}");
        let RcEnd::Stream(error) = found else {
            panic!("{what}: {found}");
        };
        let cause = error.cause().unwrap();
        assert!(
            told.to_string().ends_with(&cause.to_string()),
            "{told}: {cause}"
        );
        assert_eq!(server.wait().status, WcStatus::Flushed);
    }
}

#[test]
fn a_send_without_a_receive_is_told_to_the_sender() {
    let refusing = RcOptions {
        no_receive: NoReceive::Terminate,
        ..RcOptions::default()
    };
    let (client, server) = (End::new(64), End::with(64, refusing));
    connect(&client.qp, &server.qp, depths(4));
    client.post(1, RcOperation::Send { invalidate: None }, &[]);
    // It was not placed, so it is this one that fails.
    assert_eq!(client.wait().status, WcStatus::RnrRetryExceeded);
    assert_eq!(
        client.wait_for_end().to_string(),
        "the peer terminated: layer 1, type 2, code 0x02"
    );
    assert!(matches!(server.wait_for_end(), RcEnd::Stream(_)));
}

/// A relay between two ends that is cut after so many octets from the one to the other.
fn relay(to: SocketAddr, cut_after: usize) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut near, _) = listener.accept().unwrap();
        let mut far = std::net::TcpStream::connect(to).unwrap();
        let (mut near_in, mut far_out) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        let back = thread::spawn(move || std::io::copy(&mut far, &mut near));
        let mut limited = (&mut near_in).take(cut_after as u64);
        let mut octets = [0; 512];
        while let Ok(len @ 1..) = limited.read(&mut octets) {
            if far_out.write_all(&octets[..len]).is_err() {
                break;
            }
        }
        let _ = far_out.shutdown(std::net::Shutdown::Both);
        let _ = near_in.shutdown(std::net::Shutdown::Both);
        let _ = back.join();
    });
    address
}

/// Wherever the stream is cut, everything posted completes, and nothing but what was sent before is placed.
#[test]
fn a_stream_that_is_cut_leaves_nothing_open() {
    // Behind the startup frame: request 20 + 4 octets, then FPDUs of 2 + 14 + 1000 + 4 octets and a Read Request of 52.
    for cut_after in [
        25, 26, 43, 44, 600, 1043, 1044, 1045, 1070, 2064, 2090, 2116,
    ] {
        let (client, server) = (End::new(4096), End::new(4096));
        server.post_recv(9);
        let listener =
            RcListener::bind((Ipv4Addr::LOCALHOST, 0).into(), MpaConfig::default()).unwrap();
        let address = relay(listener.local_addr(), cut_after);
        thread::scope(|scope| {
            scope.spawn(|| {
                let request = listener.accept(SOON).unwrap().expect("a request");
                let depths = ReadDepths { ird: 1, ord: 1 };
                request.accept(&server.qp, depths, b"").unwrap();
            });
            client
                .qp
                .connect(address, &MpaConfig::default(), b"")
                .unwrap();
        });
        client.memory.write(0, &[7; 1000]);
        for wr_id in 0..2 {
            client.post(wr_id, server.write_at(0, None), &[client.mr.sge(..1000)]);
        }
        for wr_id in 2..5 {
            client.post(wr_id, server.read_at(0), &[client.mr.sge(2000..2008)]);
        }
        let statuses: Vec<_> = (0..5)
            .map(|wr_id| {
                let wc = client.wait();
                assert_eq!(wc.wr_id, wr_id, "cut after {cut_after}");
                wc.status
            })
            .collect();
        assert_ne!(statuses[4], WcStatus::Success, "cut after {cut_after}");
        client.wait_for_end();
        assert_ne!(server.wait().status, WcStatus::Success);
        let placed = server.memory.to_vec(0, 1001);
        assert!(placed[..1000].iter().all(|octet| *octet == placed[0]));
        assert_eq!(placed[1000], 0);
    }
}
