//! Out-of-band connections, sans I/O (`rfc-notes/rc-oob-connect.md`): which QP connects when, which requests are accepted, and when a QP gives up.
//!
//! Order of calls: [`insert`](Pairs::insert) for every QP, [`pair`](Pairs::pair) and [`start`](Pairs::start) as its program calls for;
//! [`arrived`](Pairs::arrived) for every request that comes to one of our ports, [`over`](Pairs::over) for every attempt and every
//! acceptance that has ended, [`handle_timeout`](Pairs::handle_timeout) at or after [`poll_timeout`](Pairs::poll_timeout).
//! After each of these, the actions of [`poll_action`](Pairs::poll_action) are carried out.

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
/// Time that a request waits for its QP to get the peer's address and QPN, or for a PSN.
const HOLD_FOR: Duration = Duration::from_secs(30);
/// Requests that wait at a time.
const MAX_HELD: usize = 256;
/// Outstanding Reads while the QP has no limit of its own; the peer's limit applies.
const MOST_READS: u16 = 128;

/// Number of a request of a peer, or of an attempt of this end; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StartupId(u64);

impl StartupId {
    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The identifier with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }
}

/// Attributes of a QP that may send (`ibv_modify_qp(3)` to ready-to-send).
#[derive(Debug, Clone, Copy)]
pub struct Start {
    /// Number of the first packet, 24 bits.
    pub sq_psn: u32,
    /// Reads and atomics outstanding at most.
    pub ord: u16,
    /// Time that work requests wait for the connection; `None` for ever.
    pub patience: Option<Duration>,
}

/// Need of a QP for its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// No work request waits for the connection.
    Idle,
    /// Work requests wait.
    Waiting,
    /// The QP is in error or gone.
    Over,
}

/// An action for the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Connect as an Initiator with this claim as private data; where both ends are the same QP, connect it to itself and take the claim for the Reply's.
    Connect {
        /// Number of the attempt.
        attempt: StartupId,
        /// Address and QPN of the peer.
        pairing: Pairing,
        /// Private data of the Request.
        claim: Claim,
        /// Read depths of this end.
        depths: ReadDepths,
    },
    /// Abandon an attempt.
    Abandon {
        /// Number of the attempt.
        attempt: StartupId,
    },
    /// Accept a request, and report when the peer has sent its first FPDU, or that it will not.
    Accept {
        /// Number of the request.
        request: StartupId,
        /// Private data of the Reply.
        claim: Claim,
        /// Read depths of this end.
        depths: ReadDepths,
    },
    /// Reject a request.
    Refuse {
        /// Number of the request.
        request: StartupId,
        /// Reason.
        refusal: Refusal,
    },
    /// Close the connection of a request without a Reply: the peer has sent another, or the QP is gone.
    Drop {
        /// Number of the request.
        request: StartupId,
    },
    /// Link the QP with the connection of an attempt or request.
    Link {
        /// Number of the QP.
        qpn: u32,
        /// Number of the attempt or request.
        of: StartupId,
    },
    /// Fail the work requests that wait: they have waited for too long.
    GiveUp {
        /// Number of the QP.
        qpn: u32,
    },
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    /// The QP has no address and QPN of a peer.
    Made,
    /// The connection is being established.
    Pending(Pending),
    /// The connection is established, has ended, or failed.
    Over,
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    pairing: Pairing,
    start: Option<Start>,
    progress: Progress,
    /// The last Request of this end had no SQ PSN.
    asked_without_psn: bool,
    /// The Request that was accepted last had the PSN of its sender.
    accepted_with_psn: bool,
    /// Time of the next attempt or check.
    due: Instant,
    pause: Duration,
    /// Deadline of work requests that wait.
    deadline: Option<Instant>,
}

/// Progress of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// No startup is under way.
    Nothing,
    /// This end has sent a Request.
    Asks(StartupId),
    /// This end has accepted, and the peer has to confirm with its first FPDU.
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

/// A request whose QP has no address and QPN of a peer yet, or of which neither end has a PSN that the other could check.
#[derive(Debug)]
struct Held {
    request: StartupId,
    claim: Claim,
    until: Instant,
}

/// The QPs of a device that may be connected out of band.
#[derive(Debug, Default)]
pub struct Pairs {
    pairs: BTreeMap<u32, Stage>,
    /// QPs of them whose connection is being established.
    pending: BTreeSet<u32>,
    /// QPs of the startups that are under way.
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

