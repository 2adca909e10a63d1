//! The end of a connection.

mod peer;
mod pending;
