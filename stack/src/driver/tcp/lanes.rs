//! The lanes of a connection whose ends are on one host: where each direction of the stream is, and its bells (rfc-notes/same-host.md).

use std::io::{self, Read, Write};
use std::net::TcpStream;

use dgiwarp_engine::connected::Taken;
use dgiwarp_memory::Piece;
use dgiwarp_memory::lane::{LaneCorrupt, LaneInput, LaneOutput};

/// Carrier of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Carrier {
    /// TCP, and the lane later.
    TcpFirst,
    Lane,
    /// TCP: the lane has ended.
    TcpAgain,
}

/// Octets that TCP carried since the startup, bells included.
#[derive(Debug, Default)]
pub(crate) struct TcpOctets {
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

/// Both lanes of a connection.
#[derive(Debug)]
pub(crate) struct Lanes {
    output: LaneOutput,
    input: LaneInput,
    sends: Carrier,
    receives: Carrier,
    /// A thread polls the lane, and nobody sleeps: no bell is wanted.
    is_polled: bool,
    /// Octet of the stream that was taken for a bell.
    held: Option<u8>,
    /// TCP failed before the lane was empty.
    failed: Option<io::ErrorKind>,
    /// Octets are in the lane that no bell announces.
    unannounced: bool,
    octets_sent: u64,
    octets_received: u64,
    /// Keeps the arena counted.
    _budget: Box<dyn std::fmt::Debug + Send>,
}

fn corrupt(error: LaneCorrupt) -> io::Error {
    tracing::warn!(%error, "the peer broke the shared memory of a connection");
    io::ErrorKind::InvalidData.into()
}

fn nothing() -> io::Error {
    io::Error::from_raw_os_error(nix::libc::EAGAIN)
}

/// Copies out of a lane into two buffers. Returns the octets, and whether the peer is to be rung.
fn copy_out(
    input: &mut LaneInput,
    first: &mut [u8],
    second: &mut [u8],
) -> io::Result<(usize, bool)> {
    let (len, bell) = input.read(first).map_err(corrupt)?;
    if len < first.len() {
        return Ok((len, bell));
    }
    let (more, again) = input.read(second).map_err(corrupt)?;
    Ok((len + more, bell || again))
}

impl Lanes {
    pub(crate) fn new(
        (output, input): (LaneOutput, LaneInput),
        budget: Box<dyn std::fmt::Debug + Send>,
    ) -> Self {
        Self {
            output,
            input,
            sends: Carrier::TcpFirst,
            receives: Carrier::TcpFirst,
            is_polled: false,
            held: None,
            failed: None,
            unannounced: false,
            octets_sent: 0,
            octets_received: 0,
            _budget: budget,
        }
    }

    /// Whether octets leave by the lane.
    pub(crate) fn carry_output(&self) -> bool {
        self.sends == Carrier::Lane
    }

    /// Whether octets arrive by the lane.
    pub(crate) fn carry_input(&self) -> bool {
        self.receives == Carrier::Lane
    }

    /// Octets sent and received by the lanes.
    pub(crate) fn octets(&self) -> (u64, u64) {
        (self.octets_sent, self.octets_received)
    }

    /// The stream goes by the lane from here on.
    pub(crate) fn start(&mut self, stream: &TcpStream, tcp: &mut TcpOctets) {
        if self.sends == Carrier::TcpFirst {
            self.output.start(tcp.sent);
            self.sends = Carrier::Lane;
            ring(stream, tcp);
        }
    }

    /// The stream goes by TCP again.
    pub(crate) fn finish(&mut self, tcp: &TcpOctets) {
        match self.sends {
            Carrier::Lane => {
                self.output.finish(tcp.sent);
                self.sends = Carrier::TcpAgain;
            }
            Carrier::TcpFirst => self.sends = Carrier::TcpAgain,
            Carrier::TcpAgain => {}
        }
    }

