//! The shared library `libdgiwarp_verbs.so`, alias `libibverbs.so.1`, `librdmacm.so.1` and `libefa.so.1`.
//!
//! The code is in `dgiwarp-verbs`; this package adds the exported symbols. It is a package of its own because cargo
//! applies LTO to a library only if it is no rlib, and programs and tests need an rlib of the code.

#![forbid(unsafe_code)]

use dgiwarp_verbs::Symbols;

/// Type that instantiates the symbols.
enum Library {}

#[used]
static SYMBOLS: Symbols = Symbols::of::<Library>();
