//! Connections of two queue pairs of this process on the loopback interface.

use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use dgiwarp::{MpaConfig, RcListener, RcQp, ReadDepths};

/// Longer than a connection takes to come up.
const SOON: Duration = Duration::from_secs(20);

/// This many Reads and atomics outstanding in either direction.
pub(crate) const fn depths(reads: u16) -> ReadDepths {
    ReadDepths {
        ird: reads,
        ord: reads,
    }
}

/// Connects two queue pairs, the first as Initiator; the second accepts with these depths.
#[track_caller]
pub(crate) fn connect(client: &RcQp, server: &RcQp, depths: ReadDepths) {
    connect_with(client, server, &MpaConfig::default(), depths);
}

/// [`connect`] where both ends have these settings.
#[track_caller]
pub(crate) fn connect_with(client: &RcQp, server: &RcQp, mpa: &MpaConfig, depths: ReadDepths) {
    let listener = RcListener::bind((Ipv4Addr::LOCALHOST, 0).into(), mpa.clone()).unwrap();
    let address = listener.local_addr();
    thread::scope(|scope| {
        scope.spawn(|| {
            let request = listener.accept(SOON).unwrap().expect("a request");
            request.accept(server, depths, b"").unwrap();
        });
        client.connect(address, mpa, b"").unwrap();
    });
}
