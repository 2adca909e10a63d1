//! Debian's `rdma_client` and `rdma_server`, whose messages are sixteen zeros.

use std::net::SocketAddr;

use dgiwarp::{
    Access, Buffer, Config, Cq, MpaConfig, Mr, RcQp, RcQpAttr, RcSendWr, RecvWr, Rnic, WcOpcode,
    WcStatus,
};
use dgiwarp_conform::siw::{GUEST_IP, HOST_IP, Vm};

use super::ops::{SOON, listen};
use super::{DEPTHS, LIMIT, pattern};

const LEN: usize = 16;

struct End {
    qp: RcQp,
    cq: Cq,
    /// Payload to send, then room for received payload.
    memory: (Buffer, Mr),
}

impl End {
    /// An end with a receive posted.
    fn new() -> Self {
        let rnic = Rnic::open(Config::default()).unwrap();
        let pd = rnic.alloc_pd();
        let cq = rnic.create_cq(16).unwrap();
        let qp = pd.create_rc_qp(&RcQpAttr::new(&cq, &cq)).unwrap();
        let buffer = Buffer::zeroed(2 * LEN).unwrap();
        buffer.write(0, &pattern(16));
        buffer.write(LEN, &[0xa5; LEN]);
        let mr = pd.register(buffer.region(), Access::LOCAL_WRITE).unwrap();
        let sges = [mr.sge(LEN..)];
        qp.post_recv(&[RecvWr {
            wr_id: 1,
            sges: &sges,
        }])
        .unwrap();
        Self {
            qp,
            cq,
            memory: (buffer, mr),
        }
    }

    fn send(&self) {
        let sges = [self.memory.1.sge(..LEN)];
        self.qp.post_send(&[RcSendWr::send(2, &sges)]).unwrap();
        self.completes(WcOpcode::Send);
    }

    fn receives_zeros(&self) {
        self.completes(WcOpcode::Recv);
        assert_eq!(self.memory.0.to_vec(LEN, LEN), [0; LEN]);
    }

    #[track_caller]
    fn completes(&self, opcode: WcOpcode) {
        let wc = self.cq.wait(SOON).unwrap().expect("a completion");
        assert_eq!((wc.opcode, wc.status), (opcode, WcStatus::Success));
    }
}

pub(crate) fn both_ways(vm: &Vm) {
    let server = vm.spawn("rdma_server -p 7471", LIMIT).unwrap();
    vm.wait_listening(7471).unwrap();
    let end = End::new();
    let to = SocketAddr::from((GUEST_IP, 7471));
    vm.in_network(|| end.qp.connect(to, &MpaConfig::default(), b""))
        .unwrap()
        .unwrap();
    end.send();
    end.receives_zeros();
    // It leaves by itself.
    let output = server.wait().unwrap();
    assert!(output.status.success(), "{output:?}");
    drop(end);

    let listener = listen(vm, &MpaConfig::default(), 7471);
    let client = vm
        .spawn(&format!("rdma_client -s {HOST_IP} -p 7471"), LIMIT)
        .unwrap();
    let end = End::new();
    let request = listener
        .accept(LIMIT)
        .unwrap()
        .expect("rdma_client connects");
    request.accept(&end.qp, DEPTHS, b"").unwrap();
    end.receives_zeros();
    end.send();
    let output = client.wait().unwrap();
    assert!(output.status.success(), "{output:?}");
}
