use std::collections::VecDeque;

use dgiwarp_ddp::error::{TaggedError, UntaggedError};
use dgiwarp_ddp::placement::{TaggedBuffers, TaggedSpan};
use dgiwarp_ddp::{STag, TaggedOffset};
use proptest::prelude::*;

use super::*;
use crate::datagram::PlaceFailed;
use crate::wire::Opcode;
use crate::wire::control::ControlError;

/// Receives of given capacities, one tagged buffer of 64 octets at offset 1000, and what became of them.
#[derive(Default)]
struct Memory {
    posted: VecDeque<usize>,
    filling: Vec<u8>,
    delivered: Vec<(Vec<u8>, bool)>,
    failed: Vec<StreamError>,
    tagged: Vec<u8>,
}

const STAG: u32 = 0x77;

impl Memory {
    fn with_receives(capacities: &[usize]) -> Self {
        Self {
            posted: capacities.iter().copied().collect(),
            tagged: vec![0; 64],
            ..Self::default()
        }
    }

    fn offset(&self, stag: STag, start: TaggedOffset, length: u32) -> Result<usize, TaggedError> {
        if stag.get() != STAG {
            return Err(TaggedError::InvalidStag);
        }
        let from = usize::try_from(start.get()).unwrap().checked_sub(1000);
        from.filter(|from| from + length as usize <= self.tagged.len())
            .ok_or(TaggedError::BaseOrBounds)
    }
}

impl TaggedBuffers for Memory {
    fn check(&self, span: TaggedSpan) -> Result<(), TaggedError> {
        self.offset(span.stag, span.start, span.length).map(|_| ())
    }

    fn place(
        &mut self,
        stag: STag,
        start: TaggedOffset,
        payload: &[u8],
    ) -> Result<(), TaggedError> {
        let from = self.offset(stag, start, u32::try_from(payload.len()).unwrap())?;
        self.tagged[from..from + payload.len()].copy_from_slice(payload);
        Ok(())
    }
}

impl Upper for Memory {
    type Receive = usize;

    fn take_receive(&mut self) -> Option<usize> {
        self.posted.pop_front()
    }

    fn capacity(&self, receive: &usize) -> u32 {
        u32::try_from(*receive).unwrap()
    }

    fn place_untagged(
        &mut self,
        _: &usize,
        offset: u32,
        payload: &[u8],
    ) -> Result<(), PlaceFailed> {
        assert_eq!(offset as usize, self.filling.len());
        self.filling.extend_from_slice(payload);
        Ok(())
    }

    fn deliver(&mut self, _: usize, delivered: Delivered) {
        assert_eq!(delivered.length as usize, self.filling.len());
        self.delivered
            .push((std::mem::take(&mut self.filling), delivered.solicited));
    }

    fn fail(&mut self, _: usize, error: StreamError) {
        self.failed.push(error);
    }
}

fn ulpdus(outbound: &mut Outbound, message: &[u8], mulpdu: u16) -> Vec<Vec<u8>> {
    let mut send = outbound.send(u32::try_from(message.len()).unwrap(), false);
    let mut out = Vec::new();
    while let Some((header, segment)) = send.next_segment(mulpdu) {
        let from = segment.offset as usize;
        out.push([&header[..], &message[from..from + segment.length as usize]].concat());
    }
    assert!(send.is_done());
    out
}

