//! A reliable datagram queue pair with what it needs.

use std::net::Ipv4Addr;

use dgiwarp::{
    Access, AddressHandle, Buffer, Config, Cq, Destination, Error, Mr, PostFailure, QpAttr,
    RcOperation, RcSendWr, RdQp, RdQpAttr, RdSendWr, RecvWr, Rnic, Wc,
};

use crate::common::node::SOON;
use crate::common::wait_until;

/// A Send.
pub(super) const SEND: RcOperation = RcOperation::Send { invalidate: None };
/// Octets of each receive, and of the longest message.
pub(super) const ROOM: usize = 20_000;

/// Octets of a message.
pub(super) fn octets_of(number: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at * 7 + number * 31 + length).to_le_bytes()[0])
        .collect()
}

/// A queue pair of a device of its own, with receives and room to send from.
pub(super) struct End {
    pub(super) qp: RdQp,
    pub(super) cq: Cq,
    mr: Mr,
    memory: Buffer,
    ah: AddressHandle,
    slots: usize,
}

/// Messages that may be outstanding, each with octets of its own.
const SLOTS: usize = 256;

impl End {
    pub(super) fn new(config: Config, receives: u64) -> Self {
        Self::with(config, receives, |_| ())
    }

    pub(super) fn with(
        config: Config,
        receives: u64,
        change: impl FnOnce(&mut RdQpAttr<'_>),
    ) -> Self {
        let rnic = Rnic::open(config).unwrap();
        let pd = rnic.alloc_pd();
        let cq = rnic.create_cq(1024).unwrap();
        let mut attr = RdQpAttr::new(QpAttr::new(&cq, &cq));
        change(&mut attr);
        // A port that is asked for may be a stranger's for a moment.
        let mut made = None;
        wait_until(SOON, "the port", || {
            let taken = match pd.create_rd_qp(&attr) {
                Err(Error::Bind { .. }) => attr.bind.is_some(),
                other => {
                    made = Some(other);
                    false
                }
            };
            !taken
        });
        let qp = made.unwrap().unwrap();
        let slots = usize::try_from(receives).unwrap().max(8);
        let memory = Buffer::zeroed((slots + SLOTS) * ROOM).unwrap();
        let rights = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let rights = rights | Access::LOCAL_WRITE;
        let mr = pd.register(memory.region(), rights).unwrap();
        let ah = pd.create_ah(Ipv4Addr::LOCALHOST.into()).unwrap();
        let this = Self {
            qp,
            cq,
            mr,
            memory,
            ah,
            slots,
        };
        (0..receives).for_each(|slot| this.post_recv(slot));
        this
    }

    fn begin(slot: u64) -> usize {
        usize::try_from(slot).unwrap() * ROOM
    }

    pub(super) fn post_recv(&self, slot: u64) {
        let begin = Self::begin(slot);
        let sges = [self.mr.sge(begin..begin + ROOM)];
        let wr = RecvWr {
            wr_id: slot,
            sges: &sges,
        };
        self.qp.post_recv(&[wr]).unwrap();
    }

    /// Octets of a received message.
    pub(super) fn received(&self, wc: &Wc) -> Vec<u8> {
        self.memory
            .to_vec(Self::begin(wc.wr_id), wc.byte_len as usize)
    }

    pub(super) fn post_operation(
        &self,
        wr_id: u64,
        operation: RcOperation,
        qpn: u16,
        begin: usize,
        length: usize,
    ) -> Result<(), PostFailure> {
        self.post_with_key((wr_id, operation), (qpn, 0), begin, length)
    }

    pub(super) fn post_with_key(
        &self,
        (wr_id, operation): (u64, RcOperation),
        (qpn, qkey): (u16, u32),
        begin: usize,
        length: usize,
    ) -> Result<(), PostFailure> {
        let sges = [self.mr.sge(begin..begin + length)];
        self.qp.post_send(&[RdSendWr {
            destination: Destination {
                ah: self.ah.clone(),
                qpn,
                qkey,
            },
            wr: RcSendWr::new(wr_id, operation, &sges),
        }])
    }

    pub(super) fn post_without_memory(
        &self,
        operation: RcOperation,
        qpn: u16,
    ) -> Result<(), PostFailure> {
        self.qp.post_send(&[RdSendWr {
            destination: Destination {
                ah: self.ah.clone(),
                qpn,
                qkey: 0,
            },
            wr: RcSendWr::new(0, operation, &[]),
        }])
    }

    /// Key of all its memory for peers, and the address of a place there.
    pub(super) fn remote(&self, begin: usize) -> (u32, u64) {
        (
            self.mr.rkey(),
            self.mr.addr() + u64::try_from(begin).unwrap(),
        )
    }

    /// Where a work request of its own has room.
    pub(super) fn room(&self, number: usize) -> usize {
        (self.slots + number % SLOTS) * ROOM
    }

    pub(super) fn fill(&self, begin: usize, octets: &[u8]) {
        self.memory.write(begin, octets);
    }

    pub(super) fn octets(&self, begin: usize, length: usize) -> Vec<u8> {
        self.memory.to_vec(begin, length)
    }

    /// Sends a message of its own octets.
    pub(super) fn post(&self, number: usize, qpn: u16, length: usize) -> Result<(), PostFailure> {
        // Messages to all peers with one number and length have the same octets.
        let begin = self.room(number);
        self.memory.write(begin, &octets_of(number, length));
        let wr_id = u64::try_from(number).unwrap() << 16 | u64::from(qpn);
        self.post_operation(wr_id, SEND, qpn, begin, length)
    }

    /// Number and destination of a message of [`post`](Self::post).
    pub(super) fn posted(wr_id: u64) -> (usize, u16) {
        let [.., high, low] = wr_id.to_be_bytes();
        (
            usize::try_from(wr_id >> 16).unwrap(),
            u16::from_be_bytes([high, low]),
        )
    }

    pub(super) fn poll(&self) -> Option<Wc> {
        let mut wcs = [Wc::default()];
        (self.cq.poll(&mut wcs).unwrap() == 1).then_some(wcs[0])
    }

    #[track_caller]
    pub(super) fn wait(&self) -> Wc {
        self.cq.wait(SOON).unwrap().expect("a completion")
    }
}
