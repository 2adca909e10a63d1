//! The faults, each with all that the tester finds of it: rules of a sender, or cases.

use crate::misbehaving::faults::Fault;

/// Name, and findings.
pub(crate) const FAULTS: &[Fault] = &[
    // Every datagram.
    ("bad-crc", &["datagram-crc"]),
    ("format-7", &["datagram-format"]),
    ("dv-2", &["datagram-version"]),
    ("rv-2", &["datagram-version"]),
    ("opcode-9", &["datagram-opcode"]),
    ("control-reserved", &["datagram-reserved"]),
    ("segment-cut", &["datagram-layout"]),
    ("other-queue", &["datagram-layout"]),
    ("offset-without-extension", &["datagram-layout"]),
    ("not-last-without-extension", &["datagram-layout"]),
    ("datagram-too-long", &["datagram-length"]),
    // Messages with an extension.
    ("octets-beyond-the-end", &["datagram-layout"]),
    ("last-everywhere", &["datagram-layout"]),
    ("extension-reserved", &["extension-reserved"]),
    ("extension-flag-unassigned", &["extension-reserved"]),
    ("immediate-without-flag", &["extension-reserved"]),
    ("stag-changes", &["message-constant"]),
    ("segments-of-two-lengths", &["message-equal"]),
    ("epoch-changes", &["D20"]),
    ("number-skips", &["D20"]),
    ("msn-skips", &["D20"]),
    ("octets-change", &["D20", "D25"]),
    // Cookies.
    ("exchange-of-40", &["cookie-layout"]),
    ("exchange-type-3", &["cookie-layout"]),
    ("exchange-tagged", &["cookie-layout"]),
    ("cookie-request-with-cookie", &["cookie-reserved"]),
    ("cookie-request-end", &["cookie-reserved"]),
    ("cookie-answer-reserved", &["cookie-reserved"]),
    ("cookie-answer-other-epoch", &["cookie-answer"]),
    // A stranger then has the tester's.
    ("one-cookie-for-all", &["D15", "D16"]),
    ("cookies-for-groups", &["D15"]),
    ("cookies-unchecked", &["D16"]),
    ("writes-without-cookie", &["D25"]),
    ("nonce-repeated", &["D18"]),
    // Reads, as the target and as the requester.
    ("reads-served-without-cookie", &["amplification"]),
    ("response-with-cookie", &["read-response"]),
    ("response-too-long", &["read-response"]),
    ("response-without-last", &["read-response"]),
    ("response-of-format-5", &["datagram-format"]),
    ("response-to-other-stag", &["D16"]),
    ("response-with-other-octets", &["D16"]),
    ("read-request-of-32", &["datagram-layout"]),
    ("read-request-for-too-much", &["read-request"]),
    ("long-reads-without-cookie", &["D18"]),
    ("read-msn-skips", &["D18"]),
    ("sink-stags-in-a-row", &["D18"]),
    // Terminates.
    ("terminate-with-m", &["terminate-datagram"]),
    ("terminate-with-cookie", &["terminate-datagram"]),
    ("terminate-layer-3", &["terminate-control"]),
    ("terminate-reserved", &["terminate-reserved"]),
    ("terminate-about-nothing", &["datagram-layout"]),
    ("terminate-cut", &["datagram-layout"]),
    ("terminate-other-code", &["D17"]),
    ("terminates-without-limit", &["D17"]),
    // Service lookup.
    ("answer-with-status", &["service-reserved"]),
    ("reject-with-qkey", &["service-reserved"]),
    ("waiting-with-qpn", &["service-reserved"]),
    ("answer-length-300", &["service-layout"]),
    ("lookup-type-9", &["service-layout"]),
    ("answer-changes", &["service-repeat"]),
    ("answer-with-other-qpn", &["D27"]),
    ("answers-for-any-port", &["D27"]),
    ("program-asked-twice", &["D27"]),
];

/// Faults of the short run: some of each group.
pub(super) const OFTEN: &[&str] = &[
    "bad-crc",
    "rv-2",
    "control-reserved",
    "stag-changes",
    "number-skips",
    "exchange-type-3",
    "cookie-answer-other-epoch",
    "reads-served-without-cookie",
    "response-too-long",
    "terminate-with-m",
    "answer-changes",
];
