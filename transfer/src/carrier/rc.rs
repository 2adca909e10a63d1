//! Frames as Sends on a queue pair, blocks as RDMA Writes before their notice on the same queue pair: a notice on another one might overtake them
//! (RFC 5040 §5.5).

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use dgiwarp::{
    Access, Buffer, CompChannel, Config, ConnectError, Cq, MpaConfig, Mr, Pd, QpAttr, RcListener,
    RcOperation, RcQp, RcQpAttr, RcSendWr, RecvWr, Rnic, Wc, WcOpcode, WcStatus,
};
use nix::poll::PollFlags;

use super::{Arrival, CarrierError, FrameCodec, Pool, RECEIVES};
use crate::engine::Outgoing;
use crate::wire::{FRAME_LIMIT, Frame, HEADER, Header, Malformed, TAG, Window};

/// Frames that are being sent at most; their octets have to stay until they have left.
const SENDS: u16 = 256;
/// Octets for a frame, which may be protected.
const PLACE: usize = FRAME_LIMIT + TAG;
/// Completions per turn.
const BATCH: usize = 32;
/// A `wr_id` of a Send has its frame's place in the lower half and, of a block's notice, one more than its local slot above.
const SLOT_SHIFT: u32 = 32;

/// One connection.
#[derive(Debug)]
pub(crate) struct RcCarrier {
    // Before the memory that it uses.
    qp: RcQp,
    cq: Cq,
    channel: CompChannel,
    rnic: Rnic,
    peer: SocketAddr,
    pub(super) codec: FrameCodec,
    pd: Pd,
    receives: Buffer,
    receives_mr: Mr,
    sends: Buffer,
    sends_mr: Mr,
    /// Places of `sends` that are free.
    places: Vec<u16>,
    pool: Option<(Pool, Mr)>,
    window: Option<Window>,
    /// Arrivals that were found before sleeping.
    found: Vec<Arrival>,
}

/// A port at which one session is awaited.
#[derive(Debug)]
pub struct RcPort {
    rnic: Rnic,
    listener: RcListener,
}

/// The device's configuration of a program: its environment's.
#[must_use]
pub fn rc_config() -> Config {
    Config::from_environment(std::env::vars(), &[]).0
}

impl RcPort {
    /// Listens on an address and port.
    ///
    /// # Errors
    /// [`CarrierError::Device`] if the port is taken.
    pub fn bind(rnic: &Rnic, address: SocketAddr) -> Result<Self, CarrierError> {
        let listener = RcListener::bind(address, MpaConfig::default()).map_err(device)?;
        let rnic = rnic.clone();
        Ok(Self { rnic, listener })
    }

    /// The address and port.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Waits for a connection; `None` if there is none in time. A peer that does not connect properly is passed over.
    pub(crate) fn accept(
        &self,
        timeout: Duration,
    ) -> Result<Option<(RcCarrier, SocketAddr)>, CarrierError> {
        let Ok(Some(request)) = self.listener.accept(timeout) else {
            return Ok(None);
        };
        let peer = request.peer();
        let carrier = RcCarrier::new(&self.rnic, peer)?;
        let depths = MpaConfig::default().depths;
        let accepted = request.accept(&carrier.qp, depths, b"");
        accepted.map_err(|error| refused(peer, &error))?;
        Ok(Some((carrier, peer)))
    }
}

fn device(error: impl std::fmt::Display) -> CarrierError {
    CarrierError::Device(error.to_string())
}

fn refused(to: SocketAddr, error: &ConnectError) -> CarrierError {
    CarrierError::Connect {
        to,
        reason: error.to_string(),
    }
}

impl RcCarrier {
    pub(crate) fn connect(rnic: &Rnic, to: SocketAddr) -> Result<Self, CarrierError> {
        let carrier = Self::new(rnic, to)?;
        let connected = carrier.qp.connect(to, &MpaConfig::default(), b"");
        connected.map_err(|error| refused(to, &error))?;
        Ok(carrier)
    }

