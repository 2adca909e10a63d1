//! Raw shared memory: a ring of slots for each direction. One process copies a message into its slot, the other copies it out.
//!
//! The last octet of a message is a tag, stored last, which differs from that of the message before in its slot; the receiver polls it. A credit is a count in a word of the
//! receiver, which the sender polls. Nothing is a system call, and nothing wakes a process: one that would sleep yields the CPU between two polls.
//!
//! The memory is a memfd of the server. The client opens it by process and descriptor, and checks that it begins with the token of the offer.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use dgiwarp::Region;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl, open};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::Mode as FileMode;
use nix::unistd::ftruncate;

use crate::catalog::Mode;
use crate::endpoint::ours::memory::{Share, stride};
use crate::endpoint::pattern::{self, narrow, widen};
use crate::endpoint::raw::incoming::Incoming;
use crate::error::{IoContext, PerfError, Result};
use crate::machine::host::{Side, Wait};
use crate::measure::{Arrival, Flow, Geometry, PingPong, Want, Watch, most_in_flight};
use crate::session::control::{EndpointSpec, Offer, SharedMemory};

/// Octets of a word: the token, and the count of each receiver.
const WORD: usize = 8;
/// Offset of the count of messages from the client that the server has seen, and of those from the server. The token is at 0.
const SEEN_BY_SERVER: usize = 128;
const SEEN_BY_CLIENT: usize = 256;
/// Offset of the slots of the client's messages, with the slots of the server's messages behind them.
const SLOTS: u64 = 4096;

/// One side of memory that both processes share.
#[derive(Debug)]
pub(crate) struct Shm {
    local: IpAddr,
    mode: Mode,
    blocking: bool,
    check: bool,
    size: usize,
    /// Distance of two messages.
    stride: usize,
    /// Octets of the file.
    length: u64,
    /// The server's, until the client has opened it.
    file: Option<OwnedFd>,
    region: Option<Region>,
    sends: Lane,
    receives: Lane,
    slots: u64,
    /// Source of messages, one for each slot.
    outgoing: Incoming,
    /// Where they are copied to.
    incoming: Incoming,
    pattern: Vec<u8>,
    /// Messages sent and received since the endpoint was opened, and until the present round.
    sent: u64,
    seen: u64,
    sent_before: u64,
    seen_before: u64,
    /// The count of the peer at the last credit.
    credited: u64,
    sequence: u64,
    _share: Share,
}

/// Offsets of the slots of one direction, and of the count of its receiver.
#[derive(Clone, Copy, Debug)]
struct Lane {
    slots: usize,
    seen: usize,
}

impl Shm {
    /// Opens this side; the server makes the memory.
    pub(crate) fn open(spec: &EndpointSpec, local: IpAddr, side: Side) -> Result<(Self, Offer)> {
        let lane = most_in_flight(spec.mode, spec.size) * stride(spec.size);
        let length = SLOTS + 2 * lane;
        let share = Share::take(length)?;
        let of_client = Lane {
            slots: narrow(SLOTS),
            seen: SEEN_BY_SERVER,
        };
        let of_server = Lane {
            slots: narrow(SLOTS + lane),
            seen: SEEN_BY_CLIENT,
        };
        let (sends, receives) = match side {
            Side::Client => (of_client, of_server),
            Side::Server => (of_server, of_client),
        };
        let mut shm = Self {
            local,
            mode: spec.mode,
            blocking: spec.wait == Wait::Block,
            check: spec.check,
            size: narrow(spec.size),
            stride: narrow(stride(spec.size)),
            length,
            file: None,
            region: None,
            sends,
            receives,
            slots: 1,
            outgoing: Incoming::zeroed(0),
            incoming: Incoming::zeroed(0),
            pattern: Vec::new(),
            sent: 0,
            seen: 0,
            sent_before: 0,
            seen_before: 0,
            credited: 0,
            sequence: 0,
            _share: share,
        };
        let mut offer = Offer::default();
        if side == Side::Server {
            offer.memory = Some(shm.make()?);
        }
        Ok((shm, offer))
    }

