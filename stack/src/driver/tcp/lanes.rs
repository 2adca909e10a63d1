//! The lanes of a connection whose ends are on one host: where each direction of the stream is, and its bells (rfc-notes/same-host.md).

use std::io;

use dgiwarp_engine::connected::Taken;
use dgiwarp_memory::lane::{LaneCorrupt, LaneOutput, LanePart};
use dgiwarp_memory::{Framed, Piece, RegionSlice};

use crate::QpCounters;
use crate::driver::same_host::ends::LaneEnds;
use crate::driver::same_host::grants::CopyEnds;
use crate::driver::tcp::counted_tcp::{CountedTcp, InputRoom};
use crate::driver::tcp::one_sided::{Copied, OneSided};

/// Bells that one call takes from TCP. An honest peer has two under way, and more only while both directions are busy.
const BELLS: usize = 64;
/// Octets that are peeked for short messages.
pub(super) const SHORT: usize = 1024;
/// Octets of ULPDU_Length and the longest header.
const FRONT: usize = 20;
/// Changes of the carrier, and looks at the lane, of one call. An honest peer's words need no more.
const MOST_STEPS: usize = 8;

/// Carrier of what is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sends {
    /// TCP, and the lane later.
    TcpFirst,
    /// TCP, to the end.
    TcpOnly,
    Lane,
    /// TCP: the lane has ended.
    TcpAgain,
}

/// Carrier of what is received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Receives {
    /// TCP, and the lane later.
    TcpFirst,
    Lane,
    /// TCP: the lane has ended. The stream goes on behind the first `resume` octets that TCP carried.
    TcpAgain {
        resume: u64,
    },
}

/// A connection with lanes: both carriers of both directions.
#[derive(Debug)]
pub(crate) struct Lanes {
    tcp: CountedTcp,
    ends: LaneEnds,
    sends: Sends,
    receives: Receives,
    /// A thread polls the lane, and nobody sleeps: no bell is wanted.
    is_polled: bool,
    /// Not all that was to be sent fitted: nothing is sent before there is [room](LaneOutput::has_room).
    is_full: bool,
    /// Octets of the stream that came with the last bells.
    held: Vec<u8>,
    /// TCP failed before the lane was empty.
    failed: Option<io::ErrorKind>,
    /// Octets are in the lane that no bell announces.
    unannounced: bool,
    /// Octets that were [peeked](Self::peek).
    short: [u8; SHORT],
    octets_sent: u64,
    octets_received: u64,
    octets_placed: u64,
    /// `None` where neither end copies alone.
    one_sided: Option<OneSided>,
    /// Copies that this end did, once they are over.
    copied: Copied,
}

fn corrupt(error: LaneCorrupt) -> io::Error {
    tracing::warn!(%error, "the peer broke the shared memory of a connection");
    io::ErrorKind::InvalidData.into()
}

fn nothing() -> io::Error {
    io::Error::from_raw_os_error(nix::libc::EAGAIN)
}

impl Lanes {
    pub(crate) fn new(tcp: CountedTcp, ends: LaneEnds) -> Self {
        Self {
            tcp,
            ends,
            sends: Sends::TcpFirst,
            receives: Receives::TcpFirst,
            is_polled: false,
            is_full: false,
            held: Vec::new(),
            failed: None,
            unannounced: false,
            short: [0; SHORT],
            octets_sent: 0,
            octets_received: 0,
            octets_placed: 0,
            one_sided: None,
            copied: Copied::default(),
        }
    }

    pub(crate) const fn tcp(&self) -> &CountedTcp {
        &self.tcp
    }

    /// Whether octets leave by the lane.
    pub(crate) fn carry_output(&self) -> bool {
        self.sends == Sends::Lane
    }

    /// Whether octets arrive by the lane.
    pub(crate) fn carry_input(&self) -> bool {
        self.receives == Receives::Lane
    }

    /// Whether octets leave by the lane, or did.
    pub(crate) fn have_carried_output(&self) -> bool {
        matches!(self.sends, Sends::Lane | Sends::TcpAgain)
    }

