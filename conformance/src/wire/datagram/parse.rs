//! Parsing of a datagram, or the reason for which every receiver drops it, in the order of the first step of Datagram
//! §5.

use dgiwarp_codec::crc;

use super::{
    About, Datagram, Dropped, EXCHANGE, EXTENSION, Exchange, Extension, LOOKUP, Lookup, MOST,
    Segment, about, format, opcode,
};
use crate::wire::ddp::{Place, Terminate, word};
use crate::wire::reliable::Reliable;

pub(super) fn datagram(octets: &[u8]) -> Result<Datagram, Dropped> {
    let (octets, field) = octets
        .split_last_chunk::<4>()
        .ok_or(Dropped::Malformed("shorter than its CRC"))?;
    let (got, expected) = (crc::from_wire(*field), crc::crc32c(octets));
    if got != expected {
        return Err(Dropped::BadCrc { got, expected });
    }
    let first = *octets
        .first()
        .ok_or(Dropped::Malformed("nothing but a CRC"))?;
    let version = |control: u8| Dropped::BadVersion {
        dv: first & 3,
        rv: control >> 6,
    };
    match first >> 2 & 0xf {
        format::SEGMENT | format::WITH_COOKIE => {
            let control = *octets
                .get(1)
                .ok_or(Dropped::Malformed("no RDMAP control octet"))?;
            if first & 3 != 1 || control >> 6 != 1 {
                return Err(version(control));
            }
            segment(first, control, octets).map(Datagram::Segment)
        }
        format::EXCHANGE | format::LOOKUP if first & 3 != 1 => Err(version(0x40)),
        format::EXCHANGE => exchange(octets).map(Datagram::Exchange),
        format::LOOKUP => lookup(octets).map(Datagram::Lookup),
        format::RELIABLE if first == 0x51 => Reliable::parse(octets).map(Datagram::Reliable),
        other => Err(Dropped::UnknownFormat(other)),
    }
}

fn require(holds: bool, what: &'static str) -> Result<(), Dropped> {
    if holds {
        Ok(())
    } else {
        Err(Dropped::Malformed(what))
    }
}

/// The header of each opcode: tagged or not, the queue, and whether there is an extension (Datagram §1.2).
fn layout(code: u8) -> Result<(bool, u32, bool), Dropped> {
    match code {
        opcode::READ_REQUEST => Ok((false, 1, false)),
        opcode::READ_RESPONSE => Ok((true, 0, false)),
        opcode::SEND | opcode::SEND_SE => Ok((false, 0, false)),
        opcode::TERMINATE => Ok((false, 2, false)),
        opcode::WRITE_RECORD => Ok((true, 0, true)),
        opcode::SEGMENTED_SEND => Ok((false, 0, true)),
        other => Err(Dropped::UnexpectedOpcode(other)),
    }
}

fn segment(first: u8, control: u8, octets: &[u8]) -> Result<Segment, Dropped> {
    const SHORT: Dropped = Dropped::Malformed("shorter than its headers");
    let (is_tagged, queue, is_extended) = layout(control & 0x0f)?;
    let tagged = first & 0x80 != 0;
    require(tagged == is_tagged, "T is not as the opcode's")?;
    let at = |index| word(octets, index).ok_or(SHORT);
    let (place, mut header) = if tagged {
        let to = u64::from(at(6)?) << 32 | u64::from(at(10)?);
        (Place::Tagged { stag: at(2)?, to }, 14)
    } else {
        let place = Place::Untagged {
            rsvd: at(2)?,
            qn: at(6)?,
            msn: at(10)?,
            mo: at(14)?,
        };
        (place, 18)
    };
    let mut more = octets.get(header..).ok_or(SHORT)?;
    let mut its_extension = None;
    if is_extended {
        let (fields, rest) = more.split_first_chunk().ok_or(SHORT)?;
        its_extension = Some(extension(fields));
        header += EXTENSION;
        more = rest;
    }
    let mut cookie = None;
    if first >> 2 & 0xf == format::WITH_COOKIE {
        let (fields, rest) = more.split_first_chunk().ok_or(SHORT)?;
        cookie = Some(u64::from_be_bytes(*fields));
        header += 8;
        more = rest;
    }
    debug_assert_eq!(header + more.len(), octets.len(), "every octet read once");
    let segment = Segment {
        first,
        control,
        place,
        extension: its_extension,
        cookie,
        payload: more.to_vec(),
    };
    check(&segment, queue)?;
    Ok(segment)
}

/// The fields of 24 octets.
pub(super) fn extension(octets: &[u8; EXTENSION]) -> Extension {
    let [flags, r0, r1, r2, ..] = *octets;
    let at = |index| word(octets, index).unwrap_or_default();
    Extension {
        flags,
        reserved: [r0, r1, r2],
        epoch: at(4),
        number: at(8),
        length: at(12),
        offset: at(16),
        immediate: at(20),
    }
}

