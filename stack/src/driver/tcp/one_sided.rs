//! One-sided copies of a connection whose ends are on one host: grants of this end, and copies with those of the peer (rfc-notes/same-host.md).

use std::num::NonZeroU32;
use std::sync::Arc;

use dgiwarp_ddp::STag;
use dgiwarp_engine::connected::{OneSidedData, OneSidedSpan};
use dgiwarp_engine::mr::{MrTable, RegionTerms};
use dgiwarp_engine::same_host::CopyChoice;
use dgiwarp_memory::PeerMemory;
use dgiwarp_memory::lane::{Granted, PeerGrants};
use dgiwarp_memory::socket::NoCancellation;

use crate::driver::device::clock;
use crate::driver::same_host::grants::{self, CopyEnds, OwnGrants};

/// STags that are remembered.
const REMEMBERED: usize = 32;

/// The memory of the peer's process.
#[derive(Debug)]
enum Memory {
    /// Not needed before.
    Unopened(NonZeroU32),
    Open(Arc<PeerMemory>),
    /// The kernel denies it, or a copy failed.
    Denied,
}

/// STags that the peer has used: their regions are granted, or cannot be.
#[derive(Debug)]
struct Used {
    stags: [u32; REMEMBERED],
    /// Place of the next one.
    next: usize,
    /// Revocations until now. After others, regions may be granted anew.
    revocations: u32,
    /// There was no place for another grant.
    is_full: bool,
}

impl Used {
    fn forget(&mut self) {
        self.stags = [0; REMEMBERED];
        self.is_full = false;
    }
}

/// One-sided copies of one end.
#[derive(Debug)]
pub(crate) struct OneSided {
    own: OwnGrants,
    peers: PeerGrants,
    memory: Memory,
    choice: CopyChoice,
    used: Used,
    has_granted: bool,
    copied: Copied,
}

/// Writes and Reads that an end did alone.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Copied {
    pub(crate) operations: u64,
    pub(crate) octets: u64,
}

impl OneSided {
    pub(crate) fn new(ends: CopyEnds, mrs: Arc<MrTable>) -> Self {
        let (own, peers, peer) = ends.register(mrs);
        Self {
            own,
            peers,
            memory: Memory::Unopened(peer),
            choice: CopyChoice::default(),
            used: Used {
                stags: [0; REMEMBERED],
                next: 0,
                revocations: 0,
                is_full: false,
            },
            has_granted: false,
            copied: Copied::default(),
        }
    }

    pub(crate) const fn copied(&self) -> Copied {
        self.copied
    }

    /// Whether the peer has used an STag for the first time, or since grants were revoked, and there may be a place for a grant.
    #[inline]
    pub(crate) fn is_new(&mut self, stag: STag, revocations: u32) -> bool {
        if self.used.revocations != revocations {
            self.used.revocations = revocations;
            self.used.forget();
        }
        if self.used.is_full || self.used.stags.contains(&stag.get()) {
            return false;
        }
        self.used.stags[self.used.next] = stag.get();
        self.used.next = (self.used.next + 1) % REMEMBERED;
        true
    }

    /// Grants the peer a region, while it `may` be.
    pub(crate) fn grant(&mut self, terms: &RegionTerms, may: &dyn Fn() -> bool) {
        if self.own.grant(terms, may) {
            self.has_granted = true;
        } else {
            self.used.is_full = self.own.is_full();
        }
    }

    /// Whether the peer was granted anything.
    pub(crate) const fn has_granted(&self) -> bool {
        self.has_granted
    }

    /// Revokes all grants. Others may be made.
    pub(crate) fn revoke_all(&mut self) {
        self.own.revoke_all();
        self.used.forget();
    }

    /// Counts a poll of this end's program.
    #[inline]
    pub(crate) fn note_poll(&self) {
        self.peers.note_poll();
    }

    /// The grant to copy with, if that is possible and better than the lane. `own_polls` counts the polls of this end's program.
    #[inline]
    pub(crate) fn find(&mut self, span: &OneSidedSpan, own_polls: u64) -> Option<Granted> {
        if matches!(self.memory, Memory::Denied) {
            return None;
        }
        let OneSidedSpan {
            stag,
            start,
            length,
            write,
        } = *span;
        let granted = self.peers.find(stag, start, length, write)?;
        let polls = self.peers.polls();
        let copies = self.choice.copies(write, own_polls, polls, clock::now);
        if !copies {
            return None;
        }
        if let Memory::Unopened(peer) = self.memory {
            let opened = grants::open(peer, &self.peers);
            self.memory = opened.map_or(Memory::Denied, Memory::Open);
        }
        Some(granted)
    }

    /// Copies. Returns whether all octets are there; where not, some may be.
    #[inline]
    pub(crate) fn copy(&mut self, granted: Granted, data: &OneSidedData<'_>) -> bool {
        let Memory::Open(memory) = &self.memory else {
            return false;
        };
        let _guard = NoCancellation::begin();
        let copied = self.peers.copy(granted, |address| match data {
            OneSidedData::Write(pieces) => memory.write(address, pieces),
            OneSidedData::Read(slices) => memory.read(address, slices),
        });
        if copied == Some(false) {
            // The process is gone, or its pages are.
            self.memory = Memory::Denied;
        }
        let copied = copied == Some(true);
        if copied {
            self.copied.operations += 1;
            self.copied.octets += data.octets() as u64;
        }
        copied
    }
}
