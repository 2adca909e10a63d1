//! Trains: datagrams of equal length that go to the network in one call (§8).

use crate::{Format, Overhead, PathKind, Peer, Shim};

/// Most datagrams of a train: the kernel's limit for UDP segmentation offload.
pub const MAX_TRAIN_DATAGRAMS: usize = 64;
/// Most octets of a train, overhead of the shim included.
pub const MAX_TRAIN_OCTETS: usize = 65_000;

/// Shape of a train. All datagrams but the last have the length of the first; a shorter one is the last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Train {
    /// Length of the first datagram in octets.
    datagram: usize,
    count: usize,
    octets: usize,
    /// The last datagram is shorter than the first.
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

    /// Whether a datagram of `length` octets may join. The first one always may.
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

    /// Adds a datagram that the train [`accepts`](Self::accepts).
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

    /// Length in octets at which the network cuts the train; `None` for a single datagram.
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

/// Builds a train of sealed datagrams, one behind the other, in memory of the caller.
#[derive(Debug)]
pub struct TrainBuilder<'a> {
    shim: &'a mut Shim,
    peer: Peer,
    overhead: Overhead,
    /// Room for the whole train: [`MAX_TRAIN_OCTETS`], or as much as the caller lets join.
    staging: &'a mut [u8],
    train: Train,
}

impl<'a> TrainBuilder<'a> {
    /// An empty train to `peer`.
    #[inline]
    pub fn new(shim: &'a mut Shim, peer: Peer, path: PathKind, staging: &'a mut [u8]) -> Self {
        let overhead = shim.overhead(path);
        Self {
            shim,
            peer,
            overhead,
            staging,
            train: Train::new(),
        }
    }

    /// A builder that goes on with a train whose datagrams are in `staging` already.
    #[must_use]
    pub fn resume(mut self, train: Train) -> Self {
        self.train = train;
        self
    }

    /// Whether a segment of `segment` octets may join.
    #[must_use]
    #[inline]
    pub const fn accepts(&self, segment: usize) -> bool {
        self.train.accepts(segment + self.overhead.total())
    }

    /// Adds a segment of `segment` octets and format 0, written by `emit`, and seals its datagram.
    ///
    /// # Errors
    /// Errors of `emit`; the train is unchanged then.
    ///
    /// # Panics
    /// If the staging memory has no room for the datagram.
    #[inline(always)]
    pub fn add<E>(
        &mut self,
        format: Format,
        segment: usize,
        emit: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let length = segment + self.overhead.total();
        let start = self.train.octets();
        let datagram = &mut self.staging[start..start + length];
        let head = self.overhead.head;
        emit(&mut datagram[head..head + segment])?;
        self.shim.seal(self.peer, format, datagram);
        self.train.add(length);
        Ok(())
    }

