//! Two ends with random operations: whatever the segments and whoever runs ahead, RFC 5040 §5.5 and RFC 7306 §5.4 hold.

use proptest::prelude::*;

use super::ends::{End, Operation};
use super::*;
use crate::wire::AtomicOperation;

/// Writes and Reads work on the first half of the buffer, atomics on eight words of the second.
const HALF: usize = OCTETS / 2;
const WORDS: usize = 8;

/// Operations by number; a Write writes its own number, so that later octets are larger.
fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let one = (0..5u8, 0..HALF, 0..HALF, any::<u64>(), any::<bool>());
    proptest::collection::vec(one, 0..40).prop_map(|list| {
        let numbered = list.into_iter().zip(1u8..);
        numbered
            .map(|((kind, at, length, value, flag), number)| {
                let length = length.min(HALF - at);
                match kind {
                    0 => Operation::Send {
                        octets: vec![number; length],
                        solicited: flag,
                    },
                    1 => Operation::Write {
                        at,
                        octets: vec![number; length],
                    },
                    2 => Operation::Read {
                        at,
                        length: u32::try_from(length).unwrap(),
                    },
                    3 => Operation::Atomic {
                        at: HALF + at % WORDS * 8,
                        operation: if flag {
                            AtomicOperation::FetchAdd {
                                add: value,
                                mask: 0,
                            }
                        } else {
                            AtomicOperation::CompareSwap {
                                compare: 0,
                                compare_mask: value,
                                swap: value,
                                swap_mask: u64::MAX,
                            }
                        },
                    },
                    _ => Operation::Immediate(number.into()),
                }
            })
            .collect()
    })
}

/// Checks the effect of the operations of `from` on `to`, which has received all ULPDUs.
fn check(operations: &[Operation], from: &End, to: &End) -> Result<(), TestCaseError> {
    let mut buffer = [0u8; OCTETS];
    let mut words = [0u64; WORDS];
    let mut delivered = to.memory.delivered.iter();
    let mut sinks = from.memory.sinks.iter();
    let mut atomics = from.memory.atomics.iter();
    for operation in operations {
        match operation {
            Operation::Send { octets, solicited } => {
                let (got, delivered) = delivered.next().unwrap();
                prop_assert_eq!(got, octets);
                prop_assert_eq!(delivered.solicited, *solicited);
            }
            Operation::Immediate(number) => {
                let (_, delivered) = delivered.next().unwrap();
                prop_assert_eq!(delivered.immediate.unwrap().immediate, *number);
            }
            Operation::Write { at, octets } => {
                buffer[*at..at + octets.len()].copy_from_slice(octets);
            }
            // Rule 12: a Read sees everything that was written before it, and maybe later Writes.
            Operation::Read { at, .. } => {
                let sink = sinks.next().unwrap();
                let then = &buffer[*at..at + sink.len()];
                prop_assert!(sink.iter().zip(then).all(|(got, then)| got >= then));
            }
            // RFC 7306 §5.4 rule 8: atomics are done in order, so each finds what the one before left.
            Operation::Atomic { at, operation } => {
                let word = &mut words[(at - HALF) / 8];
                let (_, original) = atomics.next().unwrap();
                prop_assert_eq!(*original, *word);
                *word = operation.apply(*word);
            }
        }
    }
    prop_assert_eq!(delivered.next(), None);
    prop_assert_eq!(&to.memory.tagged[..HALF], &buffer[..HALF]);
    let end: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    prop_assert_eq!(&to.memory.tagged[HALF..HALF + WORDS * 8], &end);
    // Rule 11: Reads complete in the order in which they were asked for.
    prop_assert!(from.memory.reads.is_sorted());
    prop_assert_eq!(from.memory.reads.len(), from.memory.sinks.len());
    Ok(())
}

proptest! {
    #[test]
    fn two_ends_keep_the_order(
        ours in operations(),
        theirs in operations(),
        depth in 1u16..5,
        steps in proptest::collection::vec((any::<bool>(), any::<bool>(), 128u16..700, 0usize..4), 1..64),
    ) {
        let depths = Depths { ird: depth, ord: depth };
        let (mut a, mut b) = (End::new(depths, &ours, 80), End::new(depths, &theirs, 80));
        let (mut to_a, mut to_b) = (VecDeque::new(), VecDeque::new());
        let mut steps = steps.iter().cycle();
        let mut idle = 0;
        while idle < 64 {
            let (first, answers_first, mulpdu, deliver) = *steps.next().unwrap();
            // Towards the end both get their turn, whatever the steps say.
            let first = if idle > 32 { idle % 2 == 0 } else { first };
            let (end, out, incoming) = if first {
                (&mut a, &mut to_b, &mut to_a)
            } else {
                (&mut b, &mut to_a, &mut to_b)
            };
            let ulpdu = end.next_ulpdu(mulpdu, answers_first);
            idle = if ulpdu.is_some() { 0 } else { idle + 1 };
            out.extend(ulpdu);
            for _ in 0..deliver.max(usize::from(idle > 0)) {
                let Some(ulpdu) = incoming.pop_front() else { break };
                let ulpdu: Vec<u8> = ulpdu;
                prop_assert_eq!(end.stream.handle_ulpdu(&ulpdu, &mut end.memory), Ok(Handled::Taken));
                idle = 0;
            }
            prop_assert!(end.stream.outstanding() <= usize::from(depth));
        }
        prop_assert!(a.is_done() && b.is_done());
        check(&ours, &a, &b)?;
        check(&theirs, &b, &a)?;
    }
}