    /// Sends by the lane.
    pub(crate) fn send(
        &mut self,
        stream: &TcpStream,
        tcp: &mut TcpOctets,
        pieces: &[Piece<'_>],
    ) -> Taken {
        loop {
            match self.output.write(pieces) {
                Ok(0) => match self.output.wait_for_room() {
                    Ok(true) => {}
                    Ok(false) => return Taken::WouldBlock,
                    Err(error) => {
                        drop(corrupt(error));
                        return Taken::Lost;
                    }
                },
                Ok(octets) => {
                    self.octets_sent += octets as u64;
                    if self.output.takes_bell() {
                        ring(stream, tcp);
                    }
                    return Taken::Octets(octets);
                }
                Err(error) => {
                    drop(corrupt(error));
                    return Taken::Lost;
                }
            }
        }
    }

    /// Receives what a lane has, without TCP.
    #[inline]
    pub(crate) fn poll(
        &mut self,
        stream: &TcpStream,
        tcp: &mut TcpOctets,
        first: &mut [u8],
        second: &mut [u8],
    ) -> io::Result<usize> {
        let (len, bell) = copy_out(&mut self.input, first, second)?;
        if bell && self.sends == Carrier::Lane {
            ring(stream, tcp);
        }
        if len == 0 {
            return Err(nothing());
        }
        self.octets_received += len as u64;
        Ok(len)
    }

    /// Receives from whatever carries the stream. 0 is its end.
    pub(crate) fn receive(
        &mut self,
        stream: &TcpStream,
        tcp: &mut TcpOctets,
        first: &mut [u8],
        second: &mut [u8],
    ) -> io::Result<usize> {
        if first.is_empty() && second.is_empty() {
            return Err(nothing());
        }
        loop {
            match self.receives {
                Carrier::TcpFirst => {
                    if let Some(len) = self.receive_first(stream, tcp, first, second)? {
                        return Ok(len);
                    }
                }
                Carrier::Lane => match self.poll(stream, tcp, first, second) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        if let Some(len) = self.receive_bell(stream, tcp, first, second)? {
                            return Ok(len);
                        }
                    }
                    received => return received,
                },
                Carrier::TcpAgain => return self.receive_again(stream, tcp, first, second),
            }
        }
    }

    /// Receives from TCP, which carries bells from where the lane starts on. `None` if there the stream goes on in the lane.
    fn receive_first(
        &mut self,
        stream: &TcpStream,
        tcp: &mut TcpOctets,
        first: &mut [u8],
        second: &mut [u8],
    ) -> io::Result<Option<usize>> {
        let before = tcp.received;
        if !self.starts_at(before)? {
            let len = read(stream, first, second)?;
            tcp.received += len as u64;
            // The peer stores the start before its first bell leaves.
            let Some(start) = self.input.started() else {
                return Ok(Some(len));
            };
            let of_stream = start
                .checked_sub(before)
                .ok_or(io::ErrorKind::InvalidData)?;
            let of_stream = len.min(usize::try_from(of_stream).unwrap_or(len));
            // The end of TCP counts behind the lane's octets.
            if of_stream > 0 || (len == 0 && start > before) {
                return Ok(Some(of_stream));
            }
        }
        self.receives = Carrier::Lane;
        self.start(stream, tcp);
        Ok(None)
    }

    /// Whether TCP has delivered all octets before the lane's.
    fn starts_at(&self, received: u64) -> io::Result<bool> {
        match self.input.started() {
            None => Ok(false),
            // Bells may have come with the last octets.
            Some(start) => Ok(start <= received),
        }
    }