fn check(segment: &Segment, queue: u32) -> Result<(), Dropped> {
    let last = segment.is_last();
    if let Place::Untagged { qn, mo, .. } = segment.place {
        require(qn == queue, "another queue than the opcode's")?;
        if segment.extension.is_none() {
            require(last && mo == 0, "L clear, or an MO, without an extension")?;
        }
    }
    if let Some(extension) = segment.extension {
        check_extension(segment, extension)?;
    }
    match segment.opcode() {
        opcode::READ_REQUEST => require(
            segment.payload.len() == 28,
            "a Read Request not of 28 octets",
        ),
        opcode::TERMINATE => {
            let what = Terminate::parse(&segment.payload).and_then(|terminate| about(&terminate));
            let known = matches!(what, Some(About::Request(_) | About::Message(_)));
            require(known, "a Terminate about nothing")
        }
        _ => Ok(()),
    }
}

/// The checks of Datagram §3.
fn check_extension(segment: &Segment, extension: Extension) -> Result<(), Dropped> {
    let payload = u64::try_from(segment.payload.len()).unwrap_or(u64::MAX);
    let end = u64::from(extension.offset).saturating_add(payload);
    let length = u64::from(extension.length);
    require(extension.length <= MOST, "a message longer than 2^30")?;
    require(end <= length, "octets beyond the message's end")?;
    require(segment.is_last() == (end == length), "L is not the end's")?;
    require(
        payload > 0 || length == 0,
        "no payload of a message that has some",
    )?;
    match segment.place {
        Place::Tagged { to, .. } => {
            let base = to.checked_sub(extension.offset.into());
            let fits = base.is_some_and(|base| base.checked_add(length).is_some());
            require(fits, "tagged offsets that wrap")
        }
        Place::Untagged { msn, mo, .. } => require(
            msn == extension.number && mo == extension.offset,
            "MSN or MO differ from the extension",
        ),
    }
}

/// The octets of an invitation to share memory where others have an epoch.
const INVITATION: &[u8] = b"DGiH";

fn exchange(octets: &[u8]) -> Result<Exchange, Dropped> {
    let all: &[u8; EXCHANGE - 4] = octets
        .try_into()
        .map_err(|_| Dropped::Malformed("a cookie exchange not of 36 octets"))?;
    let [first, kind, r0, r1, ..] = *all;
    require(first == 0x49, "T or L of a cookie exchange")?;
    let is_invitation = kind == 3 && all.get(4..8) == Some(INVITATION) && all.get(8) == Some(&0);
    require(
        matches!(kind, 1 | 2) || is_invitation,
        "the type of a cookie exchange",
    )?;
    let long = |at| long(all, at).unwrap_or_default();
    Ok(Exchange {
        first,
        kind,
        reserved: [r0, r1],
        epoch: word(all, 4).unwrap_or_default(),
        nonce: long(8),
        cookie: long(16),
        end: long(24).to_be_bytes(),
    })
}

fn long(octets: &[u8], at: usize) -> Option<u64> {
    octets
        .get(at..)?
        .first_chunk()
        .map(|eight| u64::from_be_bytes(*eight))
}

fn lookup(octets: &[u8]) -> Result<Lookup, Dropped> {
    const SHORT: Dropped = Dropped::Malformed("shorter than a service lookup's header");
    let at = |index| word(octets, index).ok_or(SHORT);
    let header: &[u8; 24] = octets.first_chunk().ok_or(SHORT)?;
    let [first, kind, s0, s1, ..] = *header;
    let [.., l0, l1] = at(12)?.to_be_bytes();
    let length = u16::from_be_bytes([l0, l1]);
    require(first == 0x4d, "T or L of a service lookup")?;
    if !(1..=6).contains(&kind) {
        return Err(Dropped::UnexpectedOpcode(kind));
    }
    require(length <= 256, "more than 256 octets of private data")?;
    require(
        kind != 1 || octets.len() == LOOKUP - 4,
        "a lookup not of 284 octets",
    )?;
    require(
        !matches!(kind, 5 | 6) || octets.len() == 24,
        "a port query or answer not of 28 octets",
    )?;
    require(
        kind != 6 || at(16)? <= 65535,
        "a TCP port of more than 16 bits",
    )?;
    let (private_data, fill) = octets[24..]
        .split_at_checked(length.into())
        .ok_or(Dropped::Malformed("less private data than its length says"))?;
    let [p0, p1, ..] = at(12)?.to_be_bytes();
    Ok(Lookup {
        first,
        kind,
        status: u16::from_be_bytes([s0, s1]),
        transaction: long(octets, 4).ok_or(SHORT)?,
        port: u16::from_be_bytes([p0, p1]),
        length,
        qpn: at(16)?,
        qkey: at(20)?,
        private_data: private_data.to_vec(),
        fill: fill.to_vec(),
    })
}
