//! `mz`: files, trees and streams between two hosts, with one port and a code. The command line is in `src/bin`; data moves in
//! [`dgiwarp_transfer`].

#![forbid(unsafe_code)]

mod code;
mod guard;
mod pipe;
mod place;
mod receive;
mod send;

pub use code::Code;
pub use pipe::{PipeIn, PipeOut, pipe_in, pipe_out};
pub use place::{PORT, listen_address, peer_addresses};
pub use receive::{Receive, receive, serve};

pub use send::{Send, send};