    /// Whether octets arrive by the lane, or did.
    pub(crate) fn have_carried_input(&self) -> bool {
        self.receives != Receives::TcpFirst
    }

    /// Adds octets sent and received.
    pub(crate) fn count(&self, counters: &mut QpCounters) {
        counters.lane_octets_sent += self.octets_sent;
        counters.lane_octets_received += self.octets_received;
        counters.lane_octets_placed += self.octets_placed;
        let copied = self
            .one_sided
            .as_ref()
            .map_or(self.copied, OneSided::copied);
        counters.one_sided_operations += copied.operations;
        counters.one_sided_octets += copied.octets;
    }

    /// This end's part of one-sided copies, once.
    pub(crate) fn take_copy_ends(&mut self) -> Option<CopyEnds> {
        self.ends.copies.take()
    }

    /// Both ends may copy alone.
    pub(crate) fn begin_one_sided(&mut self, one_sided: OneSided) {
        self.one_sided = Some(one_sided);
    }

    /// No end copies alone any more.
    pub(crate) fn end_one_sided(&mut self) {
        if let Some(one_sided) = self.one_sided.take() {
            self.copied = one_sided.copied();
        }
    }

    /// Whether this end may copy alone, as far as its lanes are concerned.
    #[inline]
    pub(crate) const fn may_copy(&self) -> bool {
        self.one_sided.is_some() && matches!(self.sends, Sends::Lane)
    }

    #[inline]
    pub(crate) const fn one_sided_mut(&mut self) -> Option<&mut OneSided> {
        self.one_sided.as_mut()
    }

    /// Counts a poll of this end's program.
    #[inline]
    pub(crate) fn note_poll(&self) {
        if let Some(one_sided) = &self.one_sided {
            one_sided.note_poll();
        }
    }

    /// The stream goes by the lane from here on.
    pub(crate) fn start(&mut self) {
        if self.sends == Sends::TcpFirst {
            self.ends.output.start(self.tcp.sent());
            self.sends = Sends::Lane;
            self.ring();
        }
    }

    /// The stream goes by TCP again.
    pub(crate) fn finish(&mut self) {
        match self.sends {
            Sends::Lane => {
                self.ends.output.finish(self.tcp.sent());
                self.sends = Sends::TcpAgain;
            }
            Sends::TcpFirst => self.sends = Sends::TcpOnly,
            Sends::TcpOnly | Sends::TcpAgain => {}
        }
    }

