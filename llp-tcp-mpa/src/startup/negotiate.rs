//! Negotiation by the two frames: configuration in, negotiated values out. Pure functions;
//! the order of events is [`Connection`](crate::Connection)'s.

use super::datagrams::DatagramTerms;
use super::enhanced::{Enhanced, ReadDepth, Rtr, RtrSet};
use super::frame::{ENHANCED_LEN, FrameKind, MAX_PRIVATE_DATA, Revision, StartupFrame};
use crate::error::{ConfigError, Error, FrameError};
use core::time::Duration;

/// The side taken in the startup: the Initiator sends its frame first. Unrelated to which
/// side opened TCP (RFC 5044 §7.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Sends the Request Frame.
    Initiator,
    /// Answers it.
    Responder,
}

/// How many RDMA Reads at a time this end can serve and wants to have outstanding, each 0
/// to [`ReadDepth::MAX`]; larger values count as that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadDepths {
    /// Inbound: RDMA Reads of the peer that can be queued here.
    pub ird: u16,
    /// Outbound: RDMA Reads that this end wants outstanding.
    pub ord: u16,
}

/// When an end prefers CRCs. They are used if either end prefers them (RFC 5044 §7.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CrcPreference {
    /// On every connection.
    Always,
    /// On connections between hosts. Within one host the octets stay in memory, and the whole path protects them as well as a CRC would
    /// (RFC 5044 §1.2).
    #[default]
    BetweenHosts,
    /// On none: the explicit request of an administrator (RFC 5044 §4.4).
    Never,
}

impl From<bool> for CrcPreference {
    /// Wherever the other end is: always, or never.
    fn from(always: bool) -> Self {
        if always { Self::Always } else { Self::Never }
    }
}

/// Configuration of one end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Revision of the Request. A Responder answers in the Request's revision.
    pub revision: Revision,
    /// Prefer CRCs.
    pub crc: CrcPreference,
    /// Both ends of the TCP connection are addresses of this host.
    pub one_host: bool,
    /// Require Markers in the FPDUs that arrive here. Whether Markers are *sent* is the
    /// peer's decision.
    pub markers: bool,
    /// Read depths of an Initiator; a Responder gives its own with its decision.
    pub depths: ReadDepths,
    /// As Initiator ask for peer-to-peer mode (RFC 6581 §9.2).
    pub peer_to_peer: bool,
    /// With [`peer_to_peer`](Self::peer_to_peer): a Responder without this mode is accepted.
    pub client_server_will_do: bool,
    /// RTR indications that this end can send and receive.
    pub rtr: RtrSet,
    /// As Initiator, offer that messages go by reliable datagrams (`rfc-notes/reliable-datagrams.md` §9.2); an offer of revision 2.
    pub datagrams: bool,
    /// Time from the start until the peer's frame must be complete.
    pub startup_timeout: Duration,
    /// Effective maximum segment size of TCP, octets.
    pub emss: u16,
}

impl Default for Config {
    /// Revision 2, CRCs between hosts, two hosts, no Markers, depths of 16, client-server model, every RTR
    /// indication, 10 s for the startup, an EMSS of 1,448 octets (MTU 1,500 with TCP
    /// timestamps).
    fn default() -> Self {
        Self {
            revision: Revision::Two,
            crc: CrcPreference::default(),
            one_host: false,
            markers: false,
            depths: ReadDepths { ird: 16, ord: 16 },
            peer_to_peer: false,
            client_server_will_do: false,
            rtr: RtrSet::ALL,
            datagrams: false,
            startup_timeout: Duration::from_secs(10),
            emss: 1448,
        }
    }
}

impl Config {
    /// Whether this end prefers CRCs on its connection: the C bit of its frame.
    pub(crate) fn prefers_crc(&self) -> bool {
        match self.crc {
            CrcPreference::Always => true,
            CrcPreference::BetweenHosts => !self.one_host,
            CrcPreference::Never => false,
        }
    }

