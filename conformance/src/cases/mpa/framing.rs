//! F: FPDUs, however TCP cuts them.

use crate::bench::{Bench, Broken};
use crate::cases::{Case, Family, case};
use crate::oracle::Outcome::{AnyTerminate, Closed};
use crate::oracle::{Allowed, allow, listing};
use crate::wire::ddp::{ReadRequest, Segment, opcode};
use crate::wire::framing::Wrong;

const FPDU: &str = "RFC 5044 §4.1";
const RULES: &str = "RFC 5044 §7.1.2";
const ERRORS: &str = "RFC 5044 §8";
const RECEIVER: &str = "RFC 5044 §6";
const DDP: &str = "RFC 5041 §4";
const ABORT: &str = "RFC 5040 §6.2.1";

const F: Family = Family::Framing;

pub(in crate::cases) const CASES: &[Case] = &[
    Case {
        may_crash: true,
        ..case(
            "F01",
            F,
            "ULPDUs without room for their headers",
            &[DDP],
            f01,
        )
    },
    Case {
        may_crash: true,
        ..case(
            "F02",
            F,
            "RDMAP headers that are cut off",
            &["RFC 5040 §4.4"],
            f02,
        )
    },
    case("F03", F, "an FPDU cut at every octet", &[RECEIVER], f03),
    Case {
        version: 2,
        ..case(
            "F04",
            F,
            "many FPDUs in one TCP segment, and across two",
            &[RECEIVER],
            f04,
        )
    },
    Case {
        version: 2,
        ..case(
            "F07",
            F,
            "nothing is delivered behind an error",
            &[ERRORS],
            f07,
        )
    },
    case("F08", F, "the stream ends within an FPDU", &[ERRORS], f08),
    Case {
        version: 2,
        ..case(
            "F09",
            F,
            "the first FPDU is taken without a second one",
            &[RULES],
            f09,
        )
        .should()
    },
];

/// The RFCs have no code for a segment that is too short.
const SHORT: &[Allowed] = &[allow(AnyTerminate, "RFC 5040 §7.1"), allow(Closed, ABORT)];

fn f01(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let tagged = Segment::tagged(opcode::WRITE, 0, 0, &[]).to_bytes();
    let untagged = Segment::untagged(opcode::SEND, 0, 1, &[]).to_bytes();
    for (name, ulpdu) in [("tagged", &tagged), ("untagged", &untagged)] {
        for length in [0, 1, 2, 6, ulpdu.len() - 1] {
            let mut peer = bench.open()?;
            peer.wrong(&ulpdu[..length], Wrong::default());
            let reaction = peer.reaction();
            bench.judge(
                format!("{length} octets of a {name} segment"),
                &peer,
                &reaction,
                SHORT,
            );
        }
    }
    Ok(())
}

fn f02(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let request = ReadRequest {
        sink_stag: 0,
        sink_to: 0,
        size: 0,
        source_stag: 0,
        source_to: 0,
    };
    let whole = request.to_bytes();
    for length in [0, 1, 12, 27] {
        let mut peer = bench.open()?;
        let segment = Segment::untagged(opcode::READ_REQUEST, 1, peer.read_msn, &whole[..length]);
        peer.segment(&segment);
        peer.read_msn += 1;
        let reaction = peer.reaction();
        bench.judge(
            format!("{length} octets of a Read Request"),
            &peer,
            &reaction,
            SHORT,
        );
    }
    Ok(())
}

fn f03(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut peer = bench.open()?;
    let mut came = Vec::new();
    // As long as all of them are.
    let length = peer.framer.clone().fpdu(&[0; 46]).len();
    for cut in 1..length {
        let (number, octets) = peer.question();
        peer.send_cut(&octets, &[cut]);
        if !peer.await_echo(number, &mut came) {
            bench.require(
                format!("cut behind octet {cut}"),
                false,
                listing(&came),
                "an answer",
                RECEIVER,
                Some(&peer),
            );
            return Ok(());
        }
    }
    let (number, octets) = peer.question();
    let all: Vec<_> = (1..octets.len()).collect();
    peer.send_cut(&octets, &all);
    let answered = peer.await_echo(number, &mut came);
    bench.require(
        "cut behind every octet",
        answered,
        listing(&came),
        "an answer",
        RECEIVER,
        Some(&peer),
    );
    Ok(())
}

