//! MPA's startup frames: what they say, and whether they may say it (RFC 5044 §7.1, RFC 6581).

use super::{Report, Rule, rules};
use crate::wire::ddp::{ReadRequest, Segment, opcode};
use crate::wire::startup::{Depths, M, MOST_PRIVATE_DATA, NOT_NEGOTIATED, R, S, Startup};

/// The four reserved bits, beside bit S.
const RESERVED: u8 = 0x0f;

/// Checks a frame by itself. False if nothing of the connection can be judged behind it.
pub(super) fn check_header(frame: &Startup, report: &mut Report<'_>) -> bool {
    if !matches!(frame.revision, 1 | 2) {
        report(rules::MPA_REVISION, format!("it is {}", frame.revision));
    }
    if frame.flags & RESERVED != 0 {
        let detail = format!(
            "{:#x} in the octet of flags, {:#04x}",
            frame.flags & RESERVED,
            frame.flags
        );
        report(rules::MPA_RESERVED, detail);
    }
    let fits = usize::from(frame.pd_length) <= MOST_PRIVATE_DATA;
    if !fits {
        report(
            rules::MPA_PD_LENGTH,
            format!("PD_Length is {}", frame.pd_length),
        );
    }
    fits
}

/// Checks what RFC 6581 adds to a frame.
pub(super) fn check_enhanced(frame: &Startup, report: &mut Report<'_>) {
    if !frame.has(S) {
        return;
    }
    if frame.revision == 1 {
        report(
            rules::ENHANCED_REVISION,
            "bit S is set in a frame of revision 1".to_owned(),
        );
        return;
    }
    let Some(depths) = frame.depths() else {
        let detail = format!("bit S is set, and PD_Length is {}", frame.pd_length);
        return report(rules::ENHANCED_DATA, detail);
    };
    let indications = depths.send || depths.write || depths.read;
    if !depths.peer_to_peer && indications {
        report(rules::ENHANCED_FLAGS, depths.to_string());
    }
    if depths.peer_to_peer && !indications {
        report(rules::ENHANCED_NONE, depths.to_string());
    }
}

/// Checks a Reply against its Request.
pub(super) fn check_pair(request: &Startup, reply: &Startup, report: &mut Report<'_>) {
    if reply.has(R) && !request.has(S) && !reply.has(S) {
        return;
    }
    let (Some(asked), Some(given)) = (enhanced(request), enhanced(reply)) else {
        let enhanced = request.revision != 1 && request.has(S);
        if enhanced != (reply.has(S) && reply.revision != 1) {
            let word = |is| if is { "enhanced" } else { "plain" };
            let detail = format!(
                "the Request is {}, the Reply {}",
                word(enhanced),
                word(!enhanced)
            );
            report(rules::ENHANCED_REPLY, detail);
        }
        return;
    };
    if asked.peer_to_peer != given.peer_to_peer {
        let detail = format!("the Request has {asked}, the Reply {given}");
        report(rules::ENHANCED_MODEL, detail);
    }
    let pairs = [
        ("IRD", asked.ird, "ORD", given.ord),
        ("ORD", asked.ord, "IRD", given.ird),
    ];
    for (of, depth, name, answer) in pairs {
        if depth == NOT_NEGOTIATED && answer != NOT_NEGOTIATED {
            let detail = format!("{of} {NOT_NEGOTIATED:#x} is answered by {name} {answer:#x}");
            report(rules::ENHANCED_ONES, detail);
        }
    }
    // A Reply that rejects says which depth would have been needed.
    if !reply.has(R) && asked.ird != NOT_NEGOTIATED && given.ord > asked.ird {
        let detail = format!(
            "the Initiator's IRD is {}, the Responder's ORD {}",
            asked.ird, given.ord
        );
        report(rules::ENHANCED_ORD, detail);
    }
}

/// The depths and flags of a frame that has them.
pub(super) fn enhanced(frame: &Startup) -> Option<Depths> {
    frame.depths().filter(|_| frame.revision != 1)
}

/// Whether this end asked for Markers in what it receives.
pub(super) fn wants_markers(frame: &Startup) -> bool {
    frame.has(M)
}

/// Checks the first message of an Initiator against what was agreed on.
pub(super) fn check_first(
    (request, reply): (&Startup, &Startup),
    first: &Segment,
    report: &mut Report<'_>,
) {
    let (Some(asked), Some(given)) = (enhanced(request), enhanced(reply)) else {
        return;
    };
    if !asked.peer_to_peer || !given.peer_to_peer || first.opcode() == opcode::TERMINATE {
        return;
    }
    let last = first.is_last();
    let empty = last && first.payload.is_empty();
    let agreed = match first.opcode() {
        opcode::SEND => empty && asked.send && given.send,
        opcode::WRITE => empty && asked.write && given.write,
        opcode::READ_REQUEST => {
            let size = ReadRequest::parse(&first.payload).map(|request| request.size);
            last && size == Some(0) && asked.read && given.read
        }
        _ => false,
    };
    if !agreed {
        let rule: &'static Rule = rules::ENHANCED_RTR;
        report(
            rule,
            format!("it begins with: {first}; the Request has {asked}, the Reply {given}"),
        );
    }
}
