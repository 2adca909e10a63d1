//! Parts of an outgoing message.

use crate::RegionSlice;

/// Most pieces of one message.
pub const MAX_PIECES: usize = 64;

/// Consecutive bytes of an outgoing message.
#[derive(Debug, Clone, Copy)]
pub enum Piece<'a> {
    /// Owned bytes: headers, CRCs, staged payload.
    Bytes(&'a [u8]),
    /// Registered bytes, sent without a copy.
    Region(RegionSlice<'a>),
}

impl Piece<'_> {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Region(slice) => slice.len(),
        }
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Most octets of zero behind the payload of a [`Framed`].
pub(crate) const MOST_ZEROES: usize = 8;
static ZEROES: [u8; MOST_ZEROES] = [0; MOST_ZEROES];

/// A short payload with the octets around it.
#[derive(Debug, Clone, Copy)]
pub struct Framed<'a, const FRONT: usize> {
    /// Octets before the payload: the first `front_len`. All behind these are zero.
    pub front: [u8; FRONT],
    /// Octets before the payload, at most `FRONT`.
    pub front_len: usize,
    /// The payload.
    pub payload: Piece<'a>,
    /// Octets of zero behind the payload, at most 8.
    pub zeroes: usize,
}

impl<const FRONT: usize> Framed<'_, FRONT> {
    /// Octets of all.
    #[inline]
    #[must_use]
    pub fn octets(&self) -> usize {
        self.front_len + self.payload.len() + self.zeroes
    }

    /// All of it, in order.
    ///
    /// # Panics
    /// If there are more octets before or behind the payload than may be.
    #[must_use]
    pub fn pieces(&self) -> [Piece<'_>; 3] {
        [
            Piece::Bytes(&self.front[..self.front_len]),
            self.payload,
            Piece::Bytes(&ZEROES[..self.zeroes]),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Buffer;

    #[test]
    fn lengths_are_those_of_either_kind() {
        let buffer = Buffer::zeroed(9).unwrap();
        let region = buffer.region();
        for len in [0, 1, 9] {
            let pieces = [
                Piece::Bytes(&[7; 9][..len]),
                Piece::Region(region.slice(0, len).unwrap()),
            ];
            for piece in pieces {
                assert_eq!((piece.len(), piece.is_empty()), (len, len == 0));
            }
        }
    }
}
