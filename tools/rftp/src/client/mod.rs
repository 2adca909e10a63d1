//! The client: copies between this host and a server.

mod control;
mod copy;
mod ftp;
mod shell;
mod tls;
mod url;

pub use copy::{Copy, run};
pub use shell::shell;
pub use tls::Tls;
pub use url::{Place, Scheme, Url};
