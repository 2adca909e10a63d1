//! Both programs as users run them, and FTP clients of others.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "what the system refuses fails the test")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests wait for other processes, with deadlines"
)]

mod certificates;
mod common;
mod copies;
mod foreign;
mod ftp_clients;
mod ftp_servers;
mod hostile;
mod hostile_server;
mod interrupted;
mod open;
mod streams;
mod tls;
