//! Trains: datagrams of equal length that go to the network in one call (§8).

/// Most datagrams of a train: the kernel's limit for UDP segmentation offload.
pub const MAX_TRAIN_DATAGRAMS: usize = 64;
/// Most octets of a train, headers and CRCs included.
pub const MAX_TRAIN_OCTETS: usize = 65_000;

/// Which datagrams may still join. All but the last have the length of the first; a shorter one closes it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Train {
    datagram: usize,
    count: usize,
    octets: usize,
    closed: bool,
}

impl Train {
    /// A train without datagrams.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            datagram: 0,
            count: 0,
            octets: 0,
            closed: false,
        }
    }

    /// Whether a datagram of `length` octets may join.
    #[must_use]
    #[inline]
    pub const fn accepts(&self, length: usize) -> bool {
        if self.count == 0 {
            return true;
        }
        !self.closed
            && length <= self.datagram
            && self.count < MAX_TRAIN_DATAGRAMS
            && self.octets + length <= MAX_TRAIN_OCTETS
    }

    /// Adds a datagram that [`accepts`](Self::accepts) let in.
    #[inline]
    pub fn add(&mut self, length: usize) {
        debug_assert!(self.accepts(length), "only an accepted datagram joins");
        if self.count == 0 {
            self.datagram = length;
        }
        self.closed = length < self.datagram;
        self.count += 1;
        self.octets += length;
    }

    /// Length of the datagrams but the last, if there are several; a single datagram needs no cutting.
    #[must_use]
    pub fn segment_size(&self) -> Option<u16> {
        if self.count > 1 {
            u16::try_from(self.datagram).ok()
        } else {
            None
        }
    }

    /// Length of the first datagram in octets.
    #[must_use]
    pub const fn datagram(&self) -> usize {
        self.datagram
    }

    /// Number of datagrams.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether it has no datagram.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Octets of all datagrams.
    #[must_use]
    pub const fn octets(&self) -> usize {
        self.octets
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// What a train let in, cut at its segment size, gives back exactly the datagrams that joined.
        #[test]
        fn cutting_gives_the_datagrams_back(lengths in proptest::collection::vec(1usize..3000, 1..100)) {
            let mut train = Train::new();
            let mut joined = Vec::new();
            for length in lengths {
                if train.accepts(length) {
                    train.add(length);
                    joined.push(length);
                }
            }
            prop_assert!(train.octets() <= MAX_TRAIN_OCTETS && train.len() <= MAX_TRAIN_DATAGRAMS);
            let size = train.segment_size().map_or_else(|| train.octets(), usize::from);
            let bytes = vec![0u8; train.octets()];
            let cut: Vec<usize> = bytes.chunks(size).map(<[u8]>::len).collect();
            prop_assert_eq!(cut, joined);
        }
    }

    #[test]
    fn a_large_datagram_travels_alone() {
        let mut train = Train::new();
        train.add(65_000);
        assert!(!train.accepts(1));
        assert_eq!(train.segment_size(), None);
    }
}
