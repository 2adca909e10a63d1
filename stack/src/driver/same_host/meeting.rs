//! Meeting of two queue pairs on one host: token, Unix socket, arena (rfc-notes/same-host.md).

use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dgiwarp_memory::lane::{
    Arena, ArenaEnd, ArenaError, OfferedArena, receive_with_descriptor, send_with_descriptor,
};
use nix::sys::epoll::EpollFlags;
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::geteuid;
use parking_lot::Mutex;
use socket2::Socket;

use crate::driver::device::{clock, fds};
use crate::driver::reactor::io_set::{Cause, IoId, IoSet, Locked};
use crate::driver::reactor::waker::{Task, Waker};
use crate::driver::same_host::budget::{BUDGET, Share};
use crate::driver::same_host::ends::{LaneEnds, Link};
use crate::driver::same_host::grants::CopyEnds;
use crate::driver::same_host::names::{Names, Reach, SocketFile, TOKEN_BITS};
use crate::{Error, QpCounters};

/// Time for an offer, from when the token was drawn.
const PATIENCE: Duration = Duration::from_secs(1);
/// Meetings of a device at one time.
const MOST: usize = 64;
/// Logarithm of the octets of the longest ring.
const RING_LOGARITHM: u32 = 20;
/// Octets of an offer, and its first ones: name, version and a reserved field.
const OFFER: usize = 24;
const BEGINNING: [u8; 8] = *b"DGiH\x00\x03\x00\x00";
/// User of processes whose own one a user namespace does not know (`user_namespaces(7)`): no two of them are known to be one.
const UNKNOWN_USER: u32 = 65_534;

