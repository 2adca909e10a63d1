//! Payload that stays where it lies, lent memory, and input that the caller reads to its place.

use super::*;

/// Both ends after the startup, the Initiator's first FPDU received.
fn open(config: &Config) -> (Connection, Connection) {
    let (mut client, _, mut server, _) = established(config.clone(), config.clone(), depths(1, 1));
    client.send_ulpdu(b"first", b"".as_slice()).unwrap();
    pass(&mut client, &mut server);
    (client, server)
}

fn without_markers(crc: bool) -> Config {
    Config {
        crc: crc.into(),
        ..Config::default()
    }
}

#[test]
fn fpdus_around_payload_are_those_with_it() {
    for crc in [false, true] {
        for len in [0, 1, 2, 3, 4, 500] {
            let payload: Vec<u8> = (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect();
            let (mut copied, mut server) = open(&without_markers(crc));
            let (mut around, _) = open(&without_markers(crc));
            for end in [&mut copied, &mut around] {
                assert!(end.leaves_payload_whole());
                end.send_ulpdu(b"before", b"".as_slice()).unwrap();
                // The front has left, the rest is behind it.
                end.transmitted(3);
            }
            copied.send_ulpdu(b"header", &payload[..]).unwrap();
            let at = around.send_ulpdu_around(b"header", &payload[..]).unwrap();
            around.send_ulpdu(b"behind", b"".as_slice()).unwrap();
            around.open(at, payload.len()).copy_from_slice(&payload);
            copied.send_ulpdu(b"behind", b"".as_slice()).unwrap();
            assert_eq!(around.poll_transmit(*START), copied.poll_transmit(*START));
            let mut stream = vec![0, 6, b'b'];
            stream.extend(take(&mut copied));
            let ulpdus = input(&mut server, &stream);
            let whole = [&b"header"[..], &payload].concat();
            assert_eq!(ulpdus, [&b"before"[..], &whole, b"behind"]);
        }
    }
}

#[test]
fn fpdus_of_which_tcp_took_nothing_are_taken_back() {
    let (mut client, mut server) = open(&without_markers(true));
    client.send_ulpdu(b"kept", b"".as_slice()).unwrap();
    let kept = client.poll_transmit(*START).len();
    client
        .send_ulpdu_around(b"back", b"payload".as_slice())
        .unwrap();
    assert!(client.poll_transmit(*START).len() > kept);
    client.take_back(kept);
    assert_eq!(pass(&mut client, &mut server), [b"kept"]);
    client.send_ulpdu(b"again", b"".as_slice()).unwrap();
    assert_eq!(pass(&mut client, &mut server), [b"again"]);
}

#[test]
fn markers_stand_in_the_payload() {
    let config = Config {
        markers: true,
        ..Config::default()
    };
    let (mut client, _) = open(&config);
    assert!(!client.leaves_payload_whole());
    let around = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = client.send_ulpdu_around(b"header", b"payload".as_slice());
    }));
    assert!(around.is_err());
    let early = Connection::responder(*START, Config::default());
    assert!(!early.leaves_payload_whole());
}

#[test]
fn memory_is_lent_and_returned() {
    let (mut client, _) = open(&without_markers(true));
    client.reserve(50_000);
    assert!(client.reclaim().unwrap().capacity() >= 50_000);
    assert_eq!(client.reclaim(), None);
    let spare = client.lend(Vec::with_capacity(10_000));
    assert_eq!(spare.capacity(), 0);
    assert!(client.is_drained());
    client.send_ulpdu(b"one", b"".as_slice()).unwrap();
    assert!(!client.is_drained());
    assert_eq!(client.reclaim(), None, "octets are unsent");
    take(&mut client);
    assert!(client.is_drained());
    assert!(client.reclaim().unwrap().capacity() >= 10_000);
}

#[test]
fn the_deframer_is_the_callers_in_full_operation() {
    let mut early = Connection::responder(*START, Config::default());
    assert!(early.deframer().is_none());
    let (mut client, mut server) = open(&without_markers(true));
    assert_eq!(server.octets_kept(), 0);
    assert_eq!(early.octets_kept(), 0);
    client.send_ulpdu(b"long", &[7u8; 300][..]).unwrap();
    let stream = take(&mut client);
    let (front, back) = stream.split_at(100);
    assert!(input(&mut server, front).is_empty());
    assert_eq!(server.octets_kept(), 100);
    let deframer = server.deframer().unwrap();
    let room = deframer.room();
    assert_eq!(room.len(), back.len());
    room.copy_from_slice(back);
    deframer.filled(back.len());
    let ulpdu = server.handle_input(*START, &mut &[][..]).unwrap();
    assert_eq!(ulpdu.len(), 304);
    assert_eq!(server.octets_kept(), 100);
    let mut wrong = stream;
    *wrong.last_mut().unwrap() ^= 1;
    assert!(input(&mut server, &wrong).is_empty());
    assert!(matches!(failed(&mut server), Error::Crc { .. }));
    assert!(server.deframer().is_none());
}

#[test]
fn a_request_waits_for_the_decision_without_input() {
    let mut client = client(Config::default());
    let mut server = Connection::responder(*START, Config::default());
    pass(&mut client, &mut server);
    event!(server, Event::Request(_) => ());
    assert_eq!(server.negotiation(), None);
    assert_eq!(server.handle_input(*START, &mut &[][..]), None);
    silent(&mut server);
    server.accept(depths(1, 1), b"").unwrap();
    let established = event!(server, Event::Established(e) => e);
    assert_eq!(server.negotiation(), Some(&established.negotiation));
    assert!(!server.may_send());
}

#[test]
fn a_chosen_mulpdu_stays_in_its_range() {
    let (mut client, _) = open(&without_markers(true));
    for (chosen, expected) in [
        (Some(0), MULPDU_FLOOR),
        (Some(5000), 5000),
        (Some(u16::MAX), mulpdu(u16::MAX, false)),
        (None, 1442),
    ] {
        client.choose_mulpdu(chosen);
        assert_eq!(client.mulpdu(), expected);
    }
    client.set_emss(9000);
    assert_eq!(client.mulpdu(), mulpdu(9000, false));
}
