//! Every rule of the RFCs that is written with MUST, MUST NOT, SHOULD or SHOULD NOT, and what tests it.
//!
//! The tables lie in `conformance/clauses/`, one file per RFC, and are compiled in. [`table`] reads them, [`shares`]
//! counts how the rules are tested, [`cli`] prints that. A case of the tester is named by a letter and two digits;
//! [`Clauses::of_case`] says which rules it is about.

pub mod cli;
pub mod shares;
pub mod table;
#[cfg(test)]
mod tests;

pub use table::{By, Case, Clause, ClauseId, Clauses, Evidence, Keyword, Reason, TableError, Test};
