//! Against the Linux kernel's siw, in one VM.

#![expect(clippy::unwrap_used, reason = "what the VM cannot do fails the test")]

use core::time::Duration;
use dgiwarp_conform::siw::{self, Vm};

const LIMIT: Duration = Duration::from_secs(30);

/// The harness itself: siw talks to siw, and statuses and output come through.
fn harness(vm: &Vm) {
    let pair = r#"pair 7174 "rping -s -a $GUEST_IP -C 3" "rping -c -a $GUEST_IP -C 3 -v""#;
    let output = vm.run(pair, LIMIT).unwrap();
    let pings = output
        .stdout
        .lines()
        .filter(|line| line.starts_with("ping data"))
        .count();
    assert_eq!((output.status.code(), pings), (Some(0), 3), "{output:?}");
    let output = vm.run("echo out; echo err >&2; exit 7", LIMIT).unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!((output.stdout.trim(), output.stderr.trim()), ("out", "err"));
    drop(vm.spawn("sleep 100", Duration::from_secs(200)).unwrap());
    let output = vm.run("ps | grep -c '[s]leep 100'", LIMIT).unwrap();
    assert_eq!(
        output.stdout.trim(),
        "0",
        "a dropped command is ended in the guest"
    );
}

#[test]
fn siw() {
    if let Some(reason) = siw::obstacle() {
        return xtask::skips::skip("siw", reason);
    }
    let vm = Vm::boot(&[]).unwrap();
    harness(&vm);
}
