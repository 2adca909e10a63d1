//! Rules of the protocol as state machines: the time goes in as an argument, and nothing here opens a socket.

pub(crate) mod admission;
pub(crate) mod balance;
pub(crate) mod call_streams;
pub(crate) mod calls;
pub(crate) mod credit;
pub(crate) mod executions;
pub(crate) mod ranges;
pub(crate) mod streams;
pub(crate) mod urgency;
pub(crate) mod windows;

#[cfg(test)]
mod simulation;
