//! Hellos, cookies, and what is remembered of associations that ended (§4.1, §4.3, §4.5).

use super::*;
use crate::rd::frame::{Credit, Hello};

const HELLO: Hello = Hello {
    retry: false,
    life: None,
    association: 0x55,
    credit: Credit {
        receives: 8,
        window: 1 << 20,
    },
    proof: 0,
    cookie: 0,
};

/// A datagram with a hello.
fn greeting(epoch: u32, number: u64, hello: &Hello) -> Vec<u8> {
    let mut datagram = Vec::new();
    Envelope {
        eager: false,
        hello: true,
        association: 0,
        number,
        time: 0,
        epoch,
    }
    .emit(&mut datagram);
    hello.emit(&mut datagram);
    envelope::seal(&mut datagram, 0);
    datagram
}

/// The cookie of the retry that leaves for a port.
fn cookie(server: &mut End, port: u16) -> u64 {
    let retry = server.transmit(port).pop().unwrap();
    let (_, frames) = Envelope::open::<[u8]>(retry[..].into()).unwrap();
    match Frames::new(frames).next() {
        Some(Ok(Frame::Hello(hello))) if hello.retry => hello.cookie,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_hello_without_an_identifier_or_with_retry_opens_nothing() {
    let (_, mut server) = ends(|_| ());
    for hello in [
        Hello {
            association: 0,
            ..HELLO
        },
        Hello {
            retry: true,
            ..HELLO
        },
    ] {
        let refused = server.receive(CLIENT, &greeting(3, 0, &hello));
        assert_eq!(refused, Err(Dropped::NoHello));
    }
    assert_eq!(server.receive(CLIENT, &greeting(3, 0, &HELLO)), Ok(()));
    // Once more, of the association that there is.
    assert_eq!(server.receive(CLIENT, &greeting(3, 1, &HELLO)), Ok(()));
    assert_eq!(server.endpoint.associations(), 1);
}

/// §4.5: another identifier or another epoch is a peer that restarted; it has to prove its address first.
#[test]
fn a_peer_that_restarted_proves_its_address_before_the_former_association_ends() {
    for (epoch, association) in [(4, 0x55), (3, 0x56)] {
        let (_, mut server) = ends(|_| ());
        server.receive(CLIENT, &greeting(3, 0, &HELLO)).unwrap();
        server.transmit(CLIENT);
        let hello = Hello {
            association,
            ..HELLO
        };
        let refused = server.receive(CLIENT, &greeting(epoch, 0, &hello));
        assert_eq!(refused, Err(Dropped::NotValidated));
        assert_eq!(server.endpoint.associations(), 1);
        let proven = Hello {
            proof: cookie(&mut server, CLIENT),
            ..hello
        };
        let again = greeting(epoch, 1, &proven);
        assert_eq!(server.receive(CLIENT, &again), Err(Dropped::Restarted));
        assert_eq!(server.endpoint.associations(), 0);
        assert_eq!(server.receive(CLIENT, &again), Ok(()));
        assert_eq!(server.endpoint.associations(), 1);
    }
}

#[test]
fn a_cookie_is_good_for_one_address_and_one_epoch() {
    let (_, mut server) = ends(|config| config.unvalidated = 0);
    let refused = server.receive(CLIENT, &greeting(3, 0, &HELLO));
    assert_eq!(refused, Err(Dropped::NotValidated));
    let proven = Hello {
        proof: cookie(&mut server, CLIENT),
        ..HELLO
    };
    assert!(proven.proof > 1);
    for (port, epoch, proof) in [
        (CLIENT + 1, 3, proven.proof),
        (CLIENT, 4, proven.proof),
        (CLIENT, 3, proven.proof + 1),
        (CLIENT, 3, 1),
    ] {
        let hello = Hello { proof, ..HELLO };
        let refused = server.receive(port, &greeting(epoch, 0, &hello));
        assert_eq!(refused, Err(Dropped::NotValidated), "{port} {epoch}");
    }
    // Nor is it good for another host, or for an end with another key.
    let key = server.endpoint.config.key;
    let cookie = |endpoint: &mut Endpoint, host: [u8; 4]| {
        let from = Peer::ip(SocketAddr::from((Ipv4Addr::from(host), CLIENT)));
        let datagram = greeting(3, 0, &proven);
        let octets = PayloadSlice::<[u8]>::new(&datagram);
        let place = &mut |_, _: &SegmentHeader, _, _: PayloadSlice<'_, [u8]>| Verdict::Placed;
        endpoint.handle_input(server.now, from, Ecn::NotEct, octets, place)
    };
    let not_validated = Err(Dropped::NotValidated);
    let mut endpoint = Endpoint::new(server.endpoint.config);
    assert_eq!(cookie(&mut endpoint, [127, 0, 0, 2]), not_validated);
    let mut other = Endpoint::new(RdConfig {
        key: [key[0], key[1] + 1],
        ..server.endpoint.config
    });
    assert_eq!(cookie(&mut other, [127, 0, 0, 1]), not_validated);
    assert_eq!(cookie(&mut endpoint, [127, 0, 0, 1]), Ok(()));
}

#[test]
fn no_two_associations_have_one_identifier() {
    let (mut client, _) = ends(|_| ());
    for port in 10..14 {
        client.post(port, 1, 64);
        // The draws begin anew.
        client.endpoint.draws = 0;
    }
    assert_eq!(client.endpoint.associations(), 4);
    let identifiers: std::collections::BTreeSet<u32> =
        client.endpoint.table.active().map(|it| it.id).collect();
    assert_eq!(identifiers.len(), 4);
    assert!(!identifiers.contains(&0));
}

/// A hello that was delayed opens nothing anew, for two minutes.
#[test]
fn an_association_that_ended_is_remembered_for_two_minutes() {
    let late = Err(Dropped::Late(0x55));
    let two_minutes = Duration::from_secs(120);
    for (after, expected) in [
        (Duration::ZERO, late),
        (two_minutes - Duration::from_nanos(1), late),
        (two_minutes, Ok(())),
    ] {
        let (_, mut server) = ends(|_| ());
        server.receive(CLIENT, &greeting(3, 0, &HELLO)).unwrap();
        server.endpoint.close(server.now, peer(CLIENT));
        server.now += after;
        let again = server.receive(CLIENT, &greeting(3, 1, &HELLO));
        assert_eq!(again, expected, "{after:?}");
        let other = server.receive(CLIENT + 1, &greeting(4, 1, &HELLO));
        assert_eq!(other, Ok(()), "another epoch");
    }
}

#[test]
fn associations_that_ended_are_remembered_4096_at_most() {
    let (_, mut server) = ends(|_| ());
    let hello = |association: u32| {
        let hello = Hello {
            association,
            ..HELLO
        };
        greeting(3, 0, &hello)
    };
    let open_and_close = |server: &mut End, association: u32| {
        server.receive(CLIENT, &hello(association)).unwrap();
        server.endpoint.close(server.now, peer(CLIENT));
        server.transmit(CLIENT);
    };
    for association in 1..=4096 {
        open_and_close(&mut server, association);
    }
    assert_eq!(server.receive(CLIENT, &hello(1)), Err(Dropped::Late(1)));
    open_and_close(&mut server, 4097);
    assert_eq!(server.receive(CLIENT, &hello(2)), Err(Dropped::Late(2)));
    assert_eq!(server.receive(CLIENT, &hello(1)), Ok(()));
}