/// Reason for two queue pairs to stay on their sockets.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error("the arenas of this process have {BUDGET} octets")]
    Budget,
    #[error("no socket")]
    Socket(#[source] io::Error),
    #[error("the peer is not reached by its name: another network namespace, or it gave up")]
    Namespace(#[source] io::Error),
    #[error("the peer's user {0} is another one, or unknown in this user namespace")]
    User(u32),
    #[error("no memory to share")]
    Memory(#[source] io::Error),
    #[error("the offer has another token, or none")]
    Token,
    #[error("the arena is not taken")]
    Arena(#[from] ArenaError),
    #[error("no offer in time")]
    Time,
    #[error("the connection is gone")]
    Gone,
}

impl Refused {
    /// Counts it at its queue pair.
    pub(crate) fn count(&self, counters: &mut QpCounters) {
        *match self {
            Self::Budget => &mut counters.lane_refused_budget,
            Self::Memory(_) | Self::Arena(ArenaError::System(_)) => {
                &mut counters.lane_refused_memory
            }
            Self::Socket(_) | Self::Namespace(_) => &mut counters.lane_refused_unreachable,
            Self::User(_) => &mut counters.lane_refused_user,
            Self::Token | Self::Arena(_) => &mut counters.lane_refused_offer,
            Self::Time => &mut counters.lane_refused_late,
            Self::Gone => return,
        } += 1;
    }
}

/// A queue pair that may get lanes.
pub(crate) trait Guest: std::fmt::Debug + Send + Sync {
    /// Whether the Unix socket of a meeting stays open, and its end is that of the lanes. Connections have the end of TCP instead.
    fn keeps_link(&self) -> bool;
    /// Gives the connection its lanes, if `life` is its own still. Returns whether it took them.
    fn attach_lanes(&self, life: u32, ends: LaneEnds, starts: bool) -> bool;
    /// Takes them away again: the peer does not have them, or has no more.
    fn detach_lanes(&self, life: u32);
    /// The connection of `life` gets none.
    fn refuse_lanes(&self, life: u32, reason: Refused);
}

/// A queue pair in one of its lives, or with one of its peers.
#[derive(Debug, Clone)]
pub(crate) struct Invited {
    pub(crate) guest: Weak<dyn Guest>,
    pub(crate) life: u32,
}

/// An arena with its share of the budget, and the peer's process.
#[derive(Debug)]
struct CountedArena {
    arena: Arena,
    share: Share,
    peer: ProcessId,
}

impl CountedArena {
    fn ends(self, end: ArenaEnd, token: u128, link: Option<&Arc<Socket>>) -> LaneEnds {
        // Connections alone copy.
        let copies = match (link, self.peer) {
            (None, Some(peer)) => {
                let grants = self.arena.grants(end, token);
                Some(CopyEnds::new(grants, peer))
            }
            (Some(_), _) | (None, None) => None,
        };
        let link = link.map(|socket| Link::new(Arc::clone(socket)));
        LaneEnds::new(self.arena.lanes(end), self.share)
            .with_link(link)
            .with_copies(copies)
    }
}

/// A socket at which the peer of an Initiator meets it.
#[derive(Debug)]
struct Meeting {
    socket: Socket,
    /// Its name, until the peer has connected.
    _file: Option<SocketFile>,
    /// The peer has connected.
    accepted: bool,
    token: u128,
    invited: Invited,
    until: Instant,
}

/// A Unix socket that is watched.
#[derive(Debug)]
enum Watched {
    Meeting(Meeting),
    /// The link of two ends that have lanes.
    Link(Arc<Socket>, Invited),
}

impl AsFd for Watched {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Meeting(meeting) => meeting.socket.as_fd(),
            Self::Link(socket, _) => socket.as_fd(),
        }
    }
}

impl Watched {
    const fn invited(&self) -> &Invited {
        match self {
            Self::Meeting(meeting) => &meeting.invited,
            Self::Link(_, invited) => invited,
        }
    }
}

/// News of a meeting or a link.
#[derive(Debug)]
enum News {
    /// The peer's arena, and the socket that it came by.
    Offered(Result<(CountedArena, Socket, u128), Refused>),
    /// The link has ended.
    Ended,
}

/// All meetings of a device.
#[derive(Debug)]
pub(crate) struct SameHost {
    meetings: IoSet<Watched>,
    /// Tokens of Initiators, for which offers are to be made.
    offers: Mutex<Vec<(u128, Invited)>>,
    names: Names,
    waker: Arc<Waker>,
}

fn offer(token: u128) -> [u8; OFFER] {
    let mut octets = [0; OFFER];
    let (beginning, rest) = octets.split_at_mut(BEGINNING.len());
    beginning.copy_from_slice(&BEGINNING);
    rest.copy_from_slice(&token.to_be_bytes());
    octets
}

/// Whether an offer is one for this token. The reserved field is not checked.
fn is_for(octets: &[u8], token: u128) -> bool {
    let expected = offer(token);
    octets.len() == OFFER && octets[..6] == expected[..6] && octets[8..] == expected[8..]
}

impl SameHost {
    pub(crate) fn new(waker: Arc<Waker>, names: Names) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self {
            meetings: IoSet::new()?,
            offers: Mutex::new(Vec::new()),
            names,
            waker,
        }))
    }

    /// Draws a token for a queue pair that invites its peer, and listens for that where the peer looks for it.
    ///
    /// # Errors
    /// The reason to stay on the sockets.
    pub(crate) fn invite(&self, invited: Invited, reach: Reach) -> Result<u128, Refused> {
        let invite = || {
            let mut random = [0; 16];
            getrandom::fill(&mut random)
                .map_err(|error| Refused::Socket(io::Error::other(error)))?;
            let token = u128::from_ne_bytes(random) >> (u128::BITS - TOKEN_BITS);
            let listening = self.names.listen(token, reach);
            let (socket, file) = listening.map_err(Refused::Socket)?;
            let until = clock::now() + PATIENCE;
            let meeting = Meeting {
                socket,
                _file: file,
                accepted: false,
                token,
                invited,
                until,
            };
            let mut meetings = self.meetings.lock();
            let is_meeting = |(_, it): &(IoId, &Watched)| matches!(it, Watched::Meeting(_));
            if meetings.entries().filter(is_meeting).count() >= MOST {
                return Err(Refused::Budget);
            }
            let meeting = Watched::Meeting(meeting);
            Self::watch(&mut meetings, meeting).map_err(Refused::Socket)?;
            drop(meetings);
            self.waker.wake_before(clock::to_nanos(Some(until)));
            Ok(token)
        };
        invite().inspect_err(|reason| tracing::debug!(%reason, "a connection stays on its sockets"))
    }

    fn watch(meetings: &mut Locked<'_, Watched>, watched: Watched) -> io::Result<()> {
        let until = match &watched {
            Watched::Meeting(meeting) => Some(meeting.until),
            Watched::Link(..) => None,
        };
        let id = meetings.insert(watched);
        meetings.set_deadline(id, until);
        let watched = meetings.watch(id, EpollFlags::EPOLLIN);
        if watched.is_err() {
            meetings.remove(id);
        }
        watched
    }

    /// Ends the meetings of a queue pair, or those of one of its lives alone.
    pub(crate) fn cancel(&self, guest: &Weak<dyn Guest>, life: Option<u32>) {
        let mut meetings = self.meetings.lock();
        let is_theirs = |watched: &Watched| {
            let invited = watched.invited();
            matches!(watched, Watched::Meeting(_))
                && invited.guest.ptr_eq(guest)
                && life.is_none_or(|life| life == invited.life)
        };
        let theirs: Vec<IoId> = meetings
            .entries()
            .filter(|(_, watched)| is_theirs(watched))
            .map(|(id, _)| id)
            .collect();
        for id in theirs {
            meetings.remove(id);
        }
    }

    /// Watches the link of two ends that have lanes.
    fn watch_link(&self, socket: Arc<Socket>, invited: &Invited) -> Result<(), Refused> {
        let link = Watched::Link(socket, invited.clone());
        Self::watch(&mut self.meetings.lock(), link).map_err(Refused::Socket)
    }

    /// Has the background thread make an offer for the token that the peer has sent.
    pub(crate) fn accept(&self, token: u128, invited: Invited) {
        let mut offers = self.offers.lock();
        if offers.len() < MOST {
            offers.push((token, invited));
            drop(offers);
            self.waker.wake();
        }
    }

    /// A socket is ready, or its time is over.
    fn drive(
        meetings: &mut Locked<'_, Watched>,
        id: IoId,
        cause: Cause,
    ) -> Option<(Invited, News)> {
        let meeting = match meetings.get_mut(id)? {
            Watched::Meeting(meeting) => meeting,
            // Nobody sends there: it is readable by its end.
            Watched::Link(_, invited) => {
                let invited = invited.clone();
                meetings.remove(id);
                return Some((invited, News::Ended));
            }
        };
        let invited = meeting.invited.clone();
        let refused = |refused| Some((invited.clone(), News::Offered(Err(refused))));
        let met = match (cause, meeting.accepted) {
            (Cause::Deadline, _) => Err(Refused::Time),
            (Cause::Ready, false) => match meeting.socket.accept() {
                Ok((socket, _)) => Ok(Some(socket)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(error) => Err(Refused::Socket(error)),
            },
            (Cause::Ready, true) => Ok(None),
        };
        match met {
            Ok(Some(socket)) => {
                let Watched::Meeting(old) = meetings.remove(id)? else {
                    return None;
                };
                let socket = fds::adopt(socket);
                let meeting = Meeting {
                    socket,
                    _file: None,
                    accepted: true,
                    ..old
                };
                let watched = meeting.socket.set_nonblocking(true);
                watched
                    .and_then(|()| Self::watch(meetings, Watched::Meeting(meeting)))
                    .err()
                    .and_then(|error| refused(Refused::Socket(error)))
            }
            Ok(None) => {
                let arena = take(&meeting.socket, meeting.token);
                if matches!(&arena, Err(Refused::Socket(error)) if error.kind() == io::ErrorKind::WouldBlock)
                {
                    return None;
                }
                let Watched::Meeting(Meeting { socket, token, .. }) = meetings.remove(id)? else {
                    return None;
                };
                let offered = arena.map(|arena| (arena, socket, token));
                Some((invited, News::Offered(offered)))
            }
            Err(reason) => {
                meetings.remove(id);
                refused(reason)
            }
        }
    }

    /// Gives a queue pair the lanes of an arena that its peer made.
    fn enter(
        &self,
        invited: &Invited,
        (arena, socket, token): (CountedArena, Socket, u128),
    ) -> Result<(), Refused> {
        let guest = invited.guest.upgrade().ok_or(Refused::Gone)?;
        let link = guest.keeps_link().then(|| Arc::new(socket));
        let ends = arena.ends(ArenaEnd::Taker, token, link.as_ref());
        if !guest.attach_lanes(invited.life, ends, true) {
            return Err(Refused::Gone);
        }
        self.keep(&*guest, invited, link)
    }

    /// Makes an arena for a queue pair, and hands it to the peer.
    fn make(&self, token: u128, invited: &Invited) -> Result<(), Refused> {
        let guest = invited.guest.upgrade().ok_or(Refused::Gone)?;
        let socket = self.names.connect(token).map_err(Refused::Namespace)?;
        let socket = Arc::new(socket);
        let peer = check_user(&socket)?;
        let share = Share::take(Arena::FIRST_OCTETS).ok_or(Refused::Budget)?;
        let (arena, fd) = Arena::create(RING_LOGARITHM).map_err(Refused::Memory)?;
        let link = guest.keeps_link().then(|| Arc::clone(&socket));
        let arena = CountedArena { arena, share, peer };
        let ends = arena.ends(ArenaEnd::Maker, token, link.as_ref());
        // The peer may use its lane, and ring, as soon as it has the arena.
        if !guest.attach_lanes(invited.life, ends, false) {
            return Err(Refused::Gone);
        }
        let sent = send_with_descriptor(socket.as_fd(), &offer(token), fd.as_fd());
        if let Err(error) = sent {
            guest.detach_lanes(invited.life);
            return Err(Refused::Socket(error));
        }
        self.keep(&*guest, invited, link)
    }

    /// Keeps the link of lanes, if they have one.
    fn keep(
        &self,
        guest: &dyn Guest,
        invited: &Invited,
        link: Option<Arc<Socket>>,
    ) -> Result<(), Refused> {
        let Some(socket) = link else {
            return Ok(());
        };
        self.watch_link(socket, invited)
            .inspect_err(|_| guest.detach_lanes(invited.life))
    }
}

