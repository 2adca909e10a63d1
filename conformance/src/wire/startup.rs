//! MPA's startup frames (RFC 5044 §7.1.1) and what RFC 6581 puts into them.

use core::fmt;

/// The key of a Request.
pub const REQUEST: [u8; 16] = *b"MPA ID Req Frame";
/// The key of a Reply.
pub const REPLY: [u8; 16] = *b"MPA ID Rep Frame";
/// The octets before the private data.
pub const HEADER: usize = 20;
/// Bit M: the sender wants Markers in what it receives.
pub const M: u8 = 0x80;
/// Bit C: the sender wants CRCs.
pub const C: u8 = 0x40;
/// Bit R: the connection is rejected.
pub const R: u8 = 0x20;
/// Bit S of RFC 6581: the private data begins with read depths.
pub const S: u8 = 0x10;
/// The most private data that a frame may have.
pub const MOST_PRIVATE_DATA: usize = 512;

/// A startup frame, valid or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Startup {
    /// [`REQUEST`], [`REPLY`] or something else.
    pub key: [u8; 16],
    /// Bits M, C, R, S and the four reserved ones.
    pub flags: u8,
    /// The revision.
    pub revision: u8,
    /// The length that the frame claims its private data has.
    pub pd_length: u16,
    /// The private data that it has.
    pub private_data: Vec<u8>,
}

impl Startup {
    /// A frame with private data of at most 65535 octets, and the length of it.
    #[must_use]
    pub fn new(key: [u8; 16], flags: u8, revision: u8, private_data: &[u8]) -> Self {
        Self {
            key,
            flags,
            revision,
            pd_length: u16::try_from(private_data.len()).unwrap_or(u16::MAX),
            private_data: private_data.to_vec(),
        }
    }

    /// The octets of the frame.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut octets = self.key.to_vec();
        octets.extend([self.flags, self.revision]);
        octets.extend(self.pd_length.to_be_bytes());
        octets.extend(&self.private_data);
        octets
    }

    /// Reads a header; the private data is what comes behind it.
    #[must_use]
    pub fn parse(header: &[u8; HEADER]) -> Self {
        let mut key = [0; 16];
        key.copy_from_slice(&header[..16]);
        Self {
            key,
            flags: header[16],
            revision: header[17],
            pd_length: u16::from_be_bytes([header[18], header[19]]),
            private_data: Vec::new(),
        }
    }

    /// Whether all of these bits are set.
    #[must_use]
    pub fn has(&self, bits: u8) -> bool {
        self.flags & bits == bits
    }

    /// The read depths and control flags, if the frame says that it has them and does.
    #[must_use]
    pub fn depths(&self) -> Option<Depths> {
        let octets = self.private_data.first_chunk::<4>()?;
        self.has(S).then(|| Depths::parse(*octets))
    }
}

impl fmt::Display for Startup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.key {
            REQUEST => "Request",
            REPLY => "Reply",
            _ => "frame with a wrong key",
        };
        write!(f, "MPA {kind}, revision {}, flags", self.revision)?;
        for (bit, name) in [(M, "M"), (C, "C"), (R, "R"), (S, "S")] {
            if self.has(bit) {
                write!(f, " {name}")?;
            }
        }
        if self.flags & 0x0f != 0 {
            write!(f, " reserved {:#x}", self.flags & 0x0f)?;
        }
        match self.depths() {
            Some(depths) => write!(f, ", {depths}")?,
            None => write!(f, ", PD_Length {}", self.pd_length)?,
        }
        Ok(())
    }
}

/// The first four octets of enhanced private data (RFC 6581 §9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depths {
    /// Inbound read queue depth, 14 bits.
    pub ird: u16,
    /// Outbound read queue depth, 14 bits.
    pub ord: u16,
    /// Control flag A: the peer-to-peer model.
    pub peer_to_peer: bool,
    /// Control flag B: a Send as RTR indication.
    pub send: bool,
    /// Control flag C: a Write.
    pub write: bool,
    /// Control flag D: a Read.
    pub read: bool,
}

/// The depth that says: not negotiated here.
pub const NOT_NEGOTIATED: u16 = 0x3fff;

impl Depths {
    /// Depths of the client-server model.
    #[must_use]
    pub fn client_server(ird: u16, ord: u16) -> Self {
        Self {
            ird,
            ord,
            ..Self::default()
        }
    }

    /// The four octets.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 4] {
        let word = |high: bool, low: bool, depth: u16| {
            (u16::from(high) << 15 | u16::from(low) << 14 | depth & NOT_NEGOTIATED).to_be_bytes()
        };
        let [a, b] = word(self.peer_to_peer, self.send, self.ird);
        let [c, d] = word(self.write, self.read, self.ord);
        [a, b, c, d]
    }

    /// Reads the four octets.
    #[must_use]
    pub fn parse([a, b, c, d]: [u8; 4]) -> Self {
        let (first, second) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Self {
            ird: first & NOT_NEGOTIATED,
            ord: second & NOT_NEGOTIATED,
            peer_to_peer: first & 0x8000 != 0,
            send: first & 0x4000 != 0,
            write: second & 0x8000 != 0,
            read: second & 0x4000 != 0,
        }
    }
}

impl fmt::Display for Depths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IRD {}, ORD {}, control flags", self.ird, self.ord)?;
        let flags = [
            (self.peer_to_peer, "A"),
            (self.send, "B"),
            (self.write, "C"),
            (self.read, "D"),
        ];
        let mut none = true;
        for (_, name) in flags.into_iter().filter(|(set, _)| *set) {
            write!(f, " {name}")?;
            none = false;
        }
        if none {
            write!(f, " none")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths_have_the_figures_bits() {
        let depths = Depths {
            ird: 0x1234,
            ord: 0x0567,
            peer_to_peer: true,
            send: false,
            write: false,
            read: true,
        };
        assert_eq!(depths.to_bytes(), [0x92, 0x34, 0x45, 0x67]);
        assert_eq!(Depths::parse(depths.to_bytes()), depths);
    }

    #[test]
    fn a_frame_reads_as_it_is() {
        let data = Depths::client_server(4, 5).to_bytes();
        let frame = Startup::new(REQUEST, C | S, 2, &data);
        let octets = frame.to_bytes();
        assert_eq!(octets[16..], [0x50, 2, 0, 4, 0, 4, 0, 5]);
        let read = Startup::parse(octets.first_chunk().unwrap());
        assert_eq!((read.pd_length, read.has(C), read.has(M)), (4, true, false));
        assert_eq!(
            frame.to_string(),
            "MPA Request, revision 2, flags C S, IRD 4, ORD 5, control flags none"
        );
    }
}
