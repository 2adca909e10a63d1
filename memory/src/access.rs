//! Rights of a registered region.

bitflags::bitflags! {
    /// Rights of a region (`ibv_reg_mr(3)`; RFC 5040 §4.8 "Access rights violation").
    ///
    /// Local read access is always given.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Access: u32 {
        /// Local writes: the region may be the target of a receive or the sink of a read.
        const LOCAL_WRITE = 1;
        /// A peer may write: RDMA Write and Write-Record. Implies `LOCAL_WRITE` at registration.
        const REMOTE_WRITE = 1 << 1;
        /// A peer may read with RDMA Read.
        const REMOTE_READ = 1 << 2;
        /// A peer may use atomic operations (RFC 7306).
        const REMOTE_ATOMIC = 1 << 3;
        /// A connected peer may invalidate the STag, with a Send with Invalidate (RFC 5040 §5.3).
        const REMOTE_INVALIDATE = 1 << 4;
        /// Memory windows may be bound to it (`IBV_ACCESS_MW_BIND`).
        const MW_BIND = 1 << 5;
    }
}

impl Access {
    /// These rights with those that they imply: remote write implies local write.
    #[must_use]
    pub fn with_implied(self) -> Self {
        if self.contains(Self::REMOTE_WRITE) {
            self | Self::LOCAL_WRITE
        } else {
            self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_write_implies_local_write_and_nothing_else_does() {
        for bits in 0..=Access::all().bits() {
            let access = Access::from_bits(bits).unwrap();
            let implied = if bits & 2 != 0 { bits | 1 } else { bits };
            assert_eq!(access.with_implied().bits(), implied);
        }
    }
}
