//! Memory windows, fast registration and invalidation over connected queue pairs on the loopback interface.

use std::time::Duration;

use crate::common::connected::{self, depths};
use crate::common::wait_until;
use dgiwarp::{
    Access, BindError, Buffer, Config, Cq, Mr, MwBind, MwType, Pd, PostError, RcEnd, RcOperation,
    RcQp, RcQpAttr, RcSendWr, RecvWr, Rnic, Sge, Wc, WcOpcode, WcStatus, next_rkey,
};

const SOON: Duration = Duration::from_secs(20);
const ROOM: usize = 1 << 20;

/// A queue pair with memory that no peer may use.
struct End {
    qp: RcQp,
    cq: Cq,
    memory: Buffer,
    mr: Mr,
    pd: Pd,
}

impl End {
    fn new() -> Self {
        Self::of(&Rnic::open(Config::default()).unwrap().alloc_pd())
    }

    fn of(pd: &Pd) -> Self {
        let cq = pd.rnic().create_cq(512).unwrap();
        let memory = Buffer::zeroed(ROOM).unwrap();
        let access = Access::LOCAL_WRITE | Access::MW_BIND;
        Self {
            qp: pd.create_rc_qp(&RcQpAttr::new(&cq, &cq)).unwrap(),
            cq,
            mr: pd.register(memory.region(), access).unwrap(),
            memory,
            pd: pd.clone(),
        }
    }

    fn post(&self, wr_id: u64, operation: RcOperation, sges: &[Sge]) {
        let wr = RcSendWr::new(wr_id, operation, sges);
        self.qp.post_send(&[wr]).unwrap();
    }

    /// Takes 4 octets at the start of the memory.
    fn post_recv(&self, wr_id: u64) {
        let sges = [self.mr.sge(..4)];
        self.qp.post_recv(&[RecvWr { wr_id, sges: &sges }]).unwrap();
    }

    /// Sends a key from the octets behind that.
    fn tell(&self, wr_id: u64, key: u32) {
        self.memory.write(4, &key.to_be_bytes());
        self.post(wr_id, SEND, &[self.mr.sge(4..8)]);
    }

    /// Behind a fence: a Send may overtake the answers of Reads, which would find the key invalidated (RFC 5040 §5.5).
    fn send_invalidating(&self, wr_id: u64, key: u32) {
        let invalidate = Some(key);
        let wr = RcSendWr {
            fence: true,
            ..RcSendWr::new(wr_id, RcOperation::Send { invalidate }, &[])
        };
        self.qp.post_send(&[wr]).unwrap();
    }

    fn told(&self) -> u32 {
        u32::from_be_bytes(self.memory.to_vec(0, 4).try_into().unwrap())
    }

