//! Raw UDP: connected sockets, GSO trains and GRO, 64 KiB datagrams, or one datagram per call.
//!
//! Each side has two sockets, so that both directions have a pair of their own: payload goes out
//! of `tx` into the peer's `rx`, credits the other way. Ping-pong uses the client's `tx` and the
//! server's `rx` alone.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, getsockopt, recv, send, setsockopt, sockopt};

use crate::catalog::{Mode, Op};
use crate::control::{Datagrams, EndpointSpec, Offer};
use crate::error::{IoContext, PerfError, Result};
use crate::host::{Side, Wait};
use crate::loss::{self, Dropper, Mark, Survivors};
use crate::measure::{Arrival, BLOCK_SLICE, Flow, Geometry, Idle, PingPong, Want, Watch};
use crate::pattern::{self, OFFSET_BITS, POSITION_BITS, POSITION_MASK, narrow, widen};
use crate::raw::path_mtu;

/// Payload of the large datagrams used where the path carries them whole.
const LARGE_DATAGRAM: u64 = 65_000;
/// From this receive buffer on, large datagrams are used for streams: a smaller one holds so few of
/// them that trains are faster.
const ROOMY_BUFFER: u64 = 1024 * 1024;
/// Ethernet: what "MTU-sized" means on a path with a larger MTU, such as loopback.
const ETHERNET_MTU: u64 = 1500;
/// The kernel takes at most this many segments in one train.
const MAX_TRAIN_SEGMENTS: u64 = 64;
/// And at most this many bytes.
const MAX_TRAIN_BYTES: u64 = 65_000;
/// A receive call can return a whole train.
pub(super) const RECEIVE_BUFFER: usize = 64 * 1024;

/// One side of a raw UDP endpoint.
#[derive(Debug)]
pub(crate) struct Udp {
    tx: UdpSocket,
    rx: UdpSocket,
    side: Side,
    op: Op,
    mode: Mode,
    check: bool,
    blocking: bool,
    flags: MsgFlags,
    size: usize,
    segment: usize,
    /// Length of a chunk, and with `check` its expected contents.
    pattern: Vec<u8>,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    round: u64,
    /// Sequence and bytes of the message that is arriving.
    arriving: (u64, usize),
    /// Largest MTU to assume of the path; 0 takes its own.
    mtu: u32,
    /// In runs with loss: what is dropped, a mark that came with data, and what the round counted.
    dropper: Dropper,
    mark: Option<Mark>,
    datagrams: Datagrams,
}

impl Udp {
    /// Opens this side's sockets on `local`.
    pub(crate) fn open(spec: &EndpointSpec, local: IpAddr, side: Side) -> Result<(Self, Offer)> {
        let tx = socket(local, spec.receive_buffer)?;
        let rx = socket(local, spec.receive_buffer)?;
        let blocking = spec.wait == Wait::Block;
        let offer = Offer {
            ports: vec![port(&tx)?, port(&rx)?],
            receive_buffer: widen(
                getsockopt(&rx, sockopt::RcvBuf).during("read the receive buffer's size")?,
            ),
            ..Offer::default()
        };
        let udp = Self {
            tx,
            rx,
            side,
            op: spec.subject.op,
            mode: spec.mode,
            check: spec.check,
            blocking,
            flags: if blocking {
                MsgFlags::empty()
            } else {
                MsgFlags::MSG_DONTWAIT
            },
            size: narrow(spec.size),
            segment: 0,
            pattern: Vec::new(),
            outgoing: Vec::new(),
            incoming: vec![0; RECEIVE_BUFFER],
            round: 0,
            arriving: (0, 0),
            mtu: spec.mtu,
            dropper: Dropper::new(spec.loss, spec.seed),
            mark: None,
            datagrams: Datagrams::default(),
        };
        Ok((udp, offer))
    }

    /// Connects to the peer's sockets.
    pub(crate) fn connect(&self, peer: IpAddr, offer: &Offer) -> Result<()> {
        let &[peer_tx, peer_rx] = offer.ports.as_slice() else {
            return Err(PerfError::Protocol("raw UDP needs two ports".to_owned()));
        };
        self.tx
            .connect(SocketAddr::new(peer, peer_rx))
            .during("connect a UDP socket")?;
        self.rx
            .connect(SocketAddr::new(peer, peer_tx))
            .during("connect a UDP socket")
    }

