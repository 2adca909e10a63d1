//! The rules that traffic is checked against. Each says what a sender has to do; a receiver's rules cannot be seen from outside.

use core::fmt;

/// How much a rule asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keyword {
    /// An end that breaks it is not conformant.
    Must,
    /// There may be reasons.
    Should,
}

impl fmt::Display for Keyword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Must => "MUST",
            Self::Should => "SHOULD",
        })
    }
}

/// One rule.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its name; it stays as it is.
    pub id: &'static str,
    /// Where it is written.
    pub clause: &'static str,
    /// How much it asks for.
    pub keyword: Keyword,
    /// Words of the rule.
    pub says: &'static str,
}

macro_rules! rules {
    ($($name:ident $id:literal $clause:literal $keyword:ident $says:literal;)*) => {
        $(pub(super) const $name: &Rule = &Rule {
            id: $id,
            clause: $clause,
            keyword: Keyword::$keyword,
            says: $says,
        };)*
        /// All rules.
        pub const ALL: &[&Rule] = &[$($name),*];
    };
}

rules! {
    MPA_RESERVED "mpa-reserved" "RFC 5044 §7.1.1" Must "Reserved bits of a startup frame are zero";
    MPA_REVISION "mpa-revision" "RFC 5044 §7.1.1" Must "The revision is 1, or 2 where RFC 6581 is used";
    MPA_REPLY_KEY "mpa-reply-key" "RFC 5044 §7.1.1" Must "A Responder sends the key of Replies";
    MPA_PD_LENGTH "mpa-pd-length" "RFC 5044 §7.1.1" Must "Private data has 512 octets at most";
    MPA_BEFORE_REPLY "mpa-before-reply" "RFC 5044 §7.1.2" Must "An Initiator sends no FPDU before it has the Reply";
    MPA_EARLY "mpa-early" "RFC 5044 §7.1.2" Must "A Responder sends no FPDU before it has received one";
    ENHANCED_REVISION "enhanced-revision" "RFC 6581 §6" Must "Bit S is for revision 2";
    ENHANCED_DATA "enhanced-data" "RFC 6581 §6" Must "With bit S the private data begins with four octets of enhanced data";
    ENHANCED_REPLY "enhanced-reply" "RFC 6581 §10" Must "An enhanced Request gets an enhanced Reply, a plain one a plain one";
    ENHANCED_MODEL "enhanced-model" "RFC 6581 §9.2" Must "The Reply repeats control flag A of the Request";
    ENHANCED_FLAGS "enhanced-flags" "RFC 6581 §9.2" Must "With control flag A clear, B, C and D are zero";
    ENHANCED_NONE "enhanced-none" "RFC 6581 §9.2" Must "With control flag A set, at least one of B, C and D is";
    ENHANCED_ORD "enhanced-ord" "RFC 6581 §9.1" Must "The Responder's ORD is at most the Initiator's IRD";
    ENHANCED_ONES "enhanced-ones" "RFC 6581 §9.1" Must "A depth of all ones is answered by all ones";
    ENHANCED_RTR "enhanced-rtr" "RFC 6581 §9.2" Must "In peer-to-peer mode the Initiator begins with an RTR indication that was agreed on, or a Terminate";
    ENHANCED_DEPTH "enhanced-depth" "RFC 6581 §9.1" Must "No more RDMA Reads are outstanding than the peer's IRD";
    MPA_LENGTH "mpa-length" "RFC 5044 §3" Must "A ULPDU has 64,768 octets at most";
    MPA_EMSS "mpa-emss" "RFC 5044 §4.5" Should "An FPDU is no longer than the EMSS";
    MPA_PAD "mpa-pad" "RFC 5044 §4.1" Must "The pad is zero, and no longer than to the next multiple of four";
    MPA_MARKER "mpa-marker" "RFC 5044 §4.3" Must "Markers have reserved bits of zero and point to the beginning of their FPDU";
    MPA_CRC "mpa-crc" "RFC 5044 §4.4" Must "The CRC is that of the FPDU";
    DDP_HEADER "ddp-header" "RFC 5041 §4.4" Must "Every segment has a header";
    DDP_VERSION "ddp-version" "RFC 5041 §4.1" Must "DV is 1";
    DDP_RESERVED "ddp-reserved" "RFC 5041 §4.1" Must "Reserved bits of DDP's control octet are zero";
    DDP_LAST "ddp-last" "RFC 5041 §4.1" Must "The last segment of a message has L set, and no other";
    DDP_STAG "ddp-stag" "RFC 5041 §4.2" Must "All segments of a tagged message have one STag";
    DDP_MSN "ddp-msn" "RFC 5041 §4.3" Must "MSNs of a queue begin with 1 and go up by one";
    DDP_RSVD_ULP "ddp-rsvdulp" "RFC 5041 §4.3" Must "All segments of an untagged message have one RsvdULP";
    DDP_OFFSET "ddp-offset" "RFC 5041 §5.2" Must "MO or TO say where in the message the octets belong, each once";
    DDP_LENGTH "ddp-length" "RFC 5041 §5.2" Must "A message has less than 2^32 octets";
    DDP_ORDER "ddp-order" "RFC 5041 §5.3" Should "Segments leave in the order of their offsets";
    RDMAP_VERSION "rdmap-version" "RFC 5040 §4.1" Must "RV is 1, or 0 at both ends of old devices, throughout";
    RDMAP_RESERVED "rdmap-reserved" "RFC 5040 §4.1" Must "Reserved bits of RDMAP's control octet are zero";
    RDMAP_OPCODE "rdmap-opcode" "RFC 5040 §4.1" Must "The opcode is one that RFC 5040 or RFC 7306 defines";
    RDMAP_TAGGED "rdmap-tagged" "RFC 5040 §4.1" Must "T is as the opcode demands";
    RDMAP_QUEUE "rdmap-queue" "RFC 5040 §4.1" Must "The queue is that of the opcode";
    RDMAP_INVALIDATE "rdmap-invalidate" "RFC 5040 §4.1" Must "Without Invalidate the Invalidate STag is zero";
    RDMAP_READ_HEADER "rdmap-read-header" "RFC 5040 §4.4" Must "A Read Request is its header of 28 octets";
    RDMAP_RESPONSE "rdmap-response" "RFC 5040 §5.2" Must "A Read Response answers a Read Request";
    RDMAP_RESPONSE_ORDER "rdmap-response-order" "RFC 5040 §5.2.2" Must "Read Responses leave in the order of their requests";
    RDMAP_RESPONSE_PLACE "rdmap-response-place" "RFC 5040 §5.2.2" Must "A Read Response goes where its request says, with as many octets";
    RDMAP_TERMINATED "rdmap-terminated" "RFC 5040 §5.4" Must "Nothing follows a Terminate";
    TERMINATE_CONTROL "terminate-control" "RFC 5040 §4.8" Must "Layer, type and code of a Terminate are those of a figure";
    TERMINATE_RESERVED "terminate-reserved" "RFC 5040 §4.8" Must "Reserved bits of a Terminate are zero";
    TERMINATE_HEADERS "terminate-headers" "RFC 5040 §4.8" Must "A Terminate has the headers that its bits D and R announce";
    TERMINATE_ABOUT "terminate-about" "RFC 5040 §4.8" Must "Length and headers in a Terminate are those of a segment that came";
    TERMINATE_END "terminate-end" "RFC 5040 §7" Must "Behind a Terminate the connection ends";
    TERMINATE_FIGURE "terminate-figure" "RFC 5040 §4.8" Should "Bits M, D and R of a Terminate are those of figure 10";
    ATOMIC_REQUEST "atomic-request" "RFC 7306 §5.2.1" Must "An Atomic Request is its header of 52 octets, with an operation that is defined";
    ATOMIC_RESPONSE "atomic-response" "RFC 7306 §5.2.2" Must "An Atomic Response is its header of 12 octets and repeats the identifier of the oldest request";
    IMMEDIATE_SIZE "immediate-size" "RFC 7306 §6.3" Must "Immediate Data has eight octets";
    DATAGRAM_CRC "datagram-crc" "Datagram §1" Must "The CRC is that of the datagram";
    DATAGRAM_CHECKSUM "datagram-checksum" "Datagram §1" Must "UDP's checksum is there";
    DATAGRAM_FORMAT "datagram-format" "Datagram §1.1" Must "The format is one that is assigned";
    DATAGRAM_VERSION "datagram-version" "Datagram §1.1" Must "DV and RV are 1";
    DATAGRAM_OPCODE "datagram-opcode" "Datagram §1.2" Must "The opcode is one that datagrams have";
    DATAGRAM_RESERVED "datagram-reserved" "Datagram §1.2" Must "Reserved bits of RDMAP's control octet are zero";
    DATAGRAM_LAYOUT "datagram-layout" "Datagram §2" Must "Headers, extension and payload are those of the opcode and fit together";
    EXTENSION_RESERVED "extension-reserved" "Datagram §3" Must "Unassigned flags, reserved octets, and the immediate without flag I are zero";
    MESSAGE_CONSTANT "message-constant" "Datagram §3" Must "All segments of a message say the same of it";
    MESSAGE_EQUAL "message-equal" "Datagram §3" Should "All segments of a message but the last have one length";
    COOKIE_LAYOUT "cookie-layout" "Datagram §6" Must "A cookie exchange has 36 octets, T, L and type as they have to be";
    COOKIE_RESERVED "cookie-reserved" "Datagram §6" Must "Reserved octets of a cookie exchange, and the cookie of a request, are zero";
    COOKIE_ANSWER "cookie-answer" "Datagram §6" Must "An answer repeats epoch and nonce of its request";
    AMPLIFICATION "amplification" "Datagram §6" Must "Nobody gets more than three times what it sent without a cookie";
    READ_REQUEST "read-request" "Datagram §7.1" Must "A Read asks for 2^30 octets at most, and its sink does not wrap";
    READ_RESPONSE "read-response" "Datagram §7.1" Must "Responses are no longer than their requests, have no cookie, and L at the end of each request";
    TERMINATE_DATAGRAM "terminate-datagram" "Datagram §7.2" Must "A Terminate has format 0 and M clear";
    DATAGRAM_LENGTH "datagram-length" "Datagram §8" Must "A datagram has 65,000 octets at most";
    DATAGRAM_FRAGMENT "datagram-fragment" "Datagram §8" Must "IP may not fragment datagrams";
    GROUP_EPOCH "group-epoch" "Datagram §8.1" Must "Each group, and single peers, have an epoch of their own";
    GROUP_ANSWER "group-answer" "Datagram §8.1" Must "Nothing that was sent to a group is answered";
    SERVICE_LAYOUT "service-layout" "Datagram §10" Must "Type, length and private data of a service lookup are as they have to be";
    SERVICE_RESERVED "service-reserved" "Datagram §10" Must "Fields of a service lookup that its type does not use are zero";
    SERVICE_REPEAT "service-repeat" "Datagram §10" Must "Repeats of a service lookup and of its answer are unchanged";
    RELIABLE_RESERVED "reliable-reserved" "Reliable §2" Must "Unassigned flags and reserved octets of envelope and frames are zero";
    RELIABLE_NUMBER "reliable-number" "Reliable §2" Must "A packet number is used once";
    RELIABLE_HELLO "reliable-hello" "Reliable §3.7" Must "Flag hello is set where the first frame is a HELLO, and a HELLO with retry stands alone and names no association";
    RELIABLE_SEGMENT "reliable-segment" "Reliable §3.1" Must "A segment that is sent again has the same fields and octets";
    RELIABLE_MESSAGE "reliable-message" "Reliable §3.1" Must "All segments of a message agree on stream, message before it and flag receive, and one is the last";
    RELIABLE_AFTER "reliable-after" "Reliable §3.1" Must "The message that a message comes after is less than 4,096 behind it";
    RELIABLE_PLACED "reliable-placed" "Reliable §3.3" Must "PLACED follows every ACK";
    RELIABLE_CREDIT "reliable-credit" "Reliable §3.4" Must "The receives of CREDIT do not go back";
    RELIABLE_CLOSE "reliable-close" "Reliable §3.9" Must "A CLOSE with another reason than 2 has association and packet number zero";
}

#[cfg(test)]
mod tests {
    use super::ALL;

    #[test]
    fn names_are_unique() {
        let mut ids: Vec<_> = ALL.iter().map(|rule| rule.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), ALL.len());
    }
}
