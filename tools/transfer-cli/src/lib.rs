#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod carriage;
mod failed;
mod options;
mod progress;
mod sessions;
#[cfg(feature = "testing")]
pub mod testing;

pub use carriage::{Carriage, listen};
pub use failed::Failed;
pub use options::{EncryptArg, Encryption, Output, Sizes, Streams, StreamsArg, Writing, XattrsArg};
pub use progress::{Progress, Show, human, line, shown};
pub use sessions::{Session, sessions};
