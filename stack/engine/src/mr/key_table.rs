//! A table by key whose look-up is a few instructions: one is made for each short message.

use std::collections::TryReserveError;

/// Slots of a table that is not empty, at least.
const LEAST: usize = 8;
/// 2^32 divided by the golden ratio: consecutive keys, such as those of windows, are spread.
const SPREAD: u32 = 0x9e37_79b1;

/// Values by key. Half of the slots are free at least, and a key is in the first free slot from [its own](Self::home) on.
#[derive(Debug)]
pub(super) struct KeyTable<V> {
    /// A power of two, or none.
    slots: Vec<Option<(u32, V)>>,
    len: usize,
    /// Bits of a product that are not of the number of a slot.
    shift: u32,
}

impl<V> Default for KeyTable<V> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            len: 0,
            shift: u32::BITS - 1,
        }
    }
}

impl<V> KeyTable<V> {
    #[inline]
    const fn home(&self, key: u32) -> usize {
        (key.wrapping_mul(SPREAD) >> self.shift) as usize
    }

    #[inline]
    const fn behind(&self, slot: usize) -> usize {
        (slot + 1) & (self.slots.len() - 1)
    }

    /// The value of a key.
    #[inline(always)]
    pub(super) fn get(&self, key: u32) -> Option<&V> {
        let mut slot = self.home(key);
        // Without slots there is none.
        while let Some((found, value)) = self.slots.get(slot)?.as_ref() {
            if *found == key {
                return Some(value);
            }
            slot = self.behind(slot);
        }
        None
    }

    /// Keys that have a value.
    #[cfg(test)]
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Whether a key has a value.
    pub(super) fn contains_key(&self, key: u32) -> bool {
        self.get(key).is_some()
    }

    /// Makes room for `more` values.
    ///
    /// # Errors
    /// There is no memory for them.
    pub(super) fn try_reserve(&mut self, more: usize) -> Result<(), TryReserveError> {
        let wanted = self.len.saturating_add(more).saturating_mul(2);
        if wanted <= self.slots.len() {
            return Ok(());
        }
        let size = wanted.checked_next_power_of_two().unwrap_or(usize::MAX);
        let size = size.max(LEAST);
        let mut slots = Vec::new();
        slots.try_reserve_exact(size)?;
        slots.resize_with(size, || None);
        self.shift = u32::BITS - size.trailing_zeros().min(u32::BITS - 1);
        let before = std::mem::replace(&mut self.slots, slots);
        for (key, value) in before.into_iter().flatten() {
            self.put(key, value);
        }
        Ok(())
    }

    /// Sets the value of a key. Returns the one before.
    ///
    /// # Panics
    /// If there is no memory, and was not [reserved](Self::try_reserve).
    pub(super) fn insert(&mut self, key: u32, value: V) -> Option<V> {
        self.try_reserve(1).expect("there is memory for a key");
        let before = self.put(key, value);
        self.len += usize::from(before.is_none());
        before
    }

    /// As [`insert`](Self::insert), where there is room.
    fn put(&mut self, key: u32, value: V) -> Option<V> {
        let slot = self.slot_for(key);
        self.slots[slot]
            .replace((key, value))
            .map(|(_, before)| before)
    }

    /// The slot of a key, or the free one that it would have.
    fn slot_for(&self, key: u32) -> usize {
        let mut slot = self.home(key);
        while self.slots[slot].as_ref().is_some_and(|it| it.0 != key) {
            slot = self.behind(slot);
        }
        slot
    }

    /// Removes a key. Returns its value.
    pub(super) fn remove(&mut self, key: u32) -> Option<V> {
        self.get(key)?;
        let mut free = self.slot_for(key);
        let removed = self.slots[free].take();
        self.len -= 1;
        // Keys that found that slot taken move up.
        let mut slot = self.behind(free);
        while let Some((key, _)) = &self.slots[slot] {
            let mask = self.slots.len() - 1;
            let from_home = slot.wrapping_sub(self.home(*key)) & mask;
            if from_home >= slot.wrapping_sub(free) & mask {
                self.slots.swap(free, slot);
                free = slot;
            }
            slot = self.behind(slot);
        }
        removed.map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        /// Few keys, many of them with one home: a map agrees after each step.
        #[test]
        fn a_key_has_its_last_value_until_it_is_removed(
            steps in proptest::collection::vec((0u32..40, any::<bool>(), any::<bool>()), 0..200),
        ) {
            let mut table = KeyTable::default();
            let mut map = HashMap::new();
            for (at, (number, is_near, inserts)) in steps.into_iter().enumerate() {
                // The inverse of the factor: products are small, and slots those of the first.
                let key = if is_near { number.wrapping_mul(0x0e8b_2f51) } else { number << 24 };
                if inserts {
                    prop_assert_eq!(table.insert(key, at), map.insert(key, at));
                } else {
                    prop_assert_eq!(table.remove(key), map.remove(&key));
                }
                prop_assert_eq!(table.len, map.len());
                prop_assert!(2 * table.len <= table.slots.len());
                for number in 0..40u32 {
                    for key in [number << 24, number.wrapping_mul(0x0e8b_2f51)] {
                        prop_assert_eq!(table.get(key), map.get(&key));
                    }
                }
            }
        }
    }

    #[test]
    fn keys_near_each_other_have_slots_of_their_own() {
        assert_eq!(
            SPREAD.wrapping_mul(0x0e8b_2f51),
            1,
            "the inverse of the test above"
        );
        let mut table = KeyTable::default();
        (0..256).for_each(|key| assert_eq!(table.insert(0x1234_5600 | key, key), None));
        let apart = table.slots.iter().flatten();
        let at_home = apart.filter(|(key, _)| {
            table.slots[table.home(*key)]
                .as_ref()
                .is_some_and(|it| it.0 == *key)
        });
        assert!(at_home.count() > 200);
    }

    #[test]
    fn memory_that_cannot_be_had_is_an_error_and_changes_nothing() {
        let mut table = KeyTable::default();
        table.insert(7, 1);
        assert!(table.try_reserve(usize::MAX >> 8).is_err());
        assert!(table.try_reserve(usize::MAX).is_err());
        assert_eq!(table.get(7), Some(&1));
        assert_eq!(KeyTable::<u8>::default().get(7), None);
        assert_eq!(KeyTable::<u8>::default().remove(7), None);
    }
}
