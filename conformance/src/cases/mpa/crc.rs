//! C and K: CRCs, pads and Markers.

use crate::agent::access;
use crate::bench::{Bench, Broken};
use crate::cases::{Case, Family, case};
use crate::clock;
use crate::oracle::Outcome::{Accepted, Closed, GoesOn, Silence, Terminate};
use crate::oracle::{Allowed, Came, allow, listing};
use crate::peer::Peer;
use crate::wire::ddp::{Segment, opcode};
use crate::wire::framing::Wrong;
use crate::wire::startup::{C, M};

const CRC: &str = "RFC 5044 §4.4";
const FPDU: &str = "RFC 5044 §4.1";
const MARKERS: &str = "RFC 5044 §4.3";
const FRAME: &str = "RFC 5044 §7.1.1";
const ERRORS: &str = "RFC 5044 §8";
const ABORT: &str = "RFC 5040 §6.2.1";
const RECEIVER: &str = "RFC 5044 §6";

const F: Family = Family::Crc;

pub(in crate::cases) const CASES: &[Case] = &[
    Case {
        version: 2,
        ..case(
            "C01",
            F,
            "CRCs count if either end asks for them",
            &[FRAME, CRC],
            c01,
        )
    },
    case(
        "C02",
        F,
        "what the device sends has right CRCs and zeros for pads",
        &[CRC, FPDU],
        c02,
    ),
    Case {
        version: 3,
        ..case(
            "C03",
            F,
            "one wrong bit anywhere in an FPDU",
            &[CRC, ERRORS, RECEIVER],
            c03,
        )
    },
    case("C05", F, "a pad that is not zero", &[FPDU], c05),
    Case {
        version: 2,
        ..case(
            "C06",
            F,
            "any CRC if nobody asked for them",
            &[FRAME, CRC],
            c06,
        )
    },
    Case {
        version: 2,
        ..case(
            "C07",
            F,
            "a wrong CRC comes before whatever else is wrong",
            &[ERRORS, CRC],
            c07,
        )
        .should()
    },
    case(
        "K01",
        F,
        "an Initiator that wants Markers gets them",
        &[FRAME, MARKERS],
        k01,
    ),
    case(
        "K02",
        F,
        "a device that wants Markers finds FPDUs between them",
        &[MARKERS],
        k02,
    ),
    case(
        "C20",
        F,
        "who is not told otherwise wants CRCs",
        &[CRC],
        c20,
    )
    // Whether an administrator told it otherwise cannot be seen.
    .should(),
    case(
        "K07",
        F,
        "the two low bits of a Marker's pointer are not looked at",
        &["RFC 5044 §4.2"],
        k07,
    ),
    case(
        "K08",
        F,
        "a Marker that points elsewhere",
        &[MARKERS, ERRORS],
        k08,
    ),
];

/// Outcomes that may follow a wrong CRC.
const WRONG_CRC: &[Allowed] = &[
    allow(Terminate(2, 0, 2), ERRORS),
    allow(Closed, ABORT),
    // Segments may be dropped as if they had not arrived.
    allow(Silence, ERRORS),
];

/// A ULPDU that nobody minds.
fn harmless() -> Vec<u8> {
    Segment::tagged(opcode::WRITE, 0, 0, &[]).to_bytes()
}

/// A ULPDU with a payload that no device can place, so that what it is refused for is the STag.
fn for_nobody(octets: usize) -> Vec<u8> {
    Segment::tagged(opcode::WRITE, 0, 0, &vec![0x5a; octets]).to_bytes()
}

const NO_SUCH_STAG: &[Allowed] = &[
    allow(Terminate(1, 1, 0), "RFC 5041 §7.2"),
    allow(Closed, ABORT),
];

fn c01(bench: &mut Bench<'_>) -> Result<(), Broken> {
    for ours in [0, C] {
        let mut offer = bench.offer();
        offer.flags = ours;
        let name = format!("C {} here: a right CRC", ours != 0);
        let Some(ulpdu) = bench.control(&name, &offer)? else {
            continue;
        };
        let mut peer = bench.open_with(&offer)?;
        let theirs = peer.theirs.as_ref().map_or(0, |reply| reply.flags & C);
        let what = format!("C {} here, {} there", ours != 0, theirs != 0);
        peer.wrong(
            &ulpdu,
            Wrong {
                crc: 0x0100_0000,
                ..Wrong::default()
            },
        );
        let reaction = peer.reaction();
        if ours | theirs == 0 {
            bench.judge(
                format!("{what}: a wrong CRC"),
                &peer,
                &reaction,
                &[allow(GoesOn, FRAME)],
            );
        } else {
            bench.judge(format!("{what}: a wrong CRC"), &peer, &reaction, WRONG_CRC);
        }
    }
    Ok(())
}

