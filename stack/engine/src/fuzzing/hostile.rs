//! ULPDUs that a peer might send: nearly right, mostly.

use arbitrary::{Result, Unstructured};

use super::guarded::Guarded;
use super::rc_end::End;

/// A ULPDU about an end's memory.
pub(super) fn ulpdu(
    u: &mut Unstructured<'_>,
    victim: &End,
    msns: &mut [u32; 4],
) -> Result<Vec<u8>> {
    let opcode: u8 = u.int_in_range(0..=15)?;
    let odd = u.ratio(1u8, 16u8)?;
    // RDMA Write and Read Response are tagged.
    let tagged = matches!(opcode, 0 | 2) != odd;
    let last = u.ratio(3u8, 4u8)?;
    let first = 0x01 | u8::from(last) << 6 | u8::from(tagged) << 7;
    let mut octets = vec![first, 0x40 | opcode];
    if tagged {
        octets.extend(stag(u, victim)?.to_be_bytes());
        octets.extend(place(u, victim)?.to_be_bytes());
    } else {
        let queue = match opcode {
            1 | 10 => 1u32,
            7 => 2,
            11 => 3,
            _ => 0,
        };
        let queue = if u.ratio(1u8, 16u8)? {
            u.arbitrary()?
        } else {
            queue
        };
        octets.extend(stag(u, victim)?.to_be_bytes());
        octets.extend(queue.to_be_bytes());
        octets.extend(msn(u, queue, last, msns)?.to_be_bytes());
        let offset = if u.ratio(3u8, 4u8)? {
            0
        } else {
            u32::from(u.arbitrary::<u16>()?)
        };
        octets.extend(offset.to_be_bytes());
    }
    match opcode {
        1 => request(u, victim, &mut octets)?,
        10 => atomic(u, victim, &mut octets)?,
        _ => {
            let length = usize::from(u.arbitrary::<u8>()?) * if u.ratio(1u8, 8u8)? { 8 } else { 1 };
            octets.resize(octets.len() + length, 0xa5);
        }
    }
    // One octet may be anything.
    if u.ratio(1u8, 8u8)? {
        let at = u.choose_index(octets.len())?;
        octets[at] = u.arbitrary()?;
    }
    if u.ratio(1u8, 16u8)? {
        octets.truncate(u.choose_index(octets.len())?);
    }
    Ok(octets)
}

fn msn(u: &mut Unstructured<'_>, queue: u32, last: bool, msns: &mut [u32; 4]) -> Result<u32> {
    if u.ratio(1u8, 16u8)? {
        return u.arbitrary();
    }
    let msn = &mut msns[(queue % 4) as usize];
    let this = *msn;
    if last {
        *msn = msn.wrapping_add(1);
    }
    Ok(this)
}

/// A key of the end's, or none.
pub(super) fn stag(u: &mut Unstructured<'_>, of: &End) -> Result<u32> {
    let memory = &of.memory;
    Ok(match u.int_in_range(0..=11u8)? {
        0..=3 => memory.open.keys.rkey,
        4 | 5 => memory.source.keys.rkey,
        6 => memory.sinks.keys.rkey,
        7 => memory.foreign.keys.rkey,
        8 => of.window,
        9 => of.fast,
        10 => memory.receives.keys.lkey,
        _ => u.arbitrary()?,
    })
}

/// An address inside an area of the end's, near its ends, or anywhere.
pub(super) fn place(u: &mut Unstructured<'_>, of: &End) -> Result<u64> {
    let memory = &of.memory;
    let areas = [memory.open, memory.source, memory.sinks, memory.foreign];
    let area = areas[u.int_in_range(0..=3usize)?];
    let near = u64::from(u.arbitrary::<u8>()?);
    Ok(match u.int_in_range(0..=7u8)? {
        0..=2 => area.addr() + u64::from(u.arbitrary::<u16>()?) % area.len as u64,
        3 => area.addr() + 8 * near,
        4 => (area.addr() + near).wrapping_sub(128),
        5 => area.addr() + area.len as u64 + near - 128,
        6 => u64::MAX - near,
        _ => u.arbitrary()?,
    })
}

fn request(u: &mut Unstructured<'_>, victim: &End, out: &mut Vec<u8>) -> Result<()> {
    out.extend(u.arbitrary::<u32>()?.to_be_bytes());
    out.extend(u.arbitrary::<u64>()?.to_be_bytes());
    let length = if u.ratio(1u8, 16u8)? {
        u.arbitrary()?
    } else {
        u32::from(u.arbitrary::<u16>()?) % 2048
    };
    out.extend(length.to_be_bytes());
    out.extend(stag(u, victim)?.to_be_bytes());
    out.extend(place(u, victim)?.to_be_bytes());
    Ok(())
}

