//! A connected QP, sans I/O: RDMAP over DDP over MPA, on the octets of one TCP connection.
//!
//! Order of calls: `accept` for each work request posted; `handle_input(now, …)` for octets from TCP and `handle_end(now, …)` for its
//! end; after each of these `make_fpdus(…)`, then `poll_transmit(now)` and `transmitted(…)` for the octets until there are none.
//! `end()` returns why the connection is over, once it is; everything posted has completed then, and octets that are left to transmit, a
//! Terminate at their end, are for the peer.
//!
//! Posted work requests wait until MPA lets them go: a Responder has to receive an FPDU first (RFC 5044 §7.1.2 rule 4).

mod acks;
mod close;
mod detect_peer;
mod end;
mod engine;
mod first_fpdu_probe;
mod llp;
mod receive;
mod rnr_queue;
mod state;
mod transmit;
mod ulp;
mod wqe;
mod zero_copy;

pub use acks::NextReceive;
pub use close::{
    CloseStep, DeferredDisconnect, GracefulClose, GracefulStep, LINGER_FOR, Outstanding, TcpClose,
};
pub use end::RcEnd;
pub(crate) use end::terminated;
pub use engine::{RcEngine, flush_receives};
pub use llp::Llp;
pub use receive::{DirectFront, DirectInput, ShortInput};
pub use state::RcConfig;
pub(crate) use transmit::update;
pub use transmit::{CheckedEngine, OneSidedData, OneSidedSpan, ROOM, ShortWr};
pub use wqe::{InlineOctets, MAX_INLINE, MemoryWork, RcData, RcSendWqe, RcWork};
pub use zero_copy::{StreamSink, Taken};

#[cfg(test)]
pub(crate) mod tests;