fn f04(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let offer = bench.offer();
    let Some(write) = bench.control("one FPDU in one write", &offer)? else {
        return Ok(());
    };
    let mut peer = bench.open()?;
    let mut came = Vec::new();
    let mut octets = Vec::new();
    for _ in 0..60 {
        octets.extend(peer.framer.fpdu(&write));
    }
    let (number, last) = peer.question();
    octets.extend(last);
    peer.send(&octets);
    let answered = peer.await_echo(number, &mut came);
    bench.require(
        "61 FPDUs in one write",
        answered,
        listing(&came),
        "an answer to the last",
        RECEIVER,
        Some(&peer),
    );
    let (first, mut octets) = peer.question();
    let (second, more) = peer.question();
    let cut = octets.len() + 5;
    octets.extend(more);
    peer.send_cut(&octets, &[7, cut]);
    let both = peer.await_echo(first, &mut came) && peer.await_echo(second, &mut came);
    bench.require(
        "two FPDUs in three writes",
        both,
        listing(&came),
        "both answers, in order",
        RECEIVER,
        Some(&peer),
    );
    Ok(())
}

fn f07(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let offer = bench.offer_with_crc();
    let Some(write) = bench.control("a Read Request behind a right CRC", &offer)? else {
        return Ok(());
    };
    let mut peer = bench.open_with(&offer)?;
    let mut octets = peer.framer.wrong_fpdu(
        &write,
        Wrong {
            crc: 1,
            ..Wrong::default()
        },
    );
    let (number, question) = peer.question();
    octets.extend(question);
    peer.send(&octets);
    let mut came = Vec::new();
    let answered = peer.await_echo(number, &mut came);
    bench.require(
        "a Read Request behind a wrong CRC",
        !answered,
        listing(&came),
        "no answer",
        ERRORS,
        Some(&peer),
    );
    Ok(())
}

fn f08(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let octets = bench
        .open()?
        .framer
        .fpdu(&Segment::tagged(opcode::WRITE, 1, 2, &[]).to_bytes());
    for length in [1, 2, 3, 10, octets.len() - 1] {
        let mut peer = bench.open()?;
        let octets = peer
            .framer
            .fpdu(&Segment::tagged(opcode::WRITE, 1, 2, &[]).to_bytes());
        peer.send(&octets[..length]);
        peer.finish();
        let mut reaction = crate::oracle::Reaction::default();
        loop {
            let came = peer.next_segment();
            let over = !matches!(came, crate::oracle::Came::Segment(..));
            reaction.came.push(came);
            if over {
                break;
            }
        }
        let allowed = [allow(Closed, ERRORS), allow(AnyTerminate, ERRORS)];
        bench.judge(
            format!("the end behind {length} octets of an FPDU"),
            &peer,
            &reaction,
            &allowed,
        );
    }
    Ok(())
}

fn f09(bench: &mut Bench<'_>) -> Result<(), Broken> {
    for number in 1..=10 {
        let mut peer = bench.started(&bench.offer())?;
        let asked = peer.read_msn;
        peer.ask_echo();
        let mut came = Vec::new();
        if !peer.await_echo(asked, &mut came) {
            bench.require(
                "an FPDU right behind the Reply",
                false,
                format!("connection {number}: {}", listing(&came)),
                "an answer without another FPDU",
                RULES,
                Some(&peer),
            );
            return Ok(());
        }
    }
    bench.require(
        "an FPDU right behind the Reply, ten times",
        true,
        "answers",
        "an answer",
        FPDU,
        None,
    );
    Ok(())
}
