//! No thread of a program can be cancelled inside the library, where it may hold locks: each system call on its way is made with cancellation disabled. A
//! preloaded library watches the cancellation points of random programs.

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::thread;

use crate::common::each::{compiled, gids, prints_ok};
use crate::common::{RUN, compile, scratch};

const WAYS: [&[(&str, &str)]; 3] = [
    &[("DGIWARP_SAME_HOST", "off")],
    &[
        ("DGIWARP_SAME_HOST", "ring"),
        ("DGIWARP_SAME_HOST_AFTER", "0"),
    ],
    &[("DGIWARP_SAME_HOST", "auto")],
];

#[test]
fn threads_are_not_cancelled_inside_the_library() {
    let arguments = ["-Wall", "-shared", "-fPIC", "-ldl"];
    let source = include_str!("../c/cancellation.c");
    let name = "cancellation";
    let Some(watch) = compile(name, &scratch(name), source, &arguments) else {
        return;
    };
    let programs = [
        ("random", include_str!("../c/random.c"), &["7", "6"][..]),
        ("burst", include_str!("../c/burst.c"), &[]),
        ("events", include_str!("../c/events.c"), &[]),
    ]
    .map(|(name, source, arguments)| {
        let name = format!("cancellation_{name}");
        (compiled(&name, source).unwrap(), arguments)
    });
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let gids = gids();
    let index = gids.iter().find(|(_, gid)| gid.address == loopback);
    let index = index.unwrap().0.to_string();
    thread::scope(|scope| {
        for way in WAYS {
            let (watch, programs, index) = (&watch, &programs, &index);
            scope.spawn(move || {
                for (program, arguments) in programs {
                    let mut command = Command::new("timeout");
                    command.args(["120", RUN]).arg(program).arg(index);
                    command.args(*arguments).env("LD_PRELOAD", watch);
                    command.env("DGIWARP_PERSONA", "roce");
                    command.envs(way.iter().copied());
                    prints_ok(&mut command);
                }
            });
        }
    });
}
