//! The end's next life, and peers that owe responses.

use super::*;

/// Epoch and association of a datagram.
fn epoch_and_association(datagram: &[u8]) -> (u32, u32) {
    let (envelope, _) = Envelope::open::<[u8]>(datagram.into()).unwrap();
    (envelope.epoch, envelope.association)
}

#[test]
fn a_renewed_end_closes_what_was_and_has_another_epoch_and_other_identifiers() {
    let (mut client, mut server) = ends(|_| ());
    acquaint(&mut client, &mut server);
    server.post(CLIENT, 1, 64);
    let answer = server.transmit(CLIENT);
    let (_, former) = epoch_and_association(&answer[0]);
    client.receive(SERVER, &answer[0]).unwrap();
    client.endpoint.renew(client.now, 77, [5, 6]);
    assert_eq!(client.endpoint.associations(), 0);
    let closes = client.transmit(SERVER);
    assert_eq!(epoch_and_association(&closes[0]).0, CLIENT.into());
    for close in &closes {
        let _ = server.receive(CLIENT, close);
    }
    assert_eq!(server.endpoint.associations(), 0);
    client.post(SERVER, 1, 64);
    let hello = client.transmit(SERVER);
    assert_eq!(epoch_and_association(&hello[0]).0, 77);
    server.receive(CLIENT, &hello[0]).unwrap();
    server.post(CLIENT, 1, 64);
    // One draw of one key is one identifier.
    assert_ne!(epoch_and_association(&server.transmit(CLIENT)[0]).1, former);
}

#[test]
fn a_silent_peer_is_probed_as_long_as_it_owes_responses() {
    let (mut client, mut server) = ends(|_| ());
    acquaint(&mut client, &mut server);
    // Until the client's next timer is the end of an idle association.
    let later = client.endpoint.config.unreachable;
    while let Some(at) = client.endpoint.poll_timeout()
        && at < client.now + later
    {
        client.now = at;
        client.endpoint.handle_timeout(at);
        client.carry(&mut server);
        server.now = at + Duration::from_millis(2);
        client.now = server.now;
        server.endpoint.handle_timeout(server.now);
        server.carry(&mut client);
    }
    for awaits in [false, true] {
        client.endpoint.await_responses(peer(SERVER), awaits);
        assert!(client.transmit(SERVER).is_empty());
        let next = client.endpoint.poll_timeout().unwrap();
        assert_eq!(next <= client.now + later / 4, awaits);
        client.now += later / 4;
        client.endpoint.handle_timeout(client.now);
        assert_eq!(client.transmit(SERVER).len(), awaits.into());
    }
}

#[test]
fn a_hello_to_another_life_of_an_rc_queue_pair_opens_nothing() {
    let (client, mut server) = ends(|_| ());
    let lives = |own, peer| Lives { own, peer };
    for (known, expected) in [(9, Err(Dropped::OtherLife(Some(7)))), (7, Ok(()))] {
        server.endpoint.set_lives(lives(8, known));
        let mut again = End::new(CLIENT, client.now, |_| ());
        again.endpoint.set_lives(lives(7, 8));
        again.post(SERVER, 1, 64);
        let hello = again.transmit(SERVER);
        assert_eq!(server.receive(CLIENT, &hello[0]), expected);
    }
    // Nor does one without a life.
    let mut stranger = End::new(3, client.now, |_| ());
    stranger.post(SERVER, 1, 64);
    let hello = stranger.transmit(SERVER);
    assert_eq!(server.receive(3, &hello[0]), Err(Dropped::OtherLife(None)));
}

/// A retry has the sender begin again. It is obeyed from the address that was greeted, and while nothing of the peer is known.
#[test]
fn a_retry_is_obeyed_from_the_greeted_address_alone() {
    let (mut client, mut server) = ends(|config| config.unvalidated = 0);
    client.post(SERVER, 1, 64);
    let hello = client.transmit(SERVER);
    let refused = server.receive(CLIENT, &hello[0]);
    assert_eq!(refused, Err(Dropped::NotValidated));
    let retry = server.transmit(CLIENT).remove(0);
    client.receive(3, &retry).unwrap();
    assert!(client.transmit(SERVER).is_empty(), "another address");
    client.receive(SERVER, &retry).unwrap();
    client.carry(&mut server);
    assert_eq!(server.placed, 1);
    server.now += Duration::from_millis(2);
    client.now = server.now;
    server.carry(&mut client);
    client.carry(&mut server);
    client.receive(SERVER, &retry).unwrap();
    assert!(client.transmit(SERVER).is_empty(), "a known peer");
}
