//! Bugs on purpose: what a conformance tester has to find.
//!
//! A build with the feature `seeded-bugs` can be told, once per process, to break one rule ([`sow`]). At the place where the stack keeps the
//! rule stands `is_on(Bug::…)`, so that these lines also show where a rule lives. In all other builds [`is_on`] is a constant, and nothing of
//! this is left.

#[cfg(feature = "seeded-bugs")]
use core::sync::atomic::{AtomicU8, Ordering};

/// Whether this build can be told to break a rule.
pub const SEEDABLE: bool = cfg!(feature = "seeded-bugs");

/// The environment variable by which whoever reads the environment is told which.
pub const VARIABLE: &str = "DGIWARP_SEEDED_BUG";

macro_rules! bugs {
    ($($bug:ident = $name:literal,)*) => {
        /// A rule that can be broken. `conformance/seeded-bugs.psv` says what a device does then, and which case finds it.
        #[allow(missing_docs, reason = "the table has a line for each")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Bug { $($bug,)* }

        impl Bug {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$bug,)*];

            /// Its name in the table and in the environment.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$bug => $name,)* }
            }
        }
    };
}

bugs! {
    // MPA: startup.
    KeyUnchecked = "key-unchecked",
    KeyOfEitherFrame = "key-of-either-frame",
    PrivateDataUnbounded = "private-data-unbounded",
    PrivateDataLengthOneOctet = "private-data-length-one-octet",
    ReservedFlagsChecked = "reserved-flags-checked",
    ReservedFlagSent = "reserved-flag-sent",
    StartupFrameAtOnce = "startup-frame-at-once",
    ResponderSpeaksFirst = "responder-speaks-first",
    RefusedStartupOpen = "refused-startup-open",
    RefusedStartupLeaks = "refused-startup-leaks",
    RejectionMissed = "rejection-missed",
    RejectsWithoutBit = "rejects-without-bit",
    // MPA: enhanced startup.
    EnhancedDataUnchecked = "enhanced-data-unchecked",
    DepthsNotLowered = "depths-not-lowered",
    NotNegotiatedLimited = "not-negotiated-limited",
    ControlFlagsWithoutA = "control-flags-without-a",
    PeerToPeerUnanswered = "peer-to-peer-unanswered",
    EnhancedReplyToPlain = "enhanced-reply-to-plain",
    RtrAlwaysWrite = "rtr-always-write",
    NoCommonRtrAccepted = "no-common-rtr-accepted",
    InsufficientIrdAccepted = "insufficient-ird-accepted",
    RejectionWithoutDepths = "rejection-without-depths",
    EarlyEndCrashes = "early-end-crashes",
    // MPA: CRCs and Markers.
    CrcUnchecked = "crc-unchecked",
    CrcOnlyIfBothAsk = "crc-only-if-both-ask",
    CrcNotSent = "crc-not-sent",
    MarkersNotSent = "markers-not-sent",
    MarkerPointerZero = "marker-pointer-zero",
    MarkerOutsideCrc = "marker-outside-crc",
    MarkerLowBitsCount = "marker-low-bits-count",
    MarkerBeforeCrcMissed = "marker-before-crc-missed",
    CrcAlwaysChecked = "crc-always-checked",
    LlpCodesSwapped = "llp-codes-swapped",
    // MPA: FPDUs.
    WrongPad = "wrong-pad",
    PadNotZero = "pad-not-zero",
    FpduInOneRead = "fpdu-in-one-read",
    UlpduLengthSigned = "ulpdu-length-signed",
    UlpduTooLong = "ulpdu-too-long",
    WrongCrcSkipped = "wrong-crc-skipped",
    ShortSegmentTaken = "short-segment-taken",
    ShortRequestDropped = "short-request-dropped",
    // DDP: tagged segments.
    StagKeyUnchecked = "stag-key-unchecked",
    BoundsExclusive = "bounds-exclusive",
    BoundsViolationDropped = "bounds-violation-dropped",
    DomainUnchecked = "domain-unchecked",
    RightsUnchecked = "rights-unchecked",
    DdpVersionUnchecked = "ddp-version-unchecked",
    ReservedBitsChecked = "reserved-bits-checked",
    EmptyWriteChecked = "empty-write-checked",
    WriteTailLost = "write-tail-lost",
    TerminateNotSent = "terminate-not-sent",
    // DDP: untagged segments.
    QueueUnchecked = "queue-unchecked",
    NoReceiveDropped = "no-receive-dropped",
    MsnUnchecked = "msn-unchecked",
    OffsetUnchecked = "offset-unchecked",
    LongSendCut = "long-send-cut",
    TooLongWrongCode = "too-long-wrong-code",
    EmptySendIgnored = "empty-send-ignored",
    SegmentsAtStart = "segments-at-start",
    PlainSendInvalidates = "plain-send-invalidates",
    OtherModelIgnored = "other-model-ignored",
    MsnStatic = "msn-static",
    OffsetStatic = "offset-static",
    LastOnEverySegment = "last-on-every-segment",
    // RDMAP.
    RdmapVersionUnchecked = "rdmap-version-unchecked",
    OpcodeWrongCode = "opcode-wrong-code",
    SolicitedSendUnknown = "solicited-send-unknown",
    InvalidateStagMissing = "invalidate-stag-missing",
    InvalidateUnchecked = "invalidate-unchecked",
    InvalidatedUsable = "invalidated-usable",
    TerminateLengthOfPayload = "terminate-length-of-payload",
    TerminateMsnZero = "terminate-msn-zero",
    TerminateAnswered = "terminate-answered",
    EndMissed = "end-missed",
    ReadErrorOfDdp = "read-error-of-ddp",
    ReadLastMissing = "read-last-missing",
    ReadOffsetStatic = "read-offset-static",
    RequestMsnUnchecked = "request-msn-unchecked",
    RequestBeyondIrdDropped = "request-beyond-ird-dropped",
    OrdExceeded = "ord-exceeded",
    ResponseStagUnchecked = "response-stag-unchecked",
    ResponseShortTaken = "response-short-taken",
    ResponseUnaskedIgnored = "response-unasked-ignored",
    ReadCompletesEarly = "read-completes-early",
    // RFC 7306.
    CompareSwapOne = "compare-swap-one",
    CompareMaskIgnored = "compare-mask-ignored",
    FetchAddMaskIgnored = "fetch-add-mask-ignored",
    AtomicByteOrder = "atomic-byte-order",
    AtomicSentByteOrder = "atomic-sent-byte-order",
    AtomicMisaligned = "atomic-misaligned",
    AtomicNeedsWrite = "atomic-needs-write",
    AtomicResponseQueue = "atomic-response-queue",
    ImmediateOfFour = "immediate-of-four",
    ImmediateTakesNoReceive = "immediate-takes-no-receive",
    // Impairment.
    RestLost = "rest-lost",
    ResetCrashes = "reset-crashes",
    // The datagram mapping.
    DatagramCrcUnchecked = "datagram-crc-unchecked",
    UnknownFormatTaken = "unknown-format-taken",
    QkeyUnchecked = "qkey-unchecked",
    SegmentsByArrival = "segments-by-arrival",
    ImmediateSwapped = "immediate-swapped",
    LateTaken = "late-taken",
    EpochIgnored = "epoch-ignored",
    WindowIgnored = "window-ignored",
    OpenRecordsUnbounded = "open-records-unbounded",
    MapOneMore = "map-one-more",
    RecordTwice = "record-twice",
    DuplicateWritten = "duplicate-written",
    FullMapWritten = "full-map-written",
    SegmentBoundsOnly = "segment-bounds-only",
    RecordRightsUnchecked = "record-rights-unchecked",
    RecordDomainUnchecked = "record-domain-unchecked",
    SolePeerUnchecked = "sole-peer-unchecked",
    CookieUnchecked = "cookie-unchecked",
    CookieWithoutEpoch = "cookie-without-epoch",
    AmplificationUnbounded = "amplification-unbounded",
    BroadcastAnswered = "broadcast-answered",
    DatagramReadLastMissing = "datagram-read-last-missing",
    DatagramReadRights = "datagram-read-rights",
    StrangersTold = "strangers-told",
    TerminatesUnbounded = "terminates-unbounded",
    SinkStagCounts = "sink-stag-counts",
    ReadsWithoutCookie = "reads-without-cookie",
    NonceUnchecked = "nonce-unchecked",
    ResponseOfAnyone = "response-of-anyone",
    ResponseAgainWritten = "response-again-written",
    ReadNeverEnds = "read-never-ends",
    ReadMapWhole = "read-map-whole",
    EpochFixed = "epoch-fixed",
    NumberStatic = "number-static",
    LastOnEveryDatagram = "last-on-every-datagram",
    CookieNotSent = "cookie-not-sent",
    ErrorOfAnyEpoch = "error-of-any-epoch",
    UcPeerUnchecked = "uc-peer-unchecked",
}

