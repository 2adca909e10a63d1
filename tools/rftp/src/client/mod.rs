//! The client: copies between this host and a server.

mod control;
mod copy;
mod ftp;
mod url;

pub use copy::{Copy, run};
pub use url::{Place, Scheme, Url};