    /// The configuration for a second attempt, on a new TCP connection, with a peer that
    /// closed TCP upon an enhanced Request: it may support revision 1 only
    /// (RFC 6581 §10). `None` if there is nothing to fall back to: revision 1 already, or
    /// peer-to-peer mode, which revision 1 does not have, unless
    /// [`client_server_will_do`](Self::client_server_will_do).
    #[must_use]
    pub fn fall_back(&self) -> Option<Self> {
        match self.revision {
            Revision::Two if !self.peer_to_peer || self.client_server_will_do => Some(Self {
                revision: Revision::One,
                peer_to_peer: false,
                ..self.clone()
            }),
            Revision::One | Revision::Two => None,
        }
    }

    /// The configuration of an Initiator for whose revision peer-to-peer mode may be missing: revision 1 has none
    /// (RFC 6581 §9.2), and its Request does not ask for it.
    #[must_use]
    pub fn for_initiator(&self) -> Self {
        Self {
            peer_to_peer: self.peer_to_peer && self.revision == Revision::Two,
            ..self.clone()
        }
    }

    /// The configuration of a Responder that grants peer-to-peer mode to every Initiator that asks for it: with an empty
    /// [`rtr`](Self::rtr) it supports every RTR indication (RFC 6581 §9.2). The Request decides on the revision and the mode, and
    /// the ULP on the depths.
    #[must_use]
    pub fn for_responder(&self) -> Self {
        Self {
            crc: self.crc,
            markers: self.markers,
            rtr: if self.rtr.is_empty() {
                RtrSet::ALL
            } else {
                self.rtr
            },
            ..Self::default()
        }
    }
}

/// A Request that awaits the ULP's decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Revision of the Request.
    pub revision: Revision,
    /// The Initiator prefers CRCs.
    pub crc: bool,
    /// The Initiator requires Markers in what we send.
    pub markers: bool,
    /// The Initiator's depths and connection model, in enhanced Requests.
    pub enhanced: Option<Enhanced>,
    /// The Initiator offers that messages go by reliable datagrams.
    pub datagrams: bool,
    /// The ULP's private data.
    pub private_data: Vec<u8>,
}

impl Request {
    /// The greatest depths of use in an answer (RFC 6581 §9.1): the IRD serves every Read that the Initiator may have outstanding,
    /// and the ORD is every Read that the Initiator serves. A depth without limit is 65,535.
    #[must_use]
    pub fn matching_depths(&self) -> ReadDepths {
        let limit = |depth: Option<ReadDepth>| match depth {
            Some(ReadDepth::Limit(limit)) => limit,
            Some(ReadDepth::LeftToUlp) | None => u16::MAX,
        };
        ReadDepths {
            ird: limit(self.enhanced.map(|it| it.ord)),
            ord: limit(self.enhanced.map(|it| it.ird)),
        }
    }
}

impl Request {
    /// The ORD of a Responder with these depths: no more than the Initiator serves (RFC 6581 §9.1).
    #[must_use]
    pub fn agreed_ord(&self, depths: ReadDepths) -> u16 {
        depths.ord.min(self.matching_depths().ord)
    }
}

/// A Reply with the Rejected Connection bit. MPA is over, TCP is left open
/// (RFC 5044 §7.1.2 rule 3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The Responder's depths: what it would need.
    pub enhanced: Option<Enhanced>,
    /// The ULP's private data.
    pub private_data: Vec<u8>,
}

/// Negotiated values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiation {
    /// The role taken here.
    pub role: Role,
    /// Revision of the frames.
    pub revision: Revision,
    /// CRCs are generated and checked, in both directions.
    pub crc: bool,
    /// We send Markers.
    pub send_markers: bool,
    /// The peer sends Markers.
    pub receive_markers: bool,
    /// Depths of this end: the configured ones where the frames were unenhanced, or where
    /// the peer leaves them to the ULP.
    pub depths: ReadDepths,
    /// Depths and model as the peer sent them, for the ULP (RFC 6581 §9.1).
    pub peer: Option<Enhanced>,
    /// In peer-to-peer mode, the RTR indications that both ends support.
    pub rtr: Option<RtrSet>,
}

