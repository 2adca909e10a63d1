//! The conformance tester against siw, with its agent in the guest: nothing is found that the profile does not know.

use std::process::{Command, Stdio};

use dgiwarp_conform::siw::{GUEST_IP, Vm};

use super::LIMIT;

/// How long the whole run takes at most, on an emulated processor.
const RUN: core::time::Duration = core::time::Duration::from_secs(300);

/// Some families only: the others say the same of it, and take their time. The whole is in `conformance/reports`.
pub(crate) fn completes(vm: &Vm) {
    let mut agent = vm
        .spawn("conform-agent -1 -a $GUEST_IP", RUN + LIMIT)
        .unwrap();
    // It says its port first, then the token.
    let said = agent.take_until("token ").unwrap();
    let mut lines = said.lines().filter_map(|line| line.split_once(' '));
    let mut word = |key| {
        lines
            .find(|(name, _)| *name == key)
            .unwrap()
            .1
            .trim()
            .to_owned()
    };
    let (port, token) = (word("port"), word("token"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_dgiwarp-conform"));
    command
        .args([
            "run",
            "--profile",
            "siw",
            "--patience",
            "30",
            "--token",
            &token,
        ])
        .args(["--family", "tagged,untagged,rdmap"])
        .args(["--agent", &format!("{GUEST_IP}:{port}")])
        .stdin(Stdio::null());
    let output = vm.in_network(|| command.output()).unwrap().unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{report}{output:?}");
    // The known deviation of siw is found: it has layer and type of a Terminate in each other's place.
    assert!(report.contains("R05 expected"), "{report}");
}
