//! Frames on a TCP connection; the octets of a block follow its frame.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use nix::poll::PollFlags;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use super::{Arrival, CarrierError, FrameCodec, HOST_TIMEOUT, Pool};
use crate::engine::Outgoing;
use crate::wire::{Block, FRAME_LIMIT, Frame, HEADER, Header, TAG, Window};

/// Octets that are read or copied at a time; they stay in the processor's cache.
const PIECE: usize = 128 << 10;
/// Pieces per call of `poll` or `flush`.
const TURNS: usize = 32;

/// Frames on a stream.
#[derive(Debug)]
pub(crate) struct TcpCarrier {
    stream: TcpStream,
    pub(super) codec: FrameCodec,
    pool: Option<Pool>,
    input: Vec<u8>,
    /// Octets of `input` that were parsed, and that are there.
    at: usize,
    end: usize,
    /// A block whose octets are coming, its `taken`, and how many are there.
    block: Option<(u32, Block, usize)>,
    output: Vec<u8>,
    written: usize,
    /// The local slot of a block and the octets of it that are still to be copied to `output`.
    payload: Option<(u16, usize, usize)>,
}

impl TcpCarrier {
    pub(crate) fn connect(to: SocketAddr, timeout: Duration) -> Result<Self, CarrierError> {
        let connect = || {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
            socket.connect_timeout(&to.into(), timeout)?;
            Self::new(socket.into())
        };
        connect().map_err(|error: io::Error| CarrierError::Connect {
            to,
            reason: error.to_string(),
        })
    }

    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        let socket = SockRef::from(&stream);
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_user_timeout(Some(HOST_TIMEOUT))?;
        let second = Duration::from_secs(1);
        let keepalive = TcpKeepalive::new().with_time(second);
        let keepalive = keepalive.with_interval(second).with_retries(3);
        socket.set_tcp_keepalive(&keepalive)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            codec: FrameCodec::default(),
            pool: None,
            input: vec![0; PIECE.max(FRAME_LIMIT + TAG)],
            at: 0,
            end: 0,
            block: None,
            output: Vec::with_capacity(PIECE + FRAME_LIMIT),
            written: 0,
            payload: None,
        })
    }

    pub(crate) fn attach(&mut self, pool: &Pool) -> Window {
        self.pool = Some(pool.clone());
        Window {
            stag: 0,
            slot_length: pool.slot_length,
            address: 0,
            slots: pool.slots,
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.payload.is_none() && self.output.len() < PIECE
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.output.is_empty() && self.payload.is_none()
    }

    pub(crate) fn send(&mut self, taken: u32, outgoing: &Outgoing) -> Result<(), CarrierError> {
        match outgoing {
            Outgoing::Frame(frame) => self.output.extend(self.codec.emit(taken, frame)),
            Outgoing::Block { block, local } => {
                let notice = self.codec.emit(taken, &Frame::Block(*block));
                self.output.extend(notice);
                if let Some(pool) = &self.pool {
                    let start = pool.start(*local);
                    self.payload = Some((*local, start, start + pool.octets(block.length)));
                }
            }
        }
        Ok(())
    }

    /// Writes what the socket takes.
    fn flush(&mut self, arrivals: &mut Vec<Arrival>) -> Result<(), CarrierError> {
        for _ in 0..TURNS {
            if let (Some((local, at, end)), Some(pool)) = (self.payload, &self.pool)
                && self.output.len() < PIECE
            {
                let length = (end - at).min(PIECE);
                let from = self.output.len();
                self.output.resize(from + length, 0);
                pool.buffer.read(at, &mut self.output[from..]);
                self.payload = Some((local, at + length, end));
                if at + length == end {
                    self.payload = None;
                    arrivals.push(Arrival::Sent(local));
                }
            }
            if self.output.is_empty() {
                return Ok(());
            }
            match self.stream.write(&self.output[self.written..]) {
                Ok(0) => return Err(CarrierError::Lost("nothing can be written".into())),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
            if self.written == self.output.len() {
                self.output.clear();
                self.written = 0;
            }
        }
        Ok(())
    }

    pub(crate) fn poll(&mut self, arrivals: &mut Vec<Arrival>) -> Result<(), CarrierError> {
        // A peer that ended may have sent why: input first, and a failure to write after it.
        let flushed = self.flush(arrivals);
        for _ in 0..TURNS {
            self.input.copy_within(self.at..self.end, 0);
            self.end -= self.at;
            self.at = 0;
            match self.stream.read(&mut self.input[self.end..]) {
                Ok(0) if arrivals.is_empty() => {
                    return Err(CarrierError::Lost("it closed the connection".into()));
                }
                Ok(0) => return Ok(()),
                Ok(count) => self.end += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
            while self.parse(arrivals)? {}
        }
        if arrivals.is_empty() { flushed } else { Ok(()) }
    }

    /// Takes one step; returns whether there may be another.
    fn parse(&mut self, arrivals: &mut Vec<Arrival>) -> Result<bool, CarrierError> {
        let there = &mut self.input[self.at..self.end];
        if let Some((taken, block, done)) = &mut self.block {
            let octets = self.pool.as_ref().map_or(0, |it| it.octets(block.length));
            let length = there.len().min(octets - *done);
            if let Some(pool) = &self.pool {
                pool.buffer
                    .write(pool.start(block.slot) + *done, &there[..length]);
            }
            *done += length;
            self.at += length;
            if *done < octets {
                arrivals.push(Arrival::Some);
                return Ok(false);
            }
            arrivals.push(Arrival::Frame(*taken, Frame::Block(*block)));
            self.block = None;
            return Ok(true);
        }
        let Some((octets, rest)) = there.split_first_chunk_mut::<HEADER>() else {
            return Ok(false);
        };
        let header = Header::parse(octets)?;
        let Some(body) = rest.get_mut(..header.length as usize) else {
            return Ok(false);
        };
        let frame = self.codec.parse((&header, octets), body)?;
        self.at += HEADER + body.len();
        match frame {
            Frame::Block(block) => {
                let (slot, length) = (block.slot, block.length);
                let fits = |pool: &Pool| slot < pool.slots && length <= pool.block_length();
                if !self.pool.as_ref().is_some_and(fits) {
                    return Err(CarrierError::Block { slot, length });
                }
                self.block = Some((header.taken, block, 0));
            }
            frame => arrivals.push(Arrival::Frame(header.taken, frame)),
        }
        Ok(true)
    }

    pub(crate) fn waited(&self) -> (BorrowedFd<'_>, PollFlags) {
        let mut flags = PollFlags::POLLIN;
        if !self.is_drained() {
            flags |= PollFlags::POLLOUT;
        }
        (self.stream.as_fd(), flags)
    }
}

/// The octets that the kernel has still go to the peer, within the time that it has for that; no data of the peer's is reset away.
impl Drop for TcpCarrier {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }
}