    fn new(rnic: &Rnic, peer: SocketAddr) -> Result<Self, CarrierError> {
        let pd = rnic.alloc_pd();
        let channel = rnic.create_comp_channel().map_err(device)?;
        let depth = usize::from(SENDS) * 2 + usize::from(RECEIVES) + 64;
        let cq = rnic.create_cq_on(depth, &channel).map_err(device)?;
        let qp = QpAttr {
            max_send_wr: usize::from(SENDS) * 2,
            max_recv_wr: usize::from(RECEIVES),
            ..QpAttr::new(&cq, &cq)
        };
        let qp = pd.create_rc_qp(&RcQpAttr::from(qp)).map_err(device)?;
        let receives = Buffer::zeroed(usize::from(RECEIVES) * PLACE).map_err(device)?;
        let access = Access::LOCAL_WRITE;
        let receives_mr = pd.register(receives.region(), access).map_err(device)?;
        let sends = Buffer::zeroed(usize::from(SENDS) * PLACE).map_err(device)?;
        let sends_mr = pd
            .register(sends.region(), Access::empty())
            .map_err(device)?;
        let carrier = Self {
            qp,
            cq,
            channel,
            rnic: rnic.clone(),
            peer,
            codec: FrameCodec::default(),
            pd,
            receives,
            receives_mr,
            sends,
            sends_mr,
            places: (0..SENDS).collect(),
            pool: None,
            window: None,
            found: Vec::new(),
        };
        for place in 0..RECEIVES {
            carrier.post_receive(place)?;
        }
        Ok(carrier)
    }

    fn post_receive(&self, place: u16) -> Result<(), CarrierError> {
        let start = usize::from(place) * PLACE;
        let sge = self.receives_mr.sge(start..start + PLACE);
        let wr = RecvWr {
            wr_id: u64::from(place),
            sges: &[sge],
        };
        self.qp.post_recv(&[wr]).map_err(device)
    }

    /// Memory that a peer on this host may map.
    pub(crate) fn create_buffer(&self, octets: usize) -> io::Result<Buffer> {
        self.rnic.create_buffer_for(self.peer, octets)
    }

    pub(crate) fn attach(&mut self, pool: &Pool) -> Result<Window, CarrierError> {
        let registered = self.pd.register(pool.buffer.region(), Access::REMOTE_WRITE);
        let mr = registered.map_err(device)?;
        let window = Window {
            stag: mr.rkey(),
            slot_length: pool.slot_length,
            address: mr.addr(),
            slots: pool.slots,
        };
        self.pool = Some((pool.clone(), mr));
        Ok(window)
    }

    pub(crate) fn set_window(&mut self, window: Window) {
        self.window = Some(window);
    }

    pub(crate) fn has_found(&self) -> bool {
        !self.found.is_empty()
    }

    pub(crate) fn has_room(&self) -> bool {
        !self.places.is_empty()
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.places.len() == usize::from(SENDS)
    }

    pub(crate) fn send(&mut self, taken: u32, outgoing: &Outgoing) -> Result<(), CarrierError> {
        let Some(place) = self.places.pop() else {
            return Err(CarrierError::Device(
                "too many frames are being sent".into(),
            ));
        };
        let (frame, local) = match outgoing {
            Outgoing::Frame(frame) => (self.codec.emit(taken, frame), None),
            Outgoing::Block { block, local } => {
                let notice = self.codec.emit(taken, &Frame::Block(*block));
                (notice, Some((block, *local)))
            }
        };
        let start = usize::from(place) * PLACE;
        self.sends.write(start, &frame);
        let notice_sges = [self.sends_mr.sge(start..start + frame.len())];
        let slot = local.map_or(0, |(_, local)| u64::from(local) + 1);
        let notice = RcSendWr::send(u64::from(place) | slot << SLOT_SHIFT, &notice_sges);
        let posted = if let Some((block, local)) = local {
            let (Some(window), Some((pool, mr))) = (self.window, &self.pool) else {
                return Err(CarrierError::Device("a block without a window".into()));
            };
            let from = pool.start(local);
            let remote_addr =
                window.address + u64::from(block.slot) * u64::from(window.slot_length);
            let rkey = window.stag;
            let octets = pool.octets(block.length);
            if copy_mapped(&self.qp, (rkey, remote_addr), pool, (local, octets))? {
                self.qp.post_send(&[notice])
            } else {
                let sges = [mr.sge(from..from + octets)];
                let operation = RcOperation::Write {
                    rkey,
                    remote_addr,
                    immediate: None,
                };
                let mut write = RcSendWr::new(0, operation, &sges);
                write.signaled = false;
                self.qp.post_send(&[write, notice])
            }
        } else {
            self.qp.post_send(&[notice])
        };
        posted.map_err(|error| self.lost(&error.to_string()))
    }