/// Number of a process; `None` for one in a process namespace that has none for it here.
type ProcessId = Option<NonZeroU32>;

/// Checks that the peer of a Unix socket is of this process's user. Returns its process.
fn check_user(socket: &Socket) -> Result<ProcessId, Refused> {
    let peer = getsockopt(socket, sockopt::PeerCredentials)
        .map_err(|errno| Refused::Socket(errno.into()))?;
    let user = peer.uid();
    if user != geteuid().as_raw() || user == UNKNOWN_USER {
        return Err(Refused::User(user));
    }
    tracing::debug!(pid = peer.pid(), user, "a peer on this host shares memory");
    Ok(u32::try_from(peer.pid()).ok().and_then(NonZeroU32::new))
}

/// Takes the arena of an offer.
fn take(socket: &Socket, token: u128) -> Result<CountedArena, Refused> {
    let peer = check_user(socket)?;
    let mut octets = [0; OFFER + 1];
    let (len, fd) =
        receive_with_descriptor(socket.as_fd(), &mut octets).map_err(Refused::Socket)?;
    let fd = fd.ok_or(Refused::Token)?;
    if !is_for(&octets[..len], token) {
        return Err(Refused::Token);
    }
    let offered = OfferedArena::check(fd.as_fd())?;
    // Before any of its memory is taken.
    let share = Share::take(Arena::FIRST_OCTETS).ok_or(Refused::Budget)?;
    let arena = offered.open()?;
    Ok(CountedArena { arena, share, peer })
}

