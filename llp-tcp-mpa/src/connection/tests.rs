//! Scenarios of startup and full operation. Each goes by an instant of its own and what is
//! added to it.

use super::*;
use crate::startup::{CrcPreference, Enhanced, ReadDepth, Revision, Rtr, RtrSet};
use core::time::Duration;
use proptest::prelude::*;
use std::sync::LazyLock;

/// Where the time of all scenarios starts.
static START: LazyLock<Instant> = LazyLock::new(start);

#[expect(
    clippy::disallowed_methods,
    reason = "an instant cannot be made otherwise"
)]
fn start() -> Instant {
    Instant::now()
}

fn depths(ird: u16, ord: u16) -> ReadDepths {
    ReadDepths { ird, ord }
}

fn client(config: Config) -> Connection {
    Connection::initiator(*START, config, b"").unwrap()
}

/// Gives `bytes` to `to` in one piece, returns the ULPDUs that came out.
fn input(to: &mut Connection, bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut rest = bytes;
    let mut ulpdus = Vec::new();
    while !rest.is_empty() {
        let before = rest.len();
        ulpdus.extend(to.handle_input(*START, &mut rest).map(<[u8]>::to_vec));
        assert!(rest.len() < before, "no progress");
    }
    ulpdus
}

fn take(from: &mut Connection) -> Vec<u8> {
    let bytes = from.poll_transmit(*START).to_vec();
    from.transmitted(bytes.len());
    bytes
}

fn pass(from: &mut Connection, to: &mut Connection) -> Vec<Vec<u8>> {
    let bytes = take(from);
    input(to, &bytes)
}

macro_rules! event {
    ($connection:expr, $pattern:pat => $value:expr) => {
        match $connection.poll_event() {
            Some($pattern) => $value,
            other => panic!("unexpected event {other:?}"),
        }
    };
}

mod payload;

#[track_caller]
fn silent(connection: &mut Connection) {
    assert_eq!(connection.poll_event(), None);
    assert!(connection.poll_transmit(*START).is_empty());
}

fn established(
    client_config: Config,
    server_config: Config,
    server_depths: ReadDepths,
) -> (Connection, Established, Connection, Established) {
    let mut client = client(client_config);
    let mut server = Connection::responder(*START, server_config);
    pass(&mut client, &mut server);
    event!(server, Event::Request(_) => ());
    server.accept(server_depths, b"").unwrap();
    pass(&mut server, &mut client);
    let at_client = event!(client, Event::Established(e) => e);
    let at_server = event!(server, Event::Established(e) => e);
    (client, at_client, server, at_server)
}

fn failed(connection: &mut Connection) -> Error {
    event!(connection, Event::Failed(error) => error)
}

/// RFC 5044 §7.1.2 rules 1 to 4.
#[test]
fn startup_then_ulpdus_both_ways() {
    let (mut client, _, mut server, _) =
        established(Config::default(), Config::default(), depths(8, 8));
    assert_eq!(
        server.send_ulpdu(b"x", b"".as_slice()),
        Err(SendError::AwaitingFirstFpdu)
    );
    silent(&mut server);
    assert!(client.may_send());
    client.send_ulpdu(b"first", b"".as_slice()).unwrap();
    assert_eq!(pass(&mut client, &mut server), [b"first"]);
    server.send_ulpdu(b"ans", b"wer".as_slice()).unwrap();
    assert_eq!(pass(&mut server, &mut client), [b"answer"]);
    silent(&mut client);
    silent(&mut server);
    client.handle_end(*START, TcpEnd::Fin);
    event!(client, Event::PeerClosed => ());
    client.send_ulpdu(b"last", b"".as_slice()).unwrap();
    client.handle_end(*START, TcpEnd::Lost);
    assert_eq!(
        client.send_ulpdu(b"gone", b"".as_slice()),
        Err(SendError::NotInFullOperation)
    );
    silent(&mut client);
}

