//! How QPs whose programs exchanged numbers and addresses themselves find each other, sans I/O (`rfc-notes/rc-oob-connect.md`): who connects when, who is
//! let in, and when it is given up.
//!
//! Order of calls: [`insert`](Pairs::insert) for every QP, [`pair`](Pairs::pair) and [`start`](Pairs::start) as its program says so;
//! [`arrived`](Pairs::arrived) for every request that comes to one of our ports, [`over`](Pairs::over) for every attempt and every
//! acceptance that came to something or to nothing, [`handle_timeout`](Pairs::handle_timeout) at or after [`poll_timeout`](Pairs::poll_timeout).
//! After each of these, what [`poll_action`](Pairs::poll_action) gives is to be done.

mod claim;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use dgiwarp_llp_tcp_mpa::ReadDepths;

pub use claim::Pairing;
pub use claim::{Claim, Refusal};

/// First pause before connecting again, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// A QP that could connect waits this long for the PSN of its own messages, which says more certainly who it is.
const WAIT_FOR_PSN: Duration = Duration::from_millis(100);
/// How long a request waits for its QP to be told of the peer.
const HOLD_FOR: Duration = Duration::from_secs(30);
/// Requests that wait so.
const MAX_HELD: usize = 256;
/// Reads outstanding at most as long as the QP has not said how many; the peer's limit is what counts then.
const MOST_READS: u16 = 128;

/// Names a request of a peer, or an attempt of ours: one number for both, never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StartupId(u64);

impl StartupId {
    pub const fn get(self) -> u64 {
        self.0
    }

    pub const fn new(number: u64) -> Self {
        Self(number)
    }
}

/// What is known of a QP that may send (`ibv_modify_qp(3)` to ready-to-send).
#[derive(Debug, Clone, Copy)]
pub struct Start {
    /// Number of the first packet, 24 bits.
    pub sq_psn: u32,
    /// Reads and atomics outstanding at most.
    pub ord: u16,
    /// How long work requests wait for the connection; `None` for ever.
    pub patience: Option<Duration>,
}

/// What is known of a QP itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Nothing waits for the connection.
    Idle,
    /// Work requests do.
    Waiting,
    /// The QP is in error, or gone: it needs none.
    Over,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Connect as an Initiator and ask with this claim; where both ends are the same QP, connect it to itself and take the claim for the answer.
    Connect {
        attempt: StartupId,
        pairing: Pairing,
        claim: Claim,
        depths: ReadDepths,
    },
    /// Give the attempt up: it is nobody's any more.
    Abandon { attempt: StartupId },
    /// Answer the request so, and say when the peer has sent something, or that it will not.
    Accept {
        request: StartupId,
        claim: Claim,
        depths: ReadDepths,
    },
    /// Say no.
    Refuse {
        request: StartupId,
        refusal: Refusal,
    },
    /// Close the connection of a request without an answer: its peer has asked again, or the QP is gone.
    Drop { request: StartupId },
    /// The connection of this attempt or request is the QP's.
    Link { qpn: u32, of: StartupId },
    /// The work requests that wait have waited for too long.
    GiveUp { qpn: u32 },
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    /// Nothing is known of the peer.
    Made,
    /// The connection is on its way.
    Pending(Pending),
    /// It is there, or was, or came to nothing.
    Over,
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    pairing: Pairing,
    start: Option<Start>,
    progress: Progress,
    /// When to try, or to look, next.
    due: Instant,
    pause: Duration,
    /// When work requests that wait have waited long enough.
    deadline: Option<Instant>,
}

/// How far the connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// Nothing is under way.
    Nothing,
    /// This end asks.
    Asks(StartupId),
    /// This end accepted, and the peer has to show that it agrees with the answer.
    Accepted(StartupId),
}

impl Pending {
    fn sq_psn(&self) -> Option<u32> {
        self.start.map(|start| start.sq_psn)
    }

    fn depths(&self) -> ReadDepths {
        ReadDepths {
            ird: self.pairing.ird,
            ord: self.start.map_or(MOST_READS, |start| start.ord),
        }
    }
}

/// A request whose QP does not know its peer yet.
#[derive(Debug)]
struct Held {
    request: StartupId,
    claim: Claim,
    until: Instant,
}

/// The QPs of a device that can be paired.
#[derive(Debug, Default)]
pub struct Pairs {
    pairs: BTreeMap<u32, Stage>,
    /// Those of them whose connection is on its way.
    pending: BTreeSet<u32>,
    /// Whose the startups are that are under way.
    startups: BTreeMap<StartupId, u32>,
    held: Vec<Held>,
    next_id: u64,
    actions: VecDeque<Action>,
}

