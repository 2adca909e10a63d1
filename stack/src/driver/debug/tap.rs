//! A capture file per queue pair, with every datagram that it sent or received.
//!
//! The kernel's IP and UDP headers are not seen here, so they are made again. A file is complete after each call on a
//! socket: whatever ends the process, it can be read. It may not be complete on a full disk; then it ends with the last packet that found
//! room, and traffic goes on without it.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use arrayvec::ArrayString;
use dgiwarp_llp_udp::rd::PathState;
use dgiwarp_llp_udp::{MAX_TRAIN_DATAGRAMS, Peer, Train};
use dgiwarp_memory::Piece;
use dgiwarp_rdmap::datagram::DropReason;

use crate::driver::debug::fault::Loss;
use crate::driver::debug::ip;
use crate::driver::debug::ip::MAX_HEADERS;
use crate::driver::debug::own_file;
use crate::driver::debug::pcapng;
use crate::driver::debug::pcapng::{Direction, PACKET_OVERHEAD};
use crate::driver::device::clock;
use dgiwarp_engine::datagram::Arrival;

/// Octets that one call on a socket moves at most.
const MAX_OCTETS: usize = 65_536;
/// Longest comment.
const MAX_COMMENT: usize = 160;
/// Room for what one call moves, as blocks.
const MAX_BLOCKS: usize =
    MAX_OCTETS + MAX_TRAIN_DATAGRAMS * (PACKET_OVERHEAD + MAX_HEADERS + MAX_COMMENT + 8);

/// Whether this process was warned already that a file cannot be written.
static WARNED: AtomicBool = AtomicBool::new(false);

/// Fate of a received datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It was used; the path back to its sender has this state, where the engine keeps one.
    Used(Option<PathState>),
    /// The engine dropped it.
    Dropped(DropReason),
    /// It was lost on purpose.
    Lost(Loss),
}

impl From<Option<DropReason>> for Fate {
    fn from(dropped: Option<DropReason>) -> Self {
        dropped.map_or(Self::Used(None), Self::Dropped)
    }
}

/// The capture file of one queue pair.
#[derive(Debug)]
pub(crate) struct Tap {
    path: PathBuf,
    file: File,
    /// Octets of the file that are whole blocks.
    whole: u64,
    bound: SocketAddr,
    /// Where datagrams to groups arrive.
    group_port: u16,
    /// Made before: who sends holds registered memory and must not allocate.
    payload: Vec<u8>,
    blocks: Vec<u8>,
    /// Why it cannot be written any more.
    failed: Option<io::Error>,
    told: bool,
}

impl Tap {
    /// Makes a file of the queue pair with this QPN in a directory, which is made if it is not there. `None`, and one warning per process, if the
    /// system refuses.
    pub(crate) fn open(directory: &Path, bound: SocketAddr, group_port: u16) -> Option<Self> {
        let qpn = bound.port();
        let name = format!("qp-{}-{qpn}-", std::process::id());
        Self::open_as(directory, &name, &format!("qp {qpn}"), (bound, group_port))
    }

    /// Makes a file of services and service ID resolutions, which have a socket each.
    pub(crate) fn open_services(directory: &Path) -> Option<Self> {
        let name = format!("services-{}-", std::process::id());
        let none = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        Self::open_as(directory, &name, "services", (none, 0))
    }

    fn open_as(
        directory: &Path,
        name: &str,
        interface: &str,
        bound: (SocketAddr, u16),
    ) -> Option<Self> {
        match own_file::make_in(directory, name, ".pcapng") {
            Ok((path, file)) => {
                let mut tap = Self::on(path, file, bound);
                let application = concat!("dgiwarp ", env!("CARGO_PKG_VERSION"));
                pcapng::section(&mut tap.blocks, application, interface);
                tap.write();
                Some(tap)
            }
            Err(error) => {
                warn(directory, &error);
                None
            }
        }
    }

    fn on(path: PathBuf, file: File, (bound, group_port): (SocketAddr, u16)) -> Self {
        Self {
            path,
            file,
            whole: 0,
            bound,
            group_port,
            payload: Vec::with_capacity(MAX_OCTETS),
            blocks: Vec::with_capacity(MAX_BLOCKS),
            failed: None,
            told: false,
        }
    }

