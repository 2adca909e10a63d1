//! Groups that compare with other libraries.

use crate::catalog::Mode;
use crate::catalog::subjects::*;
use crate::machine::host::Wait;
use crate::programs::peers::{PEERS, Peer, Test};
use crate::report::size as short;
use crate::run::group::{Kind, Member};
use crate::suite::plan::{Case, KIB, MIB, Pace, Place, Planned, SMALL};
use crate::suite::results::Figure;

/// Other libraries beside all that ours can send a message with.
pub(super) fn peers(pace: Pace) -> Vec<Planned> {
    let latency = pace.sizes(&[SMALL, KIB, 4 * KIB, 32 * KIB], &[KIB]);
    let goodput = pace.sizes(&[8 * KIB, 64 * KIB, MIB], &[64 * KIB]);
    let latency = latency.iter().map(|&size| peers_at(pace, size, false));
    let goodput = goodput.iter().map(|&size| peers_at(pace, size, true));
    latency.chain(goodput).collect()
}

fn peers_at(pace: Pace, size: u64, stream: bool) -> Planned {
    let ours = [UD_SEND, UD_WRITE_RECORD, RC_SEND, RC_WRITE];
    let (mode, figure) = match stream {
        true => (Mode::Bw, Figure::Goodput),
        false => (Mode::Lat, Figure::Time),
    };
    let iters = match (stream, size) {
        (true, MIB..) => 300,
        (true, _) => 3000,
        (false, _) => 2000,
    };
    // One size lists the libraries without a test of goodput.
    let said = |peer: &Peer| stream && size == 64 * KIB && !peer.shares_memory();
    let there = PEERS.into_iter();
    let peers: Vec<Peer> = there
        .filter(|peer| peer.has(size, stream) || said(peer))
        .collect();
    let endpoints = ours.map(|subject| Member::of(subject, mode, size, Wait::Spin));
    let others = peers.iter().map(|&peer| Member {
        key: peer.name().to_owned(),
        kind: Kind::Peer {
            peer,
            test: Test {
                size,
                iters,
                stream,
            },
        },
    });
    let members = endpoints.into_iter().chain(others).collect();
    let cases = peers.iter().map(|&peer| {
        let quantity = match (peer.shares_memory(), stream) {
            (true, false) => "peers-shm",
            (true, true) => "peers-shm-goodput",
            (false, false) => "peers-latency",
            (false, true) => "peers-goodput",
        };
        let name = format!("{}, {}", peer.name(), short(size));
        Case {
            base: vec![peer.name().to_owned()],
            ..Case::new(quantity, name, &ours, &[], figure)
        }
    });
    let name = format!("peers {} {}", mode.name(), short(size));
    pace.group(Place::Lo, &name, (5, 40), members).with(cases)
}
