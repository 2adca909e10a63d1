//! Common parts of raw UDP rows: two sockets a side, stamped datagrams, and calls that find nothing instead of failing.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, getsockopt, recv, send, setsockopt, sockopt};

use crate::catalog::{Mode, Op};
use crate::endpoint::pattern::{self, POSITION_BITS, POSITION_MASK, narrow, widen};
use crate::endpoint::raw::incoming::Incoming;
use crate::endpoint::raw::path_mtu;
use crate::error::{IoContext, PerfError, Result};
use crate::machine::host::Wait;
use crate::measure::{Arrival, BLOCK_SLICE, Geometry};
use crate::session::control::{EndpointSpec, Offer};

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
const RECEIVE_BUFFER: usize = 64 * 1024;

/// The sockets of one side: `tx` carries data out and credits in, `rx` the reverse. Also what fills them.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) tx: UdpSocket,
    pub(super) rx: UdpSocket,
    pub(super) blocking: bool,
    /// Of all calls that may wait.
    pub(super) flags: MsgFlags,
    pub(super) size: usize,
    pub(super) segment: usize,
    pub(super) round: u64,
    pub(super) outgoing: Vec<u8>,
    pub(super) incoming: Incoming,
    check: bool,
    /// Length of a chunk, and with `check` its expected contents.
    pattern: Vec<u8>,
    op: Op,
    mode: Mode,
    /// Largest MTU to assume of the path; 0 takes its own.
    mtu: u32,
}

impl Pair {
    /// These sockets, and where the peer finds them.
    pub(super) fn new(tx: UdpSocket, rx: UdpSocket, spec: &EndpointSpec) -> Result<(Self, Offer)> {
        let granted = getsockopt(&rx, sockopt::RcvBuf).during("read the receive buffer's size")?;
        let offer = Offer {
            ports: vec![port(&tx)?, port(&rx)?],
            receive_buffer: widen(granted),
            ..Offer::default()
        };
        let blocking = spec.wait == Wait::Block;
        let pair = Self {
            tx,
            rx,
            blocking,
            flags: if blocking {
                MsgFlags::empty()
            } else {
                MsgFlags::MSG_DONTWAIT
            },
            size: narrow(spec.size),
            segment: 0,
            round: 0,
            outgoing: Vec::new(),
            incoming: Incoming::zeroed(RECEIVE_BUFFER),
            check: spec.check,
            pattern: Vec::new(),
            op: spec.subject.op,
            mode: spec.mode,
            mtu: spec.mtu,
        };
        Ok((pair, offer))
    }

    /// Cuts messages for the path that `tx` is connected to.
    pub(super) fn geometry(&self, granted: u64, window: Option<u64>) -> Result<Geometry> {
        let mtu_payload = path_mtu::datagram_payload(&self.tx, self.mtu)?;
        let size = widen(self.size);
        let (segment, chunk) = cut(self.op, self.mode, mtu_payload, granted, size);
        Ok(Geometry::datagram(size, chunk, segment, granted, window))
    }

    /// Prepares buffers for the agreed sizes. Returns whether a chunk is a train.
    pub(super) fn configure(&mut self, geometry: &Geometry) -> bool {
        self.segment = narrow(geometry.segment);
        self.pattern = pattern::fill(narrow(geometry.chunk));
        self.outgoing = self.pattern.clone();
        geometry.chunk > geometry.segment
    }

    /// Makes trains of what leaves a socket.
    pub(super) fn send_trains(&self, socket: &UdpSocket) -> Result<()> {
        let segment = i32::try_from(self.segment).unwrap_or(i32::MAX);
        setsockopt(socket, sockopt::UdpGsoSegment, &segment).during("set the GSO segment size")
    }

    /// The flags of a call that may wait, or not.
    pub(super) fn flags(&self, may_wait: bool) -> MsgFlags {
        if may_wait {
            self.flags
        } else {
            MsgFlags::MSG_DONTWAIT
        }
    }

    /// A round begins; what earlier ones left in these sockets is thrown away.
    pub(super) fn start_round(&mut self, round: u16, stale: &[Half]) -> Result<()> {
        self.round = u64::from(round);
        for &half in stale {
            while self.receive(half, MsgFlags::MSG_DONTWAIT)?.is_some() {}
        }
        Ok(())
    }

