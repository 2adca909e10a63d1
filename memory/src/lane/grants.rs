//! The protocol of grants: regions of one end that the other one reads and writes by itself (rfc-notes/same-host.md).
//!
//! The granting end publishes a grant and revokes it. The copying end announces each copy before it checks that the grant still holds; the revoking end
//! waits for copies that are announced. Each word has one writer. No word of the other end is believed: what a false one does is done to the memory of
//! the end that wrote it.

use super::protocol::Line;
use super::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::MemoryFile;

/// Grants of an end at one time.
pub(super) const MOST: usize = 28;

/// Right to read, and right to write.
pub(super) const READ: u32 = 1;
pub(super) const WRITE: u32 = 2;

/// A region that the peer may use: the terms of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantTerms {
    /// STag.
    pub stag: u32,
    /// Whether the peer may read.
    pub read: bool,
    /// Whether the peer may write.
    pub write: bool,
    /// Tagged Offset of the first octet.
    pub start: u64,
    /// Octets.
    pub length: u64,
    /// Address of the first octet in the process of the granting end.
    pub address: u64,
    /// The memory file that holds the region, in the process of the granting end, where there is one.
    pub file: Option<MemoryFile>,
}

/// The words of a grant.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct GrantWords {
    /// Odd while the grant holds. Each publication and each revocation adds one.
    generation: AtomicU32,
    stag: AtomicU32,
    rights: AtomicU32,
    /// One more than the number of a descriptor; 0 without a memory file.
    file: AtomicU32,
    start: AtomicU64,
    length: AtomicU64,
    address: AtomicU64,
    offset: AtomicU64,
}

/// The words of an end for one-sided copies, which that end alone writes.
#[derive(Debug)]
#[repr(C)]
pub(super) struct GrantPage {
    /// One more than the index of the peer's grant that this end copies with; 0 is none.
    pub(super) copying: Line<AtomicU32>,
    /// Address of the token in the process of this end.
    pub(super) proof: Line<AtomicU64>,
    pub(super) grants: [GrantWords; MOST],
}

/// A grant as the copying end has read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) index: u32,
    pub(super) generation: u32,
    pub(super) terms: GrantTerms,
}

impl GrantWords {
    /// Publishes a grant. None holds here, and no copy with an earlier one is under way.
    pub(super) fn publish(&self, terms: &GrantTerms) {
        let rights = if terms.read { READ } else { 0 } | if terms.write { WRITE } else { 0 };
        self.stag.store(terms.stag, Ordering::Relaxed);
        self.rights.store(rights, Ordering::Relaxed);
        self.start.store(terms.start, Ordering::Relaxed);
        self.length.store(terms.length, Ordering::Relaxed);
        self.address.store(terms.address, Ordering::Relaxed);
        let file = terms
            .file
            .map(|file| (file.fd.wrapping_add(1), file.offset));
        let (fd, offset) = file.unwrap_or((0, 0));
        self.file.store(fd, Ordering::Relaxed);
        self.offset.store(offset, Ordering::Relaxed);
        self.advance();
    }

    /// Revokes the grant, if it holds. Copies may be under way.
    pub(super) fn revoke(&self) {
        if self.generation.load(Ordering::Relaxed) % 2 == 1 {
            self.advance();
        }
        // The copying end announces its copy, then loads the generation; here it is the other way round. One of both sees the other's.
        fence(Ordering::SeqCst);
    }

    fn advance(&self) {
        let generation = self.generation.load(Ordering::Relaxed);
        self.generation
            .store(generation.wrapping_add(1), Ordering::Release);
    }

    /// The grant, if one holds, with its generation.
    pub(super) fn read(&self) -> Option<(u32, GrantTerms)> {
        let generation = self.generation.load(Ordering::Acquire);
        if generation.is_multiple_of(2) {
            return None;
        }
        let rights = self.rights.load(Ordering::Relaxed);
        let fd = self.file.load(Ordering::Relaxed).checked_sub(1);
        let offset = self.offset.load(Ordering::Relaxed);
        let terms = GrantTerms {
            stag: self.stag.load(Ordering::Relaxed),
            read: rights & READ != 0,
            write: rights & WRITE != 0,
            start: self.start.load(Ordering::Relaxed),
            length: self.length.load(Ordering::Relaxed),
            address: self.address.load(Ordering::Relaxed),
            file: fd.map(|fd| MemoryFile { fd, offset }),
        };
        // The terms of another grant may have come in between.
        fence(Ordering::Acquire);
        (self.generation.load(Ordering::Relaxed) == generation).then_some((generation, terms))
    }
}

impl GrantPage {
    /// Announces a copy with a grant of the peer's page. Returns whether the grant holds: the copy may begin, and is [over](Self::end_copy) later.
    #[inline]
    pub(super) fn begin_copy(&self, peers: &Self, index: u32, generation: u32) -> bool {
        let Some(grant) = peers.grants.get(index as usize) else {
            return false;
        };
        self.copying.0.store(index + 1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let holds = grant.generation.load(Ordering::Acquire) == generation;
        if !holds {
            self.end_copy();
        }
        holds
    }

    /// Ends the copy that was announced.
    #[inline]
    pub(super) fn end_copy(&self) {
        self.copying.0.store(0, Ordering::Release);
    }

    /// Whether this end announces a copy with the grant of an index.
    pub(super) fn copies_with(&self, index: usize) -> bool {
        self.copying.0.load(Ordering::Acquire) as usize == index + 1
    }
}
