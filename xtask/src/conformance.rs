//! `cargo xtask conformance`: how the rules of the RFCs are tested, as `dgiwarp-conform clauses` prints it.
//!
//! The tables belong to `dgiwarp-conform`, and this crate uses nothing else of the workspace: so the program is run.

use std::ffi::OsString;
use std::io;

use crate::workspace;

/// Runs `dgiwarp-conform clauses` with these arguments. Its exit status is the result.
///
/// # Errors
/// Cargo cannot be started.
pub fn run(arguments: &[OsString]) -> io::Result<i32> {
    let status = workspace::cargo()
        .args(["run", "--quiet", "--package", "dgiwarp-conform"])
        .args(["--bin", "dgiwarp-conform", "--", "clauses"])
        .args(arguments)
        .status()?;
    Ok(status.code().unwrap_or(1))
}