    /// Receives what is there at one of the sockets, into `incoming`.
    pub(super) fn receive(&mut self, half: Half, flags: MsgFlags) -> Result<Option<usize>> {
        let socket = match half {
            Half::Tx => &self.tx,
            Half::Rx => &self.rx,
        };
        receive(socket, &mut self.incoming, flags)
    }

    /// Sends the bytes from `position` on, stamped; false if there is no room now.
    pub(super) fn transmit(&mut self, position: u64, length: u64) -> Result<bool> {
        let chunk = self.outgoing.get_mut(..narrow(length)).unwrap_or(&mut []);
        let first = (self.round << POSITION_BITS) | position;
        pattern::stamp(chunk, self.segment, first);
        transmit(&self.tx, chunk, self.flags)
    }

    /// Looks for data of this round.
    pub(super) fn poll_data(&mut self, flags: MsgFlags) -> Result<Arrival> {
        let Some(length) = self.receive(Half::Rx, flags)? else {
            return Ok(Arrival::Nothing);
        };
        let run = self.incoming.get(..length).unwrap_or(&[]);
        let end = pattern::end_stamp(run, self.segment);
        if end.is_some_and(|end| end >> POSITION_BITS != self.round) {
            return Ok(Arrival::Other);
        }
        self.verify(length, POSITION_MASK)?;
        Ok(Arrival::Data {
            bytes: widen(length),
            end: end.map(|end| end & POSITION_MASK),
            record: None,
        })
    }

    /// Compares what was received with the pattern, if that is wanted.
    pub(super) fn verify(&self, length: usize, offset_mask: u64) -> Result<()> {
        if !self.check {
            return Ok(());
        }
        let run = self.incoming.get(..length).unwrap_or(&[]);
        pattern::verify(run, self.segment, &self.pattern, offset_mask)
    }
}

/// One of the two sockets.
#[derive(Clone, Copy, Debug)]
pub(super) enum Half {
    /// Data out, credits in.
    Tx,
    /// Data in, credits out.
    Rx,
}

/// The two ports of an offer.
pub(super) fn ports(offer: &Offer) -> Result<(u16, u16)> {
    match offer.ports.as_slice() {
        &[tx, rx] => Ok((tx, rx)),
        _ => Err(PerfError::Protocol("raw UDP needs two ports".to_owned())),
    }
}

/// Lets a socket hand over trains in one piece.
pub(super) fn receive_trains(socket: &UdpSocket) -> Result<()> {
    setsockopt(socket, sockopt::UdpGroSegment, &true).during("switch GRO on")
}

/// A socket on a port of its own.
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

/// Its port.
pub(super) fn port(socket: &UdpSocket) -> Result<u16> {
    Ok(socket.local_addr().during("read a local port")?.port())
}

/// Receives into `buffer`; none if nothing is there.
fn receive(socket: &UdpSocket, buffer: &mut [u8], flags: MsgFlags) -> Result<Option<usize>> {
    match recv(socket.as_raw_fd(), buffer, flags) {
        Ok(length) => Ok(Some(length)),
        // ECONNREFUSED reports an earlier datagram; the control connection shows whether the
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

/// Waits until one of these has data, or a slice of time is over.
pub(super) fn wait_for_any(sockets: [BorrowedFd<'_>; 2]) -> Result<()> {
    let mut fds = sockets.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    let timeout = PollTimeout::try_from(BLOCK_SLICE).unwrap_or(PollTimeout::ZERO);
    match poll(&mut fds, timeout) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno).during("wait for UDP sockets"),
    }
}

/// Datagram payload and bytes per call for messages of `size` bytes.
fn cut(op: Op, mode: Mode, mtu_payload: u64, granted: u64, size: u64) -> (u64, u64) {
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
        | Op::Connect
        | Op::FetchAdd
        | Op::CompareSwap => (ethernet, train(ethernet)),
    };
    (segment.min(size), (segment * per_call).min(size))
}

/// How many segments of this size go into one train.
fn train(segment: u64) -> u64 {
    (MAX_TRAIN_BYTES / segment).clamp(1, MAX_TRAIN_SEGMENTS)
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