    /// A window on octets of the memory, which the peer addresses from zero.
    fn bind(&self, rkey: u32, at: u64, length: u64, access: Access) -> RcOperation {
        RcOperation::BindMw {
            rkey,
            lkey: self.mr.lkey(),
            addr: self.mr.addr() + at,
            length,
            access,
            zero_based: true,
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
        let expected = (wr_id, opcode, WcStatus::Success);
        assert_eq!(found, expected, "{:?}", self.qp.end());
        wc
    }

    #[track_caller]
    fn wait_for_end(&self) -> RcEnd {
        wait_until(SOON, "the end of the connection", || {
            self.qp.end().is_some()
        });
        self.qp.end().unwrap()
    }

    /// The layer, type and code of the Terminate that ended the connection.
    #[track_caller]
    fn terminated(&self) -> String {
        self.wait_for_end().to_string()
    }
}

const SEND: RcOperation = RcOperation::Send { invalidate: None };
const BOTH: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

fn write(rkey: u32, remote_addr: u64) -> RcOperation {
    RcOperation::Write {
        rkey,
        remote_addr,
        immediate: None,
    }
}

fn read(rkey: u32, remote_addr: u64) -> RcOperation {
    RcOperation::Read { rkey, remote_addr }
}

fn connect(client: &End, server: &End) {
    connected::connect(&client.qp, &server.qp, depths(4));
}

fn pair() -> (End, End) {
    let (client, server) = (End::new(), End::new());
    connect(&client, &server);
    (client, server)
}

/// The server opens a window for each message, sends its key behind the binding, and the client's answer closes it.
#[test]
fn a_window_for_each_message_both_ways() {
    let (a, b) = pair();
    let windows = [a.pd.alloc_mw(MwType::Two), b.pd.alloc_mw(MwType::Two)];
    let mut keys = windows.each_ref().map(dgiwarp::Mw::rkey);
    for round in 0..50u8 {
        for end in [&a, &b] {
            end.post_recv(1);
            end.post_recv(2);
        }
        for (end, key) in [&a, &b].into_iter().zip(&mut keys) {
            *key = next_rkey(*key);
            let at = 4096 + 10 * u64::from(round);
            end.post(3, end.bind(*key, at, 1000, BOTH), &[]);
            end.tell(4, *key);
        }
        for end in [&a, &b] {
            let mut wcs = [(); 3].map(|()| end.wait());
            wcs.sort_by_key(|wc| wc.wr_id);
            let outcome = wcs.map(|wc| (wc.wr_id, wc.opcode, wc.status));
            let ok = WcStatus::Success;
            assert_eq!(
                outcome,
                [
                    (1, WcOpcode::Recv, ok),
                    (3, WcOpcode::BindMw, ok),
                    (4, WcOpcode::Send, ok),
                ]
            );
        }
        for end in [&a, &b] {
            let key = end.told();
            end.memory.write(100_000, &[round + 1; 999]);
            end.post(5, write(key, 1), &[end.mr.sge(100_000..100_999)]);
            end.post(6, read(key, 0), &[end.mr.sge(200_000..201_000)]);
            end.send_invalidating(7, key);
        }
        for (end, key) in [&a, &b].into_iter().zip(keys) {
            let mut wcs = [(); 4].map(|()| end.wait());
            wcs.sort_by_key(|wc| wc.wr_id);
            assert!(
                wcs.iter().all(|wc| wc.status == WcStatus::Success),
                "{wcs:?}"
            );
            assert_eq!((wcs[0].wr_id, wcs[0].invalidated), (2, Some(key)));
            assert_eq!(end.memory.to_vec(200_001, 999), [round + 1; 999]);
            assert_eq!(
                end.memory.to_vec(4097 + 10 * usize::from(round), 999),
                [round + 1; 999]
            );
        }
    }
    // The window is closed now.
    a.post(8, write(keys[1], 0), &[a.mr.sge(..1)]);
    assert_eq!(a.terminated(), Terminate(1, 1, 0).to_string());
    assert!(matches!(b.wait_for_end(), RcEnd::Stream(_)));
}

/// How the end of a connection by a Terminate reads.
#[derive(Debug, Clone, Copy)]
struct Terminate(u8, u8, u8);

impl std::fmt::Display for Terminate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(layer, error_type, code) = *self;
        let cause = dgiwarp_rdmap::wire::Cause {
            layer,
            error_type,
            code,
        };
        dgiwarp_rdmap::stream::StreamError::Terminated(cause).fmt(f)
    }
}

#[test]
fn a_window_of_type_1_moves_and_serves_all_queue_pairs_of_its_domain() {
    let pd = Rnic::open(Config::default()).unwrap().alloc_pd();
    let servers = [End::of(&pd), End::of(&pd)];
    let clients = [End::new(), End::new()];
    for (client, server) in clients.iter().zip(&servers) {
        connect(client, server);
    }
    let mw = pd.alloc_mw(MwType::One);
    let mut old = mw.rkey();
    let mr = &servers[0].mr;
    for at in [0u64, 5000, 1000] {
        let bind = MwBind {
            addr: mr.addr() + at,
            length: 100,
            ..MwBind::new(1, mr, Access::REMOTE_WRITE)
        };
        let key = servers[0].qp.bind_mw(&mw, &bind).unwrap();
        assert_eq!(key, mw.rkey());
        assert_ne!(key, std::mem::replace(&mut old, key));
        servers[0].expect(1, WcOpcode::BindMw);
        for (client, mark) in clients.iter().zip([1, 2]) {
            client.memory.write(0, &[mark]);
            let place = mr.addr() + at + u64::from(mark);
            client.post(2, write(key, place), &[client.mr.sge(..1)]);
            client.expect(2, WcOpcode::RdmaWrite);
        }
        let at = usize::try_from(at).unwrap();
        let memory = &servers[0].memory;
        wait_until(SOON, "both writes", || memory.to_vec(at + 1, 2) == [1, 2]);
    }
    // Nobody takes it away but by another binding, and that may be of nothing.
    let empty = MwBind {
        length: 0,
        ..MwBind::new(3, mr, Access::REMOTE_WRITE)
    };
    servers[1].qp.bind_mw(&mw, &empty).unwrap();
    servers[1].expect(3, WcOpcode::BindMw);
    clients[0].post(4, read(old, mr.addr() + 1000), &[clients[0].mr.sge(..1)]);
    assert_eq!(clients[0].wait().status, WcStatus::RemoteAccess);
    assert_eq!(clients[0].terminated(), Terminate(0, 1, 0).to_string());
    // No window, no reason to keep the region.
    let [first, _] = servers;
    first.mr.deregister().unwrap();
}

