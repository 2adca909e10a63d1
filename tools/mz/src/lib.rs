//! `mz`: files, trees and streams between two hosts, with one port and a code. The command line is in `src/bin`; data moves in
//! [`dgiwarp_transfer`].

#![forbid(unsafe_code)]

mod admission;
mod code;
mod fetch;
mod guard;
mod pipe;
mod place;
mod receive;
mod send;
mod top;

pub use code::Code;
pub use fetch::{Get, Put, Server, get, put};
pub use pipe::{PipeIn, PipeOut, pipe_in, pipe_out};
pub use place::{PORT, listen_address, peer_addresses};
pub use receive::{Receive, receive, serve};

pub use send::{Send, send};
pub use top::{Top, top};
