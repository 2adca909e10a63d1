//! `rftp` and `rftpd`: files over RDMA or TCP, with FTP (RFC 959) as control connection. The command lines are in `src/bin`; data moves in
//! [`dgiwarp_transfer`].

#![forbid(unsafe_code)]

pub mod client;
mod path;
pub mod server;
mod stream;
mod tcp;
mod time;