/// The startup is over and full operation has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Established {
    /// Negotiated values.
    pub negotiation: Negotiation,
    /// As Initiator in peer-to-peer mode: the RTR indication that must be sent before any
    /// other FPDU (RFC 6581 §5).
    pub send_rtr: Option<Rtr>,
    /// As Initiator: the Reply's private data.
    pub private_data: Vec<u8>,
    /// As Initiator that offered it: messages go by reliable datagrams, on these terms.
    pub datagrams: Option<DatagramTerms>,
}

fn check_private_data(enhanced: bool, private_data: &[u8]) -> Result<(), ConfigError> {
    let max = MAX_PRIVATE_DATA - if enhanced { ENHANCED_LEN } else { 0 };
    let len = private_data.len();
    if len > max {
        Err(ConfigError::PrivateDataTooLong { len, max })
    } else {
        Ok(())
    }
}

/// The Request Frame of this configuration.
pub(crate) fn request_frame(
    config: &Config,
    private_data: &[u8],
) -> Result<StartupFrame, ConfigError> {
    let enhanced = match config.revision {
        Revision::One if config.peer_to_peer => return Err(ConfigError::PeerToPeer),
        Revision::One => None,
        Revision::Two if config.peer_to_peer && config.rtr.is_empty() => {
            return Err(ConfigError::PeerToPeer);
        }
        Revision::Two => Some(Enhanced {
            ird: ReadDepth::limit(config.depths.ird),
            ord: ReadDepth::limit(config.depths.ord),
            // RFC 6581 §9.2: every RTR indication that the Initiator supports is offered.
            peer_to_peer: config.peer_to_peer.then_some(config.rtr),
        }),
    };
    check_private_data(enhanced.is_some(), private_data)?;
    Ok(StartupFrame {
        kind: FrameKind::Request,
        markers: config.markers,
        crc: config.prefers_crc(),
        reject: false,
        revision: config.revision,
        datagrams: config.datagrams && enhanced.is_some(),
        enhanced,
        private_data: private_data.to_vec(),
    })
}

/// Request for the Responder's ULP.
pub(crate) fn takes_request(frame: StartupFrame) -> Request {
    Request {
        revision: frame.revision,
        crc: frame.crc,
        markers: frame.markers,
        enhanced: frame.enhanced,
        datagrams: frame.datagrams,
        private_data: frame.private_data,
    }
}

/// The Responder's answer to one of the Initiator's depths, and our own depth after it.
///
/// RFC 6581 §9.1: a depth that the Initiator leaves to the ULP is left so in the reply, and
/// the local value unchanged; otherwise ours becomes no more than what the peer asked or
/// offered.
fn answer_depth(ours: u16, theirs: ReadDepth) -> (ReadDepth, u16) {
    match theirs {
        ReadDepth::LeftToUlp => (ReadDepth::LeftToUlp, ours),
        ReadDepth::Limit(n) => {
            let depth = ours.min(n).min(ReadDepth::MAX);
            (ReadDepth::Limit(depth), depth)
        }
    }
}

/// The enhanced data of our reply and the depths that we then use.
fn answer_enhanced(
    config: &Config,
    depths: ReadDepths,
    theirs: Enhanced,
) -> (Enhanced, ReadDepths, Option<RtrSet>) {
    let common = theirs
        .peer_to_peer
        .map(|offer| offer.intersection(config.rtr));
    let rtr_is_read = common.is_some_and(|rtr| {
        rtr == RtrSet {
            read: true,
            ..RtrSet::NONE
        }
    });
    // RFC 6581 §9.1: an Initiator without reads of its own still needs room for a Read as RTR.
    let their_ord = match theirs.ord {
        ReadDepth::Limit(0) if rtr_is_read => ReadDepth::Limit(1),
        other @ (ReadDepth::Limit(_) | ReadDepth::LeftToUlp) => other,
    };
    let our_ird = if rtr_is_read {
        depths.ird.max(1)
    } else {
        depths.ird
    };
    let (ird_said, ird) = answer_depth(our_ird, their_ord);
    let (ord_said, ord) = answer_depth(depths.ord, theirs.ird);
    let reply = Enhanced {
        ird: ird_said,
        ord: ord_said,
        // RFC 6581 §9.2: A follows the Request's; without an indication in common the
        // Responder still names one that it supports, and the Initiator ends the connection.
        peer_to_peer: common.map(|rtr| if rtr.is_empty() { config.rtr } else { rtr }),
    };
    (reply, ReadDepths { ird, ord }, common)
}