    /// Number of datagrams so far.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.train.len()
    }

    /// Whether no datagram has joined.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.train.is_empty()
    }

    /// The train, whose octets are the first of the staging memory.
    #[must_use]
    #[inline]
    pub fn finish(self) -> Train {
        self.train
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Opened, ShimConfig};
    use proptest::prelude::*;

    proptest! {
        /// A train, cut at its segment size, is exactly the datagrams that joined.
        #[test]
        fn cutting_restores_the_datagrams(lengths in proptest::collection::vec(1usize..3000, 1..100)) {
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

        /// Segments of a train, built by any shim and cut as the network cuts it, open to what was written.
        #[test]
        fn built_trains_open_to_their_segments(
            segments in proptest::collection::vec(
                (any::<bool>(), proptest::collection::vec(any::<u8>(), 2..300)), 1..80,
            ),
            keyed: bool,
            resumes in proptest::option::of(0usize..80),
        ) {
            let config = if keyed { ShimConfig::Keyed(7) } else { ShimConfig::Plain };
            let mut shim = Shim::new(config);
            let peer = Peer::ip("192.0.2.1:1".parse().unwrap());
            let overhead = shim.overhead(PathKind::Network).total();
            let mut staging = vec![0xaa; MAX_TRAIN_OCTETS];
            let mut joined = Vec::new();
            let mut builder = TrainBuilder::new(&mut shim, peer, PathKind::Network, &mut staging);
            prop_assert!(builder.is_empty());
            for (position, (cookie, mut segment)) in segments.into_iter().enumerate() {
                if resumes == Some(position) {
                    let train = builder.finish();
                    builder = TrainBuilder::new(&mut shim, peer, PathKind::Network, &mut staging).resume(train);
                }
                segment[0] &= 0b1100_0011;
                if !builder.accepts(segment.len()) {
                    continue;
                }
                let format = Format::with_cookie(cookie);
                let refused = builder.add(format, segment.len(), |_| Err("refused"));
                prop_assert_eq!(refused, Err("refused"));
                builder.add(format, segment.len(), |out| {
                    out.copy_from_slice(&segment);
                    Ok::<(), ()>(())
                }).unwrap();
                joined.push((format, segment));
                prop_assert_eq!((builder.len(), builder.is_empty()), (joined.len(), false));
            }
            let train = builder.finish();
            prop_assert!(train.datagram() == joined[0].1.len() + overhead);
            let size = train.segment_size().map_or_else(|| train.octets(), usize::from);
            let datagrams = staging[..train.octets()].chunks(size);
            prop_assert_eq!(datagrams.len(), joined.len());
            let now = origin();
            for (datagram, (format, segment)) in datagrams.zip(joined) {
                let opened = match shim.open(now, peer, datagram.into()).unwrap() {
                    Opened::Segment(format, octets) | Opened::Decrypted(format, octets) => {
                        (format, octets.octets().to_vec())
                    }
                    Opened::Consumed => panic!("a segment"),
                };
                let mut expected = segment;
                expected[0] = format.emit(expected[0]);
                prop_assert_eq!(opened, (format, expected));
            }
        }
    }

    /// §8: all datagrams but the last have the length of the first. A segment's datagram is longer by the overhead.
    #[test]
    fn a_builder_accepts_segments_whose_datagram_fits() {
        for config in [ShimConfig::Plain, ShimConfig::Keyed(7)] {
            let mut shim = Shim::new(config);
            let peer = Peer::ip("192.0.2.1:1".parse().unwrap());
            let mut staging = vec![0; 3000];
            let mut builder = TrainBuilder::new(&mut shim, peer, PathKind::Network, &mut staging);
            let add = |builder: &mut TrainBuilder<'_>, length| {
                let added = builder.add(Format::Segment, length, |_| Ok::<(), ()>(()));
                assert_eq!(added, Ok(()));
            };
            add(&mut builder, 1400);
            assert!(builder.accepts(1400) && builder.accepts(1));
            assert!(!builder.accepts(1401));
            add(&mut builder, 1399);
            assert!(!builder.accepts(1399) && !builder.accepts(1));
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "any instant serves as the origin"
    )]
    fn origin() -> std::time::Instant {
        std::time::Instant::now()
    }

    #[test]
    fn a_large_datagram_travels_alone() {
        let mut train = Train::new();
        assert!(train.is_empty() && train.accepts(100_000));
        train.add(65_000);
        assert!(!train.accepts(1));
        assert!(!train.is_empty());
        assert_eq!(train.segment_size(), None);
        assert_eq!(
            (train.datagram(), train.octets(), train.len()),
            (65_000, 65_000, 1)
        );
    }

    /// §8: at most 64 datagrams and 65,000 octets, all of one length but a shorter last one.
    #[test]
    fn trains_end_where_the_specification_says() {
        let mut train = Train::new();
        for _ in 0..64 {
            assert!(train.accepts(100));
            train.add(100);
        }
        assert!(!train.accepts(1));
        assert_eq!(train.segment_size(), Some(100));

        let mut train = Train::new();
        for _ in 0..44 {
            train.add(1472);
        }
        assert!(train.accepts(65_000 - 44 * 1472));
        assert!(!train.accepts(65_000 - 44 * 1472 + 1));
        assert!(!train.accepts(1473));

        let mut train = Train::new();
        train.add(100);
        train.add(100);
        assert!(train.accepts(100) && train.accepts(99) && !train.accepts(101));
        train.add(99);
        assert!(!train.accepts(99) && !train.accepts(1));
        assert_eq!((train.segment_size(), train.octets()), (Some(100), 299));
    }
}
