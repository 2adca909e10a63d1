//! Types of memory windows.

/// Type of a memory window (`enum ibv_mw_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MwType {
    /// Bound by `RcQp::bind_mw`, any number of times, and open to all queue pairs of its protection domain.
    One,
    /// Bound by a posted `RcOperation::BindMw`, with a key of the program's choice, and open to the peer of that queue pair alone (type 2B). It has to be
    /// invalidated before it is bound again: by `RcOperation::LocalInvalidate`, or by the peer's Send with Invalidate, which every window of
    /// this type allows.
    Two,
}
