//! Drop reasons (§9).

use std::fmt;

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Reason for which a segment was dropped; the last ones only count.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum DropReason {
            $($(#[$doc])* $variant,)*
        }

        impl DropReason {
            /// All reasons, in the order of the specification's table.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Name of the counter in the specification.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

reasons! {
    /// Shorter than its headers and CRC, or a check of §1.2, §2 or §3 failed.
    Malformed = "malformed",
    /// CRC32c wrong.
    BadCrc = "bad-crc",
    /// Format not implemented.
    UnknownFormat = "unknown-format",
    /// DV or RV wrong.
    BadVersion = "bad-version",
    /// Opcode not allowed on datagrams or not implemented.
    UnexpectedOpcode = "unexpected-opcode",
    /// Q_Key differs.
    BadQkey = "bad-qkey",
    /// No posted receive.
    NoReceive = "no-receive",
    /// Message longer than the receive.
    ReceiveTooShort = "receive-too-short",
    /// Too many incomplete Sends.
    ReassemblyFull = "reassembly-full",
    /// An incomplete Send was given up; counted per message.
    ReassemblyTimeout = "reassembly-timeout",
    /// An incomplete Send gave way to newer ones of its source; counted per message.
    ReassemblySuperseded = "reassembly-superseded",
    /// The QP does not take Write-Records.
    WriteRecordOff = "write-record-off",
    /// STag unknown.
    BadStag = "bad-stag",
    /// Region of another protection domain.
    BadPd = "bad-pd",
    /// No remote write access.
    NoAccess = "no-access",
    /// The region is restricted to another peer, or the QP is connected to another one.
    WrongPeer = "wrong-peer",
    /// Cookie missing or wrong.
    BadCookie = "bad-cookie",
    /// STag not well-known, sent to a group.
    NotWellKnown = "not-well-known",
    /// Outside the region.
    OutOfBounds = "out-of-bounds",
    /// Message closed or too old.
    Late = "late",
    /// Every octet is placed already.
    Duplicate = "duplicate",
    /// Source table full.
    NoSourceSlot = "no-source-slot",
    /// A validity map would need a 65th range.
    MapFull = "map-full",
    /// A Read Request without a valid cookie asked for more than three times its size.
    UnvalidatedRead = "unvalidated-read",
    /// Too many requests of one requester.
    ReadQueueFull = "read-queue-full",
    /// A cookie, a Terminate or a SIDR reply without an outstanding request.
    Unsolicited = "unsolicited",
    /// Too many SIDR requests wait for the program.
    BacklogFull = "backlog-full",
    /// A UC Write was given up incomplete; counted per message, its octets are placed.
    IncompleteWrite = "incomplete-write",
    /// Placed but not recorded; counted per segment.
    RecordDropped = "record-dropped",
    /// Placed and in the map, but no slot was free to report the segment; counted per segment.
    SegmentUnreported = "segment-unreported",
}

impl DropReason {
    /// Position in [`ALL`](Self::ALL), for arrays of counters.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_positions() {
        for (position, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(reason.index(), position);
        }
    }
}