    /// Makes the memory.
    fn make(&mut self) -> Result<SharedMemory> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = memfd_create(c"dgiwarp-perf", flags).during("make shared memory")?;
        let length = i64::try_from(self.length).unwrap_or(i64::MAX);
        ftruncate(&file, length).during("size shared memory")?;
        // Memory that cannot be taken away is accessed without checks.
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).during("seal shared memory")?;
        let mut token = [0; WORD];
        getrandom::fill(&mut token)
            .map_err(std::io::Error::other)
            .during("make a token")?;
        self.map(&file)?;
        self.place(0, &token);
        let descriptor = file.as_raw_fd();
        self.file = Some(file);
        Ok(SharedMemory {
            process: std::process::id(),
            descriptor,
            token: u64::from_le_bytes(token),
        })
    }

    fn map(&mut self, file: &OwnedFd) -> Result<()> {
        let region = Region::of_file(file.as_fd(), 0, narrow(self.length), true)
            .map_err(std::io::Error::other)
            .during("map shared memory")?;
        if region.is_on_demand() {
            return Err(PerfError::Protocol(
                "shared memory without seals".to_owned(),
            ));
        }
        self.region = Some(region);
        Ok(())
    }

    /// The client opens the server's memory.
    pub(crate) fn connect(&mut self, peer: IpAddr, offer: &Offer) -> Result<()> {
        if self.region.is_some() {
            return Ok(());
        }
        let memory = offer
            .memory
            .filter(|_| peer == self.local)
            .ok_or_else(|| PerfError::Usage("shared memory is measured within one host".into()))?;
        let SharedMemory {
            process,
            descriptor,
            token,
        } = memory;
        let path = format!("/proc/{process}/fd/{descriptor}");
        let flags = OFlag::O_RDWR | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let file = open(path.as_str(), flags, FileMode::empty())
            .during("open the server's shared memory")?;
        self.map(&file)?;
        if self.word(0) != token {
            return Err(PerfError::Protocol("another file than offered".to_owned()));
        }
        Ok(())
    }

    /// A message is copied in one piece, and in flight are as many as there are slots.
    pub(crate) fn geometry(&self, window: Option<u64>) -> Geometry {
        let size = widen(self.size);
        let most = size * most_in_flight(self.mode, size);
        let geometry = Geometry::connected(size, size, window);
        Geometry {
            window: geometry.window.min(most),
            credit_every: geometry.credit_every.min(most),
            ..geometry
        }
    }

    /// Prepares private memory. The client has opened the shared one.
    pub(crate) fn configure(&mut self, geometry: &Geometry) -> Result<()> {
        self.file = None;
        let most = most_in_flight(self.mode, geometry.size);
        self.slots = (geometry.window / geometry.size).clamp(1, most);
        let length = narrow(self.slots) * self.stride;
        self.pattern = pattern::fill(self.size);
        self.incoming = Incoming::zeroed(length);
        self.outgoing = Incoming::zeroed(length);
        for slot in self.outgoing.chunks_mut(self.stride) {
            for (to, from) in slot.iter_mut().zip(&self.pattern) {
                *to = *from;
            }
        }
        Ok(())
    }

    /// Writes octets at an offset of the shared memory, the last one last.
    fn place(&self, at: usize, octets: &[u8]) {
        let slice = self.region.as_ref().map(|it| it.slice(at, octets.len()));
        if let Some(Ok(slice)) = slice {
            slice.place(octets);
        }
    }

    /// The octet at an offset, loaded now.
    fn load(&self, at: usize) -> u8 {
        match self.region.as_ref().map(|it| it.slice(at, 1)) {
            Some(Ok(slice)) => slice.load(),
            _ => 0,
        }
    }

    /// The aligned word at an offset, which one process writes and the other reads.
    fn word(&self, at: usize) -> u64 {
        let mut word = [0; WORD];
        if let Some(Ok(slice)) = self.region.as_ref().map(|it| it.slice(at, WORD)) {
            slice.copy_to(&mut word);
            // Slots that the count sets free are written behind it.
            fence(Ordering::Acquire);
        }
        u64::from_le_bytes(word)
    }

    /// Offset of a message in its lane and in private memory.
    fn slot(&self, number: u64) -> usize {
        narrow(number % self.slots) * self.stride
    }

    /// Copies the next message into its slot.
    fn send_next(&mut self) {
        let start = self.slot(self.sent);
        let tag = pattern::tag(self.sent, self.slots);
        let message = self.outgoing.get_mut(start..start + self.size);
        if let Some(last) = message.and_then(|message| message.last_mut()) {
            *last = tag;
        }
        let message = self.outgoing.get(start..start + self.size);
        self.place(self.sends.slots + start, message.unwrap_or(&[]));
        self.sent += 1;
    }

    /// Copies the next message out of its slot, if it is there.
    fn receive_next(&mut self) -> Result<bool> {
        let start = self.slot(self.seen);
        let tag = pattern::tag(self.seen, self.slots);
        let at = self.receives.slots + start;
        if self.load(at + self.size - 1) != tag {
            return Ok(false);
        }
        let slice = self.region.as_ref().map(|it| it.slice(at, self.size));
        let message = self.incoming.get_mut(start..start + self.size);
        if let (Some(Ok(slice)), Some(message)) = (slice, message) {
            slice.copy_to(message);
            if self.check {
                pattern::verify_tagged(message, self.seen, tag, &self.pattern)?;
                message.fill(0);
            }
        }
        self.seen += 1;
        Ok(true)
    }

    fn let_others_run(&self) {
        if self.blocking {
            std::thread::yield_now();
        }
    }
}

impl PingPong for Shm {
    const LOSES: bool = false;

