//! The shared library `libdgiwarp_verbs.so`, which programs know as `libibverbs.so.1` and `librdmacm.so.1`.
//!
//! All code is in `dgiwarp-verbs`; this package puts the exported symbols beside it. It is a package of its own because cargo
//! runs LTO for a library only if that is not made as an rlib too, which programs and tests need of the code.

#![forbid(unsafe_code)]

use dgiwarp_verbs::Symbols;

/// Whose symbols they are.
enum Library {}

#[used]
static SYMBOLS: Symbols = Symbols::of::<Library>();