fn reply_frame(
    config: &Config,
    request: &Request,
    enhanced: Option<Enhanced>,
    reject: bool,
    private_data: &[u8],
) -> Result<StartupFrame, ConfigError> {
    check_private_data(enhanced.is_some(), private_data)?;
    Ok(StartupFrame {
        kind: FrameKind::Reply,
        markers: config.markers && !reject,
        // The bit declares a preference, and CRCs are used if either end has it; a Reply
        // that repeats the Request's also suits a peer that checks the Reply only.
        crc: config.prefers_crc() || request.crc,
        reject,
        // RFC 6581 §6, §10: an enhanced Request gets an enhanced Reply, a plain one a plain one.
        revision: request.revision,
        datagrams: false,
        enhanced,
        private_data: private_data.to_vec(),
    })
}

/// The Reply that accepts `request`, and the negotiated values.
pub(crate) fn accept_reply(
    config: &Config,
    request: &Request,
    depths: ReadDepths,
    (terms, private_data): (Option<DatagramTerms>, &[u8]),
) -> Result<(StartupFrame, Negotiation), ConfigError> {
    let (enhanced, depths, rtr) = match request.enhanced {
        Some(theirs) => {
            if theirs.peer_to_peer.is_some() && config.rtr.is_empty() {
                return Err(ConfigError::PeerToPeer);
            }
            let (reply, depths, rtr) = answer_enhanced(config, depths, theirs);
            (Some(reply), depths, rtr)
        }
        None => (None, depths, None),
    };
    let frame = match terms.filter(|_| request.datagrams) {
        Some(terms) => {
            let private_data = [&terms.emit()[..], private_data].concat();
            let frame = reply_frame(config, request, enhanced, false, &private_data)?;
            StartupFrame {
                datagrams: true,
                ..frame
            }
        }
        None => reply_frame(config, request, enhanced, false, private_data)?,
    };
    let negotiation = Negotiation {
        role: Role::Responder,
        revision: request.revision,
        crc: frame.crc,
        send_markers: request.markers,
        receive_markers: config.markers,
        depths,
        peer: request.enhanced,
        rtr,
    };
    Ok((frame, negotiation))
}

/// The Reply that rejects `request`. In an enhanced one `depths` are those required here
/// (RFC 6581 §9.1).
pub(crate) fn reject_reply(
    config: &Config,
    request: &Request,
    depths: ReadDepths,
    private_data: &[u8],
) -> Result<StartupFrame, ConfigError> {
    let enhanced = request.enhanced.map(|theirs| Enhanced {
        ird: ReadDepth::limit(depths.ird),
        ord: ReadDepth::limit(depths.ord),
        peer_to_peer: theirs.peer_to_peer.map(|_| config.rtr),
    });
    reply_frame(config, request, enhanced, true, private_data)
}

/// The terms of a Reply to an Initiator that offered datagrams, and the private data for its ULP.
pub(crate) fn terms_of<'r>(
    config: &Config,
    reply: &'r StartupFrame,
) -> (Option<DatagramTerms>, &'r [u8]) {
    let terms = (config.datagrams && reply.datagrams)
        .then(|| DatagramTerms::parse(&reply.private_data))
        .flatten();
    match terms {
        Some((terms, rest)) => (Some(terms), rest),
        None => (None, &reply.private_data),
    }
}