/// RFC 5044 §7.1.1 C: CRCs are used if either end prefers them; M: each direction by itself.
#[test]
fn crc_and_markers_are_negotiated() {
    for bits in 0..16u8 {
        let on = |bit: u8| bits & (1 << bit) != 0;
        let ours = Config {
            crc: on(0).into(),
            markers: on(1),
            ..Config::default()
        };
        let theirs = Config {
            crc: on(2).into(),
            markers: on(3),
            ..Config::default()
        };
        let (mut client, at_client, mut server, at_server) =
            established(ours, theirs, depths(1, 1));
        for n in [at_client.negotiation, at_server.negotiation] {
            assert_eq!(n.crc, on(0) || on(2));
        }
        assert_eq!(at_client.negotiation.receive_markers, on(1));
        assert_eq!(at_client.negotiation.send_markers, on(3));
        assert_eq!(at_server.negotiation.receive_markers, on(3));
        assert_eq!(at_server.negotiation.send_markers, on(1));
        assert_eq!(client.mulpdu(), if on(3) { 1430 } else { 1442 });
        let long = vec![bits; 1430];
        client.send_ulpdu(b"", &long).unwrap();
        assert_eq!(pass(&mut client, &mut server), std::slice::from_ref(&long));
        server.send_ulpdu(b"", &long).unwrap();
        assert_eq!(pass(&mut server, &mut client), [long]);
    }
}

/// RFC 5044 §1.2, §7.1.1: within one host an end does without CRCs, and an end that prefers them gets them, whoever asks and in whichever revision.
#[test]
fn an_end_that_prefers_crcs_has_them_within_one_host_too() {
    use CrcPreference::{Always, BetweenHosts, Never};
    let each = [Always, BetweenHosts, Never];
    for revision in [Revision::One, Revision::Two] {
        for (ours, theirs) in each
            .into_iter()
            .flat_map(|it| each.map(|other| (it, other)))
        {
            // The ends need not agree on where they are: a proxy or a translated address may stand between them.
            for (here, there) in [(false, false), (true, false), (false, true), (true, true)] {
                let end = |crc, one_host| Config {
                    crc,
                    one_host,
                    revision,
                    ..Config::default()
                };
                let (_, client, _, server) =
                    established(end(ours, here), end(theirs, there), depths(1, 1));
                let prefers = |crc, one_host: bool| match crc {
                    Always => true,
                    BetweenHosts => !one_host,
                    Never => false,
                };
                let expected = prefers(ours, here) || prefers(theirs, there);
                assert_eq!(client.negotiation.crc, expected);
                assert_eq!(server.negotiation.crc, expected);
            }
        }
    }
}

/// RFC 6581 §9.1: ORD of one end against IRD of the other, and 0x3FFF.
#[test]
fn read_depths() {
    let with = |ird, ord| Config {
        depths: depths(ird, ord),
        ..Config::default()
    };
    let (_, c, _, s) = established(with(4, 8), Config::default(), depths(128, 128));
    assert_eq!(s.negotiation.depths, depths(8, 4));
    assert_eq!(c.negotiation.depths, depths(4, 8));
    let (_, c, _, s) = established(with(16, 16), Config::default(), depths(2, 3));
    assert_eq!(s.negotiation.depths, depths(2, 3));
    assert_eq!(c.negotiation.depths, depths(16, 2));

    // All ones is echoed, and leaves the depth behind it alone.
    let mut request = client(with(4, 8));
    let mut bytes = take(&mut request);
    bytes[20..24].copy_from_slice(&[0x3f, 0xff, 0x3f, 0xff]);
    let mut server = Connection::responder(*START, Config::default());
    input(&mut server, &bytes);
    event!(server, Event::Request(_) => ());
    server.accept(depths(5, 6), b"").unwrap();
    let s = event!(server, Event::Established(e) => e);
    assert_eq!(s.negotiation.depths, depths(5, 6));
    let reply = take(&mut server);
    assert_eq!(reply[20..24], [0x3f, 0xff, 0x3f, 0xff]);
    input(&mut request, &reply);
    let c = event!(request, Event::Established(e) => e);
    assert_eq!(c.negotiation.depths, depths(4, 8));
}