    /// Cuts messages for the path to the connected peer.
    pub(crate) fn geometry(&self, granted: u64, window: Option<u64>) -> Result<Geometry> {
        let mtu_payload = path_mtu::datagram_payload(&self.tx, self.mtu)?;
        let size = widen(self.size);
        let (segment, chunk) = cut(self.op, self.mode, mtu_payload, granted, size);
        Ok(Geometry::datagram(size, chunk, segment, granted, window))
    }

    /// Prepares buffers and socket options for the agreed sizes.
    pub(crate) fn configure(&mut self, geometry: &Geometry) -> Result<()> {
        self.segment = narrow(geometry.segment);
        self.pattern = pattern::fill(narrow(geometry.chunk));
        self.outgoing = self.pattern.clone();
        if geometry.chunk > geometry.segment {
            let segment = i32::try_from(geometry.segment).unwrap_or(i32::MAX);
            for socket in [&self.tx, &self.rx] {
                setsockopt(socket, sockopt::UdpGsoSegment, &segment)
                    .during("set the GSO segment size")?;
                setsockopt(socket, sockopt::UdpGroSegment, &true).during("switch GRO on")?;
            }
        }
        Ok(())
    }

    /// The socket that carries payload out of this side, which in ping-pong carries all.
    fn ping_socket(&self) -> &UdpSocket {
        match self.side {
            Side::Client => &self.tx,
            Side::Server => &self.rx,
        }
    }

    /// Looks at one socket for the payload it carries in.
    fn poll_data(&mut self, flags: MsgFlags) -> Result<Arrival> {
        let Some(length) = receive(&self.rx, &mut self.incoming, flags)? else {
            return Ok(Arrival::Nothing);
        };
        let run = self.incoming.get(..length).unwrap_or(&[]);
        let end = pattern::end_stamp(run, self.segment);
        if end.is_some_and(|end| end >> POSITION_BITS != self.round) {
            return Ok(Arrival::Other);
        }
        if self.check {
            pattern::verify(run, self.segment, &self.pattern, POSITION_MASK)?;
        }
        Ok(Arrival::Data {
            bytes: widen(length),
            end: end.map(|end| end & POSITION_MASK),
            record: None,
        })
    }

    /// The same in runs with loss, where each datagram has its own fate. A mark that comes in one piece
    /// with data is kept for the next look.
    fn poll_lossy(&mut self, flags: MsgFlags) -> Result<Arrival> {
        if let Some(mark) = self.mark.take() {
            return Ok(marked(mark));
        }
        let Some(length) = receive(&self.rx, &mut self.incoming, flags)? else {
            return Ok(Arrival::Nothing);
        };
        let run = self.incoming.get(..length).unwrap_or(&[]);
        let left = loss::survivors(run, self.segment, &mut self.dropper);
        let Survivors { end: Some(end), .. } = left else {
            return Ok(Arrival::Other);
        };
        if end >> POSITION_BITS != self.round {
            return Ok(Arrival::Other);
        }
        self.mark = left.mark;
        if left.bytes == 0 {
            return Ok(self.mark.take().map_or(Arrival::Other, marked));
        }
        self.datagrams.valid += left.datagrams;
        Ok(Arrival::Data {
            bytes: left.bytes,
            end: Some(end & POSITION_MASK),
            record: None,
        })
    }

    /// Looks at the other socket for what the peer has seen.
    fn poll_credit(&mut self, flags: MsgFlags) -> Result<Arrival> {
        let Some(length) = receive(&self.tx, &mut self.incoming, flags)? else {
            return Ok(Arrival::Nothing);
        };
        // GRO may hand over several credits at once: the last one counts.
        let run = self.incoming.get(..length).unwrap_or(&[]);
        match run.last_chunk().map(|stamp| u64::from_le_bytes(*stamp)) {
            Some(stamp) if stamp >> POSITION_BITS == self.round => {
                Ok(Arrival::Credit(stamp & POSITION_MASK))
            }
            _ => Ok(Arrival::Other),
        }
    }
}

const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;

impl PingPong for Udp {
    const LOSES: bool = true;

    fn send(&mut self, sequence: u64, watch: &mut Watch<'_>) -> Result<()> {
        let mut offset = 0;
        while offset < self.size {
            let length = self.outgoing.len().min(self.size - offset);
            let chunk = self.outgoing.get_mut(..length).unwrap_or(&mut []);
            if self.size < pattern::STAMP {
                chunk.copy_from_slice(sequence.to_le_bytes().get(..length).unwrap_or(&[]));
            } else {
                let first = (sequence << OFFSET_BITS) | widen(offset);
                pattern::stamp(chunk, self.segment, first);
            }
            let chunk = self.outgoing.get(..length).unwrap_or(&[]);
            if transmit(self.ping_socket(), chunk, self.flags)? {
                offset += length;
            } else if watch.idle(self.blocking)? == Idle::Stop {
                break;
            }
        }
        Ok(())
    }