    /// The lane is empty: takes a bell, or the end. `None` if there is more in the lane.
    fn receive_bell(
        &mut self,
        stream: &TcpStream,
        tcp: &mut TcpOctets,
        first: &mut [u8],
        second: &mut [u8],
    ) -> io::Result<Option<usize>> {
        if self.input.finished().map_err(corrupt)?.is_some() {
            self.receives = Carrier::TcpAgain;
            return Ok(None);
        }
        match self.take_bell(stream, tcp) {
            // Octets that were published before the end come before it.
            Ok(0) => match self.poll(stream, tcp, first, second) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Some(0)),
                received => return received.map(Some),
            },
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
            Err(error) => {
                let left = self.poll(stream, tcp, first, second);
                if left.is_ok() {
                    self.failed = Some(error.kind());
                }
                return left.map(Some).map_err(|_| error);
            }
        }
        if self.is_polled && self.held.is_none() {
            return Err(nothing());
        }
        if self.input.arm().map_err(corrupt)? || self.held.is_some() {
            self.unannounced = true;
            return Ok(None);
        }
        if self.input.resumes().is_some() {
            // The lane ended meanwhile.
            return Ok(None);
        }
        Err(nothing())
    }

    /// Takes one bell from TCP. Behind the end of the lane it is an octet of the stream.
    fn take_bell(&mut self, stream: &TcpStream, tcp: &mut TcpOctets) -> io::Result<usize> {
        if self.held.is_some() {
            return Ok(1);
        }
        if let Some(kind) = self.failed {
            return Err(kind.into());
        }
        let mut octet = [0];
        let len = { stream }.read(&mut octet)?;
        tcp.received += len as u64;
        if len > 0 && self.input.resumes().is_some_and(|it| tcp.received > it) {
            self.held = Some(octet[0]);
        }
        Ok(len)
    }

    /// Receives from TCP behind the lane.
    fn receive_again(
        &mut self,
        stream: &TcpStream,
        tcp: &mut TcpOctets,
        first: &mut [u8],
        second: &mut [u8],
    ) -> io::Result<usize> {
        let resumes = self.input.resumes().ok_or(io::ErrorKind::InvalidData)?;
        while tcp.received < resumes {
            if self.take_bell(stream, tcp)? == 0 {
                return Ok(0);
            }
        }
        if let Some(octet) = self.held.take() {
            let place = first.first_mut().or_else(|| second.first_mut());
            place
                .map(|place| *place = octet)
                .ok_or(io::ErrorKind::InvalidInput)?;
            return Ok(1);
        }
        let len = read(stream, first, second)?;
        tcp.received += len as u64;
        Ok(len)
    }

    /// Nothing is received for now, and bells must not keep the socket readable.
    pub(crate) fn silence(&mut self, stream: &TcpStream, tcp: &mut TcpOctets) {
        if self.receives == Carrier::Lane {
            let _ = self.take_bell(stream, tcp);
        }
    }

    /// Wants bells from now on, or none while a thread polls. Octets that are there are [unannounced](Self::take_unannounced).
    pub(crate) fn want_bells(&mut self, wanted: bool) {
        self.is_polled = !wanted;
        if self.receives != Carrier::Lane {
            return;
        }
        if wanted {
            // A corrupt lane ends the connection when it is read.
            self.unannounced |= self.input.arm().unwrap_or(true);
        } else {
            self.input.disarm();
        }
    }

    /// Whether octets are in the lane that no bell announces, to be asked once.
    pub(crate) fn take_unannounced(&mut self) -> bool {
        std::mem::take(&mut self.unannounced)
    }
}

/// Rings: the peer's socket becomes readable. One whose buffer is full is readable already.
fn ring(stream: &TcpStream, tcp: &mut TcpOctets) {
    if let Ok(len) = { stream }.write(&[0]) {
        tcp.sent += len as u64;
    }
}

/// Receives from TCP into two buffers.
#[inline(always)]
pub(crate) fn read(stream: &TcpStream, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
    if first.is_empty() {
        return { stream }.read(second);
    }
    let mut parts = [io::IoSliceMut::new(first), io::IoSliceMut::new(second)];
    { stream }.read_vectored(&mut parts)
}
