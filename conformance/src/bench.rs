//! The bench of a case: connections to the device, its agent if there is one, and the notebook of trials.

use std::io;
use std::net::{IpAddr, SocketAddr};

use thiserror::Error;

use crate::agent::{Agent, AgentError, Connection, access};
use crate::clock;
use crate::oracle::{Allowed, Outcome, Reaction, judge};
use crate::peer::{Patience, Peer};
use crate::recording::sequence::{self, Step};
use crate::recording::{Recorder, Tape, Way};
use crate::station::Station;
use crate::wire::ddp::{Segment, opcode};
use crate::wire::framing::Wrong;
use crate::wire::hex;
use crate::wire::startup::{self, Depths, Startup};

/// How much of each direction a finding shows; packet files have all of it.
const MOST_SHOWN: usize = 256;

/// Why a case could not be carried through.
#[derive(Debug, Error)]
pub enum Broken {
    /// TCP does not connect.
    #[error("cannot connect to the device: {0}")]
    Connect(#[source] io::Error),
    /// The device's connection does not come.
    #[error(
        "the device does not connect to the tester at {0}: a firewall may drop its connections (--listen-port has them go to known ports), or --from is not its way to the tester"
    )]
    NotCalled(SocketAddr),
    /// The tester's own address or port.
    #[error(
        "the tester cannot have a socket at its own address, which --from and --listen-port give: {0}"
    )]
    Own(#[source] io::Error),
    /// A good startup does not succeed.
    #[error("a good startup does not succeed: {0}")]
    Startup(String),
    /// The first FPDU is not answered.
    #[error("an RDMA Read of nothing is not answered on a new connection: {0}")]
    First(String),
    /// A good datagram of a new queue pair, or to it.
    #[error("datagrams: {0}")]
    Datagram(String),
    /// The agent.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The device cannot be tested this way; no fault of it.
    #[error("{0}")]
    Skip(&'static str),
}

/// How the tester meets the device.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the device listens.
    pub target: SocketAddr,
    /// The MPA revision of good Requests: 1, or 2 with read depths.
    pub revision: u8,
    /// Whether good startup frames ask for CRCs. Cases about CRCs ask for them whatever this is.
    pub crc: bool,
    /// How long to wait.
    pub patience: Patience,
    /// Connections of cases that make many.
    pub many: u32,
    /// Seed of the patterns of loss.
    pub seed: u64,
    /// The first of the tester's own ports; any if there is none.
    pub ports: Option<u16>,
}

/// Ports of the tester's own, if the first is given.
const OWN_PORTS: u16 = 16;

impl Settings {
    /// Flags of good startup frames: C or none.
    #[must_use]
    pub fn flags(&self) -> u8 {
        if self.crc { startup::C } else { 0 }
    }

    /// Addresses that the tester may take for itself at one of its own, in order.
    #[must_use]
    pub fn own(&self, at: IpAddr) -> Vec<SocketAddr> {
        match self.ports {
            Some(first) => (first..first.saturating_add(OWN_PORTS))
                .map(|port| SocketAddr::new(at, port))
                .collect(),
            None => vec![SocketAddr::new(at, 0)],
        }
    }
}

/// Verdict on one trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is allowed.
    Pass,
    /// It is not.
    Fail,
    /// It cannot be told: something else that the device does wrong, and that has a finding of its own, may be the reason.
    Inconclusive,
}

/// One thing that was tried.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Description of the trial.
    pub what: String,
    /// Verdict on the trial.
    pub verdict: Verdict,
    /// Reaction of the device.
    pub seen: String,
    /// Outcomes that are allowed, each with its clause.
    pub allowed: Vec<String>,
    /// The clause that allows what the device did, or whose rule it breaks.
    pub clause: String,
    /// The connection's octets, if it failed: sent, received.
    pub octets: Option<(String, String)>,
    /// Traffic of the connection, if it failed.
    pub steps: Vec<Step>,
    /// Which of the case's conversations it is about, from 0.
    pub conversation: Option<usize>,
}

/// Contents of a good Request.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The revision.
    pub revision: u8,
    /// Bits M and C.
    pub flags: u8,
    /// The depths, with revision 2.
    pub depths: Depths,
    /// Private data of the ULP.
    pub private_data: Vec<u8>,
}

