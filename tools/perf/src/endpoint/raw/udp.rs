//! Raw UDP: connected sockets, GSO trains and GRO, 64 KiB datagrams, or one datagram per call.
//!
//! Each side has two sockets, so that both directions have a pair of their own: payload goes out
//! of `tx` into the peer's `rx`, credits the other way. Ping-pong uses the client's `tx` and the
//! server's `rx` alone.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use nix::sys::socket::MsgFlags;

use crate::catalog::Mode;
use crate::endpoint::loss::{self, Dropper, Mark, Survivors};
use crate::endpoint::pattern::{self, OFFSET_BITS, POSITION_BITS, POSITION_MASK, widen};
use crate::endpoint::raw::datagrams::{self, Half, Pair, socket, transmit, wait_for_any};
use crate::error::{IoContext, Result};
use crate::machine::host::Side;
use crate::measure::{Arrival, Flow, Geometry, Idle, PingPong, Want, Watch};
use crate::session::control::{Datagrams, EndpointSpec, Offer};

/// One side of a raw UDP endpoint.
#[derive(Debug)]
pub(crate) struct Udp {
    pair: Pair,
    side: Side,
    mode: Mode,
    /// Sequence and bytes of the message that is arriving.
    arriving: (u64, usize),
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
        let (pair, offer) = Pair::new(tx, rx, spec)?;
        let udp = Self {
            pair,
            side,
            mode: spec.mode,
            arriving: (0, 0),
            dropper: Dropper::new(spec.loss, spec.seed),
            mark: None,
            datagrams: Datagrams::default(),
        };
        Ok((udp, offer))
    }

    /// Connects to the peer's sockets.
    pub(crate) fn connect(&self, peer: IpAddr, offer: &Offer) -> Result<()> {
        let (peer_tx, peer_rx) = datagrams::ports(offer)?;
        for (socket, port) in [(&self.pair.tx, peer_rx), (&self.pair.rx, peer_tx)] {
            socket
                .connect(SocketAddr::new(peer, port))
                .during("connect a UDP socket")?;
        }
        Ok(())
    }

    /// Cuts messages for the path to the connected peer.
    pub(crate) fn geometry(&self, granted: u64, window: Option<u64>) -> Result<Geometry> {
        self.pair.geometry(granted, window)
    }

    /// Prepares buffers and socket options for the agreed sizes.
    pub(crate) fn configure(&mut self, geometry: &Geometry) -> Result<()> {
        if self.pair.configure(geometry) {
            for socket in [&self.pair.tx, &self.pair.rx] {
                self.pair.send_trains(socket)?;
                datagrams::receive_trains(socket)?;
            }
        }
        Ok(())
    }

    /// The socket that carries payload out of this side, which in ping-pong carries all.
    const fn ping_half(&self) -> Half {
        match self.side {
            Side::Client => Half::Tx,
            Side::Server => Half::Rx,
        }
    }

    /// Receives in runs with loss, where each datagram has its own fate. A mark that comes in one piece
    /// with data is kept for the next poll.
    fn poll_lossy(&mut self, flags: MsgFlags) -> Result<Arrival> {
        if let Some(mark) = self.mark.take() {
            return Ok(marked(mark));
        }
        let Some(length) = self.pair.receive(Half::Rx, flags)? else {
            return Ok(Arrival::Nothing);
        };
        let run = self.pair.incoming.get(..length).unwrap_or(&[]);
        let left = loss::survivors(run, self.pair.segment, &mut self.dropper);
        let Survivors { end: Some(end), .. } = left else {
            return Ok(Arrival::Other);
        };
        if end >> POSITION_BITS != self.pair.round {
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
        let Some(length) = self.pair.receive(Half::Tx, flags)? else {
            return Ok(Arrival::Nothing);
        };
        // GRO may hand over several credits at once: the last one counts.
        let run = self.pair.incoming.get(..length).unwrap_or(&[]);
        match run.last_chunk().map(|stamp| u64::from_le_bytes(*stamp)) {
            Some(stamp) if stamp >> POSITION_BITS == self.pair.round => {
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
        let half = self.ping_half();
        let Pair {
            tx,
            rx,
            outgoing,
            size,
            segment,
            flags,
            blocking,
            ..
        } = &mut self.pair;
        let socket = match half {
            Half::Tx => &*tx,
            Half::Rx => &*rx,
        };
        let mut offset = 0;
        while offset < *size {
            let length = outgoing.len().min(*size - offset);
            let chunk = outgoing.get_mut(..length).unwrap_or(&mut []);
            if *size < pattern::STAMP {
                chunk.copy_from_slice(sequence.to_le_bytes().get(..length).unwrap_or(&[]));
            } else {
                let first = (sequence << OFFSET_BITS) | widen(offset);
                pattern::stamp(chunk, *segment, first);
            }
            if transmit(socket, chunk, *flags)? {
                offset += length;
            } else if watch.idle(*blocking)? == Idle::Stop {
                break;
            }
        }
        Ok(())
    }

    fn try_receive(&mut self) -> Result<Option<u64>> {
        let Some(length) = self.pair.receive(self.ping_half(), self.pair.flags)? else {
            return Ok(None);
        };
        let run = self.pair.incoming.get(..length).unwrap_or(&[]);
        if self.pair.size < pattern::STAMP {
            let mut sequence = [0; pattern::STAMP];
            if let Some(low) = sequence.get_mut(..length) {
                low.copy_from_slice(run);
            }
            return Ok(Some(u64::from_le_bytes(sequence)));
        }
        self.pair.verify(length, OFFSET_MASK)?;
        if let Some(stamp) = pattern::read_stamp(run)
            && stamp >> OFFSET_BITS != self.arriving.0
        {
            self.arriving = (stamp >> OFFSET_BITS, 0);
        }
        self.arriving.1 += length;
        if self.arriving.1 < self.pair.size {
            return Ok(None);
        }
        self.arriving.1 = 0;
        Ok(Some(self.arriving.0))
    }
}

impl Flow for Udp {
    const LOSES: bool = true;

    fn start_round(&mut self, round: u16) -> Result<()> {
        self.pair.start_round(round, &[Half::Tx, Half::Rx])?;
        self.mark = None;
        self.dropper.take_dropped();
        self.datagrams = Datagrams::default();
        Ok(())
    }

    fn transmit(&mut self, position: u64, length: u64) -> Result<u64> {
        if !self.pair.transmit(position, length)? {
            return Ok(0);
        }
        self.datagrams.sent += length.div_ceil(widen(self.pair.segment));
        Ok(length)
    }

    fn poll(&mut self, want: Want, may_wait: bool) -> Result<Arrival> {
        let flags = self.pair.flags(may_wait);
        match want {
            Want::Data if self.mode == Mode::Loss => self.poll_lossy(flags),
            Want::Data => self.pair.poll_data(flags),
            Want::Credit => self.poll_credit(flags),
            Want::Both => {
                if may_wait && self.pair.blocking {
                    wait_for_any([self.pair.tx.as_fd(), self.pair.rx.as_fd()])?;
                }
                match self.pair.poll_data(MsgFlags::MSG_DONTWAIT)? {
                    Arrival::Nothing => self.poll_credit(MsgFlags::MSG_DONTWAIT),
                    arrival => Ok(arrival),
                }
            }
        }
    }

    fn credit(&mut self, position: u64) -> Result<()> {
        let stamp = (self.pair.round << POSITION_BITS) | position;
        // A credit the kernel has no room for is lost; the next one covers it.
        transmit(&self.pair.rx, &stamp.to_le_bytes(), self.pair.flags).map(|_| ())
    }

    fn mark(&mut self, mark: Mark) -> Result<bool> {
        let stamp = (self.pair.round << POSITION_BITS) | mark.to_position();
        let taken = transmit(&self.pair.tx, &stamp.to_le_bytes(), self.pair.flags)?;
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
