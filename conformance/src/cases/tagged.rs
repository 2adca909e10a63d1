//! T: tagged segments, which are RDMA Writes here.

use super::{Case, Family, agent_case, case};
use crate::agent::{Memory, access};
use crate::bench::{Bench, Broken};
use crate::oracle::Outcome::{GoesOn, Terminate, TerminateOfType};
use crate::oracle::{Allowed, allow};
use crate::peer::Peer;
use crate::wire::ddp::{Segment, opcode};

const CHECKS: &str = "RFC 5041 §7.1";
const CODES: &str = "RFC 5041 §7.2";
const HEADER: &str = "RFC 5041 §4.2";
const WRITE: &str = "RFC 5040 §5.1";
const RIGHTS: &str = "RFC 5040 §8.1.1";

const F: Family = Family::Tagged;

/// Runs before all others, whose good FPDUs are Writes of nothing.
pub(super) const FIRST: &[Case] = &[case(
    "T00",
    F,
    "a Write of nothing has any STag",
    &[WRITE],
    t00,
)];

pub(super) const CASES: &[Case] = &[
    agent_case("T01", F, "an STag that is none", &[CODES, CHECKS], t01),
    agent_case(
        "T02",
        F,
        "tagged offsets at both ends of the memory",
        &[CODES, CHECKS],
        t02,
    ),
    agent_case(
        "T03",
        F,
        "an STag of another protection domain",
        &[CODES, RIGHTS],
        t03,
    ),
    agent_case(
        "T04",
        F,
        "a tagged offset that wraps",
        &[CODES, CHECKS],
        t04,
    ),
    agent_case("T05", F, "DDP versions that are none", &[CODES], t05),
    Case {
        version: 2,
        ..agent_case(
            "T06",
            F,
            "Writes of nothing are not looked at",
            &[CHECKS, WRITE],
            t06,
        )
    },
    agent_case(
        "T08",
        F,
        "a Write of several segments lands where they say",
        &[HEADER, WRITE],
        t08,
    ),
    agent_case(
        "T11",
        F,
        "memory without the right to write",
        &[RIGHTS],
        t11,
    ),
    agent_case(
        "T12",
        F,
        "an STag that was deregistered",
        &[CODES, RIGHTS],
        t12,
    ),
    agent_case(
        "T13",
        F,
        "nothing is placed behind an error",
        &[CHECKS],
        t13,
    ),
    agent_case("T14", F, "the longest FPDU", &["RFC 5044 §4.1"], t14),
    agent_case(
        "T15",
        F,
        "reserved bits of tagged segments are not looked at",
        &["RFC 5041 §4.1"],
        t15,
    ),
];

const FILL: u8 = 0x11;
const ROOM: u64 = 4096;
const WRITABLE: u64 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ;

/// Notes whether memory has these octets at this offset and is otherwise as it was.
fn holds(
    bench: &mut Bench<'_>,
    what: &str,
    memory: Memory,
    at: u64,
    octets: &[u8],
    peer: &Peer,
) -> Result<(), Broken> {
    let there = bench.agent()?.all(memory)?;
    let mut wanted = vec![FILL; there.len()];
    let from = usize::try_from(memory.margin + at).unwrap_or(usize::MAX);
    if let Some(place) = wanted.get_mut(from..from + octets.len()) {
        place.copy_from_slice(octets);
    }
    let differs = there.iter().zip(&wanted).position(|(a, b)| a != b);
    let seen = differs.map_or_else(
        || "as it should be".to_owned(),
        |at| {
            format!(
                "octet {at} is {:#04x}, {} octets of margin included",
                there[at], memory.margin
            )
        },
    );
    bench.require(
        format!("{what}: the memory"),
        differs.is_none(),
        seen,
        "what was written is there and nothing else has changed",
        CHECKS,
        Some(peer),
    );
    Ok(())
}

/// A Write on a connection of its own, what may come of it, and that it changed nothing or all it should.
fn write(
    bench: &mut Bench<'_>,
    what: &str,
    memory: Memory,
    segment: &Segment,
    allowed: &[Allowed],
) -> Result<(), Broken> {
    let mut peer = bench.open()?;
    peer.segment(segment);
    let reaction = peer.reaction();
    bench.judge(what, &peer, &reaction, allowed);
    let good = allowed.iter().any(|one| one.outcome == GoesOn);
    match segment.place {
        crate::wire::ddp::Place::Tagged { to, .. } if good => holds(
            bench,
            what,
            memory,
            to.wrapping_sub(memory.to),
            &segment.payload,
            &peer,
        ),
        _ => holds(bench, what, memory, 0, &[], &peer),
    }
}