/// RFC 6581 §9.1: a Responder's ORD above our IRD ends in code 6, told by a Terminate.
#[test]
fn insufficient_ird() {
    let mut client = client(Config {
        depths: depths(4, 4),
        ..Config::default()
    });
    let mut server = Connection::responder(*START, Config::default());
    pass(&mut client, &mut server);
    server.accept(depths(4, 4), b"").unwrap();
    let mut reply = take(&mut server);
    reply[23] = 5;
    input(&mut client, &reply);
    let error = failed(&mut client);
    assert_eq!(
        error,
        Error::InsufficientIrd {
            wanted: 5,
            limit: 4
        }
    );
    assert_eq!((error.code().get(), error.closes_tcp()), (6, false));
    client.send_ulpdu(b"terminate", b"".as_slice()).unwrap();
    assert_eq!(pass(&mut client, &mut server), [b"terminate"]);
}

/// RFC 6581 §9.2: the Initiator sends an indication that both ends support.
#[test]
fn peer_to_peer() {
    let p2p = |rtr| Config {
        peer_to_peer: true,
        rtr,
        ..Config::default()
    };
    let only_read = RtrSet {
        read: true,
        ..RtrSet::NONE
    };
    let only_send = RtrSet {
        send: true,
        ..RtrSet::NONE
    };
    let (_, c, _, s) = established(p2p(RtrSet::ALL), Config::default(), depths(1, 1));
    assert_eq!(
        (c.send_rtr, s.negotiation.rtr),
        (Some(Rtr::Write), Some(RtrSet::ALL))
    );
    let (_, c, _, s) = established(p2p(RtrSet::ALL), p2p(only_read), depths(0, 0));
    assert_eq!(
        (c.send_rtr, s.negotiation.rtr),
        (Some(Rtr::Read), Some(only_read))
    );
    // A Read as RTR needs an inbound depth of one.
    assert_eq!(s.negotiation.depths.ird, 1);
    assert_eq!(c.negotiation.depths.ord, 1);
    let (_, c, _, _) = established(p2p(only_send), Config::default(), depths(1, 1));
    assert_eq!(c.send_rtr, Some(Rtr::Send));
    let (_, c, _, s) = established(Config::default(), p2p(only_read), depths(1, 1));
    assert_eq!((c.send_rtr, s.negotiation.rtr), (None, None));

    // Nothing in common: the Responder names what it has, the Initiator ends with code 7.
    let mut client = client(p2p(only_send));
    let mut server = Connection::responder(*START, p2p(only_read));
    pass(&mut client, &mut server);
    server.accept(depths(1, 1), b"").unwrap();
    pass(&mut server, &mut client);
    let error = failed(&mut client);
    assert_eq!((error, error.code().get()), (Error::NoMatchingRtr, 7));
}

/// RFC 6581 §6, §10: revision 1 and unenhanced requests get what they know.
#[test]
fn revision_1_and_unenhanced() {
    let one = Config {
        revision: Revision::One,
        ..Config::default()
    };
    let (_, c, _, s) = established(one.clone(), Config::default(), depths(3, 3));
    for n in [c.negotiation, s.negotiation] {
        assert_eq!((n.revision, n.peer, n.rtr), (Revision::One, None, None));
    }
    assert_eq!(s.negotiation.depths, depths(3, 3));

    // Revision 2 without the S bit.
    let mut request = take(&mut client(one));
    request[17] = 2;
    let mut server = Connection::responder(*START, Config::default());
    input(&mut server, &request);
    server.accept(depths(3, 3), b"").unwrap();
    assert_eq!(take(&mut server)[16..], [0x40, 2, 0, 0]);

    // A plain reply to an enhanced request will do, unless it was for peer-to-peer mode.
    let mut ok = client(Config::default());
    input(&mut ok, b"MPA ID Rep Frame\x40\x01\0\0");
    let e = event!(ok, Event::Established(e) => e);
    assert_eq!(e.negotiation.depths, depths(16, 16));
    let mut p2p = client(Config {
        peer_to_peer: true,
        ..Config::default()
    });
    input(&mut p2p, b"MPA ID Rep Frame\x40\x02\0\0");
    assert_eq!(failed(&mut p2p), FrameError::Unenhanced.into());
    // A reply above the request's revision will not.
    let mut old = client(Config {
        revision: Revision::One,
        ..Config::default()
    });
    input(&mut old, b"MPA ID Rep Frame\x40\x02\0\0");
    assert_eq!(failed(&mut old), FrameError::Revision(2).into());

    let fall_back = Config::default().fall_back().unwrap();
    assert_eq!(fall_back.revision, Revision::One);
    assert_eq!(fall_back.fall_back(), None);
}

