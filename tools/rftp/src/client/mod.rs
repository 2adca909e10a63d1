//! The client: copies between this host and a server.

mod control;
mod copy;
mod progress;
mod url;

pub use copy::{Copy, Failed, run};
pub use url::{Place, Url};
