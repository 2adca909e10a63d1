//! Sends, Writes and Immediate Data as they arrive.

use dgiwarp_ddp::STag;
use dgiwarp_ddp::error::{TaggedError, UntaggedError};
use proptest::prelude::*;

use super::*;
use crate::wire::control::ControlError;
use crate::wire::{Cause, ImmediateData, Opcode};

const PLAIN: SendKind = SendKind {
    solicited: false,
    invalidate: None,
};

/// RFC 5044 figure 5 holds such a Send: its first octets.
#[test]
fn the_first_send_of_a_stream() {
    let one = send(&mut stream(), &[0; 24], PLAIN, 1442);
    let mut expected = vec![0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    expected.resize(42, 0);
    assert_eq!(one, [expected]);
}

#[test]
fn a_zero_length_send_takes_a_receive() {
    let mut memory = Memory::with_receives(&[0]);
    let only = send(&mut stream(), b"", PLAIN, 128);
    assert_eq!(only.len(), 1);
    assert_eq!(
        stream().handle_ulpdu(&only[0], &mut memory),
        Ok(Handled::Taken)
    );
    assert_eq!(memory.delivered[0].0, b"");
}

/// RFC 5041 §7.2, one row each; the receive that was taken fails with it.
#[test]
fn untagged_errors() {
    let good = send(&mut stream(), b"12345678", PLAIN, 1442).remove(0);
    let with = |at: usize, octet: u8, receives: &[usize]| {
        let mut bytes = good.clone();
        bytes[at] = octet;
        let mut memory = Memory::with_receives(receives);
        let result = stream().handle_ulpdu(&bytes, &mut memory);
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
    // RFC 5040 figure 4: which opcode belongs into which header and onto which queue.
    for (opcode, queue) in [(0, 0), (1, 0), (2, 0), (7, 0), (10, 0), (11, 0), (12, 0)]
        .into_iter()
        .chain([(3, 1), (7, 1), (3, 2), (1, 2), (11, 1), (10, 3), (3, 3)])
    {
        let mut bytes = good.clone();
        (bytes[1], bytes[9]) = (0x40 | opcode, queue);
        let mut memory = Memory::with_receives(&[8]);
        let error = stream().handle_ulpdu(&bytes, &mut memory);
        let opcode = Opcode::parse(0x40 | opcode).unwrap();
        assert_eq!(error, Err(StreamError::UnexpectedOpcode(opcode)), "{queue}");
    }
    let short = stream().handle_ulpdu(&good[..17], &mut Memory::default());
    assert_eq!(short, Err(StreamError::Truncated(17)));
    let nothing = stream().handle_ulpdu(&[], &mut Memory::default());
    assert_eq!(nothing, Err(StreamError::Truncated(0)));
}

fn write(stag: u32, offset: u64, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap();
    let message = stream().write(STag::new(stag), TaggedOffset::new(offset), length);
    segments(message, payload, 1442).remove(0)
}

#[test]
fn writes_land_where_they_say_or_nowhere() {
    let end = BASE + OCTETS as u64;
    let with = |ulpdu: &[u8]| {
        let mut memory = Memory::with_receives(&[]);
        let result = stream().handle_ulpdu(ulpdu, &mut memory);
        (result, memory.tagged)
    };
    let (result, tagged) = with(&write(STAG, end - 2, b"ab"));
    assert_eq!(
        (result, &tagged[OCTETS - 3..]),
        (Ok(Handled::Taken), &b"\0ab"[..])
    );
    for (ulpdu, error) in [
        (write(STAG, end - 1, b"ab"), TaggedError::BaseOrBounds),
        (write(STAG, BASE - 1, b"a"), TaggedError::BaseOrBounds),
        (write(STAG, u64::MAX, b"ab"), TaggedError::Wrap),
        (write(1, BASE, b"a"), TaggedError::InvalidStag),
    ] {
        assert_eq!(with(&ulpdu), (Err(error.into()), vec![0; OCTETS]));
    }
    let mut other_version = write(STAG, BASE, b"a");
    other_version[0] ^= 3;
    assert_eq!(with(&other_version).0, Err(TaggedError::Version.into()));
    // RFC 5041 §5.2: nothing of an empty one is checked.
    assert_eq!(with(&write(1, u64::MAX, b"")).0, Ok(Handled::Taken));
    for opcode in [1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13] {
        let mut ulpdu = write(STAG, BASE, b"a");
        ulpdu[1] = 0x40 | opcode;
        let opcode = Opcode::parse(ulpdu[1]).unwrap();
        let error = Err(StreamError::UnexpectedOpcode(opcode));
        assert_eq!(with(&ulpdu), (error, vec![0; OCTETS]));
    }
}

#[test]
fn a_send_invalidates_before_it_is_delivered_and_only_what_is_the_streams() {
    let invalidating = |stag| SendKind {
        solicited: true,
        invalidate: Some(STag::new(stag)),
    };
    let mut source = stream();
    let mut memory = Memory::with_receives(&[400; 3]);
    let mut sink = stream();
    let first = send(&mut source, &[7; 300], invalidating(WINDOW), 128);
    assert_eq!(
        first[0][1], 0x46,
        "Send with Solicited Event and Invalidate"
    );
    assert_eq!(first[0][2..6], WINDOW.to_be_bytes());
    for ulpdu in &first {
        assert!(!memory.window_is_gone);
        assert_eq!(sink.handle_ulpdu(ulpdu, &mut memory), Ok(Handled::Taken));
    }
    let (octets, delivered) = &memory.delivered[0];
    assert_eq!((octets.len(), delivered.solicited), (300, true));
    assert_eq!(delivered.invalidated, Some(STag::new(WINDOW)));

    // Again: now it is gone.
    let second = send(&mut source, b"x", invalidating(WINDOW), 128);
    let error = StreamError::CannotInvalidate(STag::new(WINDOW));
    assert_eq!(sink.handle_ulpdu(&second[0], &mut memory), Err(error));
    assert_eq!(
        (memory.delivered.len(), &memory.failed[..]),
        (1, &[error][..])
    );
    let plain = SendKind {
        solicited: false,
        invalidate: Some(STag::new(WINDOW)),
    };
    assert_eq!(send(&mut stream(), b"x", plain, 128)[0][1], 0x44);
}

#[test]
fn immediate_data_takes_a_receive_and_is_eight_octets() {
    let data = ImmediateData {
        immediate: 0x0102_0304,
        written: 5,
    };
    let mut source = stream();
    let mut sink = stream();
    let mut memory = Memory::with_receives(&[0, 0]);
    for solicited in [false, true] {
        let ulpdu = source.immediate(data, solicited);
        assert_eq!(ulpdu.len(), 26);
        assert_eq!(sink.handle_ulpdu(&ulpdu, &mut memory), Ok(Handled::Taken));
        let (octets, delivered) = memory.delivered.pop().unwrap();
        assert_eq!((octets.len(), delivered.solicited), (0, solicited));
        let data = ImmediateData { written: 0, ..data };
        assert_eq!(delivered.immediate, Some(data), "nothing was written");
    }
    let third = source.immediate(data, false);
    let no_buffer = Err(UntaggedError::NoBuffer.into());
    assert_eq!(sink.handle_ulpdu(&third, &mut memory), no_buffer);

    let good = stream().immediate(data, false);
    for length in [0, 7, 9] {
        let mut ulpdu = good.to_vec();
        ulpdu.resize(18 + length, 0);
        let error = stream().handle_ulpdu(&ulpdu, &mut Memory::with_receives(&[100]));
        let expected = StreamError::Length {
            opcode: Opcode::Immediate,
            length: u32::try_from(length).unwrap(),
        };
        assert_eq!(error, Err(expected));
    }
}

/// Octets of a Write, its Immediate Data that reports `reported`, and what the sink makes of it.
fn write_with_immediate(
    sink: &mut TestStream,
    memory: &mut Memory,
    length: usize,
    reported: u32,
) -> Result<u32, StreamError> {
    let mut source = stream();
    let octets = vec![7; length];
    let write = source.write(
        STag::new(STAG),
        TaggedOffset::new(BASE),
        reported_length(length),
    );
    for ulpdu in segments(write, &octets, 114) {
        assert_eq!(sink.handle_ulpdu(&ulpdu, memory), Ok(Handled::Taken));
    }
    let data = ImmediateData {
        immediate: 1,
        written: reported,
    };
    let ulpdu = source.immediate(data, false);
    sink.handle_ulpdu(&ulpdu, memory)?;
    let (_, delivered) = memory.delivered.pop().unwrap();
    Ok(delivered.immediate.unwrap().written)
}

fn reported_length(length: usize) -> u32 {
    u32::try_from(length).unwrap()
}

/// A plain peer's last four octets may be anything; they are not the length of a Write.
#[test]
fn the_length_with_an_immediate_is_that_of_the_write_before_it() {
    for length in [0, 1, 100, 101, 300] {
        for reported in [0, 7, 0x7878_7878, u32::MAX] {
            let mut memory = Memory::with_receives(&[0]);
            let written = write_with_immediate(&mut stream(), &mut memory, length, reported);
            assert_eq!(written, Ok(reported_length(length)));
        }
    }
    // Neither a Write before another message nor one that is not complete counts.
    let mut sink = stream();
    let mut memory = Memory::with_receives(&[0, 1, 0]);
    let mut source = stream();
    let write = source.write(STag::new(STAG), TaggedOffset::new(BASE), 300);
    let mut ulpdus = segments(write, &[7; 300], 114);
    ulpdus.pop();
    let data = ImmediateData {
        immediate: 1,
        written: 9,
    };
    ulpdus.push(source.immediate(data, false).to_vec());
    let write = source.write(STag::new(STAG), TaggedOffset::new(BASE), 9);
    ulpdus.extend(segments(write, &[7; 9], 114));
    ulpdus.extend(send(&mut source, b"x", PLAIN, 128));
    ulpdus.push(source.immediate(data, false).to_vec());
    for ulpdu in &ulpdus {
        assert_eq!(sink.handle_ulpdu(ulpdu, &mut memory), Ok(Handled::Taken));
    }
    let immediates = memory.delivered.iter().filter_map(|(_, it)| it.immediate);
    assert!(immediates.map(|it| it.written).eq([0, 0]));
}

/// Another length is the violation of a dgiwarp peer.
#[test]
fn a_dgiwarp_peer_that_reports_another_length_is_terminated() {
    let hello = {
        let mut peer = stream().with_extensions(Capabilities::default());
        peer.dgiwarp_ext_mut().hello().unwrap()
    };
    let greeted = || {
        let mut sink = stream().with_extensions(Capabilities::default());
        let taken = sink.handle_ulpdu(&hello, &mut Memory::default());
        assert_eq!(taken, Ok(Handled::Taken));
        sink
    };
    let mut memory = Memory::with_receives(&[0; 2]);
    let good = write_with_immediate(&mut greeted(), &mut memory, 300, 300);
    assert_eq!(good, Ok(300));
    let mut sink = greeted();
    let error = StreamError::Written {
        reported: 301,
        placed: 300,
    };
    let bad = write_with_immediate(&mut sink, &mut memory, 300, 301);
    assert_eq!(bad, Err(error));
    assert_eq!(memory.failed, [error]);
    assert!(sink.take_terminate().is_some());
}

#[test]
fn a_message_keeps_its_opcode() {
    let mut ulpdus = send(&mut stream(), &[1; 300], PLAIN, 128);
    ulpdus[1][1] = 0x45;
    let mut memory = Memory::with_receives(&[300]);
    let mut sink = stream();
    assert_eq!(
        sink.handle_ulpdu(&ulpdus[0], &mut memory),
        Ok(Handled::Taken)
    );
    assert_eq!(
        sink.handle_ulpdu(&ulpdus[1], &mut memory),
        Err(StreamError::UnexpectedOpcode(Opcode::SendSolicited))
    );
    assert_eq!(memory.filling.len(), 110, "what came before");
}

/// RFC 5040 §4.8 figure 8: layer, type and code. All other octets are arbitrary.
#[test]
fn a_terminate_names_its_cause() {
    for rest in [&[0u8, 0][..], &[0xc0, 0], &[0xff, 0xff, 1, 2, 3]] {
        let mut ulpdu = send(&mut stream(), &[&[0x11, 0x01], rest].concat(), PLAIN, 128).remove(0);
        (ulpdu[1], ulpdu[9]) = (0x47, 2);
        let mut sink = stream();
        let result = sink.handle_ulpdu(&ulpdu, &mut Memory::default());
        let cause = Cause {
            layer: 1,
            error_type: 1,
            code: 1,
        };
        assert_eq!(result, Err(StreamError::Terminated(cause)));
        assert_eq!(sink.take_terminate(), None, "it is not answered");
    }
}

#[test]
fn an_unfinished_receive_is_given_back() {
    let ulpdus = send(&mut stream(), &[1; 300], PLAIN, 128);
    let mut memory = Memory::with_receives(&[300]);
    let mut sink = stream();
    assert_eq!(
        sink.handle_ulpdu(&ulpdus[0], &mut memory),
        Ok(Handled::Taken)
    );
    assert_eq!(sink.abandon(), Some(300));
    assert_eq!(sink.abandon(), None);
}

/// RFC 5040 §4.8 and §7.1: what a Terminate says, for each kind of cause; the first error is told, later segments are dropped.
#[test]
fn terminates_carry_what_the_figure_says() {
    // A DDP error: length and DDP header, nothing of RDMAP's.
    let mut sink = stream();
    let mut memory = Memory::with_receives(&[]);
    let bad = write(1, BASE, b"abc");
    let _ = sink.handle_ulpdu(&bad, &mut memory);
    let good = write(STAG, BASE, b"abc");
    assert_eq!(sink.handle_ulpdu(&good, &mut memory), Ok(Handled::Taken));
    assert_eq!(memory.tagged, vec![0; OCTETS], "dropped without a word");
    let terminate = sink.take_terminate().unwrap();
    let mut expected = vec![0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0];
    expected.extend([0x11, 0x00, 0xc0, 0, 0, 17]);
    expected.extend(&bad[..14]);
    assert_eq!(terminate[..], expected);
    assert_eq!(sink.take_terminate(), None);

    // A remote operation error without a DDP header: the control alone.
    let mut sink = stream();
    let _ = sink.handle_ulpdu(&bad[..13], &mut memory);
    assert_eq!(sink.take_terminate().unwrap()[18..], [0x02, 0xff, 0, 0]);

    // An error of a ULPDU in the RNR queue is reported as one on arrival is.
    let ulpdu = send(&mut stream(), &[1; 4], SendKind::default(), 100).remove(0);
    let (mut arrived, mut waited) = (stream(), stream());
    let error = arrived.handle_ulpdu(&ulpdu, &mut Memory::default());
    assert!(!waited.is_over());
    waited.fail_at(error.unwrap_err(), &ulpdu);
    assert!(waited.is_over());
    let terminates = [arrived, waited].map(|mut it| it.take_terminate().unwrap());
    assert_eq!(terminates[0], terminates[1]);

    // Errors that no segment caused.
    for (error, control) in [
        (StreamError::LocalProtection, [0x00, 0x00, 0, 0]),
        (StreamError::Llp(2), [0x20, 0x02, 0, 0]),
    ] {
        let mut sink = stream();
        sink.fail(error);
        sink.fail(StreamError::Llp(3));
        assert_eq!(sink.take_terminate().unwrap()[18..], control);
        assert!(sink.is_over());
    }

    // A receive that names no memory is a local error, though a segment showed it.
    let mut sink = stream();
    let error = StreamError::CannotInvalidate(STag::new(5));
    let kind = SendKind {
        solicited: false,
        invalidate: Some(STag::new(5)),
    };
    let ulpdu = send(&mut stream(), b"", kind, 128).remove(0);
    let mut memory = Memory::with_receives(&[1]);
    assert_eq!(sink.handle_ulpdu(&ulpdu, &mut memory), Err(error));
    let terminate = sink.take_terminate().unwrap();
    assert_eq!(terminate[18..24], [0x01, 0x09, 0xc0, 0, 0, 18]);
    assert_eq!(terminate[24..], ulpdu);
}

proptest! {
    #[test]
    fn any_octets_return_and_place_nothing_outside(
        mut ulpdus in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..80), 1..6),
        plausible: bool,
    ) {
        let mut memory = Memory::with_receives(&[40, 40]);
        let sink = memory.sink(30);
        let mut stream = stream();
        let read = ReadSource { stag: STag::new(1), start: TaggedOffset::new(0), length: 30 };
        prop_assert!(stream.read(read, sink).is_some());
        for ulpdu in &mut ulpdus {
            if plausible && let [control, opcode, ..] = &mut ulpdu[..] {
                *control = *control & 0xc0 | 1;
                *opcode = *opcode & 0x0f | 0x40;
                let length = ulpdu.len();
                let large = [6, 7, 8, 10, 11, 12, 14, 15, 16];
                for at in large.into_iter().filter(|at| *at < length) {
                    ulpdu[at] = 0;
                }
            }
            let _ = stream.handle_ulpdu(ulpdu, &mut memory);
            while answer(&mut stream, &mut memory, 128).is_some() {}
            let _ = stream.take_terminate();
        }
    }
}