/// RFC 5044 §7.1.2 rule 3: rejected, MPA is left and TCP stays.
#[test]
fn rejection_carries_private_data_and_depths() {
    let mut client = client(Config {
        markers: true,
        ..Config::default()
    });
    let mut server = Connection::responder(
        *START,
        Config {
            markers: true,
            ..Config::default()
        },
    );
    pass(&mut client, &mut server);
    event!(server, Event::Request(_) => ());
    server.reject(depths(0, 40), b"no room").unwrap();
    assert_eq!(
        server.accept(depths(1, 1), b""),
        Err(ConfigError::NoRequest)
    );
    let reply = take(&mut server);
    assert_eq!(reply[16] & 0xa0, 0x20, "R set, M clear");
    input(&mut client, &reply);
    let rejection = event!(client, Event::Rejected(r) => r);
    assert_eq!(rejection.private_data, b"no room");
    let enhanced = Enhanced {
        ird: ReadDepth::Limit(0),
        ord: ReadDepth::Limit(40),
        peer_to_peer: None,
    };
    assert_eq!(rejection.enhanced, Some(enhanced));
    assert_eq!(
        input(&mut client, b"the ULP's own octets"),
        Vec::<Vec<u8>>::new()
    );
    silent(&mut client);
    silent(&mut server);
}

/// RFC 5044 §7.1.1: 0 to 512 octets of private data; RFC 6581 §9: 508 in enhanced frames.
#[test]
fn private_data_limits() {
    let one = Config {
        revision: Revision::One,
        ..Config::default()
    };
    for (config, max) in [(one, 512), (Config::default(), 508)] {
        for len in [0, 1, 255, 256, 257, max] {
            let data = vec![0x5a; len];
            let mut client = Connection::initiator(*START, config.clone(), &data).unwrap();
            let mut server = Connection::responder(*START, Config::default());
            pass(&mut client, &mut server);
            assert_eq!(event!(server, Event::Request(r) => r).private_data, data);
            server.accept(depths(1, 1), &data).unwrap();
            pass(&mut server, &mut client);
            assert_eq!(
                event!(client, Event::Established(e) => e).private_data,
                data
            );
        }
        let error = ConfigError::PrivateDataTooLong { len: max + 1, max };
        let data = vec![0; max + 1];
        assert_eq!(
            Connection::initiator(*START, config.clone(), &data).err(),
            Some(error)
        );
        let mut server = Connection::responder(*START, Config::default());
        pass(&mut client(config), &mut server);
        assert_eq!(server.accept(depths(1, 1), &data), Err(error));
        assert_eq!(server.reject(depths(1, 1), &data), Err(error));
        server.accept(depths(1, 1), b"").unwrap();
    }
}

/// RFC 5044 §8 code 4, §7.1.2 rules 5, 8 and 9: such a startup closes TCP.
#[test]
fn invalid_startup_frames() {
    let mut request = take(&mut client(Config::default()));
    request.extend_from_slice(b"early");
    let mut server = Connection::responder(*START, Config::default());
    input(&mut server, &request);
    event!(server, Event::Request(_) => ());
    assert_eq!(failed(&mut server), FrameError::TrailingOctets(5).into());

    let mut both = client(Config::default());
    let theirs = take(&mut client(Config::default()));
    input(&mut both, &theirs);
    let error = failed(&mut both);
    assert_eq!(error, FrameError::BothInitiators.into());
    assert!(error.closes_tcp());
    silent(&mut both);

    let mut server = Connection::responder(*START, Config::default());
    input(&mut server, b"GET / HTTP/1.1\r\n");
    assert_eq!(
        failed(&mut server),
        FrameError::Key { at: 0, found: b'G' }.into()
    );
    assert_eq!(input(&mut server, b"more"), Vec::<Vec<u8>>::new());
    silent(&mut server);
}