/// Number of the bug that is on, plus one; 0 is none.
#[cfg(feature = "seeded-bugs")]
static SOWN: AtomicU8 = AtomicU8::new(0);

/// Whether the process is to break this rule.
#[cfg(feature = "seeded-bugs")]
#[must_use]
#[inline]
pub fn is_on(bug: Bug) -> bool {
    SOWN.load(Ordering::Relaxed) == bug as u8 + 1
}

/// Whether the process is to break this rule: never.
#[cfg(not(feature = "seeded-bugs"))]
#[must_use]
#[inline(always)]
pub const fn is_on(_: Bug) -> bool {
    false
}

/// No bug has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no bug has the name {0:?}")]
pub struct UnknownBug(pub String);

/// Has the process break the rule of this name from now on. Without the feature nothing happens.
///
/// # Errors
/// [`UnknownBug`].
pub fn sow(name: &str) -> Result<(), UnknownBug> {
    let bug = Bug::ALL.iter().find(|bug| bug.name() == name);
    let bug = bug.ok_or_else(|| UnknownBug(name.to_owned()))?;
    #[cfg(feature = "seeded-bugs")]
    SOWN.store(*bug as u8 + 1, Ordering::Relaxed);
    #[cfg(not(feature = "seeded-bugs"))]
    let _ = bug;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_none_is_on_by_itself() {
        let mut names: Vec<_> = Bug::ALL.iter().map(|bug| bug.name()).collect();
        assert!(Bug::ALL.iter().all(|bug| !is_on(*bug)));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Bug::ALL.len());
        assert_eq!(sow("none"), Err(UnknownBug("none".to_owned())));
    }
}
