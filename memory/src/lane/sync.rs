//! The words that two processes share, as the lane's protocol uses them. A model checker has others in their place.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
