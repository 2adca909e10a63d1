//! Requests of a Read: the first one, probes, repeats, and the end of them.

use std::collections::VecDeque;

use super::*;
use crate::wire::ReadRequest;

/// A request that the requester sends.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    Cookie,
    Read(ReadRequest),
}

impl Pair {
    fn next_request(&mut self) -> Option<Request> {
        let octets = emit(&self.poll_request()?.segment);
        Some(match parse(&octets).unwrap() {
            Arrived::Exchange(_) => Request::Cookie,
            Arrived::Segment(Parsed::Read(ReadSegment::Request { request, .. })) => {
                Request::Read(request)
            }
            Arrived::Segment(other) => panic!("nobody requested {other:?}"),
        })
    }
}

/// §6: the response to a request without a cookie is at most three times as long as the request.
#[test]
fn the_longest_read_without_a_cookie_is_the_one_whose_response_is_within_the_limit() {
    let longest = 3 * (18 + 28 + 4) - 14 - 4;
    for (length, first_is_cookie) in [(longest - 1, false), (longest, false), (longest + 1, true)] {
        let mut pair = Pair::new(4 << 20, Vec::new());
        pair.read(0, length, millis(100));
        let first = pair.next_request();
        assert_eq!(first == Some(Request::Cookie), first_is_cookie, "{length}");
    }
}

#[test]
fn a_requester_has_something_to_transmit_until_all_is_requested() {
    let mut pair = Pair::new(4 << 20, Vec::new());
    assert!(!pair.requester.has_transmit());
    pair.read(0, 100, millis(100));
    assert!(pair.requester.has_transmit());
    while pair.poll_request().is_some() {}
    assert!(!pair.requester.has_transmit());
}

/// §7.1, as RFC 8985 §7.2: a probe after twice the round trip, for one segment at the end; the whole when the probe has no response within the timeout.
#[test]
fn a_target_that_falls_silent_is_probed_once_and_then_asked_for_all() {
    let mut pair = Pair::new(4 << 20, Vec::new());
    pair.read(0, 5000, millis(2000));
    pair.run(millis(2000));
    assert_eq!(pair.sink.ended[0].1, ReadEnd::Complete);
    let begun = pair.now;
    pair.read(0, 5000, millis(2000));
    let mut requested = Vec::new();
    while pair.now - begun < millis(30) {
        while let Some(request) = pair.next_request() {
            if let Request::Read(request) = request {
                let after = (pair.now - begun).as_millis();
                requested.push((after, request.sink_offset.get(), request.size));
            }
        }
        pair.now += millis(1);
        if pair.associations.handle_timeout(pair.now) {
            pair.requester
                .handle_timeout(pair.now, &mut pair.sink, &mut pair.associations);
        }
    }
    // The round trip takes 2 ms; the timeout is 20 ms while there are few samples.
    assert_eq!(requested, [(0, 0, 5000), (4, 4000, 1000), (24, 0, 5000)]);
}

/// A target has at most 16 open requests, and gets the next ones when half of them are complete.
#[test]
fn requests_beyond_those_that_may_be_open_go_in_halves() {
    let mut pair = Pair::new(4 << 20, Vec::new());
    pair.read(0, 5000, millis(2000));
    pair.run(millis(2000));
    for read in 0..40 {
        pair.read(read * 10, 10, millis(2000));
    }
    let (mut open, mut bursts) = (VecDeque::new(), Vec::new());
    loop {
        let before = open.len();
        while let Some(Request::Read(request)) = pair.next_request() {
            open.push_back(request);
        }
        if open.len() > before {
            bursts.push(open.len() - before);
        }
        let Some(request) = open.pop_front() else {
            break;
        };
        let header = segment::emit_response_header(request.sink_stag, request.sink_offset, true);
        pair.handle(REQUESTER, &[&header[..], &[7; 10]].concat());
    }
    assert_eq!(bursts, [16, 8, 8, 8]);
    assert_eq!(pair.sink.ended.len(), 41);
}