/// Every octet of the header with every value: it is all of the next Send only where the stream takes it for that.
#[test]
fn a_sole_send_is_one_that_the_stream_would_deliver() {
    let good = send(&mut stream(), b"12345678", PLAIN, 1442).remove(0);
    let mut found = 0;
    for at in 0..18 {
        for value in 0..=255 {
            let mut ulpdu = good.clone();
            ulpdu[at] = value;
            let mut sink = stream();
            let Some(sole) = sink.sole_send(&ulpdu) else {
                continue;
            };
            found += 1;
            let mut memory = Memory::with_receives(&[8]);
            let handled = sink.handle_ulpdu(&ulpdu, &mut memory);
            assert_eq!(handled, Ok(Handled::Taken), "octet {at} is {value}");
            let (octets, delivered) = &memory.delivered[0];
            assert_eq!((&octets[..], delivered.length), (sole.payload, 8));
            assert_eq!(delivered.solicited, sole.solicited);
            assert_eq!(delivered.invalidated, None);
            assert_eq!(delivered.immediate, None);
        }
    }
    // Octets of RsvdULP, which only an Invalidate fills, may have any value; the other ones have one, the opcode two.
    assert_eq!(found, 4 * 256 + 14 + 1);
    assert_eq!(stream().sole_send(&good[..17]), None);
}

