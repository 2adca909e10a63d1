//! Protection domains, memory regions, memory windows and thread domains, parent domains.

pub(crate) mod allocator;
pub(crate) mod dm;
pub(crate) mod dmabuf;
pub(crate) mod mr;
pub(crate) mod mw;
pub(crate) mod null_mr;
pub(crate) mod rereg_mr;
pub(crate) mod td;