    fn lost(&self, otherwise: &str) -> CarrierError {
        match self.qp.end() {
            Some(end) => CarrierError::Lost(end.to_string()),
            None => CarrierError::Lost(otherwise.to_owned()),
        }
    }

    pub(crate) fn poll(&mut self, arrivals: &mut Vec<Arrival>) -> Result<(), CarrierError> {
        arrivals.append(&mut self.found);
        self.take_completions(arrivals)
    }

    fn take_completions(&mut self, arrivals: &mut Vec<Arrival>) -> Result<(), CarrierError> {
        let mut found = [Wc::default(); BATCH];
        let count = self.cq.poll(&mut found).map_err(device)?;
        for wc in &found[..count] {
            if wc.status != WcStatus::Success {
                // Frames that came before the end still count.
                if arrivals.is_empty() {
                    return Err(self.lost(&wc.status.to_string()));
                }
                return Ok(());
            }
            if wc.opcode == WcOpcode::Recv {
                let arrival = self.receive(wc)?;
                arrivals.push(arrival);
                continue;
            }
            let place = u16::try_from(wc.wr_id & 0xffff).unwrap_or(0);
            self.places.push(place);
            if let Ok(slot) = u16::try_from(wc.wr_id >> SLOT_SHIFT)
                && slot > 0
            {
                arrivals.push(Arrival::Sent(slot - 1));
            }
        }
        if count == 0 && self.qp.end().is_some() {
            return Err(self.lost(""));
        }
        Ok(())
    }

    fn receive(&mut self, wc: &Wc) -> Result<Arrival, CarrierError> {
        let place = u16::try_from(wc.wr_id).unwrap_or(0);
        let start = usize::from(place) * PLACE;
        // Copied once: the peer cannot write here, and the receive is posted again at once.
        let mut octets = self.receives.to_vec(start, wc.byte_len as usize);
        self.post_receive(place)?;
        let short = Malformed::Short { kind: 0 };
        let (first, body) = octets.split_first_chunk_mut::<HEADER>().ok_or(short)?;
        let header = Header::parse(first)?;
        if header.length as usize != body.len() {
            return Err(Malformed::Length(header.length).into());
        }
        let frame = self.codec.parse((&header, first), body)?;
        Ok(Arrival::Frame(header.taken, frame))
    }

    pub(crate) fn prepare(&mut self) -> Result<bool, CarrierError> {
        self.cq.request_notification(false);
        // A completion before the request makes no event.
        let mut found = Vec::new();
        let taken = self.take_completions(&mut found);
        self.found.append(&mut found);
        taken?;
        Ok(self.found.is_empty())
    }

    pub(crate) fn waited(&self) -> (BorrowedFd<'_>, PollFlags) {
        (self.channel.begin_wait(), PollFlags::POLLIN)
    }

    pub(crate) fn end_wait(&mut self) {
        while self.channel.next_event(false).is_some() {}
    }
}

/// Copies a block to memory of the peer's that this process maps. Without such memory it returns false, and the block is in its slot.
fn copy_mapped(
    qp: &RcQp,
    (rkey, remote_addr): (u32, u64),
    pool: &Pool,
    (local, octets): (u16, usize),
) -> Result<bool, CarrierError> {
    let mut outside = pool.outside(local);
    let start = pool.start(local);
    let region = pool.buffer.region();
    let slot = region.slice(start, octets).map_err(device)?;
    let length = u32::try_from(octets).unwrap_or(0);
    let is_copied = qp.write_mapped(rkey, remote_addr, length, |to| match outside.block() {
        Some(block) => to.place(block),
        None => to.place_region(&slot),
    });
    if !is_copied && let Some(block) = outside.block() {
        slot.place(block);
    }
    outside.is_used = false;
    pool.set_mapped(is_copied.then_some(length));
    Ok(is_copied)
}
