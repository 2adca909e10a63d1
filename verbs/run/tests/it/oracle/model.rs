//! Which calls have results to compare: a model of the connection on plain sockets.

use crate::oracle::worker::end_of;

/// Octets of one direction that were not received: fewer than any buffer has room for.
const OUTSTANDING: u64 = 30_000;
const SLOTS: usize = 6;

/// A call's name and arguments, the slot first.
pub(super) struct Call<'a> {
    pub(super) end: usize,
    pub(super) text: &'a str,
    pub(super) name: &'a str,
    arguments: Vec<u64>,
}

impl<'a> Call<'a> {
    pub(super) fn parse(line: &'a str) -> Self {
        let text = line.get(2..).unwrap_or_default();
        let mut words = text.split(' ');
        Self {
            end: end_of(line),
            text,
            name: words.next().unwrap_or_default(),
            arguments: words.filter_map(|it| it.parse().ok()).collect(),
        }
    }

    fn argument(&self, at: usize) -> u64 {
        self.arguments.get(at).copied().unwrap_or(0)
    }

    fn slot(&self, at: usize) -> usize {
        usize::try_from(self.argument(at)).unwrap_or(0)
    }

    /// Most octets that it sends.
    fn sends(&self) -> u64 {
        match self.name {
            "send" | "write" | "sendfile" | "splicein" | "give" => self.argument(1),
            "sendmsg" | "sendmany" => self.argument(1) + self.argument(2),
            "writev" => self.argument(1) + self.argument(2) + self.argument(3),
            _ => 0,
        }
    }

    fn takes(&self) -> bool {
        match self.name {
            "recv" | "recvfrom" => self.argument(2) & 2 == 0,
            "recvmsg" | "recvmany" => self.argument(3) & 2 == 0,
            name => matches!(name, "read" | "readv" | "spliceout" | "take"),
        }
    }
}

/// One end of a connection.
#[derive(Debug, Default)]
struct End {
    /// Octets on their way to it, or not received.
    outstanding: u64,
    /// Directions that it has shut down: 1 is reading, 2 is writing.
    shut: u64,
    /// Slots that have the connection.
    open: [bool; SLOTS],
    /// Its set reports octets that come.
    watches: bool,
    /// Its set has had an edge-triggered member.
    edges: bool,
    /// Its calls return instead of waiting.
    nonblocking: bool,
    /// `SO_RCVTIMEO` is set.
    timed: bool,
}

impl End {
    fn is_closed(&self) -> bool {
        self.open == [false; SLOTS]
    }
}

/// A connection on plain sockets.
#[derive(Debug)]
pub(super) struct Model {
    ends: [End; 2],
}

impl Model {
    pub(super) fn new(nonblocking: [bool; 2]) -> Self {
        let ends = nonblocking.map(|nonblocking| End {
            open: [true, false, false, false, false, false],
            nonblocking,
            ..End::default()
        });
        Self { ends }
    }

    /// Whether the results of a call are the same by the documents (`docs/use/sockets.md`, Limits).
    pub(super) fn allows(&self, call: &Call<'_>) -> bool {
        let (own, peer) = (&self.ends[call.end], &self.ends[1 - call.end]);
        if call.sends() > 0 {
            // An end that has shut both directions down is reset by octets that come, with TCP.
            let resets = peer.shut == 3 && !peer.is_closed();
            return peer.outstanding + call.sends() <= OUTSTANDING && !resets;
        }
        if call.name == "close" {
            // The peer of an end that closes with octets unread is reset, with TCP.
            let mut others = own.open;
            others[call.slot(0)] = false;
            return others != [false; SLOTS] || own.outstanding == 0;
        }
        // A FIN may be two edges of TCP, and its acknowledgement another one.
        let ends = own.shut != 0 || peer.shut & 2 != 0 || peer.is_closed();
        if call.name == "wait" && own.edges && ends {
            return false;
        }
        // Rsockets have no FIN for an end whose peer has disconnected.
        if matches!(call.name, "shutdown" | "peername") && (own.shut == 3 || peer.shut == 3) {
            return false;
        }
        // A TCP socket whose connection has ended can have another one.
        let begins = matches!(call.name, "bind" | "listenon" | "again");
        !begins || own.shut == 0 && peer.shut == 0 && !peer.is_closed()
    }

    /// Whether a call that waits ends by another one, and both have results to compare.
    pub(super) fn allows_both(&self, first: &Call<'_>, second: &Call<'_>) -> bool {
        // More octets than both ways have room for are taken while they are sent.
        if first.name == "take" {
            return self.is_new();
        }
        let (waiting, ended) = (&self.ends[first.end], &self.ends[second.end]);
        let is_last = ended.open.iter().filter(|it| **it).count() == 1 && ended.open[0];
        let ends = second.name != "close" || is_last;
        let wakes = first.name != "wait" || self.ends[first.end].watches;
        let waits = first.name != "recv" || !waiting.nonblocking && !waiting.timed;
        let is_empty = waiting.outstanding == 0 && waiting.shut & 1 == 0;
        let are_open = waiting.open[0] && ended.open[0] && ended.shut & 2 == 0;
        ends && wakes && waits && is_empty && are_open && self.allows(second)
    }

    /// Whether a call may be made before the effects of others have come.
    pub(super) fn may_be_at_once(&self, call: &Call<'_>) -> bool {
        call.sends() > 0 && !self.ends[1 - call.end].is_closed()
    }

    /// Whether all octets that are on their way have come, by the states of both ends.
    pub(super) fn have_come(&self, states: &[String; 2]) -> bool {
        let has_come = |(end, state): (&End, &String)| {
            let found = state.split(' ').nth(1).unwrap_or_default();
            !end.open[0] || found == end.outstanding.to_string()
        };
        self.ends.iter().zip(states).all(has_come)
    }

    /// Whether both directions are open, without octets on their way.
    fn is_new(&self) -> bool {
        let is_new = |end: &End| end.outstanding == 0 && end.shut == 0 && end.open[0];
        self.ends.iter().all(is_new)
    }

    /// Takes the result of a call.
    pub(super) fn note(&mut self, call: &Call<'_>, result: &str) {
        let first = result.split(' ').next().unwrap_or_default();
        let Ok(count) = first.parse::<u64>() else {
            return;
        };
        let end = &mut self.ends[call.end];
        match call.name {
            "shutdown" => end.shut |= call.argument(1) + 1,
            "close" => end.open[call.slot(0)] = false,
            "nonblock" | "fionbio" => end.nonblocking = call.argument(1) != 0,
            "rcvtimeo" => end.timed = call.argument(1) != 0,
            "ctl" => {
                let events = call.argument(2);
                end.edges |= events & 1 << 31 != 0;
                end.watches = call.argument(1) != 2 && events & (1 | 4 | 1 << 30) == 1;
            }
            "dup" | "dupfd" => end.open[call.slot(1)] = true,
            _ if call.takes() => end.outstanding = end.outstanding.saturating_sub(count),
            _ if call.sends() > 0 => self.ends[1 - call.end].outstanding += count,
            _ => {}
        }
    }
}