fn atomic(u: &mut Unstructured<'_>, victim: &End, out: &mut Vec<u8>) -> Result<()> {
    out.extend([0, 0, 0, u.int_in_range(0..=3)?]);
    out.extend(u.arbitrary::<u32>()?.to_be_bytes());
    out.extend(stag(u, victim)?.to_be_bytes());
    out.extend(place(u, victim)?.to_be_bytes());
    for _ in 0..4 {
        out.extend(u64::from(u.arbitrary::<u8>()?).to_be_bytes());
    }
    Ok(())
}

/// A datagram's segment about somebody's memory, without CRC.
pub(super) fn segment(u: &mut Unstructured<'_>, memory: &Guarded) -> Result<Vec<u8>> {
    let opcode: u8 = *u.choose(&[12, 12, 12, 13, 13, 3, 5, 1, 2, 7])?;
    // Format 1 has a cookie, format 2 is an exchange of cookies.
    let format: u8 = *u.choose(&[0, 0, 0, 0, 1, 2])?;
    let (number, length) = (u32::from(u.int_in_range(0..=40u8)?), message_length(u)?);
    let offset = if u.ratio(1u8, 2u8)? {
        0
    } else {
        u.int_in_range(0..=length)?
    };
    let most = length.saturating_sub(offset).min(1200);
    let payload = u.int_in_range(0..=most)?;
    let has_extension = matches!(opcode, 12 | 13);
    let last = !has_extension || offset + payload == length;
    let tagged = matches!(opcode, 12 | 2);
    let first = 0x01 | format << 2 | u8::from(last) << 6 | u8::from(tagged) << 7;
    let mut out = vec![first, 0x40 | opcode];
    if tagged {
        let keys = [memory.open, memory.open, memory.source, memory.foreign];
        let area = keys[u.int_in_range(0..=3usize)?];
        let near = u64::from(u.arbitrary::<u16>()?) % (area.len as u64 + 200);
        out.extend(area.keys.rkey.to_be_bytes());
        out.extend((area.addr() + near + u64::from(offset)).to_be_bytes());
    } else {
        let queue = match opcode {
            1 => 1,
            7 => 2,
            _ => 0u32,
        };
        let message_offset = if opcode == 13 { offset } else { 0 };
        for word in [super::ud_end::QKEY, queue, number, message_offset] {
            out.extend(word.to_be_bytes());
        }
    }
    if has_extension {
        out.extend([u.int_in_range(0..=7u8)?, 0, 0, 0]);
        for word in [
            u32::from(u.int_in_range(1..=3u8)?),
            number,
            length,
            offset,
            9,
        ] {
            out.extend(word.to_be_bytes());
        }
    }
    if format == 1 {
        out.extend(u.arbitrary::<u64>()?.to_be_bytes());
    }
    match opcode {
        1 => read_request(u, memory, &mut out)?,
        _ => out.resize(out.len() + payload as usize, 0xa5),
    }
    if u.ratio(1u8, 4u8)? {
        let at = u.choose_index(out.len())?;
        out[at] = u.arbitrary()?;
    }
    Ok(out)
}

fn message_length(u: &mut Unstructured<'_>) -> Result<u32> {
    Ok(match u.int_in_range(0..=7u8)? {
        0 => u.arbitrary()?,
        1 => 0,
        2 | 3 => u32::from(u.arbitrary::<u16>()?),
        _ => u32::from(u.arbitrary::<u8>()?),
    })
}

fn read_request(u: &mut Unstructured<'_>, memory: &Guarded, out: &mut Vec<u8>) -> Result<()> {
    out.extend(u.arbitrary::<u32>()?.to_be_bytes());
    out.extend(u64::from(u.arbitrary::<u32>()?).to_be_bytes());
    out.extend(message_length(u)?.to_be_bytes());
    let area = *u.choose(&[memory.open, memory.source, memory.sinks, memory.foreign])?;
    out.extend(area.keys.rkey.to_be_bytes());
    let near = u64::from(u.arbitrary::<u16>()?) % (area.len as u64 + 200);
    out.extend((area.addr() + near).to_be_bytes());
    Ok(())
}
