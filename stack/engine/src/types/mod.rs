//! Types that the engine shares with its users: work requests, completions, events, counters, options, routes.

mod async_event;
mod counters;
mod mw_type;
mod options;
mod post_error;
mod route;
mod timers;
mod work;

pub use async_event::AsyncEvent;
pub use counters::QpCounters;
pub use mw_type::MwType;
pub use options::{Completion, NoReceive, RcOptions, RnrLimits};
pub use post_error::{PostError, PostFailure};
pub use route::Route;
pub use timers::earliest;
pub use work::{MAX_SGE, Operation, RecvWr, Sge, ShortData, Wc, WcOpcode, WcStatus};
