//! ULPDUs that bypass the RNR queue.

use dgiwarp_ddp::QueueNumber;
use dgiwarp_ddp::wire::{Control, TaggedHeader, UntaggedHeader, tagged};

use super::dgiwarp_ext::Notice;
use crate::wire::Opcode;

/// Whether a ULPDU may be handled before earlier ones in the RNR queue: a response, a Terminate, a hello, a token, an RNR limit, or an acknowledgement. All others keep
/// the order of RFC 5040 §5.5.
#[must_use]
pub fn overtakes(ulpdu: &[u8]) -> bool {
    let Some(first) = ulpdu.first() else {
        return false;
    };
    if Control::parse(*first).tagged {
        let Ok((header, payload)) = TaggedHeader::parse(ulpdu) else {
            return false;
        };
        match Opcode::parse(header.rsvd_ulp) {
            Ok(Opcode::ReadResponse) => true,
            Ok(Opcode::Write) if payload.is_empty() => matches!(
                Notice::parse(header.stag, header.tagged_offset),
                Some(
                    Notice::Hello { .. }
                        | Notice::Acknowledgement { .. }
                        | Notice::RnrLimit(_)
                        | Notice::TokenHalf { .. }
                )
            ),
            Ok(_) | Err(_) => false,
        }
    } else {
        UntaggedHeader::parse(ulpdu).is_ok_and(|(header, _)| {
            matches!(
                header.queue_number,
                QueueNumber::TERMINATE | QueueNumber::ATOMIC_RESPONSE
            )
        })
    }
}

/// Whether this ULPDU is a segment of a Send, of a Write that is not empty, or an Immediate Data message: neither a notice nor a request or response. It need
/// not be right.
#[must_use]
pub fn carries_message(ulpdu: &[u8]) -> bool {
    let [control, opcode, rest @ ..] = ulpdu else {
        return false;
    };
    match Opcode::parse(*opcode) {
        Ok(Opcode::Write) => Control::parse(*control).tagged && rest.len() + 2 > tagged::LEN,
        Ok(
            Opcode::Send
            | Opcode::SendInvalidate
            | Opcode::SendSolicited
            | Opcode::SendSolicitedInvalidate
            | Opcode::Immediate
            | Opcode::ImmediateSolicited,
        ) => !Control::parse(*control).tagged,
        Ok(
            Opcode::ReadRequest
            | Opcode::ReadResponse
            | Opcode::Terminate
            | Opcode::AtomicRequest
            | Opcode::AtomicResponse
            | Opcode::WriteRecord
            | Opcode::SegmentedSend,
        )
        | Err(_) => false,
    }
}

/// Whether this ULPDU is the last segment of a Send, a Write or an Immediate Data message.
#[must_use]
pub fn ends_message(ulpdu: &[u8]) -> bool {
    let Some(first) = ulpdu.first() else {
        return false;
    };
    if Control::parse(*first).tagged {
        TaggedHeader::parse(ulpdu).is_ok_and(|(header, payload)| {
            let is_notice =
                payload.is_empty() && Notice::parse(header.stag, header.tagged_offset).is_some();
            Opcode::parse(header.rsvd_ulp) == Ok(Opcode::Write) && header.control.last && !is_notice
        })
    } else {
        UntaggedHeader::parse(ulpdu).is_ok_and(|(header, _)| {
            header.queue_number == QueueNumber::SEND && header.control.last
        })
    }
}

