//! Immediate Data (RFC 7306 §6.2): eight octets behind the untagged DDP header.
//!
//! The immediate of verbs, 32 bits, is in the first four octets; the other four, which the RFC leaves to the ULP, hold the length of the
//! Write before it. A receiver counts that length itself, and ends the stream of a dgiwarp peer that reports another one.
//!
//! ```text
//! octet 0 immediate | 4 octets written before
//! ```

/// Length in octets.
pub const LEN: usize = 8;

/// Immediate Data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ImmediateData {
    /// Immediate of verbs.
    pub immediate: u32,
    /// Octets of the Write before it.
    pub written: u32,
}

impl ImmediateData {
    /// Parses the octets. `None` unless there are exactly eight (RFC 7306 §6.3).
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let &[i0, i1, i2, i3, w0, w1, w2, w3] = bytes else {
            return None;
        };
        Some(Self {
            immediate: u32::from_be_bytes([i0, i1, i2, i3]),
            written: u32::from_be_bytes([w0, w1, w2, w3]),
        })
    }

    /// Octets of the message.
    #[must_use]
    pub fn emit(&self) -> [u8; LEN] {
        let [i0, i1, i2, i3] = self.immediate.to_be_bytes();
        let [w0, w1, w2, w3] = self.written.to_be_bytes();
        [i0, i1, i2, i3, w0, w1, w2, w3]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_eight_octets() {
        let octets = [1, 2, 3, 4, 5, 6, 7, 8];
        let parsed = ImmediateData::parse(&octets).unwrap();
        assert_eq!(parsed.immediate, 0x0102_0304);
        assert_eq!(parsed.written, 0x0506_0708);
        assert_eq!(parsed.emit(), octets);
        assert_eq!(ImmediateData::parse(&octets[..7]), None);
        assert_eq!(ImmediateData::parse(&[0; 9]), None);
    }
}