impl Offer {
    /// The Request.
    #[must_use]
    pub fn request(&self) -> Startup {
        let mut data = Vec::new();
        let mut flags = self.flags;
        if self.revision >= 2 {
            flags |= startup::S;
            data.extend(self.depths.to_bytes());
        }
        data.extend(&self.private_data);
        Startup::new(startup::REQUEST, flags, self.revision, &data)
    }
}

/// Connections, agent and notebook of one case.
#[derive(Debug)]
pub struct Bench<'a> {
    /// How to meet the device.
    pub settings: &'a Settings,
    agent: Option<&'a mut Agent>,
    recorder: Recorder,
    trials: Vec<Trial>,
    echo: Option<(u32, u64)>,
}

impl<'a> Bench<'a> {
    /// An empty notebook.
    #[must_use]
    pub fn new(settings: &'a Settings, agent: Option<&'a mut Agent>) -> Self {
        Self {
            settings,
            agent,
            recorder: Recorder::default(),
            trials: Vec::new(),
            echo: None,
        }
    }

    /// Has the tester ask for an octet at this STag and TO, in place of a Read of nothing, whether a connection goes on.
    #[must_use]
    pub fn asking(self, echo: Option<(u32, u64)>) -> Self {
        Self { echo, ..self }
    }

    /// Trials of the case, and its traffic.
    #[must_use]
    pub fn finish(self) -> (Vec<Trial>, Recorder) {
        (self.trials, self.recorder)
    }

    /// The agent.
    ///
    /// # Errors
    /// [`Broken::Skip`] if there is none.
    pub fn agent(&mut self) -> Result<&mut Agent, Broken> {
        self.agent
            .as_deref_mut()
            .ok_or(Broken::Skip("needs an agent on the device"))
    }

    /// Whether there is an agent.
    #[must_use]
    pub fn has_agent(&self) -> bool {
        self.agent.is_some()
    }

    /// Waits for the device as long as it is worth it.
    #[must_use]
    pub fn patience(&self) -> Patience {
        self.settings.patience
    }

    /// A TCP connection, and nothing else yet.
    ///
    /// # Errors
    /// [`Broken::Connect`].
    pub fn tcp(&self) -> Result<Peer, Broken> {
        let peer = Peer::connect(self.settings.target, &self.recorder, self.patience());
        self.prepared(peer)
    }

    /// A peer on a TCP connection that the device made.
    ///
    /// # Errors
    /// [`Broken::Connect`].
    pub fn taken(&self, stream: std::net::TcpStream) -> Result<Peer, Broken> {
        self.prepared(Peer::on(stream, false, &self.recorder, self.patience()))
    }

    fn prepared(&self, peer: io::Result<Peer>) -> Result<Peer, Broken> {
        let mut peer = peer.map_err(Broken::Connect)?;
        peer.echo = self.echo;
        Ok(peer)
    }

    /// A UDP socket before a port of the device.
    ///
    /// # Errors
    /// [`Broken::Own`].
    pub fn station(&mut self, port: u16) -> Result<Station, Broken> {
        let at = self.agent()?.our_address()?;
        self.station_at(at, port)
    }

    /// A station at another address of the tester.
    ///
    /// # Errors
    /// [`Broken::Own`].
    pub fn station_at(&self, at: IpAddr, port: u16) -> Result<Station, Broken> {
        let to = SocketAddr::new(self.settings.target.ip(), port);
        let at = self.settings.own(at);
        Station::new(&at, to, &self.recorder, self.patience()).map_err(Broken::Own)
    }

    /// Contents of a good Request here: CRCs unless the settings have none, the client-server model, four Reads each way.
    #[must_use]
    pub fn offer(&self) -> Offer {
        Offer {
            revision: self.settings.revision,
            flags: self.settings.flags(),
            depths: Depths::client_server(4, 4),
            private_data: Vec::new(),
        }
    }

    /// Contents of a good Request that asks for CRCs.
    #[must_use]
    pub fn offer_with_crc(&self) -> Offer {
        Offer {
            flags: startup::C,
            ..self.offer()
        }
    }

