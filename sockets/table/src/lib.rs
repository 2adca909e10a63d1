//! The table in which a process that runs under `dgiwarp-run --sockets` publishes its sockets.
//!
//! It lies in a memfd of the process, which is sealed to its size. The library that the process has is its only writer ([`Table`]), by atomic stores; readers copy it by `pread(2)` and trust
//! nothing of it ([`Snapshot`]). All words are 64 bits, in the order of the machine.
//!
//! A record has a sequence number, odd while the record changes (seqlock). Octets, and whether a connection goes by shared memory, are words of their own that change at any moment.
//!
//! ```
//! use dgiwarp_socket_table::{Record, Snapshot, State, Table, WORDS, Way};
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! let words: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
//! let table = Table::begin(&words, 4711, 0).unwrap();
//! table.publish(0, &Record { state: State::Established, way: Way::Rc, ..Record::default() });
//! table.add_sent(0, 100);
//! let octets: Vec<u8> = words.iter().flat_map(|it| it.load(Ordering::Relaxed).to_ne_bytes()).collect();
//! let snapshot = Snapshot::parse(&octets, &octets, &octets).unwrap();
//! assert_eq!(snapshot.records[0].sent, 100);
//! ```

#![forbid(unsafe_code)]

mod layout;
mod reader;
mod record;
#[cfg(test)]
mod tests;
mod writer;

pub use layout::{CAPACITY, NAME, OCTETS, VERSION, WORDS};
pub use reader::{Malformed, Reason, Snapshot, printable};
pub use record::{Record, State, Way};
pub use writer::{Count, Table};
