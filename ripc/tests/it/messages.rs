//! Messages without a reply.

use dgiwarp_ripc::{Code, Destination, Endpoint, Payload, ServiceId};

use super::{Config, SOON, octets, server_config};

#[test]
fn messages_go_both_ways_and_long_ones_into_windows() {
    let server = Endpoint::open(server_config()).unwrap();
    let of_server = server.open_inbox("4").unwrap();
    let client = Endpoint::open(Config::default().without_group()).unwrap();
    let of_client = client.open_inbox("17").unwrap();
    let address = Destination::Address(server.local_addr().unwrap());
    // Nobody has sent from there yet.
    let learned = Destination::Learned;
    let send = |payload| client.send(of_client, of_server, address, payload, Vec::new());
    let too_early = server.send(of_server, of_client, learned, Payload::new(), Vec::new());
    assert_eq!(too_early.unwrap_err().code, Code::NotFound);
    for number in 0..100_u8 {
        send(Payload::short([number])).unwrap();
    }
    for number in 0..100_u8 {
        let incoming = server.receive(of_server, Some(SOON)).unwrap();
        assert_eq!(
            (incoming.from, incoming.payload.bytes(0)),
            (of_client, vec![number])
        );
    }
    // With a window: the answer is written into it.
    let window = client.block(1 << 20).unwrap();
    let address_of_window = window.address();
    client
        .send(of_client, of_server, address, Payload::new(), vec![window])
        .unwrap();
    assert!(server.receive(of_server, Some(SOON)).is_some());
    let place = client.block(2 << 20).unwrap();
    let address_of_place = place.address();
    client.add_place(place);
    for (length, expected) in [
        (1 << 20, Some(address_of_window)),
        // No window is left: it is read, into the place.
        (1 << 20, Some(address_of_place)),
        (1 << 20, None),
    ] {
        let block = server.block(length).unwrap();
        block.write(0, &octets(length)).unwrap();
        let payload = Payload::long(block).and_short("text");
        server
            .send(of_server, of_client, learned, payload, Vec::new())
            .unwrap();
        let incoming = client.receive(of_client, Some(SOON)).unwrap();
        assert!(incoming.payload.bytes(0) == octets(length));
        assert_eq!(incoming.payload.bytes(1), b"text");
        let dgiwarp_ripc::Item::Long(block) = &incoming.payload.items[0] else {
            panic!("a long item");
        };
        if let Some(expected) = expected {
            assert_eq!(block.address(), expected);
        }
    }
    assert!(server.drain(SOON));
}

#[test]
fn credit_bounds_what_is_not_taken() {
    let mut small = server_config();
    small.limits.credit = 128 << 10;
    let server = Endpoint::open(small).unwrap();
    let inbox = server.open_inbox("4").unwrap();
    let client = Endpoint::open(Config::default().without_group()).unwrap();
    let from = ServiceId::numbered(5).unwrap();
    let address = Destination::Address(server.local_addr().unwrap());
    for number in 0..1000_u32 {
        let payload = Payload::short(number.to_be_bytes()).and_short(vec![0; 4000]);
        client
            .send(from, inbox, address, payload, Vec::new())
            .unwrap();
    }
    // Most wait at the sender until the receiver takes some.
    assert!(!client.drain(std::time::Duration::from_millis(300)));
    for number in 0..1000_u32 {
        let incoming = server.receive(inbox, Some(SOON)).unwrap();
        assert_eq!(incoming.payload.bytes(0), number.to_be_bytes());
    }
    assert!(client.drain(SOON));
}

#[test]
fn a_message_to_nobody_is_dropped() {
    let server = Endpoint::open(server_config()).unwrap();
    let client = Endpoint::open(Config::default().without_group()).unwrap();
    let [from, to] = [5, 6].map(|number| ServiceId::numbered(number).unwrap());
    let address = Destination::Address(server.local_addr().unwrap());
    // Memory that it offers comes back.
    let block = client.block(1 << 20).unwrap();
    let payload = Payload::long(block);
    client.send(from, to, address, payload, Vec::new()).unwrap();
    assert!(client.drain(SOON));
    assert_eq!(client.offered(), 0);
}
