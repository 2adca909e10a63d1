//! Our stack on aarch64: Debian's programs between a machine that QEMU emulates whole and this one.

use std::fs;

use super::verbs::{Row, run};
use dgiwarp_conform::siw::Vm;
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
