//! Programs that may have little of something: no memory, not every system call. Each call ends soon, with an error that names the reason.

use crate::common::linked::linked;
use crate::common::succeed;
use std::process::Command;

/// Objects of every kind, growing, until memory is exhausted; then all others beside them.
#[test]
fn memory_runs_out() {
    const KINDS: [&str; 13] = [
        "cq", "rc", "uc", "ud", "srq", "ah", "pd", "mr", "mw", "channel", "id", "recv", "srq_recv",
    ];
    /// Memory beyond that of the program with its device, KiB.
    const LEFT: &str = "6144";
    let Some((_directory, program)) = linked("memory_limit", include_str!("../c/memory_limit.c"))
    else {
        return;
    };
    for kind in KINDS {
        let output = succeed(Command::new(&program).args([kind, LEFT]));
        let said = String::from_utf8_lossy(&output.stdout);
        // Descriptors may be exhausted first where each object has some.
        let by_memory = said.ends_with("ENOMEM\n") || ["channel", "ud", "uc", "rc"].contains(&kind);
        assert!(by_memory, "{kind}: {said}");
    }
}

/// Output of a program below a seccomp filter.
fn denied(name: &str, calls: &str, tried: &str) -> Option<String> {
    let (_directory, program) = linked(name, include_str!("../c/denied.c"))?;
    // A queue pair on reliable datagrams has no listener.
    let mut command = Command::new(&program);
    let output = succeed(command.env("DGIWARP_RC", "tcp").args([calls, tried]));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Memory is registered however little of the memory map can be seen, and refused as far as it can be seen.
#[test]
fn memory_is_registered_without_proc_and_mincore() {
    let name = "memory_is_registered_without_proc_and_mincore";
    let refused = ["Bad address", "Cannot allocate memory"];
    for (calls, [constant, hole]) in [
        ("mincore", refused),
        ("openat", refused),
        ("openat,mincore", refused),
        ("openat,madvise", ["made", refused[1]]),
        ("openat,madvise,mincore", ["made", "made"]),
    ] {
        let Some(said) = denied(name, calls, "memory") else {
            return;
        };
        let expected = format!("good: made\nread-only: made\nconstant: {constant}\nhole: {hole}\n");
        assert_eq!(said, expected, "{calls}");
    }
}

/// A listener that could not accept, and work in the background without a thread for it, are refused when they are made.
#[test]
fn denied_system_calls_are_errors_and_no_program_waits() {
    let name = "denied_system_calls_are_errors_and_no_program_waits";
    for calls in ["accept4", "clone,clone3"] {
        let Some(said) = denied(name, calls, "connections") else {
            return;
        };
        let expected = "connected queue pair: Operation not permitted\n\
                        datagram queue pair: made\n\
                        listener: Operation not permitted\n";
        assert_eq!(said, expected, "{calls}");
    }
}

#[test]
fn closed_descriptors_end_the_background_thread() {
    let name = "closed_descriptors_end_the_background_thread";
    let Some((_directory, program)) = linked(name, include_str!("../c/closed.c")) else {
        return;
    };
    let output = succeed(&mut Command::new(&program));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "quiet\n");
}