    fn try_receive(&mut self) -> Result<Option<u64>> {
        let mut incoming = std::mem::take(&mut self.incoming);
        let received = receive(self.ping_socket(), &mut incoming, self.flags);
        self.incoming = incoming;
        let Some(length) = received? else {
            return Ok(None);
        };
        let run = self.incoming.get(..length).unwrap_or(&[]);
        if self.size < pattern::STAMP {
            let mut sequence = [0; pattern::STAMP];
            if let Some(low) = sequence.get_mut(..length) {
                low.copy_from_slice(run);
            }
            return Ok(Some(u64::from_le_bytes(sequence)));
        }
        if self.check {
            pattern::verify(run, self.segment, &self.pattern, OFFSET_MASK)?;
        }
        if let Some(stamp) = pattern::read_stamp(run)
            && stamp >> OFFSET_BITS != self.arriving.0
        {
            self.arriving = (stamp >> OFFSET_BITS, 0);
        }
        self.arriving.1 += length;
        if self.arriving.1 < self.size {
            return Ok(None);
        }
        self.arriving.1 = 0;
        Ok(Some(self.arriving.0))
    }
}

impl Flow for Udp {
    const LOSES: bool = true;

    fn start_round(&mut self, round: u16) -> Result<()> {
        self.round = u64::from(round);
        for socket in [&self.tx, &self.rx] {
            while receive(socket, &mut self.incoming, MsgFlags::MSG_DONTWAIT)?.is_some() {}
        }
        self.mark = None;
        self.dropper.take_dropped();
        self.datagrams = Datagrams::default();
        Ok(())
    }

    fn transmit(&mut self, position: u64, length: u64) -> Result<u64> {
        let chunk = self.outgoing.get_mut(..narrow(length)).unwrap_or(&mut []);
        let first = (self.round << POSITION_BITS) | position;
        pattern::stamp(chunk, self.segment, first);
        let taken = transmit(&self.tx, chunk, self.flags)?;
        if taken {
            self.datagrams.sent += length.div_ceil(widen(self.segment));
        }
        Ok(if taken { length } else { 0 })
    }

    fn poll(&mut self, want: Want, may_wait: bool) -> Result<Arrival> {
        let flags = if may_wait {
            self.flags
        } else {
            MsgFlags::MSG_DONTWAIT
        };
        match want {
            Want::Data if self.mode == Mode::Loss => self.poll_lossy(flags),
            Want::Data => self.poll_data(flags),
            Want::Credit => self.poll_credit(flags),
            Want::Both => {
                if may_wait && self.blocking {
                    wait_for_any([self.tx.as_fd(), self.rx.as_fd()])?;
                }
                match self.poll_data(MsgFlags::MSG_DONTWAIT)? {
                    Arrival::Nothing => self.poll_credit(MsgFlags::MSG_DONTWAIT),
                    arrival => Ok(arrival),
                }
            }
        }
    }

    fn credit(&mut self, position: u64) -> Result<()> {
        let stamp = (self.round << POSITION_BITS) | position;
        // A credit the kernel has no room for is lost; the next one covers it.
        transmit(&self.rx, &stamp.to_le_bytes(), self.flags).map(|_| ())
    }

    fn mark(&mut self, mark: Mark) -> Result<bool> {
        let stamp = (self.round << POSITION_BITS) | mark.to_position();
        let taken = transmit(&self.tx, &stamp.to_le_bytes(), self.flags)?;
        self.datagrams.sent += u64::from(taken);
        Ok(taken)
    }

    fn datagrams(&mut self) -> Datagrams {
        self.datagrams.dropped += self.dropper.take_dropped();
        self.datagrams
    }
}

fn marked(mark: Mark) -> Arrival {
    Arrival::Data {
        bytes: 0,
        end: Some(mark.position),
        record: None,
    }
}

