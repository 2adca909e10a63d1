//! XRC: initiators of two programs, and a target whose shared receive queues they name.

use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use dgiwarp::{
    Access, Buffer, Config, MpaConfig, PostError, QpAttr, RcListener, RcOperation, RcQp, RcQpAttr,
    RcSendWr, ReadDepths, RecvWr, Rnic, SrqAttr, WcOpcode, WcStatus,
};

const SOON: Duration = Duration::from_secs(30);
const DEPTHS: ReadDepths = ReadDepths { ird: 4, ord: 4 };

fn connect(client: &RcQp, server: &RcQp) {
    let mpa = MpaConfig::default();
    let listener = RcListener::bind((Ipv4Addr::LOCALHOST, 0).into(), mpa.clone()).unwrap();
    let to = listener.local_addr();
    thread::scope(|scope| {
        scope.spawn(|| {
            let request = listener.accept(SOON).unwrap().expect("a request");
            request.accept(server, DEPTHS, b"").unwrap();
        });
        client.connect(to, &mpa, b"").unwrap();
    });
}

/// Two queues of one domain, each with a protection domain and a completion queue of its own, are reached over one connection. One is polled, the other
/// waited for.
#[test]
fn one_connection_reaches_all_queues_of_a_domain() {
    let [here, there] = [(); 2].map(|()| Rnic::open(Config::default()).unwrap());
    let xrcd = there.open_xrcd().unwrap();
    let target = xrcd.create_target(false).unwrap();
    let pds = [(); 2].map(|()| there.alloc_pd());
    let cqs = [(); 2].map(|()| there.create_cq(64).unwrap());
    let memory = Buffer::zeroed(2000).unwrap();
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let mrs = [0, 1].map(|i: usize| pds[i].register(memory.region(), all).unwrap());
    let srqs = [0, 1].map(|i: usize| {
        let attr = SrqAttr::default();
        pds[i].create_xrc_srq(&attr, &xrcd, &cqs[i]).unwrap()
    });
    assert_ne!(srqs[0].number(), srqs[1].number());

    let pd = here.alloc_pd();
    let cq = here.create_cq(64).unwrap();
    let attr = RcQpAttr {
        xrc_initiator: true,
        ..QpAttr::new(&cq, &cq).into()
    };
    let initiator = pd.create_rc_qp(&attr).unwrap();
    connect(&initiator, &target);
    let source = Buffer::zeroed(1000).unwrap();
    let mr = pd.register(source.region(), Access::LOCAL_WRITE).unwrap();
    let post = |wr_id, to: usize, operation, len| {
        let sges = [mr.sge(..len)];
        let wr = RcSendWr {
            remote_srqn: srqs[to].number(),
            ..RcSendWr::new(wr_id, operation, &sges)
        };
        initiator.post_send(&[wr]).unwrap();
        let wc = cq.wait(SOON).unwrap().expect("a completion");
        assert_eq!(wc.wr_id, wr_id);
        wc.status
    };
    for round in 0..20 {
        let to = usize::from(round % 3 == 0);
        let sges = [mrs[to].sge(to * 1000..to * 1000 + 500)];
        let receive = RecvWr {
            wr_id: round,
            sges: &sges,
        };
        srqs[to].post_recv(&[receive]).unwrap();
        let text = [u8::try_from(round).unwrap(); 300];
        source.write(0, &text);
        let operation = RcOperation::Send { invalidate: None };
        assert_eq!(post(round, to, operation, 300), WcStatus::Success);
        let wc = if to == 0 {
            cqs[to].wait(SOON).unwrap().expect("a message")
        } else {
            loop {
                if let Some(wc) = cqs[to].poll_one().unwrap() {
                    break wc;
                }
            }
        };
        let found = (wc.wr_id, wc.status, wc.opcode, wc.byte_len, wc.qpn);
        let expected = (round, WcStatus::Success, WcOpcode::Recv, 300, target.qpn());
        assert_eq!(found, expected);
        assert_eq!(memory.to_vec(to * 1000, 300), text);
    }

    // One-sided operations, and the protection domain of the queue that is named.
    let write = |i: usize| RcOperation::Write {
        rkey: mrs[i].rkey(),
        remote_addr: mrs[i].addr(),
        immediate: None,
    };
    let read = RcOperation::Read {
        rkey: mrs[1].rkey(),
        remote_addr: mrs[1].addr(),
    };
    source.write(0, b"written by name");
    assert_eq!(post(100, 0, write(0), 15), WcStatus::Success);
    source.write(0, &[0; 15]);
    assert_eq!(post(101, 1, read, 15), WcStatus::Success);
    assert_eq!(source.to_vec(0, 15), b"written by name");
    assert_eq!(post(102, 1, write(0), 15), WcStatus::RemoteAccess);

    // An initiator receives nothing, and a target has no receives of its own.
    for qp in [&initiator, &target] {
        let refused = qp.post_recv(&[RecvWr {
            wr_id: 1,
            sges: &[],
        }]);
        assert_eq!(refused.unwrap_err().source, PostError::SharedReceiveQueue);
    }
}

/// The number of a queue that is gone ends the connection; so does an end that is no target.
#[test]
fn an_initiator_is_refused_with_a_status() {
    let rnic = Rnic::open(Config::default()).unwrap();
    let pd = rnic.alloc_pd();
    let cq = rnic.create_cq(64).unwrap();
    let xrcd = rnic.open_xrcd().unwrap();
    let initiator = RcQpAttr {
        xrc_initiator: true,
        ..QpAttr::new(&cq, &cq).into()
    };
    let peers = [
        xrcd.create_target(false).unwrap(),
        pd.create_rc_qp(&RcQpAttr::new(&cq, &cq)).unwrap(),
    ];
    for peer in peers {
        let qp = pd.create_rc_qp(&initiator).unwrap();
        connect(&qp, &peer);
        let srq = pd.create_xrc_srq(&SrqAttr::default(), &xrcd, &cq).unwrap();
        let number = srq.number();
        drop(srq);
        let wr = RcSendWr {
            remote_srqn: number,
            ..RcSendWr::send(7, &[])
        };
        qp.post_send(&[wr]).unwrap();
        let wc = cq.wait(SOON).unwrap().expect("a completion");
        assert_eq!((wc.wr_id, wc.status), (7, WcStatus::RemoteInvalidRequest));
    }
}
