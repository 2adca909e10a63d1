//! Debian's programs beyond those of rdma-core: they use the two libraries in ways of their own.

use crate::common::scene::{Family, Place, Scene};
use crate::common::session::{self, End, Finish};
use crate::common::{RUN, have};
use std::process::Command;

/// A scene, if the program is there.
fn scene(program: &str, package: &str, place: Place) -> Option<Scene> {
    have(program, program, package)
        .then(|| Scene::new(program, place))
        .flatten()
}

/// The tests of qperf connect by rdma_cm, or by LIDs that they exchange themselves.
#[test]
fn qperf() {
    const LISTENS: End = End::server("qperf -lp {port}")
        .finish(Finish::Stopped)
        .polls();
    const BY_CM: &[End] = &[
        LISTENS,
        End::client(
            "qperf -lp {port} {server} -t 1 -cm 1 rc_lat rc_bw rc_rdma_write_lat rc_rdma_read_bw",
        )
        .says(&[
            "rc_lat:",
            "rc_bw:",
            "rc_rdma_write_lat:",
            "rc_rdma_read_bw:",
        ]),
    ];
    const BY_LID: &[End] = &[
        LISTENS,
        End::client("qperf -lp {port} {server} -t 1 rc_lat uc_lat ud_lat ud_bw")
            .says(&["rc_lat:", "uc_lat:", "ud_lat:", "ud_bw:"]),
    ];
    if let Some(scene) = scene("qperf", "qperf", Place::Apart) {
        for ends in [BY_CM, BY_LID] {
            session::run(&scene, Family::V4, ends);
        }
    }
}

/// UCX, which MPI libraries use: it has a protocol of its own over UD, which also connects its RC queue pairs.
#[test]
fn ucx() {
    const OVER_UD: &[(&str, &str)] = &[("UCX_TLS", "ud_verbs"), ("UCX_NET_DEVICES", "dgiwarp0:1")];
    const OVER_RC: &[(&str, &str)] = &[
        ("UCX_TLS", "rc_verbs,ud_verbs"),
        ("UCX_NET_DEVICES", "dgiwarp0:1"),
    ];
    const SERVER: End = End::server("ucx_perftest -p {port}")
        .finish(Finish::Stopped)
        .complains(&[])
        .polls();
    const CLIENT: End = End::client("ucx_perftest {server} -p {port} -n 200").says(&["Final:"]);
    let Some(scene) = scene("ucx_perftest", "ucx-utils", Place::Apart) else {
        return;
    };
    for environment in [OVER_UD, OVER_RC] {
        let ends = [
            SERVER.environment(environment),
            CLIENT.environment(environment),
        ];
        for operation in ["tag_lat", "ucp_put_bw", "ucp_get", "ucp_fadd"] {
            session::run_with(&scene, Family::V4, &ends, &["-t", operation]);
        }
        // Over UD in messages of the active MTU, which are several segments on this path.
        let words = ["-t", "tag_bw", "-s", "65536"];
        session::run_with(&scene, Family::V4, &ends, &words);
    }
}

/// UCX's transport for connected queue pairs, without the layers that make up for what a transport lacks: it has atomics where the device reports them.
#[test]
fn ucx_atomics() {
    const SERVER: End = End::server("ucx_perftest -d dgiwarp0:1 -x rc_verbs -p {port}")
        .finish(Finish::Stopped)
        .complains(&[])
        .polls();
    const CLIENT: End =
        End::client("ucx_perftest {server} -d dgiwarp0:1 -x rc_verbs -p {port} -n 200")
            .says(&["Final:"]);
    let Some(scene) = scene("ucx_perftest", "ucx-utils", Place::Apart) else {
        return;
    };
    for operation in ["add_lat", "add_mr", "fadd", "cswap"] {
        session::run_with(
            &scene,
            Family::V4,
            &[SERVER, CLIENT],
            &["-t", operation, "-s", "8"],
        );
    }
}

/// libfabric's provider for verbs, with its own layers for reliable datagrams on both kinds of endpoints. Its server
/// takes "localhost" for its address, which here is one of the device's; so both are on this host.
#[test]
fn libfabric() {
    const SERVER: End = End::server("fi_pingpong -B {port}").polls();
    const CLIENT: End = End::client("fi_pingpong -P {port} {server}");
    // Each end takes its leave by a message, waits for its completion and the other's message, and closes: over RC the completion must not
    // be lost with the connection that the other end closes.
    const DGRAM: &[End] = &[SERVER.says(&["1k "]), CLIENT.says(&["1k "])];
    const ENDS: &[End] = &[SERVER.says(&["1m "]), CLIENT.says(&["1m "])];
    let Some(scene) = scene("fi_pingpong", "libfabric-bin", Place::Here) else {
        return;
    };
    for (provider, endpoint) in [
        ("verbs", "msg"),
        ("verbs", "dgram"),
        ("verbs;ofi_rxm", "rdm"),
        ("verbs;ofi_rxd", "rdm"),
    ] {
        let more = ["-p", provider, "-e", endpoint];
        let ends = if endpoint == "dgram" { DGRAM } else { ENDS };
        session::run_with(&scene, Family::V4, ends, &more);
    }
}

/// libfabric's provider for EFA over SRD and UD queue pairs. Between ends on one host it takes shared memory of its own, unless told not to; messages
/// of 1 MiB are Reads where the device is allowed to.
#[test]
fn libfabric_efa() {
    const SERVER: End = End::server("fi_pingpong -B {port} -p efa").polls();
    const CLIENT: End = End::client("fi_pingpong -P {port} -p efa {server}");
    const EFA: (&str, &str) = ("DGIWARP_PERSONA", "efa");
    const NO_SHM: (&str, &str) = ("FI_EFA_ENABLE_SHM_TRANSFER", "0");
    const SENDS: &[(&str, &str)] = &[EFA, NO_SHM, ("FI_EFA_USE_DEVICE_RDMA", "0")];
    const READS: &[(&str, &str)] = &[EFA, NO_SHM, ("FI_EFA_USE_DEVICE_RDMA", "1")];
    const NAME: &str = "fi_pingpong_efa";
    let there = have(NAME, "fi_pingpong", "libfabric-bin");
    let Some(scene) = there.then(|| Scene::new(NAME, Place::Here)).flatten() else {
        return;
    };
    for (environment, endpoint, last) in [
        (SENDS, "dgram", &["4k "]),
        (SENDS, "rdm", &["1m "]),
        (READS, "rdm", &["1m "]),
    ] {
        let ends = [SERVER, CLIENT].map(|end| end.says(last).environment(environment));
        session::run_with(&scene, Family::V4, &ends, &["-e", endpoint]);
    }
}

/// As another adapter the device is none for libfabric's provider.
#[test]
fn libfabric_finds_efa_by_persona_alone() {
    if !have("fi_info_efa", "fi_info", "libfabric-bin") {
        return;
    }
    for (persona, found) in [("efa", true), ("roce", false), ("iwarp", false)] {
        let output = Command::new(RUN)
            .args(["fi_info", "-p", "efa"])
            .env("DGIWARP_PERSONA", persona)
            .output()
            .unwrap();
        assert_eq!(output.status.success(), found, "{persona}: {output:?}");
    }
}