    /// The slot is free: its message was answered.
    fn send(&mut self, sequence: u64, _watch: &mut Watch<'_>) -> Result<()> {
        self.sequence = sequence;
        self.send_next();
        Ok(())
    }

    fn try_receive(&mut self) -> Result<Option<u64>> {
        if self.receive_next()? {
            return Ok(Some(self.sequence));
        }
        self.let_others_run();
        Ok(None)
    }
}

impl Flow for Shm {
    const LOSES: bool = false;

    fn start_round(&mut self, _round: u16) -> Result<()> {
        // All messages of earlier rounds were seen.
        (self.sent_before, self.seen_before) = (self.sent, self.seen);
        self.credited = self.sent;
        Ok(())
    }

    /// The window is no longer than the ring.
    fn transmit(&mut self, _position: u64, length: u64) -> Result<u64> {
        self.send_next();
        Ok(length)
    }

    fn poll(&mut self, want: Want, may_wait: bool) -> Result<Arrival> {
        let size = widen(self.size);
        if want != Want::Credit && self.receive_next()? {
            return Ok(Arrival::Data {
                bytes: size,
                end: None,
                record: None,
            });
        }
        if want != Want::Data {
            let seen = self.word(self.sends.seen);
            if seen > self.credited {
                self.credited = seen;
                return Ok(Arrival::Credit((seen - self.sent_before) * size));
            }
        }
        if may_wait {
            self.let_others_run();
        }
        Ok(Arrival::Nothing)
    }

    fn credit(&mut self, position: u64) -> Result<()> {
        let seen = self.seen_before + position / widen(self.size);
        self.place(self.receives.seen, &seen.to_le_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::subjects::SHM_RAW;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    /// Both halves, connected and configured.
    fn pair(mode: Mode, size: u64) -> [Shm; 2] {
        let spec = EndpointSpec {
            check: true,
            ..EndpointSpec::new(SHM_RAW, mode, size)
        };
        let (mut server, offer) = Shm::open(&spec, HERE, Side::Server).unwrap();
        let (mut client, ours) = Shm::open(&spec, HERE, Side::Client).unwrap();
        client.connect(HERE, &offer).unwrap();
        let geometry = client.geometry(None);
        server.connect(HERE, &ours).unwrap();
        server.configure(&geometry).unwrap();
        client.configure(&geometry).unwrap();
        [client, server]
    }

    #[test]
    fn a_ping_and_its_answer_are_seen_once() {
        for size in [1, 7, 8, 64, 5000] {
            let [mut client, mut server] = pair(Mode::Lat, size);
            for _ in 0..600 {
                assert!(!server.receive_next().unwrap());
                client.send_next();
                assert!(server.receive_next().unwrap() && !server.receive_next().unwrap());
                server.send_next();
                assert!(client.receive_next().unwrap() && !client.receive_next().unwrap());
            }
        }
    }

    #[test]
    fn credits_count_the_messages_of_a_round() {
        let [mut client, mut server] = pair(Mode::Bw, 64);
        let window = client.geometry(None).window;
        for round in 0..3 {
            client.start_round(round).unwrap();
            server.start_round(round).unwrap();
            let nothing = client.poll(Want::Credit, false).unwrap();
            assert_eq!(nothing, Arrival::Nothing);
            for position in (0..window).step_by(64) {
                assert_eq!(client.transmit(position, 64).unwrap(), 64);
            }
            for _ in (0..window).step_by(64) {
                let data = server.poll(Want::Data, false).unwrap();
                assert!(matches!(data, Arrival::Data { bytes: 64, .. }));
            }
            let nothing = server.poll(Want::Data, false).unwrap();
            assert_eq!(nothing, Arrival::Nothing);
            server.credit(window / 2).unwrap();
            server.credit(window).unwrap();
            let credit = client.poll(Want::Both, false).unwrap();
            assert_eq!(credit, Arrival::Credit(window));
            let nothing = client.poll(Want::Both, false).unwrap();
            assert_eq!(nothing, Arrival::Nothing);
        }
    }

    #[test]
    fn only_the_offered_memory_of_this_host_is_taken() {
        let spec = EndpointSpec::new(SHM_RAW, Mode::Lat, 64);
        let open = |side| Shm::open(&spec, HERE, side).unwrap();
        let (_server, offer) = open(Side::Server);
        let elsewhere = open(Side::Client).0.connect([192, 0, 2, 1].into(), &offer);
        assert!(matches!(elsewhere, Err(PerfError::Usage(_))));
        let mut other = offer.clone();
        other.memory.as_mut().unwrap().token ^= 1;
        let refused = open(Side::Client).0.connect(HERE, &other);
        assert!(matches!(refused, Err(PerfError::Protocol(_))));
        other.memory.as_mut().unwrap().descriptor = -1;
        let refused = open(Side::Client).0.connect(HERE, &other);
        assert!(matches!(refused, Err(PerfError::Io { .. })));
        assert!(open(Side::Client).0.connect(HERE, &offer).is_ok());
    }
}
