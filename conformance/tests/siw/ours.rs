//! Our end of a connection.

use core::time::Duration;

use dgiwarp::{
    Access, Buffer, Config, Cq, Mr, RcQp, RcQpAttr, RcSendWr, RecvWr, Rnic, Wc, WcOpcode, WcStatus,
};

const SOON: Duration = Duration::from_secs(10);

/// A queue pair with registered memory for one message each way.
pub(crate) struct End {
    pub(crate) qp: RcQp,
    cq: Cq,
    outgoing: (Buffer, Mr),
    incoming: (Buffer, Mr),
}

impl End {
    /// For messages of at most `len` octets.
    pub(crate) fn new(len: u32) -> Self {
        let rnic = Rnic::open(Config::default()).unwrap();
        let pd = rnic.alloc_pd();
        let cq = rnic.create_cq(16).unwrap();
        let qp = pd.create_rc_qp(&RcQpAttr::new(&cq, &cq)).unwrap();
        let buffer = || {
            let buffer = Buffer::zeroed(usize::try_from(len).unwrap()).unwrap();
            let mr = pd.register(buffer.region(), Access::LOCAL_WRITE).unwrap();
            (buffer, mr)
        };
        let (outgoing, incoming) = (buffer(), buffer());
        Self {
            qp,
            cq,
            outgoing,
            incoming,
        }
    }

    pub(crate) fn post_recv(&self, wr_id: u64) {
        let (buffer, mr) = &self.incoming;
        // What does not arrive shows.
        buffer.write(0, &vec![0xa5; buffer.len()]);
        let sges = [mr.sge(..)];
        self.qp.post_recv(&[RecvWr { wr_id, sges: &sges }]).unwrap();
    }

    pub(crate) fn post_send(&self, wr_id: u64, octets: &[u8]) {
        let (buffer, mr) = &self.outgoing;
        buffer.write(0, octets);
        let sges = [mr.sge(..octets.len())];
        self.qp.post_send(&[RcSendWr::send(wr_id, &sges)]).unwrap();
    }

    #[track_caller]
    fn wait(&self) -> Wc {
        let Some(wc) = self.cq.wait(SOON).unwrap() else {
            panic!(
                "no completion; the connection ended with {:?}, {:?}",
                self.qp.end(),
                self.qp.counters()
            );
        };
        wc
    }

    /// Waits for a Send of ours; gives its `wr_id`.
    #[track_caller]
    pub(crate) fn wait_sent(&self) -> u64 {
        let wc = self.wait();
        assert_eq!((wc.opcode, wc.status), (WcOpcode::Send, WcStatus::Success));
        wc.wr_id
    }

    /// Waits for a message; gives the receive's `wr_id` and the octets.
    #[track_caller]
    pub(crate) fn wait_received(&self) -> (u64, Vec<u8>) {
        let wc = self.wait();
        assert_eq!((wc.opcode, wc.status), (WcOpcode::Recv, WcStatus::Success));
        (
            wc.wr_id,
            self.incoming
                .0
                .to_vec(0, usize::try_from(wc.byte_len).unwrap()),
        )
    }

    /// Waits for a completion in error.
    #[track_caller]
    pub(crate) fn wait_failed(&self) -> (u64, WcStatus) {
        let wc = self.wait();
        (wc.wr_id, wc.status)
    }
}
