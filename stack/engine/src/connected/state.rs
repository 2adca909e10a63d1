//! Parts of an engine's state, and its settings.

use std::net::SocketAddr;
use std::time::Instant;

use dgiwarp_memory::Access;
use dgiwarp_rdmap::stream::{Capabilities, Message, Stream};

use crate::mr::{PdId, StreamId};
use crate::recv_queue::RecvWqe;
use crate::types::{Completion, RcOptions};

/// Entries of the send queue, at most, from which on their room is wanted.
pub(super) const CROWD: usize = 32;
/// Most FPDUs of one system call.
pub(super) const MOST: usize = 8;

/// RDMAP stream of a connection.
pub(super) type RcStream = Stream<RecvWqe, u64>;

/// Settings of a connected QP's engine.
#[derive(Debug, Clone, Copy)]
pub struct RcConfig {
    /// Number of the QP.
    pub qpn: u32,
    /// Protection domain of the QP.
    pub pd: PdId,
    /// Address of the peer, for completions.
    pub peer: SocketAddr,
    /// Behaviour where the RFCs leave it open.
    pub options: RcOptions,
    /// The connection was made out of band: to programs it has no end of its own.
    pub paired: bool,
    /// Rights that no key gives the peer.
    pub denied: Access,
}

impl RcConfig {
    /// Stream whose STags are this QP's.
    pub(super) const fn stream(&self) -> StreamId {
        StreamId {
            pd: self.pd,
            qpn: self.qpn,
        }
    }
}

/// Capabilities in our hello; `None` where this end sends none.
pub(super) fn capabilities(options: RcOptions) -> Option<Capabilities> {
    let all = match options.completion {
        Completion::Placed => Capabilities::WANTS_ACKNOWLEDGEMENTS,
        Completion::Local => Capabilities::default(),
    };
    let all = all
        .with(Capabilities::TAKES_IMMEDIATES)
        .with(Capabilities::REQUESTS_ACKS)
        .with(Capabilities::TAKES_RNR_LIMITS);
    options.hello.then_some(all)
}

/// Deadlines of the detection.
#[derive(Debug, Default)]
pub(super) struct DetectPeer {
    pub(super) completions: Wait,
    /// Until when a Send with immediate waits.
    pub(super) immediate_until: Option<Instant>,
    /// The deadline of a Send with immediate has passed.
    pub(super) immediate_timed_out: bool,
    /// The deadline of completions has passed, and they have not been completed yet.
    pub(super) timed_out: bool,
}

/// Whether completions wait for an undetected peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Wait {
    /// No message has left.
    #[default]
    Idle,
    Until(Instant),
    Over,
}

/// Acknowledgements, beside what the stream counts.
#[derive(Debug)]
pub(super) struct Acks {
    /// Octets received since the last acknowledgement.
    pub(super) octets: usize,
    /// When the oldest message without acknowledgement was placed.
    pub(super) pending_since: Option<Instant>,
    /// When acknowledgements that the sender does not wait for are flushed. It stays when they leave earlier, so that it is set once in
    /// [`UNAWAITED_FOR`] and not for each message.
    pub(super) unawaited_until: Option<Instant>,
    /// An acknowledgement leaves even if nothing else does.
    pub(super) flush: bool,
    /// Sends and Writes that the peer has placed as its answers to later requests prove.
    pub(super) proven: u64,
    /// Sends and Writes that left up to and with the last signaled one.
    pub(super) wanted: u64,
    /// Entries of the send queue from which on their room is wanted, so that unsignaled ones are asked for too.
    pub(super) crowd: usize,
    /// All are wanted: the connection is about to end.
    pub(super) all_wanted: bool,
    /// The driver takes them from memory that the peer shares, and polls it: none is requested.
    pub(super) in_memory: bool,
}

impl Default for Acks {
    fn default() -> Self {
        Self {
            octets: 0,
            pending_since: None,
            unawaited_until: None,
            flush: false,
            proven: 0,
            wanted: 0,
            crowd: CROWD,
            all_wanted: false,
            in_memory: false,
        }
    }
}

/// A Send or Write of which segments have left.
#[derive(Debug)]
pub(super) struct Sending {
    /// Number in the send queue.
    pub(super) number: u64,
    pub(super) message: Message,
}

/// FPDUs of the next call. FPDUs that TCP does not take are made again, so the number falls to one after that.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batch(pub(super) usize);

impl Default for Batch {
    fn default() -> Self {
        Self(MOST)
    }
}
