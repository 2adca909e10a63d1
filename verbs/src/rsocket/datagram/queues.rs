//! The queue pair of a datagram socket, with its memory.

use crate::cm::udp::param::QKEY;
use crate::ffi::errno;
use crate::rsocket::device::device;
use crate::rsocket::iovec::Vectors;
use dgiwarp::{
    Access, AddressHandle, Buffer, CompChannel, Cq, Destination, Mr, Operation, QpAttr, RecvWr,
    SendWr, UdQp, UdQpAttr,
};
use dgiwarp_sockets::Config;
use dgiwarp_sockets::wire::{DatagramHeader, UdpHeader};
use nix::errno::Errno;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// Room of a datagram: the longest of UDP.
pub(in crate::rsocket) const SLOT: usize = 1 << 16;
/// Octets for the headers within it.
pub(in crate::rsocket) const HEADERS: usize = UdpHeader::MAX_LEN;
/// Slots of each direction.
const MAX_SLOTS: u16 = 1024;
/// Mark of the work request identifiers of receives.
pub(in crate::rsocket) const RECEIVE: u64 = 1 << 63;

/// Queue pair and memory, made with the first datagram.
pub(in crate::rsocket) struct Queues {
    pub(in crate::rsocket) qp: UdQp,
    pub(in crate::rsocket) cq: Cq,
    pub(in crate::rsocket) channel: CompChannel,
    pub(in crate::rsocket) send: Buffer,
    pub(in crate::rsocket) send_mr: Mr,
    pub(in crate::rsocket) free: Vec<usize>,
    pub(in crate::rsocket) receive: Buffer,
    pub(in crate::rsocket) receive_mr: Mr,
}

impl Queues {
    pub(in crate::rsocket) fn new(sizes: &Config, v6: bool) -> Result<Self, Errno> {
        // As rdma-core counts them: a slot for each 2,048 octets of buffer.
        let slots = |entries: u16, octets: u32| {
            let fit = u16::try_from(octets / Config::LOW_WATER).unwrap_or(u16::MAX);
            usize::from(entries.min(fit).clamp(1, MAX_SLOTS))
        };
        let any: SocketAddr = if v6 {
            (Ipv6Addr::UNSPECIFIED, 0).into()
        } else {
            (Ipv4Addr::UNSPECIFIED, 0).into()
        };
        let sends = slots(sizes.send_entries, sizes.send_octets);
        let receives = slots(sizes.receive_entries, sizes.receive_octets);
        Self::with(sends, receives, any)
    }

    /// A queue pair with this many slots of each direction, at an address.
    pub(in crate::rsocket) fn with(
        sends: usize,
        receives: usize,
        at: SocketAddr,
    ) -> Result<Self, Errno> {
        let device = device()?;
        let failed = |error| errno::of(error);
        let buffer = |n| Buffer::zeroed(n * SLOT).map_err(|error| errno::of_io(&error));
        let (send, receive) = (buffer(sends)?, buffer(receives)?);
        let register = |buffer: &Buffer, access| device.pd.register(buffer.region(), access);
        let send_mr = register(&send, Access::empty()).map_err(failed)?;
        let receive_mr = register(&receive, Access::LOCAL_WRITE).map_err(failed)?;
        let channel = device.rnic.create_comp_channel().map_err(failed)?;
        let cq = device
            .rnic
            .create_cq_on(sends + receives, &channel)
            .map_err(failed)?;
        let attr = UdQpAttr {
            bind: Some(at),
            qkey: QKEY,
            ..UdQpAttr::from(QpAttr {
                max_send_wr: sends,
                max_recv_wr: receives,
                max_sge: 1,
                ..QpAttr::new(&cq, &cq)
            })
        };
        let qp = device.pd.create_ud_qp(&attr).map_err(failed)?;
        let queues = Self {
            qp,
            cq,
            channel,
            send,
            send_mr,
            free: (0..sends).collect(),
            receive,
            receive_mr,
        };
        for slot in 0..receives {
            queues.post_receive(slot)?;
        }
        Ok(queues)
    }

    pub(in crate::rsocket) fn post_receive(&self, slot: usize) -> Result<(), Errno> {
        let wr = RecvWr {
            wr_id: RECEIVE | u64::try_from(slot).unwrap_or(0),
            sges: &[self.receive_mr.sge(slot * SLOT..(slot + 1) * SLOT)],
        };
        self.qp.post_recv(&[wr]).map_err(errno::of_post_failure)
    }

    /// Sends a datagram from this free slot, which becomes free again where that fails.
    pub(in crate::rsocket) fn send(
        &mut self,
        slot: usize,
        source: SocketAddr,
        payload: &mut Vectors<'_>,
        (ah, qpn): (AddressHandle, u16),
    ) -> Result<(), Errno> {
        let mut head = [0; DatagramHeader::MAX_LEN];
        let len = DatagramHeader { source }.emit(&mut head);
        let octets = payload.left();
        let start = slot * SLOT;
        self.send.write(start, head.get(..len).unwrap_or_default());
        payload.copy_into(&self.send, start + len, octets);
        let wr = SendWr {
            wr_id: u64::try_from(slot).unwrap_or(0),
            operation: Operation::Send { immediate: None },
            destination: Destination {
                ah,
                qpn,
                qkey: QKEY,
            },
            sges: &[self.send_mr.sge(start..start + len + octets)],
            signaled: true,
            solicited: false,
        };
        self.qp.post_send(&[wr]).map_err(|failure| {
            self.free.push(slot);
            errno::of_post_failure(failure)
        })
    }

    /// Takes the events of the channel. Returns whether there were any: other threads that sleep at it do not wake for these any more.
    pub(in crate::rsocket) fn take_events(&self) -> bool {
        let mut came = false;
        while self.channel.next_event(false).is_some() {
            came = true;
        }
        came
    }

    /// Source, header length and length of a datagram in a slot.
    pub(in crate::rsocket) fn header(
        &self,
        slot: usize,
        octets: usize,
    ) -> Option<(SocketAddr, usize)> {
        let mut head = [0; DatagramHeader::MAX_LEN];
        let some = octets.min(head.len());
        let head = head.get_mut(..some)?;
        self.receive.read(slot * SLOT, head);
        let (header, _) = DatagramHeader::parse(head).ok()?;
        Some((header.source, header.encoded_len()))
    }
}
