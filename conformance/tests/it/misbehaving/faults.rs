//! The faults, each with all that the tester finds of it: rules of a sender, or cases.

/// How the tester and the device meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Revision 2, with CRCs.
    Usual,
    /// Neither asks for CRCs.
    NoCrc,
    /// Revision 1, which has no enhanced startup.
    Revision1,
}

/// Name, and findings.
pub(crate) type Fault = (&'static str, &'static [&'static str]);

/// A fault, and what the tester finds of it in this mode.
pub(super) fn in_mode(mode: Mode, fault: &Fault) -> Fault {
    let others = match mode {
        Mode::Usual => &[][..],
        Mode::NoCrc => WITHOUT_CRC,
        Mode::Revision1 => REVISION_1,
    };
    let other = others.iter().find(|(name, _)| *name == fault.0);
    *other.unwrap_or(fault)
}

/// Findings that are others where neither end asks for CRCs.
const WITHOUT_CRC: &[Fault] = &[
    // FPDUs have CRCs in the few connections that are about them.
    ("crc-of-responses", &[]),
    // Octets in a Marker's place are taken for one, and those behind a pad for more of it.
    ("markers-never", &["mpa-marker", "ddp-header"]),
    ("pad-complement", &["mpa-pad", "R14", "R20", "F22"]),
];

/// Faults that are none where one end asks for CRCs.
pub(super) const ONLY_WITHOUT_CRC: &[Fault] = &[("crc-checked-though-off", &["C01", "C06"])];

/// Findings that are others with revision 1: enhanced startup, RTR indications and depths are none of its frames.
const REVISION_1: &[Fault] = &[
    ("no-rtr-indication", &[]),
    ("read-of-nothing-validated", &["R00"]),
    ("write-of-nothing-validated", &["T00"]),
    (
        "write-of-nothing-validated, crc-unchecked",
        &["T00", "C01", "C03", "C07", "F07"],
    ),
    ("reply-plain-to-enhanced", &[]),
    ("reply-enhanced-to-plain", &[]),
    ("reply-without-a", &[]),
    ("reply-a-unasked", &[]),
    ("reply-flags-without-a", &[]),
    ("reply-no-rtr", &[]),
    ("reply-ord-above-ird", &[]),
    ("reply-revision-1", &[]),
    ("reply-revision-2-to-1", &["M01", "M04"]),
    ("request-a-without-flags", &[]),
    ("plain-rejection-ignored", &[]),
    ("reply-not-all-ones", &[]),
    ("depths-missing-accepted", &[]),
    ("request-without-depths", &[]),
    ("request-flags-without-a", &[]),
    ("other-rtr-indication", &[]),
    // Requests of good connections are plain here, those of revision 0 too.
    ("revision-0-repeated", &["mpa-revision"]),
    (
        "revision-0-enhanced-without-depths",
        &["mpa-revision", "enhanced-data", "enhanced-reply"],
    ),
    (
        "no-terminate",
        &[
            "T01", "T02", "T03", "T04", "T05", "T11", "T12", "T13", "T40", "U01", "U02", "U03",
            "U04", "U05", "U06", "U12", "R01", "R02", "R04", "R05", "R09", "R16", "R21", "R22",
            "R46", "A03", "A04", "A05", "A09", "I01",
        ],
    ),
    ("insufficient-ird-accepted", &[]),
    ("all-ones-in-reply-refused", &[]),
    ("established-though-closed", &[]),
    ("no-common-rtr-accepted", &[]),
    ("rejects-without-bit", &["M40"]),
    ("rejection-ignored", &["M22"]),
    ("rejection-without-depths", &[]),
    // The depths are those of the program, which no rule of a sender knows.
    ("reads-beyond-the-depth", &["R40", "A07"]),
];

/// All faults, each with its findings at revision 2 with CRCs.
pub(crate) const FAULTS: &[Fault] = &[
    // FPDUs.
    ("crc-from-second", &["mpa-crc"]),
    ("crc-from-fifth", &["mpa-crc"]),
    ("crc-of-terminates", &["mpa-crc"]),
    ("crc-always", &["mpa-crc"]),
    ("crc-of-responses", &["mpa-crc"]),
    ("crc-unchecked", &["C01", "C03", "C07", "F07"]),
    ("pad-has-memory", &["mpa-pad"]),
    // Another way shows what Writes of nothing cannot.
    ("write-of-nothing-validated", &["T00"]),
    (
        "write-of-nothing-validated, crc-unchecked",
        &["T00", "C01", "C03", "C07", "F07"],
    ),
    ("read-of-nothing-validated", &["R00"]),
    // Startup, as the Responder and as the Initiator.
    ("fpdu-behind-reply", &["mpa-early"]),
    ("fpdu-behind-request", &["mpa-before-reply"]),
    ("send-before-the-first-fpdu", &["mpa-early"]),
    ("reply-reserved-bits", &["mpa-reserved"]),
    ("reply-revision-3", &["mpa-revision"]),
    ("reply-plain-to-enhanced", &["enhanced-reply"]),
    ("reply-enhanced-to-plain", &["enhanced-reply"]),
    ("reply-without-a", &["enhanced-model"]),
    ("reply-a-unasked", &["enhanced-model"]),
    ("reply-flags-without-a", &["enhanced-flags"]),
    ("reply-no-rtr", &["enhanced-none"]),
    ("reply-not-all-ones", &["enhanced-ones"]),
    ("reply-ord-above-ird", &["enhanced-ord"]),
    ("reply-revision-2-to-1", &["M01"]),
    // No connection works.
    ("reply-key-of-request", &["mpa-reply-key", "R00"]),
    ("reply-private-data-of-600", &["mpa-pd-length"]),
    ("revision-0-repeated", &["mpa-revision", "enhanced-reply"]),
    (
        "revision-0-enhanced-without-depths",
        &["mpa-revision", "enhanced-data"],
    ),
    ("keys-unchecked", &["M02", "M07", "M12", "M21"]),
    ("depths-missing-accepted", &["M12", "E02"]),
    ("reserved-bits-refused", &["M04", "M23"]),
    ("request-reserved-bits", &["mpa-reserved"]),
    ("request-revision-3", &["mpa-revision"]),
    ("request-without-depths", &["enhanced-data"]),
    ("request-s-with-revision-1", &["enhanced-revision"]),
    ("request-flags-without-a", &["enhanced-flags"]),
    ("request-a-without-flags", &["enhanced-none"]),
    ("request-private-data-of-600", &["mpa-pd-length"]),
    ("request-rejects", &["M20"]),
    ("other-rtr-indication", &["enhanced-rtr"]),
    // The rule counts Reads; with atomics among them, and where a Reply leaves the depth open, it is the cases that see it.
    ("reads-beyond-the-depth", &["enhanced-depth", "A07", "E40"]),
    // Segments.
    ("dv-0", &["ddp-version"]),
    ("dv-2-in-sends", &["ddp-version"]),
    ("ddp-reserved", &["ddp-reserved"]),
    ("ddp-reserved-in-terminates", &["ddp-reserved"]),
    ("rv-2", &["rdmap-version"]),
    ("rv-changes", &["rdmap-version"]),
    ("rdmap-reserved", &["rdmap-reserved"]),
    ("rdmap-reserved-in-terminates", &["rdmap-reserved"]),
    ("send-with-reserved-opcode", &["rdmap-opcode"]),
    ("send-qn-1", &["rdmap-queue"]),
    ("invalidate-stag-in-sends", &["rdmap-invalidate"]),
    ("msn-from-zero", &["ddp-msn"]),
    ("msn-of-sends-skips", &["ddp-msn"]),
    ("msn-of-sends-repeats", &["ddp-msn"]),
    ("msn-of-reads-skips", &["ddp-msn"]),
    ("mo-stays", &["ddp-offset"]),
    ("mo-from-4", &["ddp-offset"]),
    // Only its length shows what is the end of a Write.
    ("tagged-all-last", &["R14", "F22", "rdmap-response-place"]),
    ("tagged-same-offset", &["ddp-offset"]),
    ("msn-unchecked", &["U03", "R21"]),
    // Terminates.
    ("terminate-tagged", &["rdmap-tagged"]),
    ("terminate-qn-0", &["rdmap-queue"]),
    ("terminate-msn-7", &["ddp-msn"]),
    ("terminate-not-last", &["ddp-last"]),
    ("terminate-mo-4", &["ddp-offset"]),
    ("terminate-layer-3", &["terminate-control"]),
    ("terminate-reserved", &["terminate-reserved"]),
    ("terminate-cut", &["terminate-headers"]),
    ("terminate-bits-without-headers", &["terminate-headers"]),
    ("terminate-about-other-length", &["terminate-about"]),
    ("terminate-about-other-msn", &["terminate-about"]),
    ("terminate-about-other-stag", &["terminate-about"]),
    ("terminate-about-nothing", &["terminate-about"]),
    ("terminate-headers-without-bits", &["terminate-figure"]),
    ("terminate-without-m", &["terminate-figure"]),
    ("terminate-says-read-header", &["terminate-headers"]),
    ("terminate-read-header-wrong", &["terminate-about"]),
    ("terminate-twice", &["rdmap-terminated"]),
    ("write-behind-terminate", &["rdmap-terminated"]),
    // Each has a code of its own.
    (
        "no-terminate",
        &[
            "T01", "T02", "T03", "T04", "T05", "T11", "T12", "T13", "T40", "U01", "U02", "U03",
            "U04", "U05", "U06", "U12", "R01", "R02", "R04", "R05", "R09", "R16", "R21", "R22",
            "R46", "A03", "A04", "A05", "A09", "I01", "E21", "E22",
        ],
    ),
    // Reads.
    ("read-request-qn-0", &["rdmap-queue"]),
    ("read-request-of-32", &["rdmap-read-header"]),
    ("read-request-mo-8", &["ddp-offset"]),
    ("response-one-short", &["rdmap-response-place"]),
    ("response-one-long", &["rdmap-response-place"]),
    ("response-to-other-stag", &["rdmap-response-place"]),
    ("response-to-other-offset", &["rdmap-response-place"]),
    ("response-twice", &["rdmap-response"]),
    // It shows where another Response follows.
    ("response-without-last", &["ddp-last", "R20"]),
    // A single Read waits for a second one in vain.
    ("responses-swapped", &["rdmap-response-order", "R20"]),
    ("other-domains-served", &["T03", "R05", "T40"]),
    ("no-access-control", &["T11", "R05", "A09"]),
    ("invalidate-ignored", &["R04", "R16"]),
    // RFC 7306.
    ("immediate-of-4", &["immediate-size"]),
    ("immediate-of-any-length", &["I01"]),
    ("atomic-request-qn-0", &["rdmap-queue"]),
    ("atomic-request-operation-5", &["atomic-request"]),
    ("atomic-response-qn-1", &["rdmap-queue"]),
    ("atomic-response-other-identifier", &["atomic-response"]),
    ("atomic-response-of-16", &["atomic-response"]),
    ("atomic-response-new-value", &["A01", "A02", "A41"]),
    ("atomic-operations-unchecked", &["A03"]),
    ("atomics-unaligned", &["A04"]),
    ("fetch-add-ignores-mask", &["A01"]),
    ("compare-swap-always-swaps", &["A02"]),
    ("atomics-of-16", &["A08"]),
    ("atomic-result-in-wire-order", &["A42"]),
    ("compare-swap-fields-swapped", &["A42"]),
    // The program's private data, and rejections.
    ("private-data-rounded", &["M42", "M43"]),
    ("reply-says-nothing", &["M42"]),
    ("rejection-says-nothing", &["M40"]),
    ("request-says-nothing", &["M43"]),
    ("plain-rejection-ignored", &["E42"]),
    // Lengths, and much that is under way.
    ("odd-sends-rounded", &["F22", "R14"]),
    ("no-terminate-while-sending", &["R46"]),
    ("terminate-within-fpdu", &["R46"]),
    ("reads-share-one-queue", &["R47"]),
    // Faults of SoftUiWARP, of which its source shows one or another.
    ("crc-zero", &["mpa-crc"]),
    ("pad-complement", &["mpa-pad"]),
    ("markers-never", &["mpa-marker"]),
    ("reply-refuses-markers", &["K01"]),
    ("startup-in-one-piece", &["M14", "M24"]),
    ("reply-revision-1", &["enhanced-reply"]),
    ("rejection-ignored", &["M22", "E42"]),
    ("long-messages-not-sent", &["R14", "R20"]),
    // A Send that is never whole shows it to the case alone.
    ("offsets-in-wrong-order", &["ddp-offset", "R14"]),
    ("msn-goes-on", &["ddp-msn"]),
    ("msn-of-invalidates-apart", &["ddp-msn"]),
    ("every-segment-is-last", &["U05", "U14", "R06"]),
    ("mo-unchecked", &["U04"]),
    ("write-end-unchecked", &["T02"]),
    ("reads-unchecked", &["R05"]),
    ("read-request-little-endian", &["R06"]),
    ("invalidates-other-stag", &["R16"]),
    ("unknown-opcodes-ignored", &["R02"]),
    ("versions-unchecked", &["T05", "U06", "R01"]),
    // Cases that no other fault is about.
    ("places-before-crc", &["C03"]),
    ("pad-checked", &["C05"]),
    ("bad-writes-placed-in-part", &["T02"]),
    // It takes the place of the completion that each waits for.
    ("writes-delivered", &["R08", "R16", "I04"]),
    ("reads-delivered", &["R20"]),
    ("atomics-delivered", &["A01"]),
    ("long-fpdus-refused", &["T14"]),
    ("wrapping-writes-ignored", &["T04"]),
    ("writes-land-at-start", &["T08"]),
    ("deregistered-usable", &["T12"]),
    ("goes-on-behind-error", &["T13"]),
    ("reserved-bits-of-segments-refused", &["T15", "U08"]),
    ("queues-unchecked", &["U01"]),
    ("no-receive-ignored", &["U02"]),
    ("empty-sends-ignored", &["U09"]),
    ("buffer-models-unchecked", &["U12"]),
    ("solicited-sends-refused", &["R03"]),
    ("terminate-without-headers", &["terminate-figure"]),
    ("terminate-of-reads-without-headers", &["R10"]),
    ("response-stag-unchecked", &["R22"]),
    ("overflow-ends-all", &["R42"]),
    ("stags-in-a-row", &["R43"]),
    ("invalidate-stag-missing", &["R44"]),
    ("immediate-takes-no-receive", &["I03"]),
    ("immediate-before-write", &["I40"]),
    ("atomic-operands-little-endian", &["A40", "A42"]),
    ("rejects-without-bit", &["M40", "E13"]),
    ("rejection-without-depths", &["enhanced-reply"]),
    ("established-though-closed", &["E11"]),
    ("no-common-rtr-accepted", &["E21"]),
    ("insufficient-ird-accepted", &["E22"]),
    ("all-ones-in-reply-refused", &["E40"]),
    ("stag-changes", &["ddp-stag"]),
    ("solicited-from-second", &["ddp-rsvdulp"]),
    ("ulpdus-of-65000", &["mpa-length"]),
];

/// Faults that keep the tester waiting, each with few cases, and its findings.
pub(super) const SLOW: &[(&str, &[&str], &[&str])] = &[
    ("no-rtr-indication", &["M20", "M23", "E20", "E25"], &["E20"]),
    (
        "read-of-nothing-unanswered",
        &["R00", "M01", "R20", "E08"],
        &["R00"],
    ),
    (
        "private-data-of-any-length",
        &["M05", "M25"],
        &["M05", "M25"],
    ),
    (
        "pad-complement-expected",
        &["M01", "U07", "U14"],
        &["U07", "U14"],
    ),
    ("terminated-left-open", &["M01", "R12"], &["R12"]),
    ("silent-after-error", &["M01", "R09"], &["R09"]),
    ("terminate-left-open", &["M01", "R09"], &["terminate-end"]),
    // SoftUiWARP's too; long messages would show it as well, now and then.
    ("crc-not-asked", &["M01", "C20"], &["C20"]),
    ("errors-untold", &["M01", "R09", "R12"], &["R09", "R12"]),
    ("fpdu-in-one-piece", &["M01", "F03", "R09"], &["F03"]),
];

/// Faults of a device that asks for Markers.
pub(super) const WITH_MARKERS: &[Fault] = &[
    ("marker-pointer", &["mpa-marker"]),
    ("marker-pointer-low-bits", &["mpa-marker"]),
];

/// Behaviour that is not usual, and that is allowed.
pub(super) const ALLOWED: &[Fault] = &[
    // RFC 6581 §9.2 leaves open whether the Send of an RTR indication takes a receive.
    ("rtr-send-is-delivered", &[]),
];

/// Faults of the short run: some of each group, in both roles.
pub(super) const OFTEN: &[&str] = &[
    "crc-from-second",
    "crc-unchecked",
    "write-of-nothing-validated, crc-unchecked",
    "read-of-nothing-validated",
    "pad-has-memory",
    "fpdu-behind-reply",
    "reply-reserved-bits",
    "request-without-depths",
    "dv-2-in-sends",
    "msn-of-reads-skips",
    "terminate-tagged",
    "terminate-about-other-stag",
    "terminate-bits-without-headers",
    "response-one-long",
    "atomic-response-other-identifier",
];

/// Faults of the short run where neither end asks for CRCs, and with revision 1.
pub(super) const SOMETIMES: &[&str] = &[
    "crc-unchecked",
    "rv-2",
    "fpdu-behind-reply",
    "request-reserved-bits",
    "terminate-about-other-stag",
    "response-one-long",
];