fn c02(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut peer = bench.started(&bench.offer_with_crc())?;
    peer.ask_echo();
    let until = clock::now() + bench.patience().answer;
    let came = loop {
        match peer.next_within(bench.patience().nudge) {
            Came::Nothing if clock::now() < until => {
                peer.nudges += 1;
                peer.wrong(&harmless(), Wrong::default());
            }
            came => break came,
        }
    };
    let right = matches!(&came, Came::Segment(_, fpdu) if fpdu.crc_is_right);
    bench.require(
        "the first FPDU of the device",
        right,
        &came,
        "a right CRC",
        CRC,
        Some(&peer),
    );
    let zero = matches!(&came, Came::Segment(_, fpdu) if fpdu.pad_is_zero);
    bench.require("its pad", zero, &came, "octets of zero", FPDU, Some(&peer));
    Ok(())
}

fn c03(bench: &mut Bench<'_>) -> Result<(), Broken> {
    // A Write of nothing: two octets of length, 14 of header, 4 of CRC. The flipped bit leaves a valid Write of nothing, so
    // that the CRC is the only fault.
    let rows = [
        ("STag", 4, 0x80),
        ("STag", 7, 1),
        ("TO", 8, 0x40),
        ("TO", 15, 1),
        ("CRC", 16, 1),
        ("CRC", 19, 0x80),
    ];
    let offer = bench.offer_with_crc();
    // A device that refuses Writes of nothing would refuse these for their STag.
    let control = bench.control("a Write of nothing", &offer)?;
    let rows = if control == Some(harmless()) {
        &rows[..]
    } else {
        &[]
    };
    for (name, octet, bit) in rows.iter().copied() {
        let mut peer = bench.open_with(&offer)?;
        let flip = Some((octet, bit));
        peer.wrong(
            &harmless(),
            Wrong {
                flip,
                ..Wrong::default()
            },
        );
        let reaction = peer.reaction();
        bench.judge(
            format!("bit {bit:#x} of octet {octet}: {name}"),
            &peer,
            &reaction,
            WRONG_CRC,
        );
    }
    if !bench.has_agent() {
        return Ok(());
    }
    let rights = access::LOCAL_WRITE | access::REMOTE_WRITE;
    let memory = bench.agent()?.register(64, rights, 0)?;
    let ulpdu = Segment::tagged(opcode::WRITE, memory.stag, memory.to, b"octet").to_bytes();
    for (name, octet, bit) in [
        ("payload", 16, 0x10),
        ("payload", 20, 1),
        ("pad", 21, 1),
        ("pad", 23, 0x80),
    ] {
        let mut peer = bench.open_with(&offer)?;
        let flip = Some((octet, bit));
        peer.wrong(
            &ulpdu,
            Wrong {
                flip,
                ..Wrong::default()
            },
        );
        let reaction = peer.reaction();
        bench.judge(
            format!("bit {bit:#x} of octet {octet}: {name}"),
            &peer,
            &reaction,
            WRONG_CRC,
        );
        let there = bench.agent()?.all(memory)?;
        let placed = there.iter().filter(|octet| **octet != 0).count();
        bench.require(
            format!("bit {bit:#x} of octet {octet}: the memory"),
            placed == 0,
            format!("{placed} octets are others"),
            "as it was: nothing of an FPDU with a wrong CRC is placed",
            RECEIVER,
            Some(&peer),
        );
    }
    Ok(())
}

/// The STag is wrong too, so a trial shows something only if the device does something else where the CRC is right.
fn c07(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let ulpdu = for_nobody(5);
    let offer = bench.offer_with_crc();
    let mut peer = bench.open_with(&offer)?;
    peer.wrong(&ulpdu, Wrong::default());
    let control = peer.reaction();
    // The length becomes shorter: a longer one would have the device wait for more.
    for (name, octet, bit) in [
        ("length", 1, 1),
        ("DDP's version", 2, 1),
        ("opcode", 3, 8),
        ("payload", 18, 0x10),
        ("CRC", 24, 1),
    ] {
        let mut peer = bench.open_with(&offer)?;
        let flip = Some((octet, bit));
        peer.wrong(
            &ulpdu,
            Wrong {
                flip,
                ..Wrong::default()
            },
        );
        let reaction = peer.reaction();
        let what = format!("bit {bit:#x} of octet {octet}: {name}");
        let as_without = [Terminate(2, 0, 2), Closed, Silence]
            .iter()
            .any(|outcome| outcome.is(&control) && outcome.is(&reaction));
        if as_without {
            let seen = format!("{reaction}, as with a right CRC");
            let rule = "the device refuses another fault in another way than a wrong CRC";
            bench.cannot_judge(what, seen, rule, &peer);
        } else {
            bench.judge(what, &peer, &reaction, WRONG_CRC);
        }
    }
    Ok(())
}

fn c05(bench: &mut Bench<'_>) -> Result<(), Broken> {
    for octets in 1..4 {
        let mut peer = bench.open()?;
        peer.wrong(
            &for_nobody(octets),
            Wrong {
                pad: 0xff,
                ..Wrong::default()
            },
        );
        let reaction = peer.reaction();
        // Its fault is found behind the pad.
        let what = format!("a pad of {} octets 0xff", 4 - octets);
        bench.judge(what, &peer, &reaction, NO_SUCH_STAG);
    }
    Ok(())
}

