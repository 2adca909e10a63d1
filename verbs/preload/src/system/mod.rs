//! Functions of other libraries, and what is made of them.

pub(crate) mod address;
pub(crate) mod errno;
pub(crate) mod file;
pub(crate) mod kernel;
pub(crate) mod next;
pub(crate) mod report;
pub(crate) mod rsockets;
