//! Numbers that look random and come again with the same seed: what is left out, in which order, how large.

/// A sequence (SplitMix64).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The sequence of a seed and a place in the program.
    #[must_use]
    pub fn new(seed: u64, place: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ place)
    }

    /// The next number.
    pub fn throw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below another, which is not zero.
    pub fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.throw() % end).unwrap_or(0)
    }

    /// So many octets.
    pub fn octets(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.throw().to_le_bytes()[0]).collect()
    }

    /// Another order.
    pub fn shuffle<T>(&mut self, all: &mut [T]) {
        for end in (1..all.len()).rev() {
            all.swap(end, self.below(end + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_sequence() {
        let sequence = |seed, place| Dice::new(seed, place).octets(8);
        assert_eq!(sequence(1, 2), sequence(1, 2));
        assert_ne!(sequence(1, 2), sequence(1, 3));
        assert_ne!(sequence(1, 2), sequence(2, 2));
        let mut all: Vec<_> = (0..100).collect();
        Dice::new(1, 1).shuffle(&mut all);
        assert_ne!(all, (0..100).collect::<Vec<_>>());
        all.sort_unstable();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
    }
}
