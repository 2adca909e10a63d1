//! libefa as C programs see it, compiled with Debian's `efadv.h`.

use crate::common::{RUN, compile, scratch, succeed};
use std::process::Command;

/// Sends, Writes and Reads of two sources to one target, errors, and a killed peer.
#[test]
fn srd_queue_pairs_of_a_c_program() {
    let directory = scratch("efa");
    let source = include_str!("../c/efa.c");
    let Some(program) = compile("efa", &directory, source, &["-libverbs", "-lefa"]) else {
        return;
    };
    for (persona, argument) in [
        ("efa", "polls"),
        ("efa", "sleeps"),
        ("roce", "none"),
        ("iwarp", "none"),
    ] {
        let mut command = Command::new("timeout");
        let command = command.arg("60").arg(RUN).arg(&program).arg(argument);
        let output = succeed(command.env("DGIWARP_PERSONA", persona));
        assert_eq!(output.stdout, b"ok\n", "{persona} {argument}");
    }
}
