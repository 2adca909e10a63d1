//! One-sided copies of a connection whose ends are on one host: grants of this end, and copies with those of the peer (rfc-notes/same-host.md).

use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;

use dgiwarp_ddp::STag;
use dgiwarp_engine::connected::{OneSidedData, OneSidedSpan};
use dgiwarp_engine::mr::{MrTable, RegionTerms};
use dgiwarp_engine::same_host::CopyChoice;
use dgiwarp_memory::lane::{Granted, PeerGrants};
use dgiwarp_memory::socket::NoCancellation;
use dgiwarp_memory::{PeerMemory, Region, RegionSlice};

use crate::driver::device::clock;
use crate::driver::same_host::grants::{self, CopyEnds, OwnGrants};

/// STags that are remembered.
const REMEMBERED: usize = 32;

/// Octets of a region that are mapped, at most.
const MOST_MAPPED: usize = 1 << 30;

/// The memory of the peer's process.
#[derive(Debug)]
enum Memory {
    /// Not needed before.
    Unopened,
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

/// A region of the peer in a memory file.
#[derive(Debug)]
struct Mapped {
    /// Index of its grant.
    index: u32,
    /// Generation of the grant.
    generation: u32,
    /// Its memory; `None` where that cannot be mapped.
    region: Option<Region>,
}

/// One-sided copies of one end.
#[derive(Debug)]
pub(crate) struct OneSided {
    own: OwnGrants,
    peers: PeerGrants,
    /// Number of the peer's process.
    peer: NonZeroU32,
    /// Regions of the peer that have been written through a mapping.
    mapped: Vec<Mapped>,
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
            peer,
            mapped: Vec::new(),
            memory: Memory::Unopened,
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
        self.open();
        Some(granted)
    }

    /// Opens the memory of the peer's process, once.
    fn open(&mut self) {
        if matches!(self.memory, Memory::Unopened) {
            let opened = grants::open(self.peer, &self.peers);
            self.memory = opened.map_or(Memory::Denied, Memory::Open);
        }
    }

    /// Has `fill` write memory of the peer that both processes map. Returns whether it did: the peer has granted all of it, and it lies in a memory file.
    #[inline]
    pub(crate) fn write_mapped(
        &mut self,
        span: &OneSidedSpan,
        fill: impl FnOnce(&RegionSlice<'_>),
    ) -> bool {
        let granted = self.peers.find(span.stag, span.start, span.length, true);
        let Some(granted) = granted.filter(|it| it.file().is_some()) else {
            return false;
        };
        let is_it = |it: &Mapped| (it.index, it.generation) == granted.of();
        let place = self.mapped.iter().position(is_it);
        let place = place.unwrap_or_else(|| self.map(&granted));
        let Some(region) = &self.mapped[place].region else {
            return false;
        };
        let offset = usize::try_from(granted.offset()).unwrap_or(usize::MAX);
        let Ok(slice) = region.slice(offset, span.length as usize) else {
            return false;
        };
        let written = self.peers.copy(granted, |_| fill(&slice)).is_some();
        if written {
            self.copied.operations += 1;
            self.copied.octets += u64::from(span.length);
        }
        written
    }

    /// Maps the region of a grant, where the kernel allows it. Returns its index.
    #[cold]
    fn map(&mut self, granted: &Granted) -> usize {
        let (index, generation) = granted.of();
        self.mapped.retain(|it| it.index != index);
        self.open();
        let mapped = |memory: &PeerMemory| {
            let (file, octets) = granted.file()?;
            let octets = usize::try_from(octets).ok()?;
            let mapped = PeerMemory::map(self.peer.get(), file, octets.min(MOST_MAPPED));
            let error = |error: &io::Error| tracing::debug!(%error, "a region is not mapped");
            let region = mapped.inspect_err(error).ok()?;
            // Another process may have got the number before its file was opened, but not since.
            self.peers.are_of(memory).then_some(region)
        };
        let region = match &self.memory {
            Memory::Open(memory) => {
                let _guard = NoCancellation::begin();
                mapped(memory)
            }
            Memory::Unopened | Memory::Denied => None,
        };
        self.mapped.push(Mapped {
            index,
            generation,
            region,
        });
        self.mapped.len() - 1
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
