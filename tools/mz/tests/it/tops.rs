//! `mz top` beside transfers.

use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::time::Instant;

use serde_json::Value;

use crate::common::{Listener, SOON, mz, wait};

/// Objects of one view, of this process.
fn view(pid: u32) -> Vec<Value> {
    let mut command = mz(&["top", "--once", "--json", "--interval", "0.1"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let values = text.lines().map(|line| serde_json::from_str(line).unwrap());
    values.filter(|it: &Value| it["pid"] == pid).collect()
}

/// Both ends of a stream that waits are shown, with its octets, until they end.
#[test]
fn transfers_that_run_are_shown() {
    let mut listener = Listener::of(
        mz(&["pipe", "--listen", "--quiet", "--bind", "127.0.0.1:0"]).stdout(Stdio::piped()),
    );
    let mut stream = listener.child.stdout.take().unwrap();
    let mut sender = mz(&["pipe", "--quiet", "--code", &listener.code, &listener.host])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = sender.stdin.take().unwrap();
    let mut octets = vec![7; 3 << 20];
    input.write_all(&octets).unwrap();
    stream.read_exact(&mut octets[..1 << 20]).unwrap();
    for (pid, verb) in [(listener.child.id(), "pipe"), (sender.id(), "pipe")] {
        let is_current = |shown: &[Value]| {
            let octets = shown.first().and_then(|it| it["total"].as_u64());
            octets >= Some(1 << 20)
        };
        let begun = Instant::now();
        let mut shown = view(pid);
        // The figures follow the octets.
        while !is_current(&shown) && begun.elapsed() < SOON {
            shown = view(pid);
        }
        assert_eq!(shown.len(), 1, "{shown:?}");
        assert_eq!(
            (&shown[0]["program"], &shown[0]["verb"]),
            (&"mz".into(), &verb.into())
        );
        assert!(is_current(&shown), "{shown:?}");
    }
    let output = mz(&["top", "--interval", "0.1"]).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains(&format!("{} ", sender.id())), "{shown}");
    drop(input);
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert_eq!(rest.len(), 2 << 20);
    assert!(wait(&mut sender).success());
    assert!(listener.ended().0.success());
    assert!(view(sender.id()).is_empty());
}
