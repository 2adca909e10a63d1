//! Connected queue pairs that share one receive queue.

use std::time::Duration;

use crate::common::connected::{connect, depths};
use dgiwarp::{
    Access, AsyncEvent, Buffer, Config, Cq, Mr, QpAttr, RcOperation, RcQp, RcQpAttr, RcSendWr,
    RecvWr, Rnic, Srq, SrqAttr, Wc, WcOpcode, WcStatus,
};

const SOON: Duration = Duration::from_secs(20);
const QPS: usize = 4;
/// Octets of a receive.
const ROOM: usize = 1000;
const SLOTS: usize = 64;

/// Queue pairs of one device on one queue, each with a completion queue of its own, connected with as many of another device.
struct Pool {
    rnic: Rnic,
    srq: Srq,
    memory: Buffer,
    mr: Mr,
    servers: Vec<(RcQp, Cq)>,
    clients: Vec<(RcQp, Cq)>,
    source: Buffer,
    source_mr: Mr,
}

impl Pool {
    fn new() -> Self {
        let rnic = Rnic::open(Config::default()).unwrap();
        // The queue's memory is of its own domain, the queue pairs are of another.
        let (pd, other) = (rnic.alloc_pd(), rnic.alloc_pd());
        let attr = SrqAttr {
            max_wr: SLOTS,
            max_sge: 1,
        };
        let srq = pd.create_srq(&attr).unwrap();
        let memory = Buffer::zeroed(SLOTS * ROOM).unwrap();
        let mr = pd.register(memory.region(), Access::LOCAL_WRITE).unwrap();
        let theirs = Rnic::open(Config::default()).unwrap().alloc_pd();
        let source = Buffer::zeroed(QPS * ROOM).unwrap();
        let source_mr = theirs.register(source.region(), Access::empty()).unwrap();
        let pairs = (0..QPS).map(|_| {
            let cqs = [(); 2].map(|()| rnic.create_cq(256).unwrap());
            let [server_cq, _] = cqs;
            let attr = RcQpAttr::from(QpAttr {
                srq: Some(&srq),
                ..QpAttr::new(&server_cq, &server_cq)
            });
            let server = other.create_rc_qp(&attr).unwrap();
            let client_cq = theirs.rnic().create_cq(256).unwrap();
            let attr = RcQpAttr::new(&client_cq, &client_cq);
            let client = theirs.create_rc_qp(&attr).unwrap();
            connect(&client, &server, depths(1));
            ((server, server_cq), (client, client_cq))
        });
        let (servers, clients) = pairs.unzip();
        Self {
            rnic,
            srq,
            memory,
            mr,
            servers,
            clients,
            source,
            source_mr,
        }
    }

    /// Posts the receive of a slot; its number is the slot's.
    fn post(&self, slot: usize) {
        let sges = [self.mr.sge(slot * ROOM..(slot + 1) * ROOM)];
        let wr_id = u64::try_from(slot).unwrap();
        self.srq
            .post_recv(&[RecvWr { wr_id, sges: &sges }])
            .unwrap();
    }

    /// A client sends so many octets of this value.
    fn send(&self, client: usize, octets: usize, value: u8) {
        self.source.write(client * ROOM, &vec![value; octets]);
        let (qp, cq) = &self.clients[client];
        let sges = [self.source_mr.sge(client * ROOM..client * ROOM + octets)];
        qp.post_send(&[RcSendWr::send(1, &sges)]).unwrap();
        let wc = cq.wait(SOON).unwrap().expect("the Send completes");
        assert_eq!((wc.opcode, wc.status), (WcOpcode::Send, WcStatus::Success));
    }

    #[track_caller]
    fn received(&self, server: usize) -> (Wc, Vec<u8>) {
        let (qp, cq) = &self.servers[server];
        let wc = cq.wait(SOON).unwrap().expect("a message");
        let found = (wc.opcode, wc.status, wc.qpn);
        assert_eq!(found, (WcOpcode::Recv, WcStatus::Success, qp.qpn()));
        let slot = usize::try_from(wc.wr_id).unwrap();
        let octets = self.memory.to_vec(slot * ROOM, wc.byte_len as usize);
        (wc, octets)
    }

    fn event(&self) -> Option<AsyncEvent> {
        self.rnic.async_events().next_event(false)
    }
}

#[test]
fn receives_go_to_whoever_is_sent_to_first() {
    let pool = Pool::new();
    for slot in 0..QPS * 3 {
        pool.post(slot);
    }
    let mut slot = 0;
    for round in 0..3u8 {
        for client in (0..QPS).rev() {
            let octets = 100 * client + usize::from(round) + 1;
            pool.send(client, octets, round + 1);
            let (wc, message) = pool.received(client);
            assert_eq!(wc.wr_id, slot);
            assert_eq!(message, vec![round + 1; octets]);
            slot += 1;
        }
    }
}

#[test]
fn the_limit_is_told_of_once_whoever_undercuts_it() {
    let pool = Pool::new();
    for slot in 0..6 {
        pool.post(slot);
    }
    pool.srq.arm_limit(4).unwrap();
    for client in 0..2 {
        pool.send(client, 10, 1);
        pool.received(client);
        assert_eq!(pool.event(), None, "four are left");
    }
    for client in 2..4 {
        pool.send(client, 10, 1);
        pool.received(client);
    }
    let told = Some(AsyncEvent::SrqLimit { srq: pool.srq.id() });
    assert_eq!(pool.event(), told);
    assert_eq!(pool.event(), None, "once");
    // Armed anew, it is due anew.
    pool.post(6);
    pool.srq.arm_limit(3).unwrap();
    assert_eq!(pool.event(), None, "three are left");
    pool.send(0, 10, 1);
    pool.received(0);
    assert_eq!(pool.event(), told);
}

/// A connection that ends, as it should or by an error, takes none of the receives along.
#[test]
fn an_end_leaves_the_receives_to_the_others() {
    let pool = Pool::new();
    for slot in 0..3 {
        pool.post(slot);
    }
    pool.servers[0].0.disconnect();
    let nowhere = RcOperation::Write {
        rkey: 1,
        remote_addr: 0,
        immediate: None,
    };
    let sges = [pool.source_mr.sge(..8)];
    let (violator, cq) = &pool.clients[1];
    violator
        .post_send(&[RcSendWr::new(1, nowhere, &sges)])
        .unwrap();
    while violator.end().is_none() {
        let _ = cq.wait(Duration::from_millis(5)).unwrap();
    }
    let (server, cq) = &pool.servers[1];
    while server.end().is_none() {
        assert_eq!(cq.wait(Duration::from_millis(5)).unwrap(), None);
    }
    for (slot, client) in [(0, 2), (1, 3), (2, 2)] {
        pool.send(client, 500, 9);
        let (wc, message) = pool.received(client);
        assert_eq!((wc.wr_id, message), (slot, vec![9; 500]));
    }
    for (_, cq) in &pool.servers {
        assert_eq!(cq.poll_one().unwrap(), None);
    }
}