/// RFC 5044 §7.1.2 rule 10, for either role, and however much has come.
#[test]
fn startup_timeout() {
    let config = Config {
        startup_timeout: Duration::from_secs(3),
        ..Config::default()
    };
    let at = |s| *START + Duration::from_secs(s);
    let mut server = Connection::responder(at(1), config.clone());
    input(&mut server, b"MPA ID R");
    assert_eq!(server.poll_timeout(), Some(at(4)));
    server.handle_timeout(at(3));
    silent(&mut server);
    server.handle_timeout(at(4));
    assert_eq!(
        failed(&mut server),
        Error::StartupTimeout(Duration::from_secs(3))
    );
    assert_eq!(server.poll_timeout(), None);

    let mut slow = client(config);
    slow.handle_timeout(at(3));
    assert_eq!(
        failed(&mut slow),
        Error::StartupTimeout(Duration::from_secs(3))
    );

    let (client, _, server, _) = established(Config::default(), Config::default(), depths(1, 1));
    assert_eq!((client.poll_timeout(), server.poll_timeout()), (None, None));
}

/// The end of TCP at every octet of the startup and of an FPDU.
#[test]
fn tcp_ends_anywhere() {
    let request = take(&mut client(Config::default()));
    for len in 0..request.len() {
        let mut server = Connection::responder(*START, Config::default());
        input(&mut server, &request[..len]);
        server.handle_end(*START, TcpEnd::Fin);
        assert_eq!(failed(&mut server), Error::ClosedInStartup);
    }
    for markers in [false, true] {
        let config = || Config {
            markers,
            ..Config::default()
        };
        let (mut client, ..) = established(config(), config(), depths(1, 1));
        client.send_ulpdu(b"", &vec![1; 600]).unwrap();
        let fpdu = take(&mut client);
        for len in 1..fpdu.len() {
            let (_, _, mut server, _) = established(config(), config(), depths(1, 1));
            input(&mut server, &fpdu[..len]);
            server.handle_end(*START, TcpEnd::Fin);
            if markers && len == 4 {
                // A Marker alone: a sender may write it before it has an FPDU to follow.
                event!(server, Event::PeerClosed => ());
                continue;
            }
            let error = failed(&mut server);
            assert!(
                matches!(error, Error::ClosedInFpdu { received } if received > 0),
                "{error}"
            );
        }
    }
}

/// RFC 5044 §8: after a CRC error nothing is delivered, and the Terminate can still leave.
#[test]
fn nothing_after_an_error() {
    let (mut client, _, mut server, _) =
        established(Config::default(), Config::default(), depths(1, 1));
    for word in [b"good", b"evil", b"late"] {
        client.send_ulpdu(word, b"".as_slice()).unwrap();
    }
    let mut bytes = take(&mut client);
    assert_eq!(bytes.len(), 36);
    bytes[14] ^= 0x10;
    assert_eq!(input(&mut server, &bytes), [b"good"]);
    let error = failed(&mut server);
    assert!(matches!(error, Error::Crc { .. }) && !error.closes_tcp());
    assert!(input(&mut server, &bytes[..12]).is_empty());
    server.send_ulpdu(b"terminate", b"".as_slice()).unwrap();
    assert_eq!(pass(&mut server, &mut client), [b"terminate"]);
    server.handle_end(*START, TcpEnd::Fin);
    silent(&mut server);
}