fn t01(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = bench.agent()?.register(ROOM, WRITABLE, FILL)?;
    for (name, stag) in [
        ("all bits inverted", !memory.stag),
        ("another key", memory.stag ^ 1),
        ("another index", memory.stag ^ 0x100),
        ("zero", 0),
    ] {
        let segment = Segment::tagged(opcode::WRITE, stag, memory.to, b"bad");
        write(
            bench,
            name,
            memory,
            &segment,
            &[allow(Terminate(1, 1, 0), CODES)],
        )?;
    }
    Ok(())
}

fn t02(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let bounds = [allow(Terminate(1, 1, 1), CODES)];
    let good = [allow(GoesOn, CHECKS)];
    let rows: [(&str, i64, &[Allowed]); 7] = [
        ("one octet before the beginning", -1, &bounds),
        ("at the beginning", 0, &good),
        ("up to the end", 4080, &good),
        ("one octet beyond the end", 4081, &bounds),
        ("at the end", 4096, &bounds),
        ("far behind", 1 << 32, &bounds),
        ("one page before", -4096, &bounds),
    ];
    for (name, at, allowed) in rows {
        let memory = bench.agent()?.register(ROOM, WRITABLE, FILL)?;
        let segment = Segment::tagged(
            opcode::WRITE,
            memory.stag,
            memory.to.wrapping_add_signed(at),
            b"sixteen octets!!",
        );
        write(bench, name, memory, &segment, allowed)?;
    }
    Ok(())
}

fn t03(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = bench.agent()?.register_in(ROOM, WRITABLE, FILL, 1)?;
    let segment = Segment::tagged(opcode::WRITE, memory.stag, memory.to, b"bad");
    // The first check, of whether the STag is valid for this stream, fails too.
    let allowed = [
        allow(Terminate(1, 1, 2), CODES),
        allow(Terminate(1, 1, 0), CHECKS),
    ];
    write(bench, "a Write", memory, &segment, &allowed)
}

fn t04(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = bench.agent()?.register(ROOM, WRITABLE, FILL)?;
    for below in [1, 8, 15] {
        let segment = Segment::tagged(
            opcode::WRITE,
            memory.stag,
            u64::MAX - below + 1,
            b"sixteen octets!!",
        );
        // Such an offset is out of bounds as well, and which check comes first is left open.
        let allowed = [
            allow(Terminate(1, 1, 3), CODES),
            allow(Terminate(1, 1, 1), CHECKS),
        ];
        write(
            bench,
            &format!("{below} octets below 2^64"),
            memory,
            &segment,
            &allowed,
        )?;
    }
    Ok(())
}

fn t05(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = bench.agent()?.register(ROOM, WRITABLE, FILL)?;
    for version in [0, 2, 3] {
        let mut segment = Segment::tagged(opcode::WRITE, memory.stag, memory.to, b"bad");
        segment.ddp = segment.ddp & !3 | version;
        write(
            bench,
            &format!("DDP version {version}"),
            memory,
            &segment,
            &[allow(Terminate(1, 1, 4), CODES)],
        )?;
    }
    Ok(())
}

fn t00(bench: &mut Bench<'_>) -> Result<(), Broken> {
    for (name, stag, to) in [
        ("STag and TO of zero", 0, 0),
        ("an STag that nobody has", 0x5a5a_5a5a, 7),
        ("the last offset there is", u32::MAX, u64::MAX),
    ] {
        let mut peer = bench.open()?;
        peer.segment(&Segment::tagged(opcode::WRITE, stag, to, &[]));
        let reaction = peer.reaction();
        bench.judge(name, &peer, &reaction, &[allow(GoesOn, WRITE)]);
    }
    Ok(())
}

fn t06(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = bench.agent()?.register(ROOM, access::LOCAL_WRITE, FILL)?;
    let rows = [
        ("no such STag", !memory.stag, memory.to),
        ("no such offset", memory.stag, 7),
        ("the last offset there is", memory.stag, u64::MAX),
        ("no right", memory.stag, memory.to),
    ];
    for (name, stag, to) in rows {
        let segment = Segment::tagged(opcode::WRITE, stag, to, &[]);
        let mut peer = bench.open()?;
        peer.segment(&segment);
        let reaction = peer.reaction();
        if !GoesOn.is(&reaction) && !bench.takes_nothing(opcode::WRITE)? {
            let rule = "the connection goes on behind a Write of nothing (see T00)";
            bench.cannot_judge(name, reaction.to_string(), rule, &peer);
            return Ok(());
        }
        bench.judge(name, &peer, &reaction, &[allow(GoesOn, WRITE)]);
    }
    Ok(())
}

/// So many octets, none of which is its neighbour's equal.
fn pattern(length: usize) -> Vec<u8> {
    (0..=u8::MAX)
        .cycle()
        .skip(3)
        .step_by(7)
        .take(length)
        .collect()
}

