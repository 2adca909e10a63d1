//! Debian packages of programs that users try first.

/// Package and the programs in it.
const PACKAGES: &[(&str, &[&str])] = &[
    (
        "ibverbs-utils",
        &[
            "ibv_asyncwatch",
            "ibv_devices",
            "ibv_devinfo",
            "ibv_rc_pingpong",
            "ibv_srq_pingpong",
            "ibv_uc_pingpong",
            "ibv_ud_pingpong",
            "ibv_xsrq_pingpong",
        ],
    ),
    (
        "rdmacm-utils",
        &[
            "cmtime",
            "mckey",
            "rcopy",
            "rdma_client",
            "rdma_server",
            "rdma_xclient",
            "rdma_xserver",
            "riostream",
            "rping",
            "rstream",
            "ucmatose",
            "udaddy",
            "udpong",
        ],
    ),
    (
        "perftest",
        &[
            "ib_atomic_bw",
            "ib_atomic_lat",
            "ib_read_bw",
            "ib_read_lat",
            "ib_send_bw",
            "ib_send_lat",
            "ib_write_bw",
            "ib_write_lat",
            "raw_ethernet_burst_lat",
            "raw_ethernet_bw",
            "raw_ethernet_fs_rate",
            "raw_ethernet_lat",
        ],
    ),
    ("qperf", &["qperf"]),
    ("fio", &["fio"]),
    ("libfabric-bin", &["fi_info", "fi_pingpong", "fi_strerror"]),
    ("ucx-utils", &["io_demo", "ucx_info", "ucx_perftest"]),
    ("mpich", &["mpiexec.mpich", "mpirun.mpich"]),
    ("openmpi-bin", &["mpiexec", "mpirun", "mpirun.openmpi"]),
    ("qemu-system-x86", &["qemu-system-x86_64"]),
    ("tgt", &["tgtd"]),
];

/// The package of a program.
pub(crate) fn package_of(program: &str) -> Option<&'static str> {
    PACKAGES
        .iter()
        .find(|(_, programs)| programs.contains(&program))
        .map(|(package, _)| *package)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn well_known_programs_have_a_package_and_only_one() {
        assert_eq!(package_of("ibv_devinfo"), Some("ibverbs-utils"));
        assert_eq!(package_of("rping"), Some("rdmacm-utils"));
        assert_eq!(package_of("no-such-program"), None);
        let mut all: Vec<&str> = PACKAGES
            .iter()
            .flat_map(|(_, programs)| programs.iter().copied())
            .collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