    /// The next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// A QP was created.
    pub fn insert(&mut self, qpn: u32) {
        self.pairs.insert(qpn, Stage::Made);
    }

    /// The QP is gone.
    pub fn remove(&mut self, qpn: u32) {
        self.stop(qpn);
        self.pairs.remove(&qpn);
        // Their peers receive the end of TCP, and try again.
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

    /// The QP was reset.
    pub fn reset(&mut self, qpn: u32) {
        self.stop(qpn);
        if let Some(stage) = self.pairs.get_mut(&qpn) {
            *stage = Stage::Made;
        }
    }

    /// Ends the startups of a QP.
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

    /// A QP got the address and QPN of its peer.
    pub fn pair(&mut self, now: Instant, qpn: u32, pairing: Pairing) {
        let Some(stage) = self.pairs.get_mut(&qpn) else {
            return;
        };
        *stage = Stage::Pending(Pending {
            pairing,
            start: None,
            progress: Progress::Nothing,
            asked_without_psn: false,
            accepted_with_psn: false,
            due: now,
            pause: FIRST_PAUSE,
            deadline: None,
        });
        self.pending.insert(qpn);
        self.decide_held(now, qpn);
    }

    /// Decides again on the requests for a QP that wait.
    fn decide_held(&mut self, now: Instant, qpn: u32) {
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
                // A Request that is under way has no PSN, and a peer without one waits for another Request.
                pending.due = now;
            }
            pending.start = Some(start);
            self.decide_held(now, qpn);
        }
    }

    /// A request with this private data arrived from `from`. `is_free` checks whether a QP without a peer may still be connected.
    pub fn arrived(
        &mut self,
        now: Instant,
        request: StartupId,
        from: IpAddr,
        private_data: &[u8],
        is_free: impl Fn(u32) -> bool,
    ) {
        match Claim::parse(private_data) {
            // No other host has the address that the claim names.
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
            Some(Stage::Pending(pending)) => self.answer(now, request, claim, (qpn, pending)),
        }
    }

    fn hold(&mut self, now: Instant, request: StartupId, claim: Claim) {
        // A peer that sends another request has abandoned the one before.
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

    /// Answers a request for a QP that has a peer.
    fn answer(
        &mut self,
        now: Instant,
        request: StartupId,
        claim: Claim,
        (qpn, pending): (u32, Pending),
    ) {
        let pairing = pending.pairing;
        let sq_psn = pending.sq_psn();
        let asks = pairing.initiates(qpn) || pairing.is_itself(qpn);
        if asks || !pairing.matches(&claim, qpn, sq_psn) {
            return self.refuse(request, Refusal::Mismatch);
        }
        // An Initiator that got its PSN has replaced its Request without one, which came late.
        let is_replaced = pending.accepted_with_psn && claim.sq_psn.is_none();
        if is_replaced && matches!(pending.progress, Progress::Accepted(_)) {
            return self.refuse(request, Refusal::Mismatch);
        }
        // Neither end may send yet, and nothing distinguishes this life of a QP from another one.
        if claim.sq_psn.is_none() && sq_psn.is_none() {
            return self.hold(now, request, claim);
        }
        // A peer that sends another request did not get the earlier Reply, or did not accept it.
        self.end_progress(pending.progress);
        self.startups.insert(request, qpn);
        if let Some(Stage::Pending(pending)) = self.pairs.get_mut(&qpn) {
            pending.progress = Progress::Accepted(request);
            pending.accepted_with_psn = claim.sq_psn.is_some();
        }
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

    /// An attempt or an acceptance has ended. Of an attempt, `reply` is the private data of an accepting Reply; of an acceptance it is present and
    /// empty once the peer has sent its first FPDU.
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
        // No listener yet, or the peer's QP has no peer yet or another one: try later.
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

    /// Handles deadlines that have passed. `need` returns the need of a QP.
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

    /// Handles the deadline of one QP.
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
        // Until an attempt is possible, only the deadline counts.
        let look_again = now + LONGEST_PAUSE;
        pending.due = pending.deadline.map_or(look_again, |it| it.min(look_again));
        let (pairing, depths, sq_psn) = (pending.pairing, pending.depths(), pending.sq_psn());
        let asks = pairing.initiates(qpn) || pairing.is_itself(qpn);
        let outdated = pending.asked_without_psn && sq_psn.is_some();
        if !asks || (pending.progress != Progress::Nothing && !outdated) {
            return;
        }
        pending.asked_without_psn = sq_psn.is_none();
        let earlier = pending.progress;
        self.end_progress(earlier);
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
