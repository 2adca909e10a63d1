//! Origin of the times of tests.

use std::time::Instant;

/// Any instant; tests add to it.
#[expect(
    clippy::disallowed_methods,
    reason = "any instant serves as the origin"
)]
pub(crate) fn origin() -> Instant {
    Instant::now()
}