#[test]
fn a_window_of_type_2_belongs_to_one_queue_pair() {
    for (work, expected) in [
        (write as fn(u32, u64) -> RcOperation, Terminate(1, 1, 2)),
        (read, Terminate(0, 1, 3)),
        (
            |key, _| RcOperation::Send {
                invalidate: Some(key),
            },
            Terminate(0, 1, 9),
        ),
    ] {
        let pd = Rnic::open(Config::default()).unwrap().alloc_pd();
        let servers = [End::of(&pd), End::of(&pd)];
        let clients = [End::new(), End::new()];
        for (client, server) in clients.iter().zip(&servers) {
            connect(client, server);
            server.post_recv(9);
        }
        let mw = pd.alloc_mw(MwType::Two);
        let key = mw.rkey();
        servers[0].post(1, servers[0].bind(key, 0, 100, BOTH), &[]);
        servers[0].expect(1, WcOpcode::BindMw);
        clients[0].post(2, SEND, &[]);
        clients[0].expect(2, WcOpcode::Send);
        servers[0].expect(9, WcOpcode::Recv);
        let sge = [clients[1].mr.sge(..4)];
        clients[1].post(3, work(key, 0), &sge);
        assert_eq!(clients[1].terminated(), expected.to_string());
        // The other one is none the worse for it.
        clients[0].post(4, read(key, 0), &[clients[0].mr.sge(..4)]);
        clients[0].expect(4, WcOpcode::RdmaRead);
    }
}

/// Registered, used and invalidated by three work requests posted together, many times; only the last makes a completion.
#[test]
fn fast_registrations_in_a_row() {
    let (client, server) = pair();
    let open = Access::REMOTE_WRITE | Access::REMOTE_READ;
    let target = server.pd.register(server.memory.region(), open).unwrap();
    let fast = client.pd.alloc_mr(4096);
    let source = Buffer::zeroed(1 << 16).unwrap();
    for i in 0..16 {
        source.write(i * 4096, &[u8::try_from(i).unwrap() + 1; 4096]);
    }
    assert!(fast.map(source.region(), 0).is_err(), "64 KiB in 4 KiB");
    let mut key = fast.rkey();
    for i in 0..16 {
        key = next_rkey(key);
        fast.map(source.region().part(i * 4096, 4096).unwrap(), 0)
            .unwrap();
        let access = Access::LOCAL_WRITE;
        let whole = [fast.sge(key, 0, 4096)];
        let offset = u64::try_from(i).unwrap() * 4096;
        let quiet = |operation, sges| RcSendWr {
            signaled: false,
            ..RcSendWr::new(1, operation, sges)
        };
        let local_invalidate = RcOperation::LocalInvalidate { rkey: key };
        client
            .qp
            .post_send(&[
                quiet(RcOperation::RegisterMr { rkey: key, access }, &[]),
                quiet(write(target.rkey(), target.addr() + offset), &whole),
                RcSendWr::new(2, local_invalidate, &[]),
            ])
            .unwrap();
        client.expect(2, WcOpcode::LocalInvalidate);
    }
    let last = 16 * 4096 - 1;
    wait_until(SOON, "the last octet", || {
        server.memory.to_vec(last, 1) == [16]
    });
    assert_eq!(server.memory.to_vec(0, 1 << 16), source.to_vec(0, 1 << 16));
    // The peer of a remote one takes it with a Send.
    fast.map(source.region().part(0, 4096).unwrap(), 0x5000)
        .unwrap();
    let access = open | Access::REMOTE_INVALIDATE;
    client.post(3, RcOperation::RegisterMr { rkey: key, access }, &[]);
    client.expect(3, WcOpcode::RegisterMr);
    client.post_recv(4);
    server.post(5, read(key, 0x5000), &[server.mr.sge(500_000..500_010)]);
    server.send_invalidating(6, key);
    server.expect(5, WcOpcode::RdmaRead);
    server.expect(6, WcOpcode::Send);
    assert_eq!(server.memory.to_vec(500_000, 10), [1; 10]);
    assert_eq!(client.expect(4, WcOpcode::Recv).invalidated, Some(key));
    client.post(7, SEND, &[fast.sge(key, 0x5000, 1)]);
    assert_eq!(client.wait().status, WcStatus::LocalProtection);
}