    /// Writes down a train that the network took. Allocates nothing.
    pub(crate) fn sent(&mut self, local: IpAddr, peer: Peer, pieces: &[Piece<'_>], train: &Train) {
        let Some(destination) = peer.socket_addr() else {
            return;
        };
        let mut payload = std::mem::take(&mut self.payload);
        payload.clear();
        for piece in pieces {
            match piece {
                Piece::Bytes(octets) => payload.extend_from_slice(octets),
                Piece::Region(slice) => {
                    let start = payload.len();
                    payload.resize(start + slice.len(), 0);
                    slice.copy_to(&mut payload[start..]);
                }
            }
        }
        let local = match self.bound.ip() {
            any if any.is_unspecified() => local,
            bound => bound,
        };
        let source = SocketAddr::new(local, self.bound.port());
        for datagram in payload.chunks(train.datagram().max(1)) {
            self.put(Direction::Outbound, source, destination, datagram, None);
        }
        self.payload = payload;
        self.write();
    }

    /// Writes down one datagram that the network took.
    pub(crate) fn sent_one(
        &mut self,
        source: SocketAddr,
        destination: SocketAddr,
        datagram: &[u8],
    ) {
        self.put(Direction::Outbound, source, destination, datagram, None);
        self.write();
    }

    /// Writes down one received datagram.
    pub(crate) fn received(&mut self, arrival: Arrival<'_>, fate: Fate) {
        let port = if arrival.to_group {
            self.group_port
        } else {
            self.bound.port()
        };
        self.received_at(port, arrival, fate);
    }

    /// Writes a received datagram that came to this port.
    pub(crate) fn received_at(&mut self, port: u16, arrival: Arrival<'_>, fate: Fate) {
        let Some(source) = arrival.from.socket_addr() else {
            return;
        };
        let to = arrival.to.unwrap_or_else(|| match source {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        });
        let destination = SocketAddr::new(to, port);
        let mut comment = ArrayString::<MAX_COMMENT>::new();
        // A longer datagram is cut.
        let _ = match fate {
            Fate::Used(None) => Ok(()),
            Fate::Used(Some(path)) => write!(comment, "{path}"),
            Fate::Dropped(reason) => write!(comment, "dropped: {reason}"),
            Fate::Lost(Loss::Drop) => comment.write_str("dropped: fault"),
            Fate::Lost(Loss::Overflow) => comment.write_str("dropped: fault, too many delayed"),
        };
        let comment = (!comment.is_empty()).then_some(comment.as_str());
        self.put(
            Direction::Inbound,
            source,
            destination,
            arrival.octets,
            comment,
        );
        self.write();
    }

    fn put(
        &mut self,
        direction: Direction,
        source: SocketAddr,
        destination: SocketAddr,
        datagram: &[u8],
        comment: Option<&str>,
    ) {
        let headers = ip::headers(source, destination, datagram);
        let at = clock::since_epoch();
        pcapng::packet(
            &mut self.blocks,
            at,
            direction,
            (&headers, datagram),
            comment,
        );
    }

    /// Appends the blocks to the file.
    fn write(&mut self) {
        if self.failed.is_none() {
            match self.file.write_all(&self.blocks) {
                Ok(()) => self.whole += self.blocks.len() as u64,
                Err(error) => {
                    // Half a block would spoil the file for those who read it.
                    let _ = self.file.set_len(self.whole);
                    self.failed = Some(error);
                }
            }
        }
        self.blocks.clear();
    }

    /// Warns if the file cannot be written any more. Called where allocating is allowed.
    pub(crate) fn warn_of_failure(&mut self) {
        if let Some(error) = &self.failed
            && !self.told
        {
            self.told = true;
            warn(&self.path, error);
        }
    }
}

fn warn(path: &Path, error: &io::Error) {
    if !WARNED.swap(true, Ordering::Relaxed) {
        tracing::warn!(path = %path.display(), %error, "cannot write a capture file: going on without");
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;

    fn tap(file: File) -> Tap {
        Tap::on(PathBuf::new(), file, (([127, 0, 0, 1], 7).into(), 8))
    }

    /// A train of the most and smallest datagrams, and the largest datagram.
    #[test]
    fn writing_allocates_nothing() {
        let mut tap = tap(File::create("/dev/null").unwrap());
        let room = (tap.payload.capacity(), tap.blocks.capacity());
        let peer = Peer::ip("[2001:db8::1]:9".parse().unwrap());
        let local = IpAddr::from(Ipv6Addr::LOCALHOST);
        for (datagram, count) in [
            (1015, MAX_TRAIN_DATAGRAMS),
            (1, MAX_TRAIN_DATAGRAMS),
            (65_000, 1),
        ] {
            let mut train = Train::new();
            (0..count).for_each(|_| train.add(datagram));
            let octets = vec![1; datagram * count];
            tap.sent(local, peer, &[Piece::Bytes(&octets)], &train);
        }
        assert_eq!((tap.payload.capacity(), tap.blocks.capacity()), room);
        assert!(tap.failed.is_none());
    }

    #[test]
    fn a_full_disk_ends_the_writing_and_nothing_else() {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut tap = tap(full);
        let peer = Peer::ip("127.0.0.1:9".parse().unwrap());
        let mut train = Train::new();
        train.add(4);
        for _ in 0..3 {
            tap.sent(
                Ipv4Addr::LOCALHOST.into(),
                peer,
                &[Piece::Bytes(b"four")],
                &train,
            );
        }
        let error = tap.failed.as_ref().unwrap();
        assert_eq!(error.raw_os_error(), Some(nix::libc::ENOSPC));
        assert!(tap.blocks.is_empty() && tap.whole == 0);
        tap.warn_of_failure();
        assert!(tap.told);
    }
}