/// Datagram payload and bytes per call for messages of `size` bytes.
pub(super) fn cut(op: Op, mode: Mode, mtu_payload: u64, granted: u64, size: u64) -> (u64, u64) {
    let ethernet = mtu_payload.min(ETHERNET_MTU - path_mtu::HEADERS_IPV4);
    let whole = mtu_payload >= LARGE_DATAGRAM;
    let (segment, per_call) = match op {
        Op::RawSingle => (ethernet, 1),
        Op::Raw | Op::Broadcast | Op::Multicast
            if whole && (mode == Mode::Lat || granted >= ROOMY_BUFFER) =>
        {
            (LARGE_DATAGRAM, 1)
        }
        Op::Raw | Op::Broadcast | Op::Multicast if whole => (ethernet, train(ethernet)),
        Op::Raw | Op::Broadcast | Op::Multicast => (mtu_payload, train(mtu_payload)),
        Op::RawTrain
        | Op::Send
        | Op::Write
        | Op::WriteImm
        | Op::WriteRecord
        | Op::Read
        | Op::FetchAdd
        | Op::CompareSwap => (ethernet, train(ethernet)),
    };
    (segment.min(size), (segment * per_call).min(size))
}

/// How many segments of this size go into one train.
fn train(segment: u64) -> u64 {
    (MAX_TRAIN_BYTES / segment).clamp(1, MAX_TRAIN_SEGMENTS)
}

pub(super) fn socket(local: IpAddr, buffer: usize) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(SocketAddr::new(local, 0)).during("bind a UDP socket")?;
    // Loopback charges a datagram to the sender until it is read: both buffers matter.
    setsockopt(&socket, sockopt::RcvBuf, &buffer).during("set the receive buffer")?;
    setsockopt(&socket, sockopt::SndBuf, &buffer).during("set the send buffer")?;
    socket
        .set_read_timeout(Some(BLOCK_SLICE))
        .during("set a socket timeout")?;
    Ok(socket)
}

pub(super) fn port(socket: &UdpSocket) -> Result<u16> {
    Ok(socket.local_addr().during("read a local port")?.port())
}

/// Receives into `buffer`; none if nothing is there.
pub(super) fn receive(
    socket: &UdpSocket,
    buffer: &mut [u8],
    flags: MsgFlags,
) -> Result<Option<usize>> {
    match recv(socket.as_raw_fd(), buffer, flags) {
        Ok(length) => Ok(Some(length)),
        // ECONNREFUSED reports an earlier datagram; the control connection knows whether the
        // peer is really gone.
        Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNREFUSED) => Ok(None),
        Err(errno) => Err(errno).during("receive from a UDP socket"),
    }
}

/// Sends one datagram or train; false if there is no room now.
pub(super) fn transmit(socket: &UdpSocket, chunk: &[u8], flags: MsgFlags) -> Result<bool> {
    match send(socket.as_raw_fd(), chunk, flags) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EINTR | Errno::ENOBUFS) => Ok(false),
        // An error about an earlier datagram; this one was not sent and counts as lost.
        Err(Errno::ECONNREFUSED) => Ok(true),
        Err(errno) => Err(errno).during("send to a UDP socket"),
    }
}

fn wait_for_any(sockets: [BorrowedFd<'_>; 2]) -> Result<()> {
    let mut fds = sockets.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    let timeout = PollTimeout::try_from(BLOCK_SLICE).unwrap_or(PollTimeout::ZERO);
    match poll(&mut fds, timeout) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno).during("wait for UDP sockets"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_uses_large_datagrams_if_the_buffer_holds_several() {
        assert_eq!(
            cut(Op::Raw, Mode::Bw, 65_507, 8 << 20, 1 << 20),
            (65_000, 65_000)
        );
        assert_eq!(
            cut(Op::Raw, Mode::Bw, 65_507, 425_984, 1 << 20),
            (1472, 1472 * 44)
        );
        assert_eq!(
            cut(Op::Raw, Mode::Lat, 65_507, 425_984, 60_000),
            (60_000, 60_000)
        );
    }

    #[test]
    fn ethernet_uses_trains() {
        assert_eq!(
            cut(Op::Raw, Mode::Bw, 1472, 8 << 20, 1 << 20),
            (1472, 1472 * 44)
        );
        assert_eq!(cut(Op::Raw, Mode::Bw, 1472, 8 << 20, 8192), (1472, 8192));
        assert_eq!(cut(Op::Raw, Mode::Bw, 1472, 8 << 20, 64), (64, 64));
        assert_eq!(
            cut(Op::Raw, Mode::Bw, 8972, 8 << 20, 1 << 20),
            (8972, 8972 * 7)
        );
    }

    #[test]
    fn mtu_sized_rows_stay_mtu_sized_on_loopback() {
        assert_eq!(
            cut(Op::RawSingle, Mode::Bw, 65_507, 8 << 20, 1 << 20),
            (1472, 1472)
        );
        assert_eq!(
            cut(Op::RawTrain, Mode::Bw, 65_507, 8 << 20, 1 << 20),
            (1472, 1472 * 44)
        );
    }
}