#[test]
fn a_region_with_windows_is_busy() {
    let (client, server) = pair();
    let region = Buffer::zeroed(4096).unwrap();
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    let mr = server.pd.register(region.region(), access).unwrap();
    let mw = server.pd.alloc_mw(MwType::One);
    let bind = MwBind::new(1, &mr, Access::REMOTE_WRITE);
    let key = server.qp.bind_mw(&mw, &bind).unwrap();
    // The binding needs no word of the peer's, though this side may not send yet.
    server.expect(1, WcOpcode::BindMw);
    let busy = mr.deregister().unwrap_err();
    assert_eq!(busy.windows(), 1);
    let place = busy.mr.addr();
    client.memory.write(0, &[7]);
    client.post(2, write(key, place), &[client.mr.sge(..1)]);
    client.expect(2, WcOpcode::RdmaWrite);
    wait_until(SOON, "the octet", || region.to_vec(0, 1) == [7]);
    // A program that drops the region closes its windows.
    drop(busy);
    client.post(3, read(key, place), &[client.mr.sge(..1)]);
    assert_eq!(client.wait().status, WcStatus::RemoteAccess);
    drop(mw);
}

#[test]
fn a_binding_that_cannot_be_ends_the_connection() {
    let (client, server) = pair();
    let mw = client.pd.alloc_mw(MwType::Two);
    client.post_recv(1);
    client.post(2, client.bind(mw.rkey(), 0, 10, BOTH), &[]);
    client.expect(2, WcOpcode::BindMw);
    // It was not invalidated.
    let again = client.bind(next_rkey(mw.rkey()), 0, 10, BOTH);
    let sges = [client.mr.sge(..4)];
    client
        .qp
        .post_send(&[
            RcSendWr {
                signaled: false,
                ..RcSendWr::new(3, again, &[])
            },
            RcSendWr::send(4, &sges),
        ])
        .unwrap();
    let ends = [(); 3].map(|()| client.wait());
    let statuses = ends.map(|wc| (wc.wr_id, wc.status));
    assert_eq!(
        statuses,
        [
            (3, WcStatus::MwBind),
            (4, WcStatus::Flushed),
            (1, WcStatus::Flushed)
        ]
    );
    assert_eq!(client.qp.end(), Some(RcEnd::Bind(BindError::Bound)));
    assert_eq!(server.terminated(), Terminate(0, 0, 0).to_string());
}

#[test]
fn what_is_no_work_request_is_not_posted() {
    let (client, _server) = pair();
    let mw = client.pd.alloc_mw(MwType::Two);
    let sges = [client.mr.sge(..4)];
    for operation in [
        client.bind(mw.rkey(), 0, 10, BOTH),
        RcOperation::LocalInvalidate { rkey: mw.rkey() },
        RcOperation::RegisterMr {
            rkey: mw.rkey(),
            access: BOTH,
        },
    ] {
        let wr = RcSendWr::new(1, operation, &sges);
        let refused = client.qp.post_send(&[wr]).unwrap_err();
        assert_eq!(refused.source, PostError::Malformed);
        let wr = RcSendWr {
            inline: b"octets",
            ..RcSendWr::new(1, operation, &[])
        };
        let refused = client.qp.post_send(&[wr]).unwrap_err();
        assert_eq!(refused.source, PostError::Malformed);
    }
    // A queue pair without a connection binds nothing, and the window keeps its key.
    let lonely = End::of(&client.pd);
    let mw = client.pd.alloc_mw(MwType::One);
    let key = mw.rkey();
    let bind = MwBind::new(1, &lonely.mr, BOTH);
    let refused = lonely.qp.bind_mw(&mw, &bind).unwrap_err();
    assert_eq!((refused.source, mw.rkey()), (PostError::State, key));
}
