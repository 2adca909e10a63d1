//! Numbers of work requests: what a completion is about.

/// Messages that one completion stands for at most.
pub(super) const MAX_COUNT: u8 = 16;

/// Subject of a work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkId {
    /// A receive, and its slot.
    Receive { slot: u32 },
    /// A message, and how many messages its completion stands for.
    Send { count: u8 },
    /// A piece of a transfer.
    Piece { transfer: u32 },
}

impl WorkId {
    pub(super) fn number(self) -> u64 {
        match self {
            Self::Receive { slot } => 1 << 56 | u64::from(slot),
            Self::Send { count } => 2 << 56 | u64::from(count),
            Self::Piece { transfer } => 3 << 56 | u64::from(transfer),
        }
    }

    pub(super) fn parse(number: u64) -> Option<Self> {
        let [kind, .., d] = number.to_be_bytes();
        let low = u32::try_from(number & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        match kind {
            1 => Some(Self::Receive { slot: low }),
            2 => Some(Self::Send { count: d }),
            3 => Some(Self::Piece { transfer: low }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_parsed() {
        let ids = [
            WorkId::Receive { slot: 70_000 },
            WorkId::Send { count: 16 },
            WorkId::Piece { transfer: u32::MAX },
        ];
        for id in ids {
            assert_eq!(WorkId::parse(id.number()), Some(id));
        }
        assert_eq!(WorkId::parse(7), None);
    }
}
