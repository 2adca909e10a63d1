//! Groups that compare with other libraries.

use crate::catalog::subjects::*;
use crate::catalog::{Mode, Subject};
use crate::machine::host::Wait;
use crate::programs::peers::{PEERS, Peer, Test};
use crate::report::size as short;
use crate::run::group::{Kind, Member};
use crate::suite::plan::{Case, KIB, MIB, Pace, Place, Planned, SMALL};
use crate::suite::results::Figure;

/// Other libraries beside all that ours can send a message with.
pub(super) fn peers(pace: Pace) -> Vec<Planned> {
    let latency = pace.sizes(&[SMALL, KIB, 4 * KIB, 32 * KIB], &[KIB]);
    let goodput = pace.sizes(&[8 * KIB, 64 * KIB, MIB], &[8 * KIB, 64 * KIB]);
    let latency = latency.iter().map(|&size| (size, false));
    let tests = latency.chain(goodput.iter().map(|&size| (size, true)));
    tests
        .flat_map(|(size, stream)| {
            [Way::Sockets, Way::Memory].map(|way| peers_at(pace, size, stream, way))
        })
        .collect()
}

/// The way of messages between the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Sockets,
    Memory,
}

fn peers_at(pace: Pace, size: u64, stream: bool, way: Way) -> Planned {
    let ours: &[Subject] = match way {
        Way::Sockets => &[UD_SEND, UD_WRITE_RECORD, RC_SEND, RC_WRITE],
        Way::Memory => &[UD_RING_SEND, RC_RING_SEND, RC_RING_WRITE],
    };
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
    let lists_all = stream && size == 64 * KIB && way == Way::Sockets;
    let of_this_way = |peer: &Peer| peer.shares_memory() == (way == Way::Memory);
    let there = PEERS.into_iter().filter(of_this_way);
    let peers: Vec<Peer> = there
        .filter(|peer| peer.has(size, stream) || lists_all)
        .collect();
    let endpoints = ours
        .iter()
        .map(|&subject| Member::of(subject, mode, size, Wait::Spin));
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
    let members = endpoints.chain(others).collect();
    let cases = peers.iter().map(|&peer| {
        let quantity = match (way, stream) {
            (Way::Memory, false) => "peers-shm",
            (Way::Memory, true) if size < 64 * KIB => "peers-shm-short",
            (Way::Memory, true) => "peers-shm-goodput",
            (Way::Sockets, false) => "peers-latency",
            (Way::Sockets, true) => "peers-goodput",
        };
        let name = format!("{}, {}", peer.name(), short(size));
        Case {
            base: vec![peer.name().to_owned()],
            ..Case::new(quantity, name, ours, &[], figure)
        }
    });
    let peers = match way {
        Way::Sockets => "peers",
        Way::Memory => "memory peers",
    };
    let name = format!("{peers} {} {}", mode.name(), short(size));
    pace.group(Place::Lo, &name, (5, 40), members).with(cases)
}
