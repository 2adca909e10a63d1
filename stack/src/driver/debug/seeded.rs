//! The bugs of this device that a test may ask for, in builds that have them ([`dgiwarp_codec::seeded`]).

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::IntoRawFd;

use dgiwarp_codec::seeded::{self, Bug, is_on};

use crate::Error;
use dgiwarp_engine::connected::Taken;

/// Has the process break the rule that the environment names.
pub(crate) fn sow() -> Result<(), Error> {
    if !seeded::SEEDABLE {
        return Ok(());
    }
    let Some(name) = std::env::var_os(seeded::VARIABLE) else {
        return Ok(());
    };
    seeded::sow(&name.to_string_lossy()).map_err(|unknown| {
        eprintln!("dgiwarp: {}: {unknown}", seeded::VARIABLE);
        Error::System {
            what: seeded::VARIABLE,
            source: io::Error::new(io::ErrorKind::InvalidInput, unknown),
        }
    })
}

/// A startup was refused, and its connection is to be closed.
pub(crate) fn refused(stream: &TcpStream) {
    let open = is_on(Bug::RefusedStartupOpen);
    if !open && !is_on(Bug::RefusedStartupLeaks) {
        return;
    }
    if let Ok(again) = stream.try_clone() {
        if !open {
            let _ = again.shutdown(Shutdown::Both);
        }
        // Nobody closes it now.
        let _ = again.into_raw_fd();
    }
}

/// TCP took so much of what it was offered; the rest is to be offered again.
#[inline]
pub(crate) fn rest_lost(taken: Taken, offered: impl FnOnce() -> usize) -> Taken {
    match taken {
        Taken::Octets(_) if is_on(Bug::RestLost) => Taken::Octets(offered()),
        taken @ (Taken::Octets(_) | Taken::WouldBlock | Taken::Lost) => taken,
    }
}
