//! Shared memory of two queue pairs on one host: how they meet, and what memory a process takes for it (rfc-notes/same-host.md).

pub(crate) mod budget;
pub(crate) mod ends;
pub(crate) mod grants;
pub(crate) mod meeting;
pub(crate) mod names;
