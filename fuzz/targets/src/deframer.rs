//! MPA's receiving side: startup frames of both roles, FPDUs with and without Markers and CRCs, in arbitrary pieces.

use std::time::Duration;

use arbitrary::{Result, Unstructured};
use dgiwarp_conform::wire::framing;
use dgiwarp_llp_tcp_mpa::framing::{Deframer, Framer, LONGEST_FPDU};
use dgiwarp_llp_tcp_mpa::{
    Config, Connection, Error, Event, MULPDU_CEILING, ReadDepths, Revision, RtrSet,
};

use crate::start;

/// How many lengths of pieces there are.
const PIECES: usize = 24;
/// More pieces than these would only be slow.
const MOST_PIECES: usize = 300;

/// Reads a stream in one piece and in many: the ULPDUs, and what ends them, have to be the same. The conformance tester, which has a
/// deframer of its own, has to find as many whole FPDUs.
pub fn deframer(data: &[u8]) {
    run(&mut Unstructured::new(data)).expect("what short inputs lack is zero");
}

fn run(u: &mut Unstructured<'_>) -> Result<()> {
    let pieces = pieces(u)?;
    match u.int_in_range(0..=3u8)? {
        0 => startup(u, &pieces),
        1 => framed(u, &pieces),
        2.. => {
            let (crc, markers) = (u.arbitrary()?, u.arbitrary()?);
            drop(check(crc, markers, u.bytes(u.len())?, &pieces));
            Ok(())
        }
    }
}

fn pieces(u: &mut Unstructured<'_>) -> Result<Vec<usize>> {
    let count = u.int_in_range(1..=PIECES)?;
    (0..count)
        .map(|_| Ok(usize::from(u.arbitrary::<u16>()? % 700) + 1))
        .collect()
}

/// Cuts a stream into pieces of these lengths, again and again, and a last one that has the rest.
fn cut<'a>(stream: &'a [u8], pieces: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
    let mut rest = stream;
    let all = pieces.iter().copied().cycle().take(MOST_PIECES);
    all.chain([usize::MAX]).map_while(move |piece| {
        if rest.is_empty() {
            return None;
        }
        let (now, later) = rest.split_at(piece.min(rest.len()));
        rest = later;
        Some(now)
    })
}

type Deframed = (Vec<Vec<u8>>, std::result::Result<usize, Error>);

/// As a caller does it that gives all that arrives.
fn given<'a>(crc: bool, markers: bool, inputs: impl Iterator<Item = &'a [u8]>) -> Deframed {
    let mut deframer = Deframer::new(crc, markers);
    let mut ulpdus = Vec::new();
    for mut input in inputs {
        while !input.is_empty() {
            let before = input.len();
            match deframer.next(&mut input) {
                Ok(Some(ulpdu)) => ulpdus.push(ulpdu.to_vec()),
                Ok(None) => assert!(input.is_empty()),
                Err(error) => return (ulpdus, Err(error)),
            }
            assert!(input.len() < before, "no octet was taken");
        }
        assert!(deframer.unfinished() <= LONGEST_FPDU + 4);
    }
    (ulpdus, Ok(deframer.unfinished()))
}

/// As one does it that reads unfinished FPDUs to their place, and lends memory.
fn placed<'a>(crc: bool, markers: bool, inputs: impl Iterator<Item = &'a [u8]>) -> Deframed {
    let mut deframer = Deframer::new(crc, markers);
    let mut spare = vec![0xee; LONGEST_FPDU];
    let mut ulpdus = Vec::new();
    for mut input in inputs {
        let room = deframer.room();
        assert!(room.len() <= LONGEST_FPDU);
        let (now, behind) = input.split_at(room.len().min(input.len()));
        let (place, _) = room.split_at_mut(now.len());
        place.copy_from_slice(now);
        deframer.filled(now.len());
        input = behind;
        spare = deframer.lend(spare);
        while !input.is_empty() || deframer.is_complete() {
            match deframer.next(&mut input) {
                Ok(Some(ulpdu)) => ulpdus.push(ulpdu.to_vec()),
                Ok(None) => {}
                Err(error) => return (ulpdus, Err(error)),
            }
        }
        spare = deframer.reclaim().unwrap_or(spare);
    }
    (ulpdus, Ok(deframer.unfinished()))
}

/// The stream as it is deframed in whatever way.
fn check(crc: bool, markers: bool, octets: &[u8], pieces: &[usize]) -> Deframed {
    let whole = given(crc, markers, std::iter::once(octets));
    assert_eq!(given(crc, markers, cut(octets, pieces)), whole);
    assert_eq!(placed(crc, markers, cut(octets, pieces)), whole);
    compare(crc, markers, octets, &whole);
    whole
}

/// The conformance tester finds the same ULPDUs, and a CRC wrong where we do.
fn compare(crc: bool, markers: bool, octets: &[u8], (ulpdus, end): &Deframed) {
    let mut theirs = framing::Deframer::new(markers);
    let mut rest = octets;
    for ulpdu in ulpdus {
        let fpdu = theirs.take(rest).expect("the FPDU is complete");
        assert_eq!(&fpdu.ulpdu, ulpdu);
        assert!(!crc || fpdu.crc_is_right);
        rest = rest.split_at(fpdu.octets).1;
    }
    let next = theirs.take(rest);
    match end {
        Ok(_) => assert_eq!(next, None),
        Err(Error::Crc { .. }) => assert!(next.is_some_and(|fpdu| !fpdu.crc_is_right)),
        Err(_) => assert!(next.is_some_and(|fpdu| !fpdu.markers_are_right)),
    }
}

