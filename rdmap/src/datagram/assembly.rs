//! Reassembly of Segmented Sends (§7).

use std::time::Instant;

use dgiwarp_ddp::RangeMap;

use super::source::SourceId;

/// A receive bound to an incomplete message.
#[derive(Debug)]
pub(super) struct Assembly<R> {
    pub(super) owner: SourceId,
    pub(super) number: u32,
    pub(super) length: u32,
    pub(super) first_seen: Instant,
    pub(super) receive: R,
    pub(super) map: RangeMap,
}

/// The incomplete Sends of a QP.
#[derive(Debug)]
pub(super) struct Assemblies<R> {
    active: Vec<Assembly<R>>,
    /// Maps of finished assemblies, kept for their memory.
    maps: Vec<RangeMap>,
}

impl<R> Assemblies<R> {
    pub(super) fn new() -> Self {
        Self {
            active: Vec::new(),
            maps: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.active.len()
    }

    pub(super) fn find(&mut self, owner: SourceId, number: u32) -> Option<usize> {
        self.active
            .iter()
            .position(|assembly| assembly.owner == owner && assembly.number == number)
    }

    pub(super) fn get_mut(&mut self, position: usize) -> &mut Assembly<R> {
        &mut self.active[position]
    }

    pub(super) fn add(
        &mut self,
        now: Instant,
        owner: SourceId,
        (number, length): (u32, u32),
        receive: R,
    ) -> usize {
        let map = self.maps.pop().unwrap_or_default();
        self.active.push(Assembly {
            owner,
            number,
            length,
            first_seen: now,
            receive,
            map,
        });
        // No memory may be allocated when the maps are returned, because registered memory may be held then.
        self.maps.reserve(self.active.len());
        self.active.len() - 1
    }

    /// Removes an assembly and returns its owner, number and receive.
    pub(super) fn remove(&mut self, position: usize) -> (SourceId, u32, R) {
        let mut assembly = self.active.swap_remove(position);
        assembly.map.clear();
        self.maps.push(assembly.map);
        (assembly.owner, assembly.number, assembly.receive)
    }

    /// Positions and numbers of the incomplete Sends of a source.
    pub(super) fn of(&self, owner: SourceId) -> impl Iterator<Item = (usize, u32)> + '_ {
        self.active
            .iter()
            .enumerate()
            .filter(move |(_, assembly)| assembly.owner == owner)
            .map(|(position, assembly)| (position, assembly.number))
    }

    /// First seen times, by position.
    pub(super) fn ages(&self) -> impl Iterator<Item = (usize, Instant)> + '_ {
        self.active
            .iter()
            .enumerate()
            .map(|(position, assembly)| (position, assembly.first_seen))
    }
}

#[cfg(test)]
mod tests {
    use super::super::source::SourceTable;
    use super::*;
    use crate::test_clock::origin;
    use std::time::Duration;

    #[test]
    fn assemblies_are_found_until_they_are_removed() {
        let now = origin();
        let mut table = SourceTable::new(2);
        let [a, b] = ['a', 'b'].map(|key| table.insert(now, key, 0, 0).unwrap());
        let later = now + Duration::from_secs(1);
        let mut assemblies = Assemblies::new();
        assert_eq!(assemblies.len(), 0);
        for (at, owner, number, receive) in
            [(now, a, 1, "r1"), (later, b, 1, "r2"), (now, a, 2, "r3")]
        {
            let position = assemblies.add(at, owner, (number, 10), receive);
            assert_eq!(assemblies.find(owner, number), Some(position));
            assert_eq!(assemblies.get_mut(position).receive, receive);
        }
        assert_eq!((assemblies.len(), assemblies.find(b, 2)), (3, None));
        assert_eq!(assemblies.of(a).collect::<Vec<_>>(), [(0, 1), (2, 2)]);
        let ages: Vec<_> = assemblies.ages().collect();
        assert_eq!(ages, [(0, now), (1, later), (2, now)]);
        assemblies.get_mut(0).map.insert(0, 4).unwrap();
        assert_eq!(assemblies.remove(0), (a, 1, "r1"));
        assert_eq!((assemblies.len(), assemblies.find(a, 1)), (2, None));
        let again = assemblies.add(now, b, (3, 10), "r4");
        let map = &assemblies.get_mut(again).map;
        assert_eq!(map.octets(), 0, "the map is used again, and empty");
    }
}