fn c06(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut offer = bench.offer();
    offer.flags = 0;
    // Already the first FPDU has no CRC.
    let mut peer = bench.started(&offer)?;
    if peer.theirs.as_ref().is_some_and(|reply| reply.has(C)) {
        return Err(Broken::Skip("the device asks for CRCs"));
    }
    // With CRCs, so that a device that always checks them is found below.
    let with_crcs = bench.offer_with_crc();
    let Some(ulpdu) = bench.control("a right CRC", &with_crcs)? else {
        return Ok(());
    };
    peer.framer.crc = false;
    for crc in [0, 1, u32::MAX, 0x1234_5678] {
        peer.wrong(
            &ulpdu,
            Wrong {
                crc,
                ..Wrong::default()
            },
        );
        let reaction = peer.reaction();
        bench.judge(
            format!("CRC field {crc:#x}"),
            &peer,
            &reaction,
            &[allow(GoesOn, FRAME)],
        );
    }
    Ok(())
}

fn c20(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut offer = bench.offer();
    offer.flags = 0;
    let mut peer = bench.tcp()?;
    let reaction = peer.ask(&offer.request());
    let wants = reaction.startup().is_some_and(|reply| reply.has(C));
    bench.require(
        "a Request without C",
        wants,
        &reaction,
        "a Reply with C",
        CRC,
        Some(&peer),
    );
    Ok(())
}

fn k07(bench: &mut Bench<'_>) -> Result<(), Broken> {
    for add in 1..=3 {
        let mut peer = bench.open()?;
        if !peer.framer.markers {
            return Err(Broken::Skip("the device asks for no Markers"));
        }
        let wrong = Wrong {
            pointer: add,
            ..Wrong::default()
        };
        peer.wrong(&for_nobody(1000), wrong);
        let reaction = peer.reaction();
        // Its fault is found behind the Marker.
        let what = format!("pointers {add} too large");
        bench.judge(what, &peer, &reaction, NO_SUCH_STAG);
    }
    Ok(())
}

fn with_markers(bench: &Bench<'_>) -> Result<(Peer, bool), Broken> {
    let mut offer = bench.offer();
    offer.flags = C | M;
    let mut peer = bench.tcp()?;
    let request = offer.request();
    let reaction = peer.ask(&request);
    let accepted = Accepted.is(&reaction);
    if let Some(reply) = reaction.startup().filter(|_| accepted) {
        peer.full_operation(&request, reply);
    }
    Ok((peer, accepted))
}

fn k01(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let (mut peer, accepted) = with_markers(bench)?;
    let reply = peer
        .theirs
        .as_ref()
        .map_or_else(|| "no Reply".to_owned(), ToString::to_string);
    bench.require(
        "a Request with M",
        accepted,
        reply,
        "an accepting Reply: whoever is asked for Markers sends them",
        MARKERS,
        Some(&peer),
    );
    if !accepted {
        return Ok(());
    }
    // FPDUs of 20 octets: the 26th Marker is behind the 640th FPDU, and Markers come to lie everywhere between and in them.
    let mut right = 0;
    let mut seen = String::new();
    for _ in 0..700 {
        peer.ask_echo();
        let came = peer.next_segment();
        match &came {
            Came::Segment(segment, fpdu)
                if fpdu.markers_are_right
                    && peer.crc_fits(fpdu)
                    && segment.opcode() == opcode::READ_RESPONSE =>
            {
                right += 1;
            }
            other => {
                seen = format!("after {right} answers: {other}");
                break;
            }
        }
    }
    bench.require(
        "700 answers with Markers",
        right == 700,
        seen,
        "every 512 octets a Marker that points to its FPDU's start",
        MARKERS,
        Some(&peer),
    );
    Ok(())
}

fn k02(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut peer = bench.open()?;
    if !peer.framer.markers {
        return Err(Broken::Skip("the device asks for no Markers"));
    }
    let mut came = Vec::new();
    let mut answers = 0;
    for _ in 0..200 {
        answers += u32::from(peer.echo(&mut came));
        if !came.is_empty() {
            break;
        }
    }
    bench.require(
        "200 FPDUs of 52 octets",
        answers == 200,
        format!("{answers} answers, {}", listing(&came)),
        "each is found",
        MARKERS,
        Some(&peer),
    );
    Ok(())
}

fn k08(bench: &mut Bench<'_>) -> Result<(), Broken> {
    for add in [4, 0x100] {
        let mut peer = bench.open()?;
        if !peer.framer.markers {
            return Err(Broken::Skip("the device asks for no Markers"));
        }
        // One FPDU with a Marker somewhere inside, its payload for nobody.
        peer.wrong(
            &for_nobody(1000),
            Wrong {
                pointer: add,
                ..Wrong::default()
            },
        );
        let reaction = peer.reaction();
        let allowed = [
            allow(Terminate(2, 0, 3), ERRORS),
            allow(Closed, ABORT),
            allow(Silence, ERRORS),
            // It is optional to check each Marker; then the STag is what is wrong.
            allow(Terminate(1, 1, 0), ERRORS),
        ];
        bench.judge(
            format!("pointers {add} too large"),
            &peer,
            &reaction,
            &allowed,
        );
    }
    Ok(())
}
