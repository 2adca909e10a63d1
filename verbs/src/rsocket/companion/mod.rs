//! Companions of UDP sockets: a UD queue pair beside a UDP socket of the program, for programs that take both for one socket.
//!
//! The socket stays the kernel's. Two companions of one host meet through a mark ([`exchange`]), and then send each other's datagrams by their queue pairs ([`socket`]). Datagrams
//! of and to all others are no concern of theirs. So no socket gets an octet that its peer's program has not sent.

pub(super) mod exchange;
mod host;
mod routes;
pub(super) mod socket;