/// RFC 5044 figure 5 holds such a Send: its first octets.
#[test]
fn the_first_send_of_a_stream() {
    let one = ulpdus(&mut Outbound::default(), &[0; 24], 1442);
    let mut expected = vec![0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    expected.resize(42, 0);
    assert_eq!(one, [expected]);
}

#[test]
fn a_zero_length_send_takes_a_receive() {
    let mut memory = Memory::with_receives(&[0]);
    let mut inbound = Inbound::default();
    let only = ulpdus(&mut Outbound::default(), b"", 128);
    assert_eq!(only.len(), 1);
    assert_eq!(inbound.handle_ulpdu(&only[0], &mut memory), Ok(()));
    assert_eq!(memory.delivered, [(vec![], false)]);
}

/// RFC 5041 §7.2, one row each; the receive that was taken fails with it.
#[test]
fn untagged_errors() {
    let good = ulpdus(&mut Outbound::default(), b"12345678", 1442).remove(0);
    let with = |at: usize, octet: u8, receives: &[usize]| {
        let mut bytes = good.clone();
        bytes[at] = octet;
        let mut memory = Memory::with_receives(receives);
        let result = Inbound::default().handle_ulpdu(&bytes, &mut memory);
        assert!(memory.filling.is_empty() && memory.delivered.is_empty());
        (result.unwrap_err(), memory.failed)
    };
    let row = |error: UntaggedError| (StreamError::from(error), vec![]);
    assert_eq!(with(9, 4, &[8]), row(UntaggedError::InvalidQueue));
    assert_eq!(with(0, 0x41, &[]), row(UntaggedError::NoBuffer));
    for msn in [0, 2, 255] {
        assert_eq!(with(13, msn, &[8]), row(UntaggedError::MsnRange));
    }
    assert_eq!(with(17, 1, &[9]), row(UntaggedError::InvalidOffset));
    let too_long = StreamError::from(UntaggedError::TooLong);
    assert_eq!(with(0, 0x41, &[7]), (too_long, vec![too_long]));
    assert_eq!(with(0, 0x40, &[8]), row(UntaggedError::Version));
    assert_eq!(with(1, 0xc3, &[8]).0, ControlError::Version(3).into());
    assert_eq!(with(1, 0x4f, &[8]).0, ControlError::Opcode(0xf).into());
    assert_eq!(
        with(1, 0x40, &[8]).0,
        StreamError::UnexpectedOpcode(Opcode::Write)
    );
    assert_eq!(
        with(9, 1, &[8]).0,
        StreamError::UnexpectedOpcode(Opcode::Send)
    );
    let short = Inbound::default().handle_ulpdu(&good[..17], &mut Memory::default());
    assert_eq!(short, Err(StreamError::Truncated(17)));
}

#[test]
fn writes_land_where_they_say_or_nowhere() {
    let write = |stag: u32, offset: u64, payload: &[u8]| {
        let mut ulpdu = vec![0xc1, 0x40];
        ulpdu.extend_from_slice(&stag.to_be_bytes());
        ulpdu.extend_from_slice(&offset.to_be_bytes());
        ulpdu.extend_from_slice(payload);
        let mut memory = Memory::with_receives(&[]);
        let result = Inbound::default().handle_ulpdu(&ulpdu, &mut memory);
        (result, memory.tagged)
    };
    let (result, tagged) = write(STAG, 1062, b"ab");
    assert_eq!((result, &tagged[61..]), (Ok(()), &b"\0ab"[..]));
    let bounds = Err(TaggedError::BaseOrBounds.into());
    assert_eq!(write(STAG, 1063, b"ab"), (bounds, vec![0; 64]));
    assert_eq!(write(STAG, 999, b"a"), (bounds, vec![0; 64]));
    assert_eq!(write(1, 1000, b"a").0, Err(TaggedError::InvalidStag.into()));
    // RFC 5041 §5.2: nothing of an empty one is checked.
    assert_eq!(write(1, u64::MAX, b"").0, Ok(()));
}

/// RFC 5040 §4.8 figure 8: layer, type and code.
#[test]
fn a_terminate_names_its_cause() {
    let mut ulpdu = ulpdus(&mut Outbound::default(), &[0x11, 0x01, 0xc0, 0], 128).remove(0);
    ulpdu[1] = 0x47;
    ulpdu[9] = 2;
    let result = Inbound::default().handle_ulpdu(&ulpdu, &mut Memory::default());
    let cause = TerminateCause {
        layer: 1,
        error_type: 1,
        code: 1,
    };
    assert_eq!(result, Err(StreamError::Terminated(cause)));
}

#[test]
fn an_unfinished_receive_is_given_back() {
    let segments = ulpdus(&mut Outbound::default(), &[1; 300], 128);
    let mut memory = Memory::with_receives(&[300]);
    let mut inbound = Inbound::default();
    assert_eq!(inbound.handle_ulpdu(&segments[0], &mut memory), Ok(()));
    assert_eq!(inbound.abandon(), Some(300));
    assert_eq!(inbound.abandon(), None);
}

proptest! {
    #[test]
    fn messages_arrive_as_sent(
        messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..1000), 1..8),
        mulpdu in 128u16..1500,
    ) {
        let mut outbound = Outbound::default();
        let mut inbound = Inbound::default();
        let mut memory = Memory::with_receives(&vec![1000; messages.len()]);
        for message in &messages {
            for ulpdu in ulpdus(&mut outbound, message, mulpdu) {
                prop_assert!(ulpdu.len() <= usize::from(mulpdu));
                prop_assert_eq!(inbound.handle_ulpdu(&ulpdu, &mut memory), Ok(()));
            }
        }
        let delivered: Vec<_> = memory.delivered.into_iter().map(|(octets, _)| octets).collect();
        prop_assert_eq!(delivered, messages);
    }

    #[test]
    fn any_octets_return(ulpdu in proptest::collection::vec(any::<u8>(), 0..80)) {
        let mut memory = Memory::with_receives(&[40]);
        let _ = Inbound::default().handle_ulpdu(&ulpdu, &mut memory);
        prop_assert!(memory.filling.len() <= 40);
    }
}
