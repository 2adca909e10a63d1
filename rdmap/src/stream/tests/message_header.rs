//! Segments whose payload is apart: two streams that get the same ones, whole and in two parts, end up alike.

use proptest::prelude::*;

use super::*;
use crate::stream::{Capabilities, MessageHeader};
use crate::wire::Opcode;

/// Headers of messages that are nearly right: queue, opcode, MSN, offset, flags, STag and TO are among few values each.
fn ulpdus() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let control =
        prop_oneof![4 => Just(0x41u8), 2 => Just(0xc1), 1 => Just(0x01), 1 => any::<u8>()];
    let opcode = prop_oneof![
        6 => (0..9u8).prop_map(|opcode| 0x40 | opcode),
        1 => any::<u8>()
    ];
    let words = [0u32, 1, 2, 3, STAG, WINDOW];
    let word = move || prop::sample::select(words.to_vec());
    let queue = prop_oneof![6 => Just(0u32), 1 => 0..6u32];
    let octets = (0..90usize, any::<u8>());
    let one = (
        control,
        opcode,
        word(),
        queue,
        1..4u32,
        0..3u32,
        octets,
        any::<bool>(),
    );
    let ulpdu = one.prop_map(
        |(control, opcode, word, queue, msn, offset, (len, fill), inside)| {
            let mut ulpdu = vec![control, opcode];
            if control & 0x80 != 0 {
                ulpdu.extend_from_slice(&word.to_be_bytes());
                let to = if inside { BASE + u64::from(msn) } else { 0 };
                ulpdu.extend_from_slice(&to.to_be_bytes());
            } else {
                for field in [word, queue, msn, offset * 8] {
                    ulpdu.extend_from_slice(&field.to_be_bytes());
                }
            }
            ulpdu.resize(ulpdu.len() + len, fill);
            ulpdu
        },
    );
    proptest::collection::vec(ulpdu, 1..8)
}

proptest! {
    #[test]
    fn a_segment_in_two_parts_is_one(ulpdus in ulpdus(), waits: bool, cut in 0usize..40) {
        let one = || {
            let stream = Stream::new(Depths { ird: 1, ord: 1 });
            let mut stream = stream.with_extensions(Capabilities::SAME_HOST);
            let mut memory = Memory::with_receives(&[40, 100]);
            memory.waits = waits;
            let source = ReadSource {
                stag: STag::new(STAG),
                start: TaggedOffset::new(BASE),
                length: 60,
            };
            stream.read(source, memory.sink(60));
            (stream, memory)
        };
        let ((mut whole, mut expected), (mut apart, mut memory)) = (one(), one());
        for ulpdu in ulpdus {
            let result = whole.handle_ulpdu(&ulpdu, &mut expected);
            let front = &ulpdu[..cut.min(ulpdu.len())];
            let parts = match MessageHeader::parse(front, ulpdu.len()) {
                Some(header) => {
                    let payload = &ulpdu[header.len()..];
                    apart.handle_message_segment(&header, payload, &mut memory)
                }
                None => apart.handle_ulpdu(&ulpdu, &mut memory),
            };
            prop_assert_eq!(parts, result);
            prop_assert_eq!(format!("{memory:?}"), format!("{expected:?}"));
            prop_assert_eq!(apart.take_terminate(), whole.take_terminate());
            prop_assert_eq!(apart.dgiwarp_ext().placed(), whole.dgiwarp_ext().placed());
        }
    }
}

#[test]
fn only_messages_with_a_whole_header_are_parsed() {
    let mut stream = Stream::<usize, usize>::new(Depths { ird: 1, ord: 1 });
    let mut send = stream.send(30, SendKind::default());
    let (send, _) = send.next_segment(500).unwrap();
    assert!(MessageHeader::parse(&send[..17], 48).is_none());
    let parsed = MessageHeader::parse(&send, 48);
    assert!(matches!(
        parsed,
        Some(MessageHeader::Queued(_, Opcode::Send))
    ));
    assert!(
        MessageHeader::parse(&send, 17).is_none(),
        "shorter than its header"
    );
    let rtr = Stream::<usize, usize>::rtr_write();
    assert!(
        MessageHeader::parse(&rtr, rtr.len()).is_none(),
        "an empty Write"
    );
    let parsed = MessageHeader::parse(&rtr, rtr.len() + 1).unwrap();
    assert!(matches!(parsed, MessageHeader::Write(_)) && !parsed.is_answer());
    let mut response = rtr.clone();
    response[1] = 0x42;
    let parsed = MessageHeader::parse(&response, rtr.len() + 1).unwrap();
    assert!(matches!(parsed, MessageHeader::ReadResponse(_)) && parsed.is_answer());
    let read = stream.rtr_read(1);
    assert!(MessageHeader::parse(&read, read.len()).is_none());
}