/// Negotiation at the Initiator, with an accepting Reply. The second value is an error for
/// which the Initiator has to send a Terminate and end the connection.
///
/// # Errors
/// [`FrameError`] if no such Reply can answer our Request; TCP is then closed.
pub(crate) fn settle(
    config: &Config,
    reply: &StartupFrame,
) -> Result<(Negotiation, Option<Error>), FrameError> {
    if reply.revision > config.revision {
        return Err(FrameError::Revision(reply.revision.get()));
    }
    let own = config.depths;
    let mut refusal = None;
    let (depths, rtr) = match reply.enhanced {
        Some(theirs) => {
            // RFC 6581 §9.1: our ORD becomes at most the Responder's IRD; our IRD has to
            // reach the Responder's ORD, and what we asked for is what we have.
            let ord = match theirs.ird {
                ReadDepth::Limit(ird) => own.ord.min(ird),
                ReadDepth::LeftToUlp => own.ord,
            };
            if let ReadDepth::Limit(wanted) = theirs.ord
                && wanted > own.ird
            {
                refusal = Some(Error::InsufficientIrd {
                    wanted,
                    limit: own.ird,
                });
            }
            let consented = theirs.peer_to_peer.is_some() || !config.client_server_will_do;
            let rtr = (config.peer_to_peer && consented).then(|| {
                theirs
                    .peer_to_peer
                    .unwrap_or(RtrSet::NONE)
                    .intersection(config.rtr)
            });
            if rtr.is_some_and(RtrSet::is_empty) {
                refusal = Some(Error::NoMatchingRtr);
            }
            (ReadDepths { ird: own.ird, ord }, rtr)
        }
        // Peer-to-peer mode cannot do without the Responder's consent; depths can.
        None if config.peer_to_peer && !config.client_server_will_do => {
            return Err(FrameError::Unenhanced);
        }
        None => (own, None),
    };
    let negotiation = Negotiation {
        role: Role::Initiator,
        revision: reply.revision,
        // RFC 5044 §7.1.1: CRCs are off only if both ends prefer so.
        crc: config.prefers_crc() || reply.crc,
        send_markers: reply.markers,
        receive_markers: config.markers,
        depths,
        peer: reply.enhanced,
        rtr,
    };
    Ok((negotiation, refusal))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6581 §9.2.
    #[test]
    fn peer_to_peer_mode_is_of_revision_two_and_granted_to_everybody() {
        let config = Config {
            peer_to_peer: true,
            markers: true,
            ..Config::default()
        };
        assert_eq!(config.for_initiator(), config);
        let plain = Config {
            revision: Revision::One,
            ..config.clone()
        };
        assert!(!plain.for_initiator().peer_to_peer);
        assert!(request_frame(&plain.for_initiator(), &[]).is_ok());
        let none = Config {
            rtr: RtrSet::NONE,
            ..plain
        };
        let responder = none.for_responder();
        assert_eq!(
            (responder.rtr, responder.markers, responder.peer_to_peer),
            (RtrSet::ALL, true, false)
        );
        let write = RtrSet {
            write: true,
            ..RtrSet::NONE
        };
        let only_write = Config {
            rtr: write,
            ..none.clone()
        };
        assert_eq!(only_write.for_responder().rtr, write);
        for crc in [
            CrcPreference::Always,
            CrcPreference::BetweenHosts,
            CrcPreference::Never,
        ] {
            let config = Config {
                crc,
                ..none.clone()
            };
            assert_eq!(config.for_responder().crc, crc);
        }
    }

    /// RFC 6581 §10.
    #[test]
    fn a_second_attempt_is_of_revision_one_without_peer_to_peer_mode() {
        let peer_to_peer = Config {
            peer_to_peer: true,
            ..Config::default()
        };
        assert_eq!(peer_to_peer.fall_back(), None);
        let either = Config {
            client_server_will_do: true,
            ..peer_to_peer
        };
        let second = either.fall_back().unwrap();
        assert_eq!(second.revision, Revision::One);
        assert!(!second.peer_to_peer);
        assert_eq!(second.for_initiator(), second);
        assert_eq!(second.fall_back(), None);
    }

    /// RFC 6581 §9.1.
    #[test]
    fn depths_of_an_answer_match_those_of_the_request_crosswise() {
        let request = |enhanced| Request {
            revision: Revision::Two,
            crc: true,
            markers: false,
            enhanced,
            datagrams: false,
            private_data: Vec::new(),
        };
        let depths = Enhanced {
            ird: ReadDepth::Limit(3),
            ord: ReadDepth::LeftToUlp,
            peer_to_peer: None,
        };
        let matching = request(Some(depths)).matching_depths();
        assert_eq!((matching.ird, matching.ord), (u16::MAX, 3));
        let matching = request(None).matching_depths();
        assert_eq!((matching.ird, matching.ord), (u16::MAX, u16::MAX));
    }
}
