//! A datagram queue pair with what it needs.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::time::Duration;

use dgiwarp::{
    Access, Buffer, Config, Cq, Destination, Mr, Operation, Pd, PostFailure, RecvWr, Rnic, SendWr,
    Sge, UdQp, UdQpAttr, Wc,
};

/// Longer than anything takes.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// A Send without immediate.
pub(crate) const SEND: Operation = Operation::Send { immediate: None };

/// A queue pair of a device of its own, with one completion queue and registered memory.
pub(crate) struct Node {
    pub(crate) qp: UdQp,
    pub(crate) cq: Cq,
    pub(crate) mr: Mr,
    pub(crate) memory: Buffer,
    pub(crate) pd: Pd,
}

impl Node {
    pub(crate) fn new(octets: usize) -> Self {
        Self::with(octets, Config::default(), |_| ())
    }

    /// One whose queue pair is not the usual.
    pub(crate) fn with(
        octets: usize,
        config: Config,
        change: impl FnOnce(&mut UdQpAttr<'_>),
    ) -> Self {
        let rnic = Rnic::open(config).unwrap();
        let cq = rnic.create_cq(1024).unwrap();
        Self::on(rnic, cq, octets, change)
    }

    /// One on a device and completion queue that are there.
    pub(crate) fn on(
        rnic: Rnic,
        cq: Cq,
        octets: usize,
        change: impl FnOnce(&mut UdQpAttr<'_>),
    ) -> Self {
        let pd = rnic.alloc_pd();
        let mut attr = UdQpAttr::new(&cq, &cq);
        change(&mut attr);
        let qp = pd.create_ud_qp(&attr).unwrap();
        let memory = Buffer::zeroed(octets).unwrap();
        let mr = pd.register(memory.region(), Access::REMOTE_WRITE).unwrap();
        Self {
            qp,
            cq,
            mr,
            memory,
            pd,
        }
    }

    /// The way to a port at an address.
    pub(crate) fn to_port(&self, address: IpAddr, qpn: u16) -> Destination {
        Destination {
            ah: self.pd.create_ah(address).unwrap(),
            qpn,
            qkey: 0,
        }
    }

    /// The way to another queue pair of this host.
    pub(crate) fn to(&self, other: &UdQp) -> Destination {
        self.to_port(Ipv4Addr::LOCALHOST.into(), other.qpn())
    }

    pub(crate) fn post_recv(&self, wr_id: u64, range: Range<usize>) {
        let sges = [self.mr.sge(range)];
        self.qp.post_recv(&[RecvWr { wr_id, sges: &sges }]).unwrap();
    }

    pub(crate) fn post(
        &self,
        wr_id: u64,
        operation: Operation,
        to: &Destination,
        sges: &[Sge],
    ) -> Result<(), PostFailure> {
        self.qp.post_send(&[SendWr {
            wr_id,
            operation,
            destination: to.clone(),
            sges,
            signaled: true,
            solicited: false,
        }])
    }

    /// Sends octets of the memory, without waiting for the completion.
    pub(crate) fn send(&self, wr_id: u64, to: &Destination, range: Range<usize>) {
        self.post(wr_id, SEND, to, &[self.mr.sge(range)]).unwrap();
    }

    /// A Write-Record into the memory of `target` at `offset`.
    pub(crate) fn write_to(&self, target: &Self, offset: u64) -> Operation {
        Operation::WriteRecord {
            rkey: target.mr.rkey(),
            remote_addr: target.mr.addr() + offset,
            immediate: None,
        }
    }

    #[track_caller]
    pub(crate) fn wait(&self) -> Wc {
        self.cq.wait(SOON).unwrap().expect("a completion")
    }
}