fn t08(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = bench.agent()?.register(ROOM, WRITABLE, FILL)?;
    let octets = pattern(3001);
    let mut peer = bench.open()?;
    let mut at = 0;
    for length in [1, 2, 3, 500, 1000, 1495] {
        let to = memory.to + 5 + u64::try_from(at).unwrap_or(0);
        let mut segment = Segment::tagged(opcode::WRITE, memory.stag, to, &octets[at..at + length]);
        at += length;
        if at < octets.len() {
            segment = segment.more();
        }
        peer.segment(&segment);
    }
    let reaction = peer.reaction();
    bench.judge("six segments", &peer, &reaction, &[allow(GoesOn, WRITE)]);
    holds(bench, "six segments", memory, 5, &octets, &peer)
}

fn t11(bench: &mut Bench<'_>) -> Result<(), Broken> {
    for (name, rights) in [
        ("no remote rights", access::LOCAL_WRITE),
        (
            "the right to read",
            access::LOCAL_WRITE | access::REMOTE_READ,
        ),
    ] {
        let memory = bench.agent()?.register(ROOM, rights, FILL)?;
        let segment = Segment::tagged(opcode::WRITE, memory.stag, memory.to, b"bad");
        // DDP has no code for rights; RDMAP has.
        let allowed = [
            allow(Terminate(0, 1, 2), "RFC 5040 §4.8"),
            allow(TerminateOfType(1, 1), CODES),
        ];
        write(bench, name, memory, &segment, &allowed)?;
    }
    Ok(())
}

fn t12(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = bench.agent()?.register(ROOM, WRITABLE, FILL)?;
    let mut peer = bench.open()?;
    peer.segment(&Segment::tagged(
        opcode::WRITE,
        memory.stag,
        memory.to,
        b"good",
    ));
    let mut came = Vec::new();
    peer.echo(&mut came);
    bench.agent()?.deregister(memory)?;
    peer.segment(&Segment::tagged(
        opcode::WRITE,
        memory.stag,
        memory.to,
        b"late",
    ));
    let reaction = peer.reaction();
    let allowed = [
        allow(Terminate(1, 1, 0), CODES),
        allow(Terminate(1, 1, 2), CODES),
    ];
    bench.judge(
        "a Write behind the deregistration",
        &peer,
        &reaction,
        &allowed,
    );
    holds(bench, "afterwards", memory, 0, b"good", &peer)
}

fn t13(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = bench.agent()?.register(ROOM, WRITABLE, FILL)?;
    let mut peer = bench.open()?;
    let mut octets = peer
        .framer
        .fpdu(&Segment::tagged(opcode::WRITE, memory.stag, memory.to, b"good").to_bytes());
    octets.extend(
        peer.framer
            .fpdu(&Segment::tagged(opcode::WRITE, !memory.stag, memory.to, b"bad").to_bytes()),
    );
    octets.extend(
        peer.framer.fpdu(
            &Segment::tagged(opcode::WRITE, memory.stag, memory.to + 100, b"late").to_bytes(),
        ),
    );
    peer.send(&octets);
    let reaction = peer.reaction();
    bench.judge(
        "a bad Write between two good ones",
        &peer,
        &reaction,
        &[allow(Terminate(1, 1, 0), CODES)],
    );
    holds(bench, "afterwards", memory, 0, b"good", &peer)
}

fn t14(bench: &mut Bench<'_>) -> Result<(), Broken> {
    // The largest length that is no multiple of four, and what fits into one Ethernet frame and does not.
    // With Markers the distance to them has to fit into 16 bits too.
    let longest = if bench.open()?.framer.markers {
        64_000
    } else {
        65_535 - 14
    };
    for length in [1400, 9000, longest] {
        let memory = bench.agent()?.register(65_536, WRITABLE, FILL)?;
        let octets = pattern(length);
        let segment = Segment::tagged(opcode::WRITE, memory.stag, memory.to, &octets);
        write(
            bench,
            &format!("{length} octets in one segment"),
            memory,
            &segment,
            &[allow(GoesOn, CHECKS)],
        )?;
    }
    Ok(())
}

fn t15(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = bench.agent()?.register(ROOM, WRITABLE, FILL)?;
    let mut segment = Segment::tagged(opcode::WRITE, memory.stag, memory.to, b"good");
    segment.ddp |= 0x3c;
    let clause = "RFC 5041 §4.1";
    write(
        bench,
        "DDP's four",
        memory,
        &segment,
        &[allow(GoesOn, clause)],
    )?;
    let mut segment = Segment::tagged(opcode::WRITE, memory.stag, memory.to, b"good");
    segment.rdmap |= 0x30;
    write(
        bench,
        "RDMAP's two",
        memory,
        &segment,
        &[allow(GoesOn, "RFC 5040 §4.1")],
    )
}