impl Pairs {
    /// A number for a request.
    pub fn next_id(&mut self) -> StartupId {
        self.next_id += 1;
        StartupId(self.next_id)
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// There is a QP.
    pub fn insert(&mut self, qpn: u32) {
        self.pairs.insert(qpn, Stage::Made);
    }

    /// The QP is gone.
    pub fn remove(&mut self, qpn: u32) {
        self.stop(qpn);
        self.pairs.remove(&qpn);
        // Their peers hear of it when TCP closes, and try again.
        let actions = &mut self.actions;
        self.held.retain(|held| {
            let stays = held.claim.dest_qpn != qpn;
            if !stays {
                let request = held.request;
                actions.push_back(Action::Drop { request });
            }
            stays
        });
    }

    /// The QP is new again.
    pub fn reset(&mut self, qpn: u32) {
        self.stop(qpn);
        if let Some(stage) = self.pairs.get_mut(&qpn) {
            *stage = Stage::Made;
        }
    }

    /// What is under way for a QP is not meant for it any more.
    fn stop(&mut self, qpn: u32) {
        self.pending.remove(&qpn);
        if let Some(Stage::Pending(pending)) = self.pairs.get(&qpn) {
            let progress = pending.progress;
            self.end_progress(progress);
        }
    }

    fn end_progress(&mut self, progress: Progress) {
        match progress {
            Progress::Nothing => {}
            Progress::Asks(attempt) => {
                self.startups.remove(&attempt);
                self.actions.push_back(Action::Abandon { attempt });
            }
            Progress::Accepted(request) => {
                self.startups.remove(&request);
                self.actions.push_back(Action::Drop { request });
            }
        }
    }

    /// A QP was told of its peer.
    pub fn pair(&mut self, now: Instant, qpn: u32, pairing: Pairing) {
        let Some(stage) = self.pairs.get_mut(&qpn) else {
            return;
        };
        *stage = Stage::Pending(Pending {
            pairing,
            start: None,
            progress: Progress::Nothing,
            due: now + WAIT_FOR_PSN,
            pause: FIRST_PAUSE,
            deadline: None,
        });
        self.pending.insert(qpn);
        let (waiting, others): (Vec<_>, _) = std::mem::take(&mut self.held)
            .into_iter()
            .partition(|held| held.claim.dest_qpn == qpn);
        self.held = others;
        for held in waiting {
            self.decide(now, held.request, held.claim, true);
        }
    }

    /// A QP may send.
    pub fn start(&mut self, now: Instant, qpn: u32, start: Start) {
        if let Some(Stage::Pending(pending)) = self.pairs.get_mut(&qpn) {
            if pending.start.is_none() {
                pending.due = now;
            }
            pending.start = Some(start);
        }
    }

    /// Somebody at `from` asks with this private data. `is_free` tells whether a QP that was told nothing may still be connected.
    pub fn arrived(
        &mut self,
        now: Instant,
        request: StartupId,
        from: IpAddr,
        private_data: &[u8],
        is_free: impl Fn(u32) -> bool,
    ) {
        match Claim::parse(private_data) {
            // Nobody else has the address that the claim names.
            Some(claim) if claim.address() == from.to_canonical() => {
                let is_free = is_free(claim.dest_qpn);
                self.decide(now, request, claim, is_free);
            }
            Some(_) => self.refuse(request, Refusal::Mismatch),
            None => self.refuse(request, Refusal::Unknown),
        }
    }

    fn refuse(&mut self, request: StartupId, refusal: Refusal) {
        self.actions.push_back(Action::Refuse { request, refusal });
    }

    fn decide(&mut self, now: Instant, request: StartupId, claim: Claim, is_free: bool) {
        let qpn = claim.dest_qpn;
        match self.pairs.get(&qpn).copied() {
            None => self.refuse(request, Refusal::Unknown),
            Some(Stage::Over) => self.refuse(request, Refusal::Taken),
            Some(Stage::Made) if !is_free => self.refuse(request, Refusal::Taken),
            Some(Stage::Made) => self.hold(now, request, claim),
            Some(Stage::Pending(pending)) => self.answer(request, claim, (qpn, pending)),
        }
    }

    fn hold(&mut self, now: Instant, request: StartupId, claim: Claim) {
        // Whoever asks again has given up what it asked before.
        let same = |held: &Held| {
            (held.claim.qpn, held.claim.dest_qpn) == (claim.qpn, claim.dest_qpn)
                && held.claim.address() == claim.address()
        };
        if let Some(earlier) = self.held.iter().position(same) {
            let request = self.held.remove(earlier).request;
            self.actions.push_back(Action::Drop { request });
        }
        if self.held.len() >= MAX_HELD {
            return self.refuse(request, Refusal::Unknown);
        }
        self.held.push(Held {
            request,
            claim,
            until: now + HOLD_FOR,
        });
    }

    /// A QP that knows its peer is asked for.
    fn answer(&mut self, request: StartupId, claim: Claim, (qpn, pending): (u32, Pending)) {
        let pairing = pending.pairing;
        let sq_psn = pending.sq_psn();
        let asks = pairing.initiates(qpn) || pairing.is_itself(qpn);
        if asks || !pairing.matches(&claim, qpn, sq_psn) {
            return self.refuse(request, Refusal::Mismatch);
        }
        // Whoever asks again did not get the earlier answer, or did not agree with it.
        self.end_progress(pending.progress);
        self.startups.insert(request, qpn);
        self.set_progress(qpn, Progress::Accepted(request));
        self.actions.push_back(Action::Accept {
            request,
            claim: pairing.claim(qpn, sq_psn),
            depths: pending.depths(),
        });
    }

    fn set_progress(&mut self, qpn: u32, progress: Progress) {
        if let Some(Stage::Pending(pending)) = self.pairs.get_mut(&qpn) {
            pending.progress = progress;
        }
    }

    /// An attempt or an acceptance is over. Of an attempt, `reply` is the private data of the answer that accepts; of an acceptance it is there, and
    /// empty, when the peer has sent something.
    pub fn over(&mut self, now: Instant, startup: StartupId, reply: Option<&[u8]>) {
        let Some(qpn) = self.startups.remove(&startup) else {
            return;
        };
        let Some(Stage::Pending(pending)) = self.pairs.get_mut(&qpn) else {
            return;
        };
        let agreed = match (pending.progress, reply) {
            (_, None) | (Progress::Nothing, Some(_)) => false,
            (Progress::Accepted(_), Some(_)) => true,
            (Progress::Asks(_), Some(reply)) => {
                let sq_psn = pending.sq_psn();
                Claim::parse(reply)
                    .is_some_and(|claim| pending.pairing.matches(&claim, qpn, sq_psn))
            }
        };
        if agreed {
            self.pairs.insert(qpn, Stage::Over);
            self.pending.remove(&qpn);
            self.actions.push_back(Action::Link { qpn, of: startup });
            return;
        }
        // Nobody listens yet, or the peer does not know us yet, or is another: another time.
        if let Progress::Asks(_) = pending.progress {
            pending.due = now + pending.pause;
            pending.pause = (pending.pause * 2).min(LONGEST_PAUSE);
        }
        pending.progress = Progress::Nothing;
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let pending = self.pending.iter().filter_map(|qpn| self.pairs.get(qpn));
        let pairs = pending.filter_map(|stage| match stage {
            Stage::Pending(pending) => Some(pending.due),
            Stage::Made | Stage::Over => None,
        });
        pairs.chain(self.held.iter().map(|held| held.until)).min()
    }

    /// Does what the time has come for. `need` tells of a QP.
    pub fn handle_timeout(&mut self, now: Instant, need: impl Fn(u32) -> Need) {
        let actions = &mut self.actions;
        self.held.retain(|held| {
            let waits = held.until > now;
            if !waits {
                actions.push_back(Action::Refuse {
                    request: held.request,
                    refusal: Refusal::Unknown,
                });
            }
            waits
        });
        let due: Vec<u32> = self.pending.iter().copied().filter(|qpn| {
            matches!(self.pairs.get(qpn), Some(Stage::Pending(pending)) if pending.due <= now)
        }).collect();
        for qpn in due {
            self.look_after(now, qpn, need(qpn));
        }
    }

    /// Does for one QP what is due.
    fn look_after(&mut self, now: Instant, qpn: u32, need: Need) {
        let Some(Stage::Pending(pending)) = self.pairs.get_mut(&qpn) else {
            return;
        };
        let too_long = match need {
            Need::Over => false,
            Need::Idle => {
                pending.deadline = None;
                false
            }
            Need::Waiting => match pending.start.and_then(|start| start.patience) {
                None => false,
                Some(patience) => *pending.deadline.get_or_insert(now + patience) <= now,
            },
        };
        if too_long || need == Need::Over {
            if too_long {
                self.actions.push_back(Action::GiveUp { qpn });
            }
            self.stop(qpn);
            self.pairs.insert(qpn, Stage::Over);
            return;
        }
        // Until there is something to try, only the deadline is looked after.
        let look_again = now + LONGEST_PAUSE;
        pending.due = pending.deadline.map_or(look_again, |it| it.min(look_again));
        let (pairing, depths, sq_psn) = (pending.pairing, pending.depths(), pending.sq_psn());
        let asks = pairing.initiates(qpn) || pairing.is_itself(qpn);
        if !asks || pending.progress != Progress::Nothing {
            return;
        }
        let attempt = self.next_id();
        self.startups.insert(attempt, qpn);
        self.set_progress(qpn, Progress::Asks(attempt));
        self.actions.push_back(Action::Connect {
            attempt,
            pairing,
            claim: pairing.claim(qpn, sq_psn),
            depths,
        });
    }
}