/// RFC 5044 §4.5.
#[test]
fn ulpdus_up_to_the_mulpdu() {
    let (mut client, _, mut server, _) =
        established(Config::default(), Config::default(), depths(1, 1));
    let long = vec![7; 1443];
    let too_long = SendError::TooLong {
        len: 1443,
        mulpdu: 1442,
    };
    assert_eq!(client.send_ulpdu(b"", &long), Err(too_long));
    client.send_ulpdu(b"", &long[1..]).unwrap();
    assert_eq!(client.poll_transmit(*START).len(), 1448);
    client.set_emss(8948);
    client.send_ulpdu(b"", &long).unwrap();
    assert_eq!(pass(&mut client, &mut server).len(), 2);
    for (chosen, mulpdu) in [
        (Some(40_001), 40_001),
        (Some(u16::MAX), 64_768),
        (Some(1), 128),
        (None, 8942),
    ] {
        client.choose_mulpdu(chosen);
        assert_eq!(client.mulpdu(), mulpdu);
        let ulpdu = vec![5; mulpdu.into()];
        client.send_ulpdu(b"", &ulpdu).unwrap();
        assert_eq!(pass(&mut client, &mut server), [ulpdu]);
    }
}

proptest! {
    /// Whatever a peer sends, before, in and after its startup frame: every call returns and takes octets, what is delivered came from the
    /// peer, and after an error nothing is.
    #[test]
    fn any_octets_return(
        good_start: bool,
        octets in proptest::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..600),
        cuts in proptest::collection::vec(1usize..100, 0..20),
    ) {
        let mut server = if good_start {
            established(Config::default(), Config::default(), depths(1, 1)).2
        } else {
            Connection::responder(*START, Config::default())
        };
        let mut rest = &octets[..];
        let mut failed = false;
        for cut in cuts.into_iter().chain([usize::MAX]) {
            let (now, later) = rest.split_at(cut.min(rest.len()));
            for ulpdu in input(&mut server, now) {
                prop_assert!(!failed && ulpdu.len() <= octets.len());
            }
            while let Some(event) = server.poll_event() {
                failed |= matches!(event, Event::Failed(_));
            }
            rest = later;
        }
        server.handle_end(*START, TcpEnd::Lost);
        server.handle_timeout(*START + Duration::from_secs(100));
    }
}

/// `rfc-notes/reliable-datagrams.md` §9.2.
#[test]
fn datagrams_are_agreed_on_by_both_ends_or_not_at_all() {
    const TERMS: DatagramTerms = DatagramTerms {
        port: 40_000,
        initiator_psn: 1,
        responder_psn: 2,
    };
    for (offers, takes) in [(true, true), (true, false), (false, true), (false, false)] {
        let offering = Config {
            datagrams: offers,
            ..Config::default()
        };
        let mut initiator = client(offering);
        let mut responder = Connection::responder(*START, Config::default());
        pass(&mut initiator, &mut responder);
        let request = event!(responder, Event::Request(request) => request);
        assert_eq!(request.datagrams, offers);
        if takes {
            responder
                .accept_by_datagrams(depths(1, 1), TERMS, b"data")
                .unwrap();
        } else {
            responder.accept(depths(1, 1), b"data").unwrap();
        }
        pass(&mut responder, &mut initiator);
        let established = event!(initiator, Event::Established(established) => established);
        assert_eq!(
            established.datagrams,
            (offers && takes).then_some(TERMS),
            "{offers} {takes}"
        );
        assert_eq!(established.private_data, b"data", "{offers} {takes}");
    }
}

/// A peer that sets bit D on its own, as one that repeats reserved bits.
#[test]
fn bit_d_without_terms_is_a_reserved_bit() {
    for offers in [false, true] {
        let mut initiator = client(Config {
            datagrams: offers,
            ..Config::default()
        });
        let mut responder = Connection::responder(*START, Config::default());
        pass(&mut initiator, &mut responder);
        event!(responder, Event::Request(_) => ());
        responder.accept(depths(1, 1), b"0123456789abcdef").unwrap();
        let mut reply = take(&mut responder);
        reply[16] |= 0x08;
        input(&mut initiator, &reply);
        let established = event!(initiator, Event::Established(established) => established);
        assert_eq!(established.datagrams, None);
        assert_eq!(established.private_data, b"0123456789abcdef");
    }
}
