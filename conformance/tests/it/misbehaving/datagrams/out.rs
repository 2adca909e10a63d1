//! Datagrams that leave, and the faults of their octets.

use std::net::SocketAddr;

use dgiwarp_conform::wire::datagram::{Datagram, Exchange, MOST, Segment, format, opcode, sealed};
use dgiwarp_conform::wire::ddp::Place;

use super::device::World;
use super::pair::Pair;

/// Octets of a CRC.
const CRC: usize = 4;

/// Sends a datagram, with the fault that all of its kind have, and behind one that is wrong, if that is the fault.
pub(super) fn send(world: &World, pair: &Pair, to: SocketAddr, datagram: Datagram) {
    let mut datagram = datagram;
    match &mut datagram {
        Datagram::Segment(segment) => change(world, segment),
        Datagram::Exchange(exchange) => change_exchange(world, exchange),
        Datagram::Lookup(_) | Datagram::Reliable(_) => {}
    }
    if let Some(wrong) = ahead(world, &datagram) {
        // The peer may have gone.
        let _ = pair.socket.send_to(&wrong, to);
    }
    let _ = pair.socket.send_to(&datagram.to_bytes(), to);
}

fn change(world: &World, segment: &mut Segment) {
    if world.does("control-reserved") {
        segment.control |= 0x20;
    }
    let carries = matches!(segment.opcode(), opcode::SEND | opcode::SEND_SE);
    if let Some(last) = segment.payload.last_mut()
        && (carries || segment.extension.is_some())
        && world.does("octets-change")
    {
        *last ^= 0xff;
    }
    let Some(extension) = &mut segment.extension else {
        return;
    };
    if world.does("extension-reserved") {
        extension.reserved = [0, 1, 0];
    }
    if world.does("extension-flag-unassigned") {
        extension.flags |= 0x80;
    }
    if extension.flags & 1 == 0 && world.does("immediate-without-flag") {
        extension.immediate = 5;
    }
    if let Place::Tagged { stag, .. } = &mut segment.place
        && extension.offset > 0
        && world.does("stag-changes")
    {
        *stag ^= 0x100;
    }
}

fn change_exchange(world: &World, exchange: &mut Exchange) {
    if exchange.kind == 1 {
        if world.does("cookie-request-with-cookie") {
            exchange.cookie = 1;
        }
        if world.does("cookie-request-end") {
            exchange.end[7] = 1;
        }
        return;
    }
    if world.does("cookie-answer-reserved") {
        exchange.reserved = [0, 1];
    }
    if world.does("cookie-answer-other-epoch") {
        exchange.epoch ^= 1;
    }
}

/// A datagram that is wrong and that leaves before this one.
fn ahead(world: &World, datagram: &Datagram) -> Option<Vec<u8>> {
    let mut octets = datagram.to_bytes();
    if world.does("bad-crc") {
        *octets.last_mut()? ^= 1;
        return Some(octets);
    }
    octets.truncate(octets.len() - CRC);
    if world.does("format-7") {
        octets[0] = octets[0] & !0x3c | 7 << 2;
        return Some(sealed(octets));
    }
    if world.does("dv-2") {
        octets[0] ^= 3;
        return Some(sealed(octets));
    }
    match datagram {
        Datagram::Segment(segment) => wrong_segment(world, segment, octets),
        Datagram::Exchange(_) => {
            if world.does("exchange-of-40") {
                octets.extend([0; 4]);
            } else if world.does("exchange-type-3") {
                octets[1] = 3;
            } else if world.does("exchange-tagged") {
                octets[0] |= 0x80;
            } else {
                return None;
            }
            Some(sealed(octets))
        }
        Datagram::Lookup(_) | Datagram::Reliable(_) => None,
    }
}

fn wrong_segment(world: &World, segment: &Segment, mut octets: Vec<u8>) -> Option<Vec<u8>> {
    if world.does("rv-2") {
        octets[1] ^= 0xc0;
        return Some(sealed(octets));
    }
    if world.does("opcode-9") {
        octets[1] = 0x49;
        return Some(sealed(octets));
    }
    if world.does("segment-cut") {
        // Shorter than either header.
        octets.truncate(13);
        return Some(sealed(octets));
    }
    let mut wrong = segment.clone();
    let code = segment.opcode();
    if code == opcode::SEND || code == opcode::READ_REQUEST {
        if let Place::Untagged { qn, mo, .. } = &mut wrong.place {
            if world.does("other-queue") {
                *qn ^= 1;
            }
            if world.does("offset-without-extension") {
                *mo = 4;
            }
        }
        if world.does("not-last-without-extension") {
            wrong.first &= !0x40;
        }
    }
    if let Some(extension) = &mut wrong.extension {
        if segment.is_last() && world.does("octets-beyond-the-end") {
            extension.length = extension.length.checked_sub(1)?;
        }
        if !segment.is_last() && world.does("last-everywhere") {
            wrong.first |= 0x40;
        }
    }
    if code == opcode::READ_REQUEST {
        if world.does("read-request-of-32") {
            wrong.payload.extend([0; 4]);
        }
        if world.does("read-request-for-too-much") {
            wrong.payload[12..16].copy_from_slice(&(MOST + 1).to_be_bytes());
        }
    }
    if code == opcode::READ_RESPONSE && world.does("response-of-format-5") {
        wrong.first = wrong.first & !0x3c | (format::LOOKUP + 2) << 2;
    }
    (wrong != *segment).then(|| Datagram::from(wrong).to_bytes())
}
