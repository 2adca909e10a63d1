//! Questions whether a connection goes on: Reads of nothing, or Reads of an octet where the device refuses those.

use crate::agent::{Agent, access};
use crate::bench::{Bench, Broken, Settings, Trial, Verdict};
use crate::recording::Recorder;

/// The case about Reads of nothing.
pub(super) const CASE: &str = "R00";

/// How the tester asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Echo {
    /// With a Read of nothing.
    Nothing,
    /// With a Read of an octet that the agent registers.
    Octet,
    /// Not at all: the device refuses Reads of nothing, and has no agent.
    Unanswered,
}

impl Echo {
    /// The way that works with this device, and whether a good connection came up.
    pub(super) fn of(settings: &Settings, agent: Option<&mut Agent>) -> (Self, bool) {
        match Bench::new(settings, None).open() {
            Ok(_) => return (Self::Nothing, true),
            Err(Broken::First(_)) => {}
            Err(_) => return (Self::Nothing, false),
        }
        let Some(agent) = agent else {
            return (Self::Unanswered, false);
        };
        let source = Self::Octet.source(Some(agent));
        match Bench::new(settings, None).asking(source).open() {
            Ok(_) => (Self::Octet, true),
            // Then something else is wrong with the device.
            Err(_) => (Self::Nothing, false),
        }
    }

    /// STag and TO of an octet for the next connections; none for Reads of nothing. Good until the agent destroys all.
    pub(super) fn source(self, agent: Option<&mut Agent>) -> Option<(u32, u64)> {
        let agent = agent.filter(|_| self == Self::Octet)?;
        let rights = access::LOCAL_WRITE | access::REMOTE_READ;
        // Without it the Reads are of nothing, and have their finding.
        let memory = agent.register(1, rights, 0).ok()?;
        Some((memory.stag, memory.to))
    }

    /// Whether the device takes a good connection.
    pub(super) fn alive(
        self,
        settings: &Settings,
        source: Option<(u32, u64)>,
    ) -> Result<(), Broken> {
        let bench = Bench::new(settings, None).asking(source);
        let peer = match self {
            Self::Nothing | Self::Octet => bench.open(),
            Self::Unanswered => bench.started(&bench.offer()),
        };
        peer.map(drop)
    }

    /// Takes back the failures of trials whose question this device does not answer; whether there were any.
    pub(super) fn reconsider(self, trials: &mut [Trial], recorder: &Recorder) -> bool {
        if self != Self::Unanswered {
            return false;
        }
        let conversations = recorder.conversations();
        let mut any = false;
        for trial in trials {
            let asked = trial
                .conversation
                .and_then(|index| conversations.get(index))
                .is_some_and(|conversation| conversation.asks_nothing);
            if asked && trial.verdict == Verdict::Fail {
                trial.verdict = Verdict::Inconclusive;
                any = true;
            }
        }
        any
    }
}
