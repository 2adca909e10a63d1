//! Rsockets, `rsocket(7)`: the socket interface of `librdmacm.so.1`.
//!
//! The protocol is that of `dgiwarp_sockets`; [`stream::connection`] drives one stream on a connected queue pair, [`datagram::socket`] a socket with
//! a UD queue pair, and [`companion`] those of UDP sockets of the kernel. Descriptors that programs have are numbers of event descriptors of our own ([`table`]), readable while a listener has a request or an attempt to connect
//! has ended. Calls wait in [`wait`]: for completions, for the program's other descriptors, and for threads that took completions of theirs.
//!
//! Lock order: the members of a poll set, the table, the state of a socket, the state of its connection. Events of the stack are recorded under a lock of their own ([`events`]).

mod calls;
mod cancellation;
mod companion;
mod datagram;
mod device;
mod edges;
mod events;
mod iovec;
mod options;
mod poll;
mod poll_set;
mod settings;
mod stream;
mod table;
mod wait;

pub(crate) use calls::*;
pub(crate) use poll_set::{repoll_create, repoll_ctl, repoll_wait};
pub(crate) use table::yield_port;