    /// A connection after startup, without an FPDU yet.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn started(&self, offer: &Offer) -> Result<Peer, Broken> {
        let mut peer = self.tcp()?;
        let request = offer.request();
        let reaction = peer.ask(&request);
        let Some(reply) = reaction
            .startup()
            .filter(|reply| !reply.has(startup::R) && reply.key == startup::REPLY)
            .cloned()
        else {
            return Err(Broken::Startup(reaction.to_string()));
        };
        peer.full_operation(&request, &reply);
        Ok(peer)
    }

    /// A connection on which FPDUs have gone both ways.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn open_with(&self, offer: &Offer) -> Result<Peer, Broken> {
        let mut peer = self.started(offer)?;
        let mut came = Vec::new();
        if peer.first_echo(&mut came) {
            return Ok(peer);
        }
        let reaction = Reaction { came, lives: false };
        Err(Broken::First(reaction.to_string()))
    }

    /// Opens a connection with [`offer`](Self::offer).
    ///
    /// # Errors
    /// [`Broken`].
    pub fn open(&self) -> Result<Peer, Broken> {
        self.open_with(&self.offer())
    }

    /// A connection, and the agent's end of it.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn open_served(&mut self) -> Result<(Peer, Connection), Broken> {
        let offer = self.offer();
        self.open_served_with(&offer)
    }

    /// Opens a served connection with another offer.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn open_served_with(&mut self, offer: &Offer) -> Result<(Peer, Connection), Broken> {
        self.agent()?.call("skip_accepted", serde_json::json!({}))?;
        let peer = self.open_with(offer)?;
        let connection = self.agent()?.accepted()?;
        Ok((peer, connection))
    }

    /// Whether the device's program learns in time that a connection is over: a work request of its fails, or there is an event. With it what came, or came last.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn told_of_end(&mut self, on: Connection) -> Result<(bool, String), Broken> {
        /// `RDMA_CM_EVENT_ESTABLISHED`.
        const ESTABLISHED: u64 = 9;
        let Patience { answer, quiet, .. } = self.patience();
        let until = clock::now() + answer;
        let mut last = "nothing".to_owned();
        loop {
            match self.agent()?.poll(on, quiet) {
                Ok(wc) if wc.status != 0 => return Ok((true, format!("{wc:?}"))),
                Ok(wc) => last = format!("{wc:?}"),
                Err(AgentError::Refused { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            match self.agent()?.event(on, quiet) {
                Ok((event, _)) if event != ESTABLISHED => {
                    return Ok((true, format!("event {event}")));
                }
                Ok(_) | Err(AgentError::Refused { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            if clock::now() >= until {
                return Ok((false, last));
            }
        }
    }

    /// Notes whether the device's program sees nothing of operations that its device serves by itself.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn no_completion(
        &mut self,
        on: Connection,
        clause: &'static str,
        peer: &Peer,
    ) -> Result<(), Broken> {
        let quiet = self.patience().quiet;
        let wc = self.agent()?.poll(on, quiet);
        self.require(
            "what the device's program sees of them",
            !wc.as_ref().is_ok_and(|wc| wc.status == 0),
            format!("{wc:?}"),
            "no completion",
            clause,
            Some(peer),
        );
        Ok(())
    }

    /// Notes whether what the device did is one of the outcomes that are allowed.
    pub fn judge(
        &mut self,
        what: impl Into<String>,
        peer: &Peer,
        reaction: &Reaction,
        allowed: &[Allowed],
    ) {
        let fits = judge(reaction, allowed);
        let list = allowed
            .iter()
            .map(|one| format!("{} ({})", one.outcome, one.clause))
            .collect();
        let clause = fits
            .or_else(|| allowed.first().copied())
            .map_or("", |one| one.clause);
        self.note(
            what.into(),
            fits.is_some(),
            reaction.to_string(),
            list,
            clause,
            Some(peer.tape()),
        );
    }

    /// Notes whether a rule holds.
    pub fn require(
        &mut self,
        what: impl Into<String>,
        holds: bool,
        seen: impl ToString,
        rule: &str,
        clause: &'static str,
        peer: Option<&Peer>,
    ) {
        let list = vec![format!("{rule} ({clause})")];
        let tape = peer.map(Peer::tape);
        self.note(what.into(), holds, seen.to_string(), list, clause, tape);
    }

    /// A ULPDU that the device accepts on connections of this offer, for trials with nothing but one fault more: a Write of nothing, or, of a device that refuses
    /// those, of octets into its memory. `None` without such a one: what a trial would show is then noted as inconclusive.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn control(&mut self, what: &str, offer: &Offer) -> Result<Option<Vec<u8>>, Broken> {
        let empty = Segment::tagged(opcode::WRITE, 0, 0, &[]).to_bytes();
        let (peer, reaction) = self.control_of(offer, &empty)?;
        if Outcome::GoesOn.is(&reaction) {
            return Ok(Some(empty));
        }
        let mut failed = (peer, reaction);
        if self.has_agent() {
            let rights = access::LOCAL_WRITE | access::REMOTE_WRITE;
            let memory = self.agent()?.register(64, rights, 0)?;
            let write = Segment::tagged(opcode::WRITE, memory.stag, memory.to, b"ctrl").to_bytes();
            let (peer, reaction) = self.control_of(offer, &write)?;
            if Outcome::GoesOn.is(&reaction) {
                return Ok(Some(write));
            }
            failed = (peer, reaction);
        }
        let (peer, reaction) = failed;
        let rule = "the connection goes on without the fault (see T00)";
        self.cannot_judge(what, reaction.to_string(), rule, &peer);
        Ok(None)
    }

    /// Notes a trial that shows nothing, and the rule that would have to hold for it to show something.
    pub fn cannot_judge(&mut self, what: impl Into<String>, seen: String, rule: &str, peer: &Peer) {
        let tape = Some(peer.tape());
        self.note(what.into(), false, seen, vec![rule.to_owned()], "", tape);
        if let Some(trial) = self.trials.last_mut() {
            trial.verdict = Verdict::Inconclusive;
        }
    }

    /// Whether the device serves a Read of nothing, or takes a Write of nothing, on a connection like all others: where it does not, R00 or T00 has the finding.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn takes_nothing(&self, code: u8) -> Result<bool, Broken> {
        let mut peer = self.started(&self.offer())?;
        if code == opcode::WRITE {
            peer.segment(&Segment::tagged(opcode::WRITE, 0xdead_beef, 0x1234, &[]));
        } else {
            peer.echo = None;
        }
        Ok(peer.first_echo(&mut Vec::new()))
    }

    fn control_of(&self, offer: &Offer, ulpdu: &[u8]) -> Result<(Peer, Reaction), Broken> {
        let mut peer = self.open_with(offer)?;
        peer.wrong(ulpdu, Wrong::default());
        let reaction = peer.reaction();
        Ok((peer, reaction))
    }

    /// Notes a trial with datagrams.
    pub fn expect(
        &mut self,
        what: impl Into<String>,
        holds: bool,
        seen: impl ToString,
        rule: &str,
        clause: &'static str,
        station: &Station,
    ) {
        let list = vec![format!("{rule} ({clause})")];
        let tape = Some(station.tape());
        self.note(what.into(), holds, seen.to_string(), list, clause, tape);
    }

    fn note(
        &mut self,
        what: String,
        pass: bool,
        seen: String,
        allowed: Vec<String>,
        clause: &str,
        tape: Option<Tape>,
    ) {
        let conversation = tape.as_ref().map(Tape::index);
        let tape = tape.filter(|_| !pass);
        let steps = tape
            .as_ref()
            .and_then(Tape::conversation)
            .map_or_else(Vec::new, |one| sequence::steps(&one));
        let octets = tape.map(|tape| {
            let shown = |way| {
                let octets = tape.octets(way);
                // The last octets matter.
                let from = octets.len().saturating_sub(MOST_SHOWN);
                hex(&octets[from..], MOST_SHOWN)
            };
            (shown(Way::Sent), shown(Way::Received))
        });
        self.trials.push(Trial {
            what,
            verdict: if pass { Verdict::Pass } else { Verdict::Fail },
            seen,
            allowed,
            clause: clause.to_owned(),
            octets,
            steps,
            conversation,
        });
    }
}
