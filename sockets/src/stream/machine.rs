//! The state machine.

use super::config::{Config, Local};
use super::incoming::Incoming;
use super::outgoing::Outgoing;
use super::post::{Credits, Post, Sent};
use super::violation::{Refusal, Violation};
use crate::wire::{ByteOrder, ConnectionData, Control, IoMap, Message, Sge};

/// Control messages and credits that may be outstanding at this end.
const CONTROLS: u8 = 4;

/// Most elements of the peer's list of targets. rdma-core has two.
const MAX_TARGETS: u32 = 1 << 16;

/// Directions that `rshutdown(3)` ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// Nothing is received any more.
    Read,
    /// Nothing is sent any more.
    Write,
    /// Neither.
    Both,
}

/// State of a connection that both ends have introduced themselves on.
///
/// The caller owns the memory and the queue pair. It posts what [`send`](Self::send), [`announce`](Self::announce), [`write`](Self::write),
/// [`poll_credits`](Self::poll_credits) and [`poll_control`](Self::poll_control) return, in the order of these calls, and hands in
/// messages and completions in theirs: [`handle_message`](Self::handle_message), [`handle_sent`](Self::handle_sent). Where [`wants_target`](Self::wants_target)
/// names a slot of the list of targets after messages have come, it reads that and calls [`handle_target`](Self::handle_target). A call too many does no harm.
#[derive(Debug)]
pub struct Stream {
    incoming: Incoming,
    outgoing: Outgoing,
    own_maps: u16,
    peer_order: ByteOrder,
    /// This end may receive: neither end has ended that direction.
    readable: bool,
    /// This end may send.
    writable: bool,
    /// The peer has ended its sending direction.
    peer_done: bool,
    /// Neither end has disconnected and the connection is not lost.
    connected: bool,
    /// A control message to be sent.
    pending: Option<Control>,
    /// Control messages and credits that may be posted, up to [`CONTROLS`].
    controls: u8,
    /// Completions that are to come of work requests posted.
    outstanding: u32,
    /// A target may have been written since the last read of one.
    fresh: bool,
}

impl Stream {
    /// The private data of this end.
    #[must_use]
    pub fn introduction(config: &Config, local: &Local) -> ConnectionData {
        let config = config.in_range();
        ConnectionData {
            order: config.order,
            credits: config.receive_entries,
            io_maps: Some(config.io_maps),
            targets: Sge {
                addr: local.targets,
                key: local.targets_key,
                length: Config::TARGETS,
            },
            buffer: Sge {
                addr: local.buffer,
                key: local.buffer_key,
                length: config.receive_octets / 2,
            },
        }
    }

    /// The state after both ends have introduced themselves.
    ///
    /// # Errors
    /// [`Refusal`] for private data that no stream is made with.
    pub fn new(config: &Config, local: &Local, peer: &[u8]) -> Result<Self, Refusal> {
        let config = config.in_range();
        let peer = ConnectionData::parse(peer)?;
        if !(1..=MAX_TARGETS).contains(&peer.targets.length) {
            return Err(Refusal::Targets(peer.targets.length));
        }
        Ok(Self {
            incoming: Incoming::new(&config, local, &peer),
            outgoing: Outgoing::new(&config, &peer),
            own_maps: config.io_maps,
            peer_order: peer.order,
            readable: true,
            writable: true,
            peer_done: false,
            connected: true,
            pending: None,
            controls: CONTROLS,
            outstanding: 0,
            fresh: true,
        })
    }

    /// Takes the octets of a message.
    ///
    /// # Errors
    /// [`Violation`]: the caller ends the connection.
    pub fn handle_message(&mut self, octets: &[u8]) -> Result<(), Violation> {
        let length = || Violation::Length(u32::try_from(octets.len()).unwrap_or(u32::MAX));
        let octets = octets.try_into().map_err(|_| length())?;
        self.handle_word(self.peer_order.word(octets))
    }

    /// Takes a message that came as the immediate of a Write.
    ///
    /// # Errors
    /// [`Violation`]: the caller ends the connection.
    pub fn handle_word(&mut self, word: u32) -> Result<(), Violation> {
        if !self.connected {
            return Ok(());
        }
        match Message::parse(word)? {
            Message::Data(octets) => {
                // Data that were on their way when this end shut its reading down are dropped with the buffer.
                self.incoming.arrived(octets)?;
            }
            Message::Credits(limit) => {
                self.outgoing.take_credits(limit);
                self.fresh = true;
            }
            Message::IoMap(index) => {
                if index >= self.own_maps.into() {
                    return Err(Violation::IoMap(index));
                }
                self.incoming.passed();
            }
            Message::Control(Control::Disconnect) => {
                self.peer_done = true;
                self.end();
            }
            Message::Control(Control::Shutdown) => {
                self.peer_done = true;
                self.readable = false;
                if !self.writable {
                    self.end();
                }
            }
            Message::Control(Control::KeepAlive) => {}
        }
        Ok(())
    }

    fn end(&mut self) {
        (self.readable, self.writable, self.connected) = (false, false, false);
        self.pending = None;
    }

    /// The connection is lost, or both ends are done with it.
    pub fn handle_end(&mut self) {
        self.end();
        self.outstanding = 0;
    }

