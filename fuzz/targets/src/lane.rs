//! A lane of shared memory: its two ends, and a process that writes whatever it likes into it.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use arbitrary::{Result, Unstructured};
use dgiwarp_memory::Piece;
use dgiwarp_memory::lane::{Arena, ArenaEnd, LaneInput, LaneOutput, OfferedArena};

/// Octets of a ring: few, so that it is full and begins anew often. It grows once.
const RING_LOGARITHM: u32 = 13;
/// Octets of the stream before the lane.
const START: u64 = 5000;
/// Octets before the rings: header and words.
const CONTROL: u16 = 0x2000;
/// Words that the peer writes rather than others.
const WORDS: [u16; 21] = [
    0x08, 0x0c, 0x10, 0x400, 0x408, 0x480, 0x488, 0x490, 0x500, 0x580, 0x584, 0x600, 0x604, 0x800,
    0x900, 0x1000, 0x1080, 0x1100, 0x1104, 0x1110, 0x1118,
];

/// Octets sent and received in one direction, until somebody scribbles.
#[derive(Default)]
struct Stream {
    sent: usize,
    received: usize,
}

/// Drives both ends. Without the scribbler a lane is a queue; with it every call returns.
pub fn lane(data: &[u8]) {
    run(&mut Unstructured::new(data)).expect("what short inputs lack is zero");
}

fn octet(at: usize) -> u8 {
    u8::try_from(at % 253).unwrap_or(0)
}

fn send(output: &mut LaneOutput, stream: &mut Stream, len: usize, honest: bool) {
    let octets: Vec<u8> = (stream.sent..stream.sent + len).map(octet).collect();
    if let Ok(taken) = output.write(&[Piece::Bytes(&octets)]) {
        assert!(taken <= len);
        if output.growth().is_some() {
            output.grow(true);
        }
        stream.sent += taken;
        // Nothing of what it returns can be wrong.
        let _ = output.takes_bell();
    } else {
        assert!(!honest, "an honest peer's words are believed");
    }
}

fn receive(input: &mut LaneInput, stream: &mut Stream, len: usize, honest: bool) {
    let mut octets = vec![0; len];
    match input.read(&mut octets) {
        Ok((taken, _)) => {
            assert!(taken <= len);
            if honest {
                assert_eq!(taken, len.min(stream.sent - stream.received));
                let mut right = octets[..taken].iter().enumerate();
                assert!(right.all(|(at, it)| *it == octet(stream.received + at)));
            }
            stream.received += taken;
        }
        Err(_) => assert!(!honest, "an honest peer's words are believed"),
    }
}

fn scribble(u: &mut Unstructured<'_>, file: &File) -> Result<()> {
    let at = match u.arbitrary::<Option<u16>>()? {
        Some(at) => at % (CONTROL + 64),
        None => *u.choose(&WORDS)?,
    };
    let value: u64 = match u.int_in_range(0..=2u8)? {
        0 => u.arbitrary::<u8>()?.into(),
        1 => u.arbitrary::<u16>()?.into(),
        _ => u.arbitrary()?,
    };
    file.write_all_at(&value.to_le_bytes(), at.into())
        .expect("the file has these octets");
    Ok(())
}

fn run(u: &mut Unstructured<'_>) -> Result<()> {
    // Where memory or descriptors are missing there is nothing to see.
    let Ok((arena, fd)) = Arena::create(RING_LOGARITHM) else {
        return Ok(());
    };
    let file = File::from(fd.try_clone().expect("a descriptor is left"));
    let mut honest = true;
    // Before the other end maps it.
    if u.ratio(1u8, 8u8)? {
        scribble(u, &file)?;
        honest = false;
    }
    let (mut output, _kept) = arena.lanes(ArenaEnd::Maker);
    let offered = OfferedArena::check(fd.as_fd());
    let Ok(arena) = offered.and_then(OfferedArena::open) else {
        assert!(!honest, "a good arena is taken");
        return Ok(());
    };
    let (_other, mut input) = arena.lanes(ArenaEnd::Taker);
    let mut stream = Stream::default();
    while !u.is_empty() {
        match u.int_in_range(0..=9u8)? {
            0..=2 => send(
                &mut output,
                &mut stream,
                usize::from(u.arbitrary::<u16>()? % 5000),
                honest,
            ),
            3..=5 => receive(
                &mut input,
                &mut stream,
                usize::from(u.arbitrary::<u16>()? % 5000),
                honest,
            ),
            6 => {
                let waiting = input.arm();
                assert!(!honest || waiting == Ok(stream.sent > stream.received));
            }
            7 => {
                let room = output.wait_for_room();
                let used = stream.sent - stream.received.min(stream.sent);
                // The ring may be shorter than it can become.
                assert!(
                    !honest
                        || match room {
                            Ok(true) => used <= 1 << (RING_LOGARITHM - 1),
                            Ok(false) => used > 0,
                            Err(_) => false,
                        }
                );
            }
            8 => {
                output.start(START);
                let started = input.started();
                assert!(!honest || started == Some(START));
                let finished = input.finished();
                assert!(!honest || finished == Ok(None));
            }
            _ => {
                scribble(u, &file)?;
                honest = false;
            }
        }
    }
    // An end of the lane counts once all octets before it were read.
    output.finish(7);
    if honest {
        receive(&mut input, &mut stream, 1 << RING_LOGARITHM, true);
        assert_eq!(input.finished(), Ok(Some(7)));
    }
    Ok(())
}
