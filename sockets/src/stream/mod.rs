//! One end of a stream (§4).

pub(crate) mod config;
mod incoming;
pub(crate) mod machine;
mod outgoing;
pub(crate) mod post;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
pub(crate) mod violation;
