//! MPA startup of connected queue pairs: RFC 6581's rules that depend on what an engine can do, and when an attempt is repeated.

use std::time::{Duration, Instant};

use dgiwarp_llp_tcp_mpa::{
    Config, Connection, CrcPreference, Error, Negotiation, ReadDepths, RtrSet,
};
use dgiwarp_rdmap::stream::{Depths, StreamError, last_word};

/// RTR indications that an engine sends, and receives without a trace. A zero-length Send would consume a receive (RFC 6581 §9.2).
const RTR: RtrSet = RtrSet {
    write: true,
    read: true,
    ..RtrSet::NONE
};

/// Attempts that are repeated where no program listens. Programs exchange a port number and listen on it a moment later, or close a listener and open
/// the next one.
const MAX_REFUSALS: u32 = 6;
/// Delay of the first of them. Each delay is twice the one before: 315 ms in all.
const FIRST_DELAY: Duration = Duration::from_millis(5);

/// Time that an Initiator in peer-to-peer mode has for its RTR indication, from the Reply: it is due at once (RFC 6581 §5).
pub const RTR_WITHIN: Duration = Duration::from_secs(5);

/// The configuration of a startup on a TCP connection with this effective maximum segment size, octets, whose two addresses are this host's or
/// not.
#[must_use]
pub fn startup_config(mpa: &Config, emss: u16, one_host: bool) -> Config {
    Config {
        emss,
        one_host,
        rtr: mpa.rtr.intersection(RTR),
        ..mpa.clone()
    }
}

/// The configuration of out-of-band connections: peer-to-peer mode, since either end may send first (RFC 6581 §5).
#[must_use]
pub fn oob_config(depths: ReadDepths, crc: CrcPreference, timeout: Duration) -> Config {
    Config {
        crc,
        depths,
        peer_to_peer: true,
        startup_timeout: timeout,
        ..Config::default()
    }
}

/// Read depths of the stream. A Read as RTR indication has to be received even where the agreed IRD is 0 (RFC 6581 §9.1).
pub(crate) fn stream_depths(negotiation: &Negotiation) -> Depths {
    Depths {
        ird: match negotiation.rtr {
            Some(rtr) if rtr.read => negotiation.depths.ird.max(1),
            Some(_) | None => negotiation.depths.ird,
        },
        ord: negotiation.depths.ord,
    }
}

/// Whether a connection that this end accepted is established. In peer-to-peer mode it is once the Initiator has sent its first FPDU, after which this
/// end may send (RFC 6581 §5); else the Initiator's program sees to the first message.
#[must_use]
pub const fn is_established(negotiation: &Negotiation, may_send: bool) -> bool {
    negotiation.rtr.is_none() || may_send
}

/// Queues the Terminate for a Responder whose Reply cannot be accepted (RFC 6581 §9.1, §9.2). Returns whether the error calls for one.
pub fn refuse_reply(mpa: &mut Connection, error: Error) -> bool {
    let terminate = (!error.closes_tcp())
        .then(|| last_word(StreamError::Llp(error.code().get())))
        .flatten();
    terminate.is_some_and(|ulpdu| mpa.send_ulpdu(&ulpdu, &[0; 0][..]).is_ok())
}

/// Why an attempt failed, as far as it decides about the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptFailure {
    /// The peer closed TCP instead of a Reply.
    Closed,
    /// No program listens.
    Refused,
}

/// When the next attempt is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextAttempt {
    /// At once.
    Now,
    /// At this time.
    At(Instant),
    /// Never: no other configuration is left, or no time.
    Never,
}

/// Attempts of one Initiator to connect.
#[derive(Debug)]
pub struct Attempts {
    config: Config,
    /// Deadline of all attempts.
    until: Option<Instant>,
    /// Attempts that found no program listening.
    refusals: u32,
}

impl Attempts {
    /// Attempts that begin now and end within the startup timeout of `config`.
    #[must_use]
    pub fn new(now: Instant, config: &Config) -> Self {
        Self {
            config: config.clone(),
            until: now.checked_add(config.startup_timeout),
            refusals: 0,
        }
    }

    /// The configuration of the next attempt.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    fn time_left(&self, now: Instant) -> Duration {
        self.until
            .map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    /// An attempt has failed.
    pub fn failed(&mut self, now: Instant, failure: AttemptFailure) -> NextAttempt {
        match failure {
            // RFC 6581 §10: a peer that closes upon an enhanced Request may support revision 1 only.
            AttemptFailure::Closed => match self.config.fall_back() {
                Some(config) => {
                    self.config = config;
                    NextAttempt::Now
                }
                None => NextAttempt::Never,
            },
            AttemptFailure::Refused => {
                let delay = FIRST_DELAY * (1 << self.refusals);
                if self.refusals == MAX_REFUSALS || self.time_left(now) <= delay {
                    return NextAttempt::Never;
                }
                self.refusals += 1;
                NextAttempt::At(now + delay)
            }
        }
    }

