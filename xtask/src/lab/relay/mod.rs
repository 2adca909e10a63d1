//! The link with faults: a thread of this process forwards IP packets between two TUN devices.
//!
//! ```text
//!  lab0 of the server <-> TUN <-> Wire to the client, Wire to the server <-> TUN <-> lab0 of the client
//! ```
//!
//! All decisions are those of [`dgiwarp_sim::Wire`]; here are descriptors and the clock. Nothing has to be removed: the interfaces
//! vanish with their descriptors, which this process alone has.

mod tun;

use std::fmt;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dgiwarp_sim::{Wire, WireCounts};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{INTERFACE, LabError, Namespace};
use crate::clock;

pub use dgiwarp_sim::{GilbertElliott, LinkConfig, Loss, Reordering};

/// Packets that are read from one end before due ones are written and the other end has its turn.
const BATCH: usize = 64;
/// Time before an arrival from which the relay polls instead of sleeping, more than waking up mostly takes; and packets on their way
/// up to which it does: more of them come so fast that a processor would do nothing else.
const POLLING: Duration = Duration::from_micros(150);
/// See [`POLLING`].
const FEW: usize = 16;
/// Packets on their way above which the relay sleeps for a while instead of waking up for each, as network cards moderate their
/// interrupts, and how long.
const MANY: usize = 256;
/// See [`MANY`].
const MODERATION: Duration = Duration::from_micros(50);
/// Longest packet of IP.
const LONGEST_PACKET: usize = 65_535;

/// Faults of a relay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// From the client to the server. Its MTU does not count.
    pub to_server: LinkConfig,
    /// From the server to the client.
    pub to_client: LinkConfig,
    /// Of all decisions.
    pub seed: u64,
}

impl Config {
    /// A relay whose directions have equal faults.
    #[must_use]
    pub const fn both(link: LinkConfig, seed: u64) -> Self {
        Self {
            to_server: link,
            to_client: link,
            seed,
        }
    }
}

/// A seed that no other call returns, as far as chance goes.
#[must_use]
pub fn random_seed() -> u64 {
    // Short enough to be typed.
    RandomState::new().hash_one(()) >> 32
}

/// Packets of one direction since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Decisions of the wire.
    pub wire: WireCounts,
    /// Packets that the kernel dropped before they were read: the relay was too slow.
    pub unread: u64,
    /// Packets that the receiving kernel refused, for one because its interface is down.
    pub refused: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wire = &self.wire;
        write!(
            f,
            "{} packets, {} lost, {} dropped by the queue, {} reordered, {} duplicated, {} corrupted, {} marked",
            wire.packets,
            wire.lost,
            wire.overflowed,
            wire.reordered,
            wire.duplicated,
            wire.corrupted,
            wire.marked
        )?;
        if self.unread > 0 {
            write!(f, ", {} not read in time", self.unread)?;
        }
        if self.refused > 0 {
            write!(f, ", {} refused by the receiver", self.refused)?;
        }
        Ok(())
    }
}

/// Packets of both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// From the client to the server.
    pub to_server: Counts,
    /// From the server to the client.
    pub to_client: Counts,
}

/// State of the thread that its owner reads.
#[derive(Debug, Default)]
struct Shared {
    report: Report,
    error: Option<io::Error>,
}

/// A running relay. Dropping it ends it, and removes its interfaces.
#[derive(Debug)]
pub struct Relay {
    seed: u64,
    shared: Arc<Mutex<Shared>>,
    /// Holders of the namespaces, the server's first.
    holders: [u32; 2],
    /// Its end ends the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Makes both interfaces and starts to forward. The interfaces are not up yet and have no addresses.
    pub(super) fn new(
        config: &Config,
        server: &Namespace,
        client: &Namespace,
        mtu: u32,
    ) -> Result<Self, LabError> {
        let failed = |source| LabError::Process {
            what: "the relay".to_owned(),
            source,
        };
        let ends = [tun::open(server, mtu)?, tun::open(client, mtu)?];
        let (stop, stopped) = UnixStream::pair().map_err(failed)?;
        let shared = Arc::<Mutex<Shared>>::default();
        let forwarder = Forwarder {
            ends,
            wires: [
                Wire::new(config.to_client, config.seed, 0),
                Wire::new(config.to_server, config.seed, 1),
            ],
            refused: [0; 2],
            due: Vec::new(),
            behind: false,
            stopped,
            start: clock::now(),
            shared: Arc::clone(&shared),
        };
        let thread = thread::Builder::new()
            .name("relay".to_owned())
            .spawn(move || forwarder.run())
            .map_err(failed)?;
        Ok(Self {
            seed: config.seed,
            shared,
            holders: [server.holder(), client.holder()],
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// The seed.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// Counts until now.
    ///
    /// # Errors
    /// Why the relay has ended, if it has.
    pub fn report(&self) -> Result<Report, LabError> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(source) = shared.error.take() {
            return Err(LabError::Process {
                what: "the relay".to_owned(),
                source,
            });
        }
        let mut report = shared.report;
        drop(shared);
        let [server, client] = self.holders.map(dropped_by_interface);
        report.to_client.unread = server;
        report.to_server.unread = client;
        Ok(report)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has reported it itself.
            let _panicked = thread.join();
        }
    }
}

/// Packets that the interface of a namespace did not send, by its row in `/proc/PID/net/dev`.
fn dropped_by_interface(holder: u32) -> u64 {
    std::fs::read_to_string(format!("/proc/{holder}/net/dev"))
        .ok()
        .and_then(|table| sent_and_dropped(&table))
        .unwrap_or(0)
}

/// Column `drop` among those of sent packets: behind eight of received ones and two others.
fn sent_and_dropped(table: &str) -> Option<u64> {
    let row = table
        .lines()
        .find_map(|line| line.trim_start().strip_prefix(INTERFACE)?.strip_prefix(':'))?;
    row.split_ascii_whitespace().nth(11)?.parse().ok()
}

/// Both descriptors and what is on its way. Index 0 is the server's end, and the wire from there.
#[derive(Debug)]
struct Forwarder {
    ends: [File; 2],
    wires: [Wire; 2],
    refused: [u64; 2],
    /// Packets that are to be written, with the end that sent them.
    due: Vec<(usize, Vec<u8>)>,
    /// An end may have more packets than were read.
    behind: bool,
    stopped: UnixStream,
    start: Instant,
    shared: Arc<Mutex<Shared>>,
}

impl Forwarder {
    fn run(mut self) {
        // The default slack of 50 µs would add to each delay. Without the call, delays are longer.
        let _slack = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let mut buffer = vec![0; LONGEST_PACKET + 1];
        let ended = loop {
            match self.turn(&mut buffer) {
                Ok(true) => {}
                Ok(false) => break None,
                Err(error) => break Some(error),
            }
        };
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.error = ended;
    }