/// FPDUs as our framer makes them, one octet of which may be changed on the way.
fn framed(u: &mut Unstructured<'_>, pieces: &[usize]) -> Result<()> {
    let (crc, markers) = (u.arbitrary()?, u.arbitrary()?);
    let lengths: Vec<_> = (0..u.int_in_range(1..=6)?)
        .map(|_| {
            let length = u.arbitrary::<u16>()?;
            // Mostly short ones.
            Ok(usize::from(if length % 8 == 0 {
                // Markers cannot tell how far back longer ones begin.
                length.min(MULPDU_CEILING)
            } else {
                length % 1500
            }))
        })
        .collect::<Result<_>>()?;
    let change: Option<(u32, u8)> = u.arbitrary()?;
    let mut filler = u.bytes(u.len())?.iter().copied().cycle();
    let ulpdus: Vec<Vec<u8>> = lengths
        .into_iter()
        .map(|length| (0..length).map(|_| filler.next().unwrap_or(0)).collect())
        .collect();
    let (mut ours, mut theirs) = (
        Framer::new(crc, markers),
        framing::Framer::new(crc, markers),
    );
    let (mut out, mut expected) = (Vec::new(), Vec::new());
    for ulpdu in &ulpdus {
        let (header, payload) = ulpdu.split_at(ulpdu.len().min(14));
        ours.frame(&mut out, header, payload);
        expected.extend(theirs.fpdu(ulpdu));
    }
    assert!(out == expected, "two framers differ");
    let changed = change.filter(|(_, xor)| *xor != 0);
    if let Some((at, xor)) = changed {
        let at = at as usize % out.len();
        out[at] ^= xor;
    }
    let (found, end) = check(crc, markers, &out, pieces);
    match changed {
        None => assert_eq!((found, end), (ulpdus, Ok(0))),
        // Some change of an octet of a length leaves FPDUs that have yet to end.
        Some(_) if crc => assert!(end != Ok(0), "a CRC misses no single octet"),
        Some(_) => {}
    }
    Ok(())
}

/// Output of a connection to its program: events and ULPDUs in order.
#[derive(Debug, PartialEq)]
enum Seen {
    Event(Event),
    Ulpdu(Vec<u8>),
}

/// Both roles against whatever a peer sends in startup and behind it.
fn startup(u: &mut Unstructured<'_>, pieces: &[usize]) -> Result<()> {
    let revision = if u.arbitrary()? {
        Revision::Two
    } else {
        Revision::One
    };
    let rtr: [bool; 3] = u.arbitrary()?;
    let config = Config {
        revision,
        crc: bool::into(u.arbitrary()?),
        markers: u.arbitrary()?,
        depths: ReadDepths {
            ird: u.arbitrary()?,
            ord: u.arbitrary()?,
        },
        peer_to_peer: u.arbitrary()?,
        client_server_will_do: u.arbitrary()?,
        rtr: RtrSet {
            send: rtr[0],
            write: rtr[1],
            read: rtr[2],
        },
        datagrams: u.arbitrary()?,
        one_host: false,
        startup_timeout: Duration::from_secs(1),
        emss: u.arbitrary()?,
    };
    let initiates: bool = u.arbitrary()?;
    let accepts = u.ratio(7u8, 8u8)?;
    let octets = u.bytes(u.len())?;
    let see = |inputs: &mut dyn Iterator<Item = &[u8]>| {
        let connection = if initiates {
            Connection::initiator(start(), config.clone(), b"private").ok()?
        } else {
            Connection::responder(start(), config.clone())
        };
        Some(converse(connection, accepts, config.depths, inputs))
    };
    let whole = see(&mut std::iter::once(octets));
    assert_eq!(see(&mut cut(octets, pieces)), whole);
    Ok(())
}

fn converse(
    mut connection: Connection,
    accepts: bool,
    depths: ReadDepths,
    inputs: &mut dyn Iterator<Item = &[u8]>,
) -> (Vec<Seen>, Vec<u8>) {
    let mut seen = Vec::new();
    for mut input in inputs {
        while !input.is_empty() {
            let ulpdu = connection
                .handle_input(start(), &mut input)
                .map(<[u8]>::to_vec);
            seen.extend(ulpdu.map(Seen::Ulpdu));
            while let Some(event) = connection.poll_event() {
                if matches!(event, Event::Request(_)) {
                    let accepted = accepts && connection.accept(depths, b"answer").is_ok();
                    // The configuration may not go with the Request, which waits then. Input before an answer to it is an error.
                    if !accepted {
                        connection.reject(depths, b"answer").expect("it waits");
                    }
                }
                seen.push(Seen::Event(event));
            }
        }
    }
    let mulpdu = usize::from(connection.mulpdu());
    // A ULPDU of the MULPDU's length leaves as an FPDU, if anything may.
    if connection.may_send() {
        let sent = connection.send_ulpdu(&[], &vec![0x5a; mulpdu][..]);
        assert_eq!(sent, Ok(()));
    }
    let out = connection.poll_transmit(start()).to_vec();
    assert!(out.len() < 2 * LONGEST_FPDU);
    (seen, out)
}
