//! Client and server of a run: their processes, the control channel between them, endpoints and rounds.

pub(crate) mod client;
pub(crate) mod control;
pub(crate) mod process;
pub(crate) mod server;
