//! The software RNIC's own endpoints.

mod completions;
pub(crate) mod fetch;
pub(crate) mod idle;
mod link;
pub(crate) mod memory;
pub(crate) mod rc;
pub(crate) mod ud;

use dgiwarp::{Config, Fault, SameHostMode};

use crate::catalog::{Mode, Transport};
use crate::error::PerfError;
use crate::machine::host::Side;
use crate::session::control::EndpointSpec;

/// An error of the stack, with the verb that failed.
pub(crate) fn stack<E: std::fmt::Display>(what: &'static str) -> impl FnOnce(E) -> PerfError {
    move |error| PerfError::Stack {
        what,
        reason: error.to_string(),
    }
}

/// The way within one host, which the row names.
const fn same_host(spec: &EndpointSpec) -> SameHostMode {
    match spec.subject.transport {
        Transport::RcRing | Transport::UdRing | Transport::RdRing => SameHostMode::Ring,
        // Either process may trace the other where Yama restricts that.
        Transport::RcDirect => SameHostMode::Direct,
        _ => SameHostMode::Off,
    }
}

/// Settings of the device of a reliable queue pair: its row names its way, whatever the environment wants.
fn device(spec: &EndpointSpec, side: Side) -> Config {
    let mut config = Config::default();
    config.autocork = spec.autocork;
    config.same_host = same_host(spec);
    if spec.subject.transport.is_reliable_datagram() {
        config.receive_buffer = spec.receive_buffer;
        config.max_mtu = spec.mtu;
        if spec.mode == Mode::Loss && side == Side::Server {
            config.fault = Some(Fault {
                drop: spec.loss,
                seed: spec.seed,
                ..Fault::default()
            });
        }
    }
    config
}

fn too_early() -> PerfError {
    PerfError::Protocol("a message before both sides are connected".to_owned())
}

/// The number whose low `bits` bits these are and that is nearest to what is expected next.
const fn extend(low: u64, expected: u64, bits: u32) -> u64 {
    let span = 1 << bits;
    let candidate = (expected & !(span - 1)) | low;
    if candidate + span / 2 < expected {
        candidate + span
    } else if candidate > expected + span / 2 && candidate >= span {
        candidate - span
    } else {
        candidate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_extended_around_what_is_expected() {
        const BITS: u32 = 24;
        const SPAN: u64 = 1 << BITS;
        assert_eq!(extend(5, 3, BITS), 5);
        assert_eq!(extend(0, SPAN - 1, BITS), SPAN);
        assert_eq!(extend(SPAN - 1, SPAN + 2, BITS), SPAN - 1);
        assert_eq!(extend(7, 5 * SPAN + 9, BITS), 5 * SPAN + 7);
        assert_eq!(extend(SPAN - 1, 0, BITS), SPAN - 1);
    }
}