    /// Begins another attempt, with the time that is left. Returns whether any is left.
    pub fn begin_again(&mut self, now: Instant) -> bool {
        self.config.startup_timeout = self.time_left(now);
        !self.config.startup_timeout.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use dgiwarp_llp_tcp_mpa::{Event, Revision};

    use super::*;
    use crate::connected::tests::now;

    /// Both ends of a startup in which the Responder accepts with these depths, and the network changes its Reply.
    fn exchange(
        initiator: &Config,
        depths: ReadDepths,
        change: impl FnOnce(&mut [u8]),
    ) -> [Connection; 2] {
        let now = now();
        let mut client = Connection::initiator(now, initiator.clone(), b"").unwrap();
        let responder = startup_config(&Config::default(), 1460, false);
        let mut server = Connection::responder(now, responder);
        let request = client.poll_transmit(now).to_vec();
        client.transmitted(request.len());
        assert!(server.handle_input(now, &mut &request[..]).is_none());
        server.accept(depths, b"").unwrap();
        let mut reply = server.poll_transmit(now).to_vec();
        change(&mut reply);
        server.transmitted(reply.len());
        assert!(client.handle_input(now, &mut &reply[..]).is_none());
        [client, server]
    }

    #[test]
    fn no_rtr_indication_consumes_a_receive() {
        let config = Config {
            rtr: RtrSet::ALL,
            ..Config::default()
        };
        let config = startup_config(&config, 1000, true);
        assert_eq!((config.rtr, config.emss), (RTR, 1000));
        assert!(config.one_host);
        assert!(!config.rtr.send);
    }

    #[test]
    fn a_read_as_rtr_is_taken_without_any_ird() {
        let none = ReadDepths { ird: 0, ord: 0 };
        let oob = oob_config(none, CrcPreference::default(), Duration::from_secs(1));
        for (rtr, ird) in [(RTR, 1), (RtrSet { read: false, ..RTR }, 0)] {
            let config = startup_config(&Config { rtr, ..oob.clone() }, 1460, false);
            let [client, server] = exchange(&config, none, |_| ());
            for mpa in [&client, &server] {
                let negotiation = mpa.negotiation().unwrap();
                assert_eq!(stream_depths(negotiation), Depths { ird, ord: 0 });
            }
            let negotiation = server.negotiation().unwrap();
            assert!(!is_established(negotiation, server.may_send()));
            assert!(is_established(negotiation, true));
        }
    }

    #[test]
    fn client_server_mode_is_established_by_the_reply() {
        let config = Config::default();
        let [_, server] = exchange(&config, config.depths, |_| ());
        assert!(is_established(
            server.negotiation().unwrap(),
            server.may_send()
        ));
    }

    #[test]
    fn a_reply_that_cannot_be_accepted_is_answered_by_a_terminate() {
        let config = Config {
            depths: ReadDepths { ird: 4, ord: 4 },
            ..Config::default()
        };
        // RFC 6581 §9.1: an ORD above our IRD.
        let [mut client, _] = exchange(&config, config.depths, |reply| reply[23] = 5);
        let Some(Event::Failed(error)) = client.poll_event() else {
            panic!("the Reply was accepted");
        };
        assert!(refuse_reply(&mut client, error));
        assert!(!client.poll_transmit(now()).is_empty());
        assert!(!refuse_reply(&mut client, Error::TcpLost));
    }

    #[test]
    fn a_peer_of_revision_1_is_asked_again_in_revision_1() {
        let now = now();
        let mut attempts = Attempts::new(now, &Config::default());
        assert_eq!(
            attempts.failed(now, AttemptFailure::Closed),
            NextAttempt::Now
        );
        assert_eq!(attempts.config().revision, Revision::One);
        assert_eq!(
            attempts.failed(now, AttemptFailure::Closed),
            NextAttempt::Never
        );
        let oob = oob_config(
            Config::default().depths,
            CrcPreference::default(),
            Duration::from_secs(1),
        );
        let mut attempts = Attempts::new(now, &oob);
        assert_eq!(
            attempts.failed(now, AttemptFailure::Closed),
            NextAttempt::Never
        );
    }

    #[test]
    fn a_port_that_nobody_listens_on_is_tried_for_315_ms() {
        let began = now();
        let mut attempts = Attempts::new(began, &Config::default());
        let mut now = began;
        while let NextAttempt::At(at) = attempts.failed(now, AttemptFailure::Refused) {
            now = at;
            assert!(attempts.begin_again(now));
        }
        assert_eq!(now - began, Duration::from_millis(315));
    }

    #[test]
    fn no_attempt_outlasts_the_startup_timeout() {
        let began = now();
        let config = Config {
            startup_timeout: Duration::from_millis(12),
            ..Config::default()
        };
        let mut attempts = Attempts::new(began, &config);
        let five = began + Duration::from_millis(5);
        assert_eq!(
            attempts.failed(began, AttemptFailure::Refused),
            NextAttempt::At(five)
        );
        assert!(attempts.begin_again(five));
        assert_eq!(attempts.config().startup_timeout, Duration::from_millis(7));
        assert_eq!(
            attempts.failed(five, AttemptFailure::Refused),
            NextAttempt::Never
        );
        assert!(!attempts.begin_again(began + Duration::from_millis(12)));
    }
}
