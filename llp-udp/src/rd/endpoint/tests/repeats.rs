//! Acknowledgements and credit that were lost, and ends that wait for receives.

use super::*;

impl End {
    /// Posts messages of one segment that each take a receive.
    fn post_sends(&mut self, to: u16, count: u64) {
        for token in 0..count {
            let post = Post {
                token,
                segments: 1,
                length: 64,
                last_length: 64,
                trailer: None,
                stream: None,
                receive: true,
            };
            self.endpoint.post(self.now, peer(to), 1472, post);
        }
    }

    /// Has timers expire until datagrams leave, and hands them to the other end.
    fn carry_later(&mut self, to: &mut Self) {
        for _ in 0..100 {
            self.now = self.endpoint.poll_timeout().unwrap();
            self.endpoint.handle_timeout(self.now);
            let datagrams = self.transmit(to.port);
            to.now = self.now;
            for datagram in &datagrams {
                to.receive(self.port, datagram).unwrap();
            }
            if !datagrams.is_empty() {
                return;
            }
        }
        panic!("timers without a datagram");
    }

    fn outstanding(&self, to: u16) -> usize {
        self.endpoint.outstanding(peer(to))
    }
}

#[test]
fn a_probe_repeats_an_acknowledgement_that_was_lost() {
    let (mut client, mut server) = ends(|_| ());
    acquaint(&mut client, &mut server);
    client.carry(&mut server);
    client.post(SERVER, 1, 64);
    client.carry(&mut server);
    server.now += Duration::from_millis(2);
    client.now = server.now;
    server.endpoint.handle_timeout(server.now);
    assert_eq!(server.transmit(CLIENT).len(), 1, "lost");
    server.post(CLIENT, 1, 64);
    assert_eq!(server.transmit(CLIENT).len(), 1, "lost");
    assert_eq!(client.outstanding(SERVER), 1);
    server.carry_later(&mut client);
    assert_eq!((client.placed, client.outstanding(SERVER)), (1, 0));
}

#[test]
fn a_sender_without_credit_has_lost_credit_repeated() {
    let (mut client, mut server) = ends(|config| config.receives = 1);
    client.post_sends(SERVER, 1);
    client.carry(&mut server);
    server.now += Duration::from_millis(2);
    client.now = server.now;
    server.carry(&mut client);
    client.carry(&mut server);
    assert_eq!((server.placed, client.outstanding(SERVER)), (1, 0));
    server.endpoint.grant(peer(CLIENT), 8);
    assert_eq!(server.transmit(CLIENT).len(), 1, "lost");
    client.post_sends(SERVER, 6);
    assert_eq!(client.transmit(SERVER).len(), 1, "one message alone, lost");
    client.carry_later(&mut server);
    assert_eq!(server.placed, 2);
    server.carry(&mut client);
    client.carry(&mut server);
    assert_eq!(server.placed, 7);
}

#[test]
fn an_end_waits_for_receives_where_nothing_else_is_on_the_way() {
    let (mut client, mut server) = ends(|_| ());
    acquaint(&mut client, &mut server);
    client.post_sends(SERVER, 1);
    for datagram in client.transmit(SERVER) {
        let octets = PayloadSlice::<[u8]>::new(&datagram);
        let (from, now) = (peer(CLIENT), server.now);
        let refuse = &mut |_, _: &SegmentHeader, _, _: PayloadSlice<'_, [u8]>| Verdict::NotReady;
        server
            .endpoint
            .handle_input(now, from, Ecn::NotEct, octets, refuse)
            .unwrap();
    }
    server.carry(&mut client);
    assert!(client.endpoint.waits_for_receives());
    client.post(3, 1, 64);
    assert!(!client.endpoint.waits_for_receives(), "of this peer alone");
}
