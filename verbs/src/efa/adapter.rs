//! The adapter that programs take the device for.

use crate::device::persona::{self, Persona};
use nix::errno::Errno;

/// Checks that programs take the device for EFA.
pub(super) fn expect_efa() -> Result<(), Errno> {
    match persona::present() {
        Persona::Efa => Ok(()),
        Persona::Roce | Persona::Iwarp => Err(Errno::EOPNOTSUPP),
    }
}