impl Task for SameHost {
    fn work_fd(&self) -> BorrowedFd<'_> {
        self.meetings.as_fd()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.meetings.poll_timeout()
    }

    fn progress(&self) {
        let mut news = Vec::new();
        self.meetings
            .progress(|meetings, id, cause| news.extend(Self::drive(meetings, id, cause)));
        // Without the lock of the meetings: a queue pair that invites has its own.
        let taken = news.into_iter().map(|(invited, news)| {
            let entered = match news {
                News::Offered(offered) => offered.and_then(|offered| self.enter(&invited, offered)),
                News::Ended => {
                    if let Some(guest) = invited.guest.upgrade() {
                        guest.detach_lanes(invited.life);
                    }
                    Ok(())
                }
            };
            (invited, entered)
        });
        let offers = std::mem::take(&mut *self.offers.lock());
        let made = offers.into_iter().map(|(token, invited)| {
            let made = self.make(token, &invited);
            (invited, made)
        });
        for (invited, result) in taken.chain(made) {
            if let Err(reason) = result {
                tracing::debug!(%reason, "a connection stays on its sockets");
                if let Some(guest) = invited.guest.upgrade() {
                    guest.refuse_lanes(invited.life, reason);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{FileExt, MetadataExt};

    use nix::fcntl::{FcntlArg, SealFlag, fcntl};
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    use socket2::{Domain, Type};

    use super::*;
    use crate::driver::same_host::budget::ALONE;

    /// Never connected. It has a size, and so an address of its own.
    #[derive(Debug)]
    struct Nobody(#[expect(dead_code, reason = "only its address counts")] u8);

    impl Guest for Nobody {
        fn keeps_link(&self) -> bool {
            false
        }

        fn attach_lanes(&self, _life: u32, _ends: LaneEnds, _starts: bool) -> bool {
            false
        }

        fn detach_lanes(&self, _life: u32) {}

        fn refuse_lanes(&self, _life: u32, _reason: Refused) {}
    }

    /// The meetings of a queue pair that goes end, and those of others do not.
    #[test]
    fn a_meeting_is_cancelled_for_its_queue_pair_alone() {
        let waker = Arc::new(Waker::new().unwrap());
        let same_host = SameHost::new(waker, Names::default()).unwrap();
        let guests: [Arc<dyn Guest>; 2] = [Arc::new(Nobody(0)), Arc::new(Nobody(1))];
        for guest in &guests {
            let guest = Arc::downgrade(guest);
            let invited = Invited { guest, life: 0 };
            same_host.invite(invited, Reach::Namespace).unwrap();
        }
        let left = |same_host: &SameHost| same_host.meetings.lock().entries().count();
        assert_eq!(left(&same_host), 2);
        same_host.cancel(&Arc::downgrade(&guests[1]), None);
        assert_eq!(left(&same_host), 1);
        same_host.cancel(&Arc::downgrade(&guests[1]), None);
        assert_eq!(left(&same_host), 1);
        same_host.cancel(&Arc::downgrade(&guests[0]), None);
        assert!(same_host.meetings.is_empty());
    }

    /// The examples of the specification.
    #[test]
    fn offers_are_as_specified() {
        let token = 0x0012_3456_789a_bcde_fedc_ba98_7654_3210;
        let octets = offer(token);
        assert_eq!(octets[..8], *b"DGiH\x00\x03\x00\x00");
        assert_eq!(u128::from_be_bytes(octets[8..].try_into().unwrap()), token);
        let mut other = octets;
        other[7] = 1;
        assert!(is_for(&octets, token) && is_for(&other, token));
        for at in [0, 5, 8, 23] {
            let mut other = octets;
            other[at] ^= 1;
            assert!(!is_for(&other, token), "{at}");
        }
        assert!(!is_for(&octets[..23], token));
    }

    #[test]
    fn each_refusal_is_counted_by_its_reason() {
        let error = || io::Error::from(io::ErrorKind::Other);
        for (reason, name) in [
            (Refused::Budget, "lane_refused_budget"),
            (Refused::Memory(error()), "lane_refused_memory"),
            (Refused::Arena(error().into()), "lane_refused_memory"),
            (Refused::Socket(error()), "lane_refused_unreachable"),
            (Refused::Namespace(error()), "lane_refused_unreachable"),
            (Refused::Arena(ArenaError::Seals(0)), "lane_refused_offer"),
            (Refused::Token, "lane_refused_offer"),
            (Refused::User(1), "lane_refused_user"),
            (Refused::Time, "lane_refused_late"),
        ] {
            let mut counters = QpCounters::default();
            reason.count(&mut counters);
            assert_eq!(counters.to_string(), format!("{name} 1"));
        }
    }

    /// A peer offers an arena that this process has no budget for: no memory is taken. Of the longest one no more is taken than of any.
    #[test]
    fn an_offer_beyond_the_budget_takes_no_memory() {
        let token = 77;
        let octets: u64 = 0x2000 + (2 << 20);
        let memory = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = File::from(memfd_create(c"peer", memory).unwrap());
        file.set_len(octets).unwrap();
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
        let mut header = b"DGWARENA".to_vec();
        header.extend_from_slice(&[3, 0, 0, 0, 20, 0, 0, 0]);
        header.extend_from_slice(&octets.to_le_bytes());
        file.write_all_at(&header, 0).unwrap();
        let blocks = file.metadata().unwrap().blocks();
        let offer = || {
            let (ours, theirs) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).unwrap();
            let mut message = b"DGiH\x00\x03\x00\x00".to_vec();
            message.extend_from_slice(&u128::to_be_bytes(token));
            let fds = [file.as_raw_fd()];
            sendmsg::<()>(
                theirs.as_raw_fd(),
                &[io::IoSlice::new(&message)],
                &[ControlMessage::ScmRights(&fds)],
                MsgFlags::empty(),
                None,
            )
            .unwrap();
            take(&ours, token)
        };
        let _alone = ALONE.lock();
        let other = Share::take(BUDGET - 4096).unwrap();
        assert!(matches!(offer(), Err(Refused::Budget)));
        assert_eq!(file.metadata().unwrap().blocks(), blocks);
        drop(other);
        let taken = offer().unwrap();
        let octets = file.metadata().unwrap().blocks() * 512;
        assert!((8192..=16_384).contains(&octets), "{octets}");
        drop(taken);
    }
}