#[test]
fn sole_sends_count_as_all_others() {
    let (mut client, mut server) = dgiwarp_ext::acquainted();
    let mut memory = Memory::with_receives(&[0, 100]);
    let whole =
        |stream: &mut Stream<usize, usize>| send(stream, b"12345678", PLAIN, 1442).remove(0);
    let write = client.write(STag::new(STAG), TaggedOffset::new(BASE), 20);
    for ulpdu in segments(write, &[9; 20], 1442) {
        server.handle_ulpdu(&ulpdu, &mut memory).unwrap();
    }
    let (first, second) = (whole(&mut client), whole(&mut client));
    assert_eq!(server.sole_send(&second), None, "the first comes before it");
    assert!(server.sole_send(&first).is_some());
    let before = server.dgiwarp_ext().placed();
    server.placed_sole_send();
    assert_eq!(server.dgiwarp_ext().placed(), before + 1);
    assert_eq!(server.sole_send(&first), None);
    assert!(server.sole_send(&second).is_some());
    server.placed_sole_send();
    // The Write before the Sends is not that of an Immediate Data message behind them.
    let data = ImmediateData {
        immediate: 1,
        written: 0,
    };
    let ulpdu = client.immediate(data, false);
    assert_eq!(server.handle_ulpdu(&ulpdu, &mut memory), Ok(Handled::Taken));
    // In the midst of a Send none is.
    let cut = send(&mut client, &[7; 20], PLAIN, 28);
    assert_eq!(server.sole_send(&cut[0]), None);
    server.handle_ulpdu(&cut[0], &mut memory).unwrap();
    assert_eq!(server.sole_send(&cut[1]), None);
    server.handle_ulpdu(&cut[1], &mut memory).unwrap();
}