/// Whether a ULPDU belongs to a work request of the peer: to a Send, a Write that is no notice, a Read Request or an atomic request.
#[must_use]
pub fn begins_work(ulpdu: &[u8]) -> bool {
    let Some(first) = ulpdu.first() else {
        return false;
    };
    if Control::parse(*first).tagged {
        TaggedHeader::parse(ulpdu).is_ok_and(|(header, payload)| {
            let is_notice =
                payload.is_empty() && Notice::parse(header.stag, header.tagged_offset).is_some();
            Opcode::parse(header.rsvd_ulp) == Ok(Opcode::Write) && !is_notice
        })
    } else {
        UntaggedHeader::parse(ulpdu).is_ok_and(|(header, _)| {
            matches!(
                header.queue_number,
                QueueNumber::SEND | QueueNumber::READ_REQUEST
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use dgiwarp_ddp::{STag, TaggedOffset};

    use super::super::message::{short, tagged_header};
    use super::super::{AckRequest, Capabilities, DgiwarpExt, Header};
    use super::*;

    #[test]
    fn answers_ends_and_acknowledgements_overtake() {
        let tagged = |opcode| tagged_header(opcode, STag::new(1), TaggedOffset::new(0), true);
        let untagged = |opcode| -> Header { short(opcode, dgiwarp_ddp::Msn::FIRST, &[]) };
        let mut end = DgiwarpExt::new(Some(Capabilities::default()));
        for (ulpdu, expected) in [
            (tagged(Opcode::ReadResponse), true),
            (untagged(Opcode::AtomicResponse), true),
            (untagged(Opcode::Terminate), true),
            (end.hello().unwrap(), true),
            (end.acknowledge(Some(AckRequest::Next)), true),
            (end.rnr_limit(), true),
            (DgiwarpExt::immediate(1), false),
            (DgiwarpExt::srq_number(1), false),
            (tagged(Opcode::Write), false),
            (untagged(Opcode::Send), false),
            (untagged(Opcode::ReadRequest), false),
            (untagged(Opcode::AtomicRequest), false),
            (Header::new(), false),
            (Header::from_iter([0xc1, 0x42]), false),
            (Header::from_iter([0x41]), false),
        ] {
            assert_eq!(overtakes(&ulpdu), expected, "{ulpdu:x?}");
        }
    }

    #[test]
    fn messages_of_programs_differ_from_notices_and_requests() {
        let tagged = |opcode| tagged_header(opcode, STag::new(1), TaggedOffset::new(0), true);
        let untagged = |opcode| -> Header { short(opcode, dgiwarp_ddp::Msn::FIRST, &[]) };
        let mut write = tagged(Opcode::Write).to_vec();
        assert!(!carries_message(&write), "a notice, or as empty as one");
        write.push(0);
        assert!(carries_message(&write));
        write[0] &= 0x7f;
        assert!(!carries_message(&write), "not tagged");
        for (ulpdu, expected) in [
            (untagged(Opcode::Send), true),
            (untagged(Opcode::SendInvalidate), true),
            (untagged(Opcode::SendSolicited), true),
            (untagged(Opcode::SendSolicitedInvalidate), true),
            (untagged(Opcode::Immediate), true),
            (untagged(Opcode::ImmediateSolicited), true),
            (untagged(Opcode::ReadRequest), false),
            (untagged(Opcode::AtomicRequest), false),
            (untagged(Opcode::AtomicResponse), false),
            (untagged(Opcode::Terminate), false),
            (tagged(Opcode::ReadResponse), false),
            (tagged(Opcode::Send), false),
            (Header::from_iter([0x41]), false),
            (Header::from_iter([0x41, 0x4f]), false),
            (Header::new(), false),
        ] {
            assert_eq!(carries_message(&ulpdu), expected, "{ulpdu:x?}");
        }
    }

    #[test]
    fn messages_are_counted_by_their_last_segment() {
        let write = |last| tagged_header(Opcode::Write, STag::new(1), TaggedOffset::new(0), last);
        let untagged = |opcode| -> Header { short(opcode, dgiwarp_ddp::Msn::FIRST, &[]) };
        for (ulpdu, expected) in [
            (write(true), true),
            (write(false), false),
            (untagged(Opcode::Send), true),
            (untagged(Opcode::Immediate), true),
            (DgiwarpExt::immediate(1), false),
            (DgiwarpExt::srq_number(1), false),
            (untagged(Opcode::ReadRequest), false),
            (untagged(Opcode::Terminate), false),
        ] {
            assert_eq!(ends_message(&ulpdu), expected, "{ulpdu:?}");
        }
        assert!(!ends_message(&[]));
    }

    #[test]
    fn notices_and_answers_are_no_work_of_the_peers() {
        let tagged = |opcode| tagged_header(opcode, STag::new(1), TaggedOffset::new(0), true);
        let untagged = |opcode| -> Header { short(opcode, dgiwarp_ddp::Msn::FIRST, &[]) };
        let mut end = DgiwarpExt::new(Some(Capabilities::default()));
        for (ulpdu, expected) in [
            (tagged(Opcode::Write), true),
            (untagged(Opcode::Send), true),
            (untagged(Opcode::Immediate), true),
            (untagged(Opcode::ReadRequest), true),
            (untagged(Opcode::AtomicRequest), true),
            (tagged(Opcode::ReadResponse), false),
            (untagged(Opcode::AtomicResponse), false),
            (untagged(Opcode::Terminate), false),
            (end.hello().unwrap(), false),
            (end.acknowledge(None), false),
            (DgiwarpExt::immediate(1), false),
            (Header::new(), false),
        ] {
            assert_eq!(begins_work(&ulpdu), expected, "{ulpdu:x?}");
        }
    }
}
