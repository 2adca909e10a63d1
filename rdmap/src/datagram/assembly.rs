//! Reassembly of Segmented Sends (§7).

use std::time::Instant;

use dgiwarp_ddp::RangeMap;

use super::source::SourceId;

/// A receive bound to a message that is not complete.
#[derive(Debug)]
pub(super) struct Assembly<R> {
    pub(super) owner: SourceId,
    pub(super) number: u32,
    pub(super) length: u32,
    pub(super) first_seen: Instant,
    pub(super) receive: R,
    pub(super) map: RangeMap,
}

/// The incomplete Sends of a QP, at most 16.
#[derive(Debug)]
pub(super) struct Assemblies<R> {
    active: Vec<Assembly<R>>,
    /// Maps of finished assemblies, kept for their room.
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
        // Room for the maps to come back to: memory may be held then, and nothing may be allocated.
        self.maps.reserve(self.active.len());
        self.active.len() - 1
    }

    /// Takes an assembly out and returns its owner, number and receive.
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