    /// Sends by what carries the stream.
    pub(crate) fn send(&mut self, pieces: &[Piece<'_>]) -> Taken {
        match self.sends {
            Sends::Lane => self.publish(pieces).unwrap_or_else(|error| {
                drop(corrupt(error));
                Taken::Lost
            }),
            Sends::TcpFirst | Sends::TcpOnly | Sends::TcpAgain => self.tcp.send_pieces(pieces),
        }
    }

    fn publish(&mut self, pieces: &[Piece<'_>]) -> Result<Taken, LaneCorrupt> {
        let LaneEnds { output, share, .. } = &mut self.ends;
        let wanted: usize = pieces.iter().map(Piece::len).sum();
        let mut octets = output.write(pieces)?;
        if octets == 0
            && let Some(more) = output.growth()
        {
            let allowed = share.grow(more);
            output.grow(allowed);
            octets = output.write(pieces)?;
        }
        self.is_full = octets < wanted;
        if octets == 0 {
            return Ok(Taken::WouldBlock);
        }
        self.octets_sent += octets as u64;
        if output.takes_bell() {
            self.ring();
        }
        Ok(Taken::Octets(octets))
    }

    /// Sends all by the lane, or nothing.
    #[inline]
    pub(crate) fn send_whole(&mut self, pieces: &[Piece<'_>]) -> bool {
        self.send_if_whole(|output| output.write_whole(pieces))
    }

    /// Sends a payload and the octets around it by the lane, or nothing.
    #[inline(always)]
    pub(crate) fn send_framed<const FRONT: usize>(&mut self, framed: &Framed<'_, FRONT>) -> bool {
        self.send_if_whole(|output| output.write_framed(framed))
    }

    #[inline(always)]
    fn send_if_whole(
        &mut self,
        write: impl FnOnce(&mut LaneOutput) -> Result<Option<usize>, LaneCorrupt>,
    ) -> bool {
        if self.sends != Sends::Lane || self.is_full {
            return false;
        }
        let output = &mut self.ends.output;
        // A corrupt lane ends the connection when it is written otherwise.
        let Ok(Some(octets)) = write(output) else {
            // A ring that may be longer grows when it is written otherwise.
            self.is_full = !output.may_grow();
            return false;
        };
        self.octets_sent += octets as u64;
        if self.ends.output.takes_bell() {
            self.ring();
        }
        true
    }

    /// Whether a thread polls the lane, and both directions go by lanes.
    #[inline]
    pub(crate) fn are_polled(&self) -> bool {
        self.is_polled && self.sends == Sends::Lane && self.receives == Receives::Lane
    }

    /// Messages of this end that the peer has placed.
    #[inline]
    pub(crate) fn placed_by_peer(&self) -> u64 {
        self.ends.input.placed()
    }

    /// Reports to the peer that `messages` of it are placed.
    #[inline]
    pub(crate) fn report_placed(&self, messages: u64) {
        self.ends.output.report_placed(messages);
    }

    /// Octets that the lane has. `None` where the stream may not continue with them.
    #[inline]
    pub(crate) fn available(&mut self) -> Option<usize> {
        if self.receives != Receives::Lane {
            return None;
        }
        // A corrupt lane ends the connection when it is read.
        self.ends.input.available().ok()
    }

    /// Octets from the first one of those that are [available](Self::available), where they lie.
    #[inline]
    pub(crate) fn front(&self) -> RegionSlice<'_> {
        self.ends.input.front()
    }

    /// Peeks octets that the lane has, which stay there until they are [released](Self::release), and returns their number. `None` where the stream may not
    /// continue with them.
    #[inline]
    pub(crate) fn peek(&mut self) -> Option<usize> {
        if self.receives != Receives::Lane {
            return None;
        }
        // A corrupt lane ends the connection when it is read.
        self.ends.input.peek(&mut self.short).ok()
    }

    /// Peeks the octets that the header of an FPDU has at most, as [`peek`](Self::peek) does.
    #[inline]
    pub(crate) fn peek_front(&mut self) -> Option<usize> {
        self.ends.input.peek(&mut self.short[..FRONT]).ok()
    }

    /// The `len` octets that were [peeked](Self::peek).
    #[inline]
    pub(crate) fn peeked(&self, len: usize) -> &[u8] {
        &self.short[..len]
    }

    /// Whether the lane, of which octets were peeked, has `octets` of them. `None` where they need not all be there at one time.
    #[inline]
    pub(crate) fn holds(&mut self, octets: usize) -> Option<bool> {
        // A corrupt lane ends the connection when it is read.
        self.ends.input.holds(octets).ok()?
    }

    /// `len` octets behind the first `at` of those that the lane [holds](Self::holds).
    #[inline]
    pub(crate) fn part(&self, at: usize, len: usize) -> LanePart<'_> {
        self.ends.input.part(at, len)
    }

    /// Releases an FPDU of so many `octets`, whose payload was placed from the lane.
    #[inline]
    pub(crate) fn release_placed(&mut self, octets: usize) {
        self.octets_placed += octets as u64;
        self.release(octets);
    }

    /// Releases the first `octets` that were peeked, or are held.
    #[inline]
    pub(crate) fn release(&mut self, octets: usize) {
        let bell = self.ends.input.release(octets);
        if bell && self.sends == Sends::Lane {
            self.ring();
        }
        self.octets_received += octets as u64;
    }

    /// Whether what is sent now finds no room. Where nobody polls, the peer rings once there is some.
    #[inline]
    pub(crate) fn is_blocked(&mut self) -> bool {
        self.is_full && self.is_still_blocked()
    }

    #[inline(never)]
    fn is_still_blocked(&mut self) -> bool {
        let output = &mut self.ends.output;
        let has_room = if self.sends != Sends::Lane {
            Ok(true)
        } else if self.is_polled {
            output.has_room()
        } else {
            output.wait_for_room()
        };
        // A corrupt lane ends the connection when it is written.
        self.is_full = !has_room.unwrap_or(true);
        self.is_full
    }

    /// Rings: the peer's socket becomes readable. One whose buffer is full is readable already.
    fn ring(&mut self) {
        self.tcp.send(&[0]);
    }

    /// Receives what a lane has, without TCP.
    #[inline]
    pub(crate) fn poll(&mut self, mut room: InputRoom<'_>) -> io::Result<usize> {
        self.take_published(&mut room)?.ok_or_else(nothing)
    }

    /// Copies out of the lane. `None` if nothing is there.
    #[inline]
    fn take_published(&mut self, room: &mut InputRoom<'_>) -> io::Result<Option<usize>> {
        let mut taken = 0;
        let mut bell = false;
        for part in room.parts() {
            let (len, wanted) = self.ends.input.read(part).map_err(corrupt)?;
            taken += len;
            bell |= wanted;
            if len < part.len() {
                break;
            }
        }
        if bell && self.sends == Sends::Lane {
            self.ring();
        }
        self.octets_received += taken as u64;
        Ok((taken > 0).then_some(taken))
    }

    /// Receives from whatever carries the stream. 0 is its end. [`Interrupted`](io::ErrorKind::Interrupted) is more to do, at another turn.
    pub(crate) fn receive(&mut self, mut room: InputRoom<'_>) -> io::Result<usize> {
        if room.is_empty() {
            return Err(nothing());
        }
        for _ in 0..MOST_STEPS {
            let received = match self.receives {
                Receives::TcpFirst => self.receive_first(&mut room)?,
                Receives::Lane => match self.take_published(&mut room)? {
                    None => self.receive_bells(&mut room)?,
                    received => received,
                },
                Receives::TcpAgain { resume } => return self.receive_again(resume, &mut room),
            };
            if let Some(len) = received {
                return Ok(len);
            }
        }
        Err(io::ErrorKind::Interrupted.into())
    }

    /// Receives from TCP, which carries bells from where the lane starts on. `None` if there the stream goes on in the lane.
    fn receive_first(&mut self, room: &mut InputRoom<'_>) -> io::Result<Option<usize>> {
        let before = self.tcp.received();
        // Bells may have come with the last octets.
        let is_over = |start: Option<u64>| start.is_some_and(|start| start <= before);
        if !is_over(self.ends.input.started()) {
            let len = self.tcp.receive(room)?;
            // The peer stores the start before its first bell leaves.
            let Some(start) = self.ends.input.started() else {
                return Ok(Some(len));
            };
            let of_stream = start
                .checked_sub(before)
                .ok_or(io::ErrorKind::InvalidData)?;
            let of_stream = len.min(usize::try_from(of_stream).unwrap_or(len));
            self.hold(room, of_stream, len)?;
            // The end of TCP counts behind the lane's octets.
            if of_stream > 0 || (len == 0 && start > before) {
                // The first bells may have come with them: nothing else announces the lane then.
                self.unannounced |= start <= self.tcp.received();
                return Ok(Some(of_stream));
            }
        }
        self.receives = Receives::Lane;
        self.start();
        Ok(None)
    }

    /// The lane is empty: takes bells, or the end. `None` if there is more in the lane.
    fn receive_bells(&mut self, room: &mut InputRoom<'_>) -> io::Result<Option<usize>> {
        if let Some(resume) = self.ends.input.finished().map_err(corrupt)? {
            self.receives = Receives::TcpAgain { resume };
            return Ok(None);
        }
        let rung = match self.take_bells() {
            // Octets that were published before the end come before it.
            Ok(0) => return Ok(Some(self.take_published(room)?.unwrap_or(0))),
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
            Err(error) => {
                let left = self.take_published(room)?;
                self.failed = Some(error.kind());
                return left.map(Some).ok_or(error);
            }
        };
        self.note_room();
        if self.is_polled && self.held.is_empty() {
            return Err(nothing());
        }
        if self.ends.input.arm().map_err(corrupt)? || !self.held.is_empty() {
            self.unannounced = true;
            return Ok(None);
        }
        // The lane may have ended meanwhile.
        let ended = self.ends.input.resumes().map_err(corrupt)?.is_some();
        if ended {
            Ok(None)
        } else if rung {
            // Bells made the socket readable, and no other thread took its input.
            Err(io::ErrorKind::Interrupted.into())
        } else {
            Err(nothing())
        }
    }

    /// Takes bells from TCP. Octets of the stream behind the end of the lane are [held](Self::held). 0 is the end.
    fn take_bells(&mut self) -> io::Result<usize> {
        if !self.held.is_empty() {
            return Ok(self.held.len());
        }
        if let Some(kind) = self.failed {
            return Err(kind.into());
        }
        let mut bells = [0; BELLS];
        let len = self.tcp.receive(&mut InputRoom::new(&mut [], &mut bells))?;
        self.hold(&InputRoom::new(&mut [], &mut bells), 0, len)?;
        Ok(len)
    }

    /// Of `len` octets that TCP has just put into `room`, those behind `at` are bells, or octets of the stream behind the end of the lane.
    fn hold(&mut self, room: &InputRoom<'_>, at: usize, len: usize) -> io::Result<()> {
        // The peer stores the end before octets of the stream leave.
        let received = self.tcp.received();
        let resumes = self.ends.input.resumes().map_err(corrupt)?;
        if let Some(resume) = resumes.filter(|resume| *resume < received) {
            let of_stream = usize::try_from(received - resume).unwrap_or(usize::MAX);
            let from = len
                .checked_sub(of_stream)
                .filter(|from| *from >= at)
                .ok_or(io::ErrorKind::InvalidData)?;
            self.held = room.get(from..len);
        }
        Ok(())
    }

    /// Receives from TCP behind the lane: once bells, then the stream.
    fn receive_again(&mut self, resume: u64, room: &mut InputRoom<'_>) -> io::Result<usize> {
        if self.tcp.received() < resume {
            if self.take_bells()? == 0 {
                return Ok(0);
            }
            if self.held.is_empty() {
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
        if self.held.is_empty() {
            return self.tcp.receive(room);
        }
        let taken = room.put(&self.held);
        self.held.drain(..taken);
        Ok(taken)
    }

    /// Nothing is received for now, and bells must not keep the socket readable.
    pub(crate) fn silence(&mut self) {
        if self.receives == Receives::Lane {
            let _ = self.take_bells();
            self.note_room();
        }
    }

    /// Bells were taken, and one may have been for room: room that is there now is [unannounced](Self::take_unannounced).
    fn note_room(&mut self) {
        self.unannounced |= self.is_full && !self.is_blocked();
    }

    /// Wants bells from now on, or none while a thread polls; none for input where the end is `paused`. Octets and room that are there are
    /// [unannounced](Self::take_unannounced).
    pub(crate) fn want_bells(&mut self, wanted: bool, paused: bool) {
        self.is_polled = !wanted;
        if self.receives != Receives::Lane {
            return;
        }
        if wanted && !paused {
            // A corrupt lane ends the connection when it is read.
            self.unannounced |= self.ends.input.arm().unwrap_or(true);
        } else {
            self.ends.input.disarm();
        }
        if wanted {
            self.note_room();
        }
    }

    /// Whether octets are in the lane, or room, that no bell announces, to be asked once.
    pub(crate) fn take_unannounced(&mut self) -> bool {
        std::mem::take(&mut self.unannounced)
    }
}

#[cfg(test)]
mod tests;