    /// Waits for a packet or a time, and forwards what there is. Returns whether to go on.
    fn turn(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        let next = self.wires.iter().filter_map(Wire::next_arrival).min();
        let in_flight: usize = self.wires.iter().map(Wire::in_flight).sum();
        let ready = if self.behind {
            self.wait(Some(Duration::ZERO))?
        } else if in_flight <= FEW {
            self.wait(next.map(|at| at.saturating_sub(POLLING)))?
        } else if in_flight <= MANY {
            self.wait(next)?
        } else {
            self.pause()?
        };
        let Some(readable) = ready else {
            return Ok(false);
        };
        self.behind = false;
        for (end, readable) in readable.into_iter().enumerate() {
            if readable {
                self.behind |= self.read(end, buffer)?;
            }
            self.write();
        }
        self.publish();
        Ok(true)
    }

    fn publish(&self) {
        let [to_client, to_server] = [0, 1].map(|from| Counts {
            wire: self.wires[from].counts(),
            unread: 0,
            refused: self.refused[from],
        });
        let report = Report {
            to_server,
            to_client,
        };
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.report = report;
    }

    /// Waits until an end is readable or the time comes. Yields which ends are, and nothing at the end of all.
    fn wait(&self, until: Option<Duration>) -> io::Result<Option<[bool; 2]>> {
        let [server, client] = &self.ends;
        let mut descriptors = [
            PollFd::from_borrowed_fd(server.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(client.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.stopped.as_fd(), PollFlags::IN),
        ];
        let timeout = until.map(|at| at.saturating_sub(self.now()));
        wait_for(&mut descriptors, timeout)?;
        let [server, client, stopped] = descriptors.map(|it| !it.revents().is_empty());
        Ok((!stopped).then_some([server, client]))
    }

    /// Lets packets gather. Both ends may be readable then.
    fn pause(&self) -> io::Result<Option<[bool; 2]>> {
        let stopped = self.stopped.as_fd();
        let mut descriptors = [PollFd::from_borrowed_fd(stopped, PollFlags::IN)];
        wait_for(&mut descriptors, Some(MODERATION))?;
        let [stopped] = descriptors.map(|it| !it.revents().is_empty());
        Ok((!stopped).then_some([true; 2]))
    }

    fn now(&self) -> Duration {
        clock::now().duration_since(self.start)
    }

    /// Reads a batch. Returns whether there may be more.
    fn read(&mut self, end: usize, buffer: &mut [u8]) -> io::Result<bool> {
        for _ in 0..BATCH {
            match (&self.ends[end]).read(buffer) {
                Ok(length) => {
                    let now = self.now();
                    self.wires[end].accept(now, &buffer[..length]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Writes what has arrived by now. It is counted first: its receiver may ask for the counts.
    fn write(&mut self) {
        let now = self.now();
        for from in 0..2 {
            while let Some(packet) = self.wires[from].deliver(now) {
                self.due.push((from, packet));
            }
        }
        if self.due.is_empty() {
            return;
        }
        self.publish();
        for (from, packet) in self.due.drain(..) {
            // An interface that is down, or a header that its kernel does not take, loses the packet alone.
            if (&self.ends[1 - from]).write(&packet).is_err() {
                self.refused[from] += 1;
            }
            self.wires[from].recycle(packet);
        }
    }
}

fn wait_for(descriptors: &mut [PollFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
    match poll(descriptors, timeout.map(timespec).as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_read_from_the_table_of_interfaces() {
        let table = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:       0       0    0    0    0     0          0         0        0       0    0    9    0     0       0          0
  lab0:     104       2    0    1    0     0          0         0      152       3    0   42    0     0       0          0
";
        assert_eq!(sent_and_dropped(table), Some(42));
        assert_eq!(sent_and_dropped("lab01: 1 2"), None);
        assert_eq!(sent_and_dropped(" lab0: 1 2"), None);
        assert_eq!(dropped_by_interface(u32::MAX), 0);
    }
}
