//! Two connected queue pairs over a stream in memory: no socket, and the MPA startup carried by hand.

use std::net::Ipv4Addr;
use std::time::Duration;

use dgiwarp_engine::connected::RcConfig;
use dgiwarp_llp_tcp_mpa::Connection;

use super::Startup;
use crate::driver::device::clock;
use crate::driver::qp::cork_tests::Corked;
use crate::driver::tcp::memory_pipe::MemoryPipe;
use crate::driver::tcp::pipe::Pipe;
use crate::{
    Access, Buffer, Completion, Config, Cq, MpaConfig, Mr, Pd, RcOperation, RcOptions, RcQp,
    RcQpAttr, RcSendWr, ReadDepths, RecvWr, Rnic, Wc, WcOpcode, WcStatus,
};

const LONG: Duration = Duration::from_secs(30);
/// More than the stream in memory holds, in several FPDUs.
const LENGTH: usize = 200_000;

/// A device with one queue pair and registered memory.
struct End {
    _rnic: Rnic,
    cq: Cq,
    qp: RcQp,
    memory: Buffer,
    mr: Mr,
}

impl End {
    fn new(options: RcOptions) -> Self {
        let rnic = Rnic::open(Config::default()).unwrap();
        let pd: Pd = rnic.alloc_pd();
        let cq = rnic.create_cq(64).unwrap();
        let attr = RcQpAttr {
            options: Some(options),
            ..RcQpAttr::new(&cq, &cq)
        };
        let qp = pd.create_rc_qp(&attr).unwrap();
        let memory = Buffer::zeroed(LENGTH).unwrap();
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = pd.register(memory.region(), rights).unwrap();
        Self {
            _rnic: rnic,
            cq,
            qp,
            memory,
            mr,
        }
    }

    fn link(&self, mpa: Connection, pipe: MemoryPipe) {
        let claimed = self.qp.shared.claim().unwrap();
        let config = RcConfig {
            qpn: self.qp.qpn(),
            pd: self.qp.pd().id,
            peer: (Ipv4Addr::LOCALHOST, 1).into(),
            options: self.qp.shared.unlocked.options,
            paired: false,
            denied: Access::empty(),
        };
        let pipe = Pipe::Memory(pipe);
        let linked = self
            .qp
            .shared
            .link(claimed, config, mpa, pipe, Startup::default());
        linked.unwrap();
    }

    fn post(&self, wr_id: u64, operation: RcOperation) {
        let sges = [self.mr.sge(..)];
        let wr = RcSendWr::new(wr_id, operation, &sges);
        self.qp.post_send(&[wr]).unwrap();
    }

    fn wait(&self) -> Wc {
        self.cq.wait(LONG).unwrap().expect("a completion in time")
    }
}

/// Two ends behind the MPA startup.
fn connected(options: RcOptions) -> [End; 2] {
    let now = clock::now();
    let mut client = Connection::initiator(now, MpaConfig::default(), b"").unwrap();
    let mut server = Connection::responder(now, MpaConfig::default());
    let request = client.poll_transmit(now).to_vec();
    client.transmitted(request.len());
    server.handle_input(now, &mut &request[..]);
    server.accept(ReadDepths { ird: 4, ord: 4 }, b"").unwrap();
    let reply = server.poll_transmit(now).to_vec();
    server.transmitted(reply.len());
    client.handle_input(now, &mut &reply[..]);
    while client.poll_event().is_some() {}
    while server.poll_event().is_some() {}
    let ends = [(); 2].map(|()| End::new(options));
    let [ours, theirs] = MemoryPipe::pair();
    // The first end is the Initiator: a Responder may not send before it received.
    ends[1].link(server, theirs);
    ends[0].link(client, ours);
    ends
}

fn options(completion: Completion) -> RcOptions {
    RcOptions {
        completion,
        ..RcOptions::default()
    }
}

#[test]
fn sends_writes_and_reads_pass_through_memory() {
    for completion in [Completion::Placed, Completion::Local] {
        let [one, other] = connected(options(completion));
        let target = |end: &End| (end.mr.rkey(), end.mr.addr());

        one.memory.write(0, &[1; LENGTH]);
        let sges = [other.mr.sge(..)];
        other
            .qp
            .post_recv(&[RecvWr {
                wr_id: 7,
                sges: &sges,
            }])
            .unwrap();
        one.post(1, RcOperation::Send { invalidate: None });
        let received = other.wait();
        assert_eq!((received.wr_id, received.byte_len as usize), (7, LENGTH));
        assert_eq!(
            (one.wait().wr_id, other.memory.to_vec(0, LENGTH)),
            (1, vec![1; LENGTH])
        );

        one.memory.write(0, &[2; LENGTH]);
        let (rkey, remote_addr) = target(&other);
        one.post(
            2,
            RcOperation::Write {
                rkey,
                remote_addr,
                immediate: None,
            },
        );
        assert_eq!(one.wait().wr_id, 2);
        one.post(3, RcOperation::Read { rkey, remote_addr });
        let read = one.wait();
        assert_eq!(
            (read.opcode, read.status),
            (WcOpcode::RdmaRead, WcStatus::Success)
        );
        assert_eq!(one.memory.to_vec(0, LENGTH), vec![2; LENGTH]);
        assert_eq!(other.memory.to_vec(0, LENGTH), vec![2; LENGTH]);
    }
}

#[test]
fn an_end_that_is_destroyed_flushes_the_receives_of_the_other() {
    let [one, other] = connected(RcOptions::default());
    let sges = [other.mr.sge(..)];
    other
        .qp
        .post_recv(&[RecvWr {
            wr_id: 7,
            sges: &sges,
        }])
        .unwrap();
    drop(one);
    let flushed = other.wait();
    assert_eq!((flushed.wr_id, flushed.status), (7, WcStatus::Flushed));
}

#[test]
fn messages_posted_back_to_back_leave_whatever_follows() {
    for leaves_process in [true, false] {
        let [one, other] = connected(options(Completion::Local));
        let send = |from: &End, to: &End| {
            let sges = [to.mr.sge(..64)];
            let wr_id = 1;
            to.qp.post_recv(&[RecvWr { wr_id, sges: &sges }]).unwrap();
            let sges = [from.mr.sge(..64)];
            let wr = RcSendWr {
                signaled: false,
                ..RcSendWr::send(1, &sges)
            };
            from.qp.post_send(&[wr]).unwrap();
        };
        let received = |wc: Wc| assert_eq!((wc.wr_id, wc.status), (1, WcStatus::Success));
        let corked = Corked {
            core: &one.qp.shared,
            post: &|| send(&one, &other),
            arrive: &|| received(other.wait()),
            receive: &|| {
                send(&other, &one);
                while one.cq.poll_one().unwrap().map(received).is_none() {}
            },
            close: &|| one.qp.shared.close(),
        };
        corked.check(leaves_process);
    }
}
