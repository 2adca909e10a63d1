#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod block;
mod channel;
mod config;
mod connect;
mod error;
mod ring;
pub mod wire;

pub use block::{Block, Slot};
pub use channel::Channel;
pub use config::Config;
pub use connect::Listener;
pub use error::Error;