    /// Takes a completion.
    pub fn handle_sent(&mut self, sent: Sent) {
        self.outstanding = self.outstanding.saturating_sub(1);
        match sent {
            Sent::Message { octets, entries } => self.outgoing.completed(octets, entries),
            Sent::Write(octets) => self.outgoing.completed(octets, 1),
            Sent::Control => self.controls = (self.controls + 1).min(CONTROLS),
        }
    }

    /// Slot of the list of targets to be read, where the target in use has ended and messages came since the last read.
    #[must_use]
    pub fn wants_target(&self) -> Option<u32> {
        self.outgoing.wants_target().filter(|_| self.fresh)
    }

    /// Takes the octets of that slot. Returns whether they were a new target: then the caller clears them before it sends.
    pub fn handle_target(&mut self, octets: &[u8; Sge::LEN]) -> bool {
        let taken = self.outgoing.take_target(octets);
        self.fresh = taken;
        taken
    }

    /// Whether octets can be sent now.
    #[must_use]
    pub fn can_send(&self) -> bool {
        self.writable && self.outgoing.can_send()
    }

    /// Sends at most so many octets as one message; `None` where nothing can be sent now.
    pub fn send(&mut self, octets: usize) -> Option<Post> {
        if !self.writable {
            return None;
        }
        let post = self.outgoing.send(octets)?;
        self.outstanding += u32::from(post.id.is_some());
        Some(post)
    }

    /// I/O maps that the peer has room for.
    #[must_use]
    pub fn map_slots(&self) -> u16 {
        self.outgoing.map_slots()
    }

    /// Announces an I/O map of this end's to the peer, by an RDMA Write of [`map_octets`](Self::map_octets).
    pub fn announce(&mut self, index: u16) -> Option<Post> {
        if !self.writable {
            return None;
        }
        let post = self.outgoing.announce(index)?;
        self.outstanding += u32::from(post.id.is_some());
        Some(post)
    }

    /// An I/O map as it is written to the peer's memory.
    #[must_use]
    pub fn map_octets(&self, map: &IoMap) -> [u8; IoMap::LEN] {
        map.emit(self.peer_order)
    }

    /// Writes at most so many octets at `offset` to an I/O map of the peer's; `None` outside of it, or where nothing can be sent now.
    pub fn write(&mut self, map: &IoMap, offset: u64, octets: usize) -> Option<Post> {
        if !self.writable {
            return None;
        }
        let post = self.outgoing.write(map, offset, octets)?;
        self.outstanding += u32::from(post.id.is_some());
        Some(post)
    }

    /// Credits that are due.
    pub fn poll_credits(&mut self) -> Option<Credits> {
        if !self.connected || self.controls == 0 || !self.incoming.credits_due() {
            return None;
        }
        self.controls -= 1;
        self.outstanding += 1;
        Some(self.incoming.credits())
    }

    /// The control message that is due.
    pub fn poll_control(&mut self) -> Option<[u8; 4]> {
        if !self.connected || self.controls == 0 {
            return None;
        }
        let control = self.pending.take()?;
        self.controls -= 1;
        self.outstanding += 1;
        if control == Control::Disconnect {
            (self.readable, self.writable) = (false, false);
        }
        Some(self.outgoing.message(Message::Control(control)))
    }

    /// Ends directions (`rshutdown(3)`). [`poll_control`](Self::poll_control) has the message for the peer.
    pub fn shut_down(&mut self, how: Shutdown) {
        if !self.connected {
            return;
        }
        let (reads, writes) = match how {
            Shutdown::Read => (false, self.writable),
            Shutdown::Write => (self.readable, false),
            Shutdown::Both => (false, false),
        };
        let before = (self.readable, self.writable);
        (self.readable, self.writable) = (reads, writes);
        if writes || before == (reads, writes) {
            return;
        }
        self.pending = Some(if reads {
            Control::Shutdown
        } else {
            Control::Disconnect
        });
    }

    /// Whether the peer may still send: then no octets are the end only once this is false.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.readable
    }

    /// Whether the peer has ended its sending direction, whatever this end has ended.
    #[must_use]
    pub fn is_peer_done(&self) -> bool {
        self.peer_done
    }

    /// Whether this end may send.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Whether neither end has disconnected, nor is the connection lost.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.connected
    }

    /// Whether all control messages have left, and all work requests but short messages behind the last of them.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.outstanding == 0 && self.pending.is_none() || !self.connected
    }

    /// Whether this end may send, and all room at the peer is used: the peer has read less than was sent.
    #[must_use]
    pub fn fills_peer(&self) -> bool {
        self.writable && self.outgoing.fills_target() && self.wants_target().is_none()
    }

    /// Octets that have come and were not taken.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.incoming.buffered() as usize
    }

    /// Offset in the receive buffer, and number, of the octets that come next and lie in one piece, from the octet `skip` on.
    #[must_use]
    pub fn front(&self, skip: usize) -> (usize, usize) {
        let (at, octets) = self.incoming.front(u32::try_from(skip).unwrap_or(u32::MAX));
        (at as usize, octets as usize)
    }

    /// Frees octets that were taken.
    pub fn take(&mut self, octets: usize) {
        self.incoming
            .take(u32::try_from(octets).unwrap_or(u32::MAX));
    }
}
