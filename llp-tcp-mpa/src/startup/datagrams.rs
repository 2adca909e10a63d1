//! Terms of a connection whose messages go by reliable datagrams (`rfc-notes/reliable-datagrams.md` §9.2): the first octets of
//! private data of a Reply with bit D.
#![deny(clippy::indexing_slicing)]

const MAGIC: [u8; 4] = *b"DGiD";
const VERSION: u8 = 1;
/// Octets.
pub(super) const LEN: usize = 16;

/// Terms of a connection whose messages go by reliable datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramTerms {
    /// UDP port of the Responder's queue pair.
    pub port: u16,
    /// PSN that the Initiator opens its association with, 24 bits, not 0.
    pub initiator_psn: u32,
    /// PSN that the Responder answers with, 24 bits, not 0.
    pub responder_psn: u32,
}

impl DatagramTerms {
    /// The octets.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        let (magic, rest) = out.split_at_mut(MAGIC.len());
        magic.copy_from_slice(&MAGIC);
        let [port_high, port_low] = self.port.to_be_bytes();
        let fields = [VERSION, 0, port_high, port_low];
        let psns = [self.initiator_psn, self.responder_psn];
        let octets = fields
            .into_iter()
            .chain(psns.into_iter().flat_map(u32::to_be_bytes));
        for (to, from) in rest.iter_mut().zip(octets) {
            *to = from;
        }
        out
    }

    /// The terms, and the private data behind them. `None` where these are not terms of this version: bit D is not this specification's then.
    pub fn parse(private_data: &[u8]) -> Option<(Self, &[u8])> {
        let (terms, rest) = private_data.split_first_chunk::<LEN>()?;
        let [
            m0,
            m1,
            m2,
            m3,
            version,
            _,
            p0,
            p1,
            i0,
            i1,
            i2,
            i3,
            r0,
            r1,
            r2,
            r3,
        ] = *terms;
        let terms = Self {
            port: u16::from_be_bytes([p0, p1]),
            initiator_psn: u32::from_be_bytes([i0, i1, i2, i3]),
            responder_psn: u32::from_be_bytes([r0, r1, r2, r3]),
        };
        let psns = [terms.initiator_psn, terms.responder_psn];
        let is_psn = |psn: u32| (1..1 << 24).contains(&psn);
        let valid = [m0, m1, m2, m3] == MAGIC
            && version == VERSION
            && terms.port != 0
            && psns.into_iter().all(is_psn);
        valid.then_some((terms, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TERMS: DatagramTerms = DatagramTerms {
        port: 40_000,
        initiator_psn: 0x01_02_03,
        responder_psn: 0xff_ff_ff,
    };

    /// `rfc-notes/reliable-datagrams.md` §9.2.
    #[test]
    fn the_layout_is_the_specification_s() {
        let octets = *b"DGiD\x01\0\x9c\x40\0\x01\x02\x03\0\xff\xff\xff";
        assert_eq!(TERMS.emit(), octets);
        let with_data = [&octets[..], b"data"].concat();
        assert_eq!(
            DatagramTerms::parse(&with_data),
            Some((TERMS, &b"data"[..]))
        );
    }

    #[test]
    fn what_is_no_terms_of_this_version_is_private_data() {
        let octets = TERMS.emit();
        assert_eq!(DatagramTerms::parse(&octets[..LEN - 1]), None);
        for (at, octet) in [(0, b'd'), (4, 2), (8, 1), (12, 1)] {
            let mut other = octets;
            other[at] = octet;
            assert_eq!(DatagramTerms::parse(&other), None, "octet {at}");
        }
        for zero in [6..8, 8..12, 12..16] {
            let mut other = octets;
            other[zero.clone()].fill(0);
            assert_eq!(DatagramTerms::parse(&other), None, "octets {zero:?}");
        }
    }

    proptest! {
        #[test]
        fn any_octets_are_parsed_and_terms_come_back(octets in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Some((terms, rest)) = DatagramTerms::parse(&octets) {
                prop_assert_eq!(rest.len(), octets.len() - LEN);
                let emitted = terms.emit();
                prop_assert_eq!(DatagramTerms::parse(&emitted), Some((terms, &[][..])));
            }
        }
    }
}
