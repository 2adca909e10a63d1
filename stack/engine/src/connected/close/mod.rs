//! The end of a connection as state machines with deadlines: what was posted before, TCP's two halves, and the program's event.

mod deferred_disconnect;
mod graceful;
mod pending_end;
mod tcp_close;

pub use deferred_disconnect::DeferredDisconnect;
pub use graceful::{GracefulClose, GracefulStep, Outstanding};
pub(super) use pending_end::{AnswerTime, PendingEnd};
use tcp_close::FLUSH_FOR;
pub use tcp_close::{CloseStep, LINGER_FOR, TcpClose};
