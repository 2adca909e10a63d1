//! Our stack on aarch64, in a machine that QEMU emulates whole: Debian's programs between it and this one, and unit tests.

use std::fs;
use std::time::Duration;

use super::verbs::{Row, run};
use dgiwarp_conform::siw::Vm;
use xtask::clock;
use xtask::workspace::cross::{self, AARCH64};

/// Debian's programs load our libraries.
const BEFORE: &str = "export LD_LIBRARY_PATH=$OUT/dgiwarp; ";

const PROGRAMS: [Row; 4] = [
    Row {
        server: "rping -s -a {peer} -p {port} -C 20 -V -v",
        client: "rping -c -a {peer} -p {port} -C 20 -V -v",
        says: "ping data: rdma-ping-",
        times: 20,
        client_begins: true,
        we_connect: true,
    },
    Row {
        server: "rping -s -a {peer} -p {port} -C 20 -V -v -S 65535",
        client: "rping -c -a {peer} -p {port} -C 20 -V -v -S 65535",
        says: "ping data: rdma-ping-",
        times: 20,
        client_begins: true,
        we_connect: true,
    },
    Row {
        server: "ibv_rc_pingpong -p {port} -n 100 -c",
        client: "ibv_rc_pingpong -p {port} -n 100 -c {peer}",
        says: "100 iters in",
        times: 1,
        client_begins: true,
        we_connect: true,
    },
    Row {
        server: "ibv_ud_pingpong -p {port} -n 100",
        client: "ibv_ud_pingpong -p {port} -n 100 {peer}",
        says: "100 iters in",
        times: 1,
        client_begins: true,
        we_connect: true,
    },
];

/// Debian's programs on our libraries, either machine as server.
pub(crate) fn programs() {
    let tmp = env!("CARGO_TARGET_TMPDIR");
    let libraries = ["build", "--all-features", "-p", "dgiwarp-verbs-library"];
    let output = cross::cargo(AARCH64, tmp, &libraries).unwrap();
    assert!(output.status.success(), "{output:?}");
    let built = cross::folder(tmp).join(AARCH64).join("debug/dgiwarp");
    let out = tempfile::tempdir().unwrap();
    fs::create_dir(out.path().join("dgiwarp")).unwrap();
    for library in ["libibverbs.so.1", "librdmacm.so.1"] {
        let to = out.path().join("dgiwarp").join(library);
        fs::copy(built.join(library), to).unwrap();
    }
    let vm = Vm::boot_aarch64(out.path()).unwrap();
    for row in &PROGRAMS {
        super::part(row.client, || run(&vm, row, "roce", BEFORE));
    }
}

/// Libraries whose unit tests run there: all that are in the programs that users run, but for command lines and the conformance tester.
const LIBRARIES: [&str; 13] = [
    "dgiwarp-codec",
    "dgiwarp-memory",
    "dgiwarp-ddp",
    "dgiwarp-rdmap",
    "dgiwarp-llp-udp",
    "dgiwarp-llp-tcp-mpa",
    "dgiwarp-sim",
    "dgiwarp-sockets",
    "dgiwarp-engine",
    "dgiwarp",
    "dgiwarp-verbs",
    "dgiwarp-ripc",
    "dgiwarp-transfer",
];

/// Longest run of the unit tests of one library.
const UNITS: Duration = Duration::from_secs(1500);

/// One seed of each simulation of datagrams: five million segments take more than 25 minutes there.
const SEED: &str = "DGIWARP_SIM_SEED=3000000";

/// Unit tests, among them the models of `loom`. `DGIWARP_AARCH64_UNITS=NAME,NAME` chooses libraries, by their names in Rust.
pub(crate) fn units() {
    let selection: Vec<_> = LIBRARIES.iter().flat_map(|it| ["-p", it]).collect();
    let tests = cross::unit_tests(AARCH64, env!("CARGO_TARGET_TMPDIR"), &selection).unwrap();
    assert_eq!(tests.len(), LIBRARIES.len(), "{tests:?}");
    let chosen = std::env::var("DGIWARP_AARCH64_UNITS").unwrap_or_default();
    let out = tempfile::tempdir().unwrap();
    let vm = Vm::boot_aarch64(out.path()).unwrap();
    let mut failed = Vec::new();
    for (name, program) in tests {
        if !chosen.is_empty() && !chosen.split(',').any(|it| it == name) {
            continue;
        }
        fs::copy(program, out.path().join(&name)).unwrap();
        let began = clock::now();
        let output = vm.run(&format!("cd /tmp && {SEED} $OUT/{name} 2>&1"), UNITS);
        let output = output.unwrap();
        let result = output.stdout.lines().rfind(|it| it.contains("test result"));
        println!(
            "{name}: {} in {} s",
            result.unwrap_or("no result"),
            began.elapsed().as_secs()
        );
        if !output.status.success() {
            println!("{}\n{}", output.stdout, output.stderr);
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}
