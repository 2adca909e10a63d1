//! Tasks of the dgiwarp workspace, and what tests of other packages borrow from them.
//!
//! `cargo xtask test` runs every check and test ([`runner`], by the table in [`groups`]); `cargo xtask lab` joins two
//! commands over two network namespaces ([`lab`]); `cargo xtask dist` lays out what is given away ([`dist`]), `cargo xtask install` and
//! `uninstall` put it below a prefix and take it away ([`install`]); `cargo xtask conformance` prints which rules of the RFCs are tested
//! ([`conformance`]); `cargo xtask fuzz` runs the fuzz targets for long ([`fuzz`]).
//! Integration tests of other packages use [`lab`] for a network of their own, [`clock`], and [`skips`] to say what they could not
//! run. Of the workspace this crate uses `sim` alone, for the link of a lab with faults.
#![forbid(unsafe_code)]

pub mod clock;
pub mod conformance;
pub mod debian;
pub mod dist;
pub mod fuzz;
pub mod groups;
pub mod install;
pub mod interrupt;
pub mod lab;
pub mod libtest;
pub mod pictures;
pub mod runner;
pub mod skips;
pub mod stream;
pub mod workspace;
