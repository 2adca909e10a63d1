//! Contents of requests, replies and messages.

use crate::memory::Block;
use crate::wire::message::MAX_ITEMS;
use crate::wire::metadata::Metadata;

/// One part of a payload.
#[derive(Debug, Clone)]
pub enum Item {
    /// Octets that travel inside of the message where they fit, and else are moved like a block.
    Short(Vec<u8>),
    /// Memory that is written or read by RDMA, without a copy at either end.
    Long(Block),
}

impl Item {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Short(octets) => octets.len(),
            Self::Long(block) => block.len(),
        }
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A copy of all bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        match self {
            Self::Short(octets) => octets.clone(),
            Self::Long(block) => block.to_vec(),
        }
    }

    /// All bytes: those of a short item as they are, those of a block copied.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        match self {
            Self::Short(octets) => octets,
            Self::Long(block) => block.to_vec(),
        }
    }
}

/// Items and metadata of a request, a reply or a message: at most 64 items.
#[derive(Debug, Clone, Default)]
pub struct Payload {
    /// The items, in order.
    pub items: Vec<Item>,
    /// Names and values beside them.
    pub metadata: Metadata,
}

impl Payload {
    /// Nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One item of these octets.
    #[must_use]
    pub fn short(octets: impl Into<Vec<u8>>) -> Self {
        Self::new().and_short(octets)
    }

    /// One item of this block.
    #[must_use]
    pub fn long(block: Block) -> Self {
        Self::new().and_long(block)
    }

    /// With an item of these octets behind the others.
    #[must_use]
    pub fn and_short(mut self, octets: impl Into<Vec<u8>>) -> Self {
        self.items.push(Item::Short(octets.into()));
        self
    }

    /// With an item of this block behind the others.
    #[must_use]
    pub fn and_long(mut self, block: Block) -> Self {
        self.items.push(Item::Long(block));
        self
    }

    /// The bytes of the item at this place; none where there is no such item.
    #[must_use]
    pub fn bytes(&self, at: usize) -> Vec<u8> {
        self.items.get(at).map(Item::to_vec).unwrap_or_default()
    }

    pub(crate) fn fits(&self) -> bool {
        self.items.len() <= MAX_ITEMS
    }

    /// Octets of short items.
    pub(crate) fn short_octets(&self) -> usize {
        let short = |item: &Item| match item {
            Item::Short(octets) => octets.len(),
            Item::Long(_) => 0,
        };
        self.items.iter().map(short).sum()
    }

    pub(crate) fn has_long(&self) -> bool {
        let is_long = |item: &Item| matches!(item, Item::Long(block) if !block.is_empty());
        self.items.iter().any(is_long)
    }
}
