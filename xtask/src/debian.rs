//! The Debian packages that the tests use: which are missing, and how they come.
//!
//! A package counts as there when what the tests need of it is there (a program, a header), so that the check also
//! holds on machines that got the same thing another way.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::groups::Name;

/// Evidence that a package is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// A program of this name in PATH or one of the sbin folders.
    Program(&'static str),
    /// A file at this path.
    File(&'static str),
}

/// One Debian package and the groups of tests that use it.
#[derive(Clone, Copy, Debug)]
pub struct Package {
    /// Its name for `apt-get install`.
    pub name: &'static str,
    /// Evidence that it is installed.
    pub proof: Proof,
    /// Groups that use it.
    pub groups: &'static [Name],
}

/// Every package that some test uses. `gcc` and the C headers are needed by cargo itself.
pub const PACKAGES: &[Package] = &[
    Package {
        name: "gcc",
        proof: Proof::Program("cc"),
        groups: &[Name::Build, Name::Debian],
    },
    Package {
        name: "g++",
        proof: Proof::Program("c++"),
        groups: &[Name::Debian],
    },
    Package {
        name: "libc6-dev",
        proof: Proof::File("/usr/include/stdio.h"),
        groups: &[Name::Build, Name::Debian],
    },
    Package {
        name: "iproute2",
        proof: Proof::Program("ip"),
        groups: &[Name::Process, Name::Debian, Name::Interop],
    },
    Package {
        name: "iputils-ping",
        proof: Proof::Program("ping"),
        groups: &[Name::Process],
    },
    Package {
        name: "ethtool",
        proof: Proof::Program("ethtool"),
        groups: &[Name::Process, Name::Debian],
    },
    Package {
        name: "pkg-config",
        proof: Proof::Program("pkg-config"),
        groups: &[Name::Process, Name::Debian],
    },
    Package {
        name: "ibverbs-utils",
        proof: Proof::Program("ibv_devinfo"),
        groups: &[Name::Process, Name::Debian],
    },
    Package {
        name: "infiniband-diags",
        proof: Proof::Program("ibstatus"),
        groups: &[Name::Debian],
    },
    Package {
        name: "rdmacm-utils",
        proof: Proof::Program("rping"),
        groups: &[Name::Debian, Name::Interop],
    },
    Package {
        name: "python3-pyverbs",
        proof: Proof::File("/usr/share/doc/rdma-core/tests/run_tests.py"),
        groups: &[Name::Debian],
    },
    Package {
        name: "hpcc",
        proof: Proof::Program("hpcc"),
        groups: &[Name::Soak],
    },
    Package {
        name: "python3-mpi4py",
        proof: Proof::File("/usr/lib/python3/dist-packages/mpi4py"),
        groups: &[Name::Soak],
    },
    Package {
        name: "python3-pip",
        proof: Proof::Program("pip3"),
        groups: &[Name::Soak],
    },
    Package {
        name: "gcc-aarch64-linux-gnu",
        proof: Proof::Program("aarch64-linux-gnu-gcc"),
        groups: &[Name::Soak],
    },
    Package {
        name: "libc6-dev-arm64-cross",
        proof: Proof::File("/usr/aarch64-linux-gnu/lib/crti.o"),
        groups: &[Name::Soak],
    },
    Package {
        name: "perftest",
        proof: Proof::Program("ib_write_bw"),
        groups: &[Name::Debian],
    },
    Package {
        name: "qperf",
        proof: Proof::Program("qperf"),
        groups: &[Name::Debian],
    },
    Package {
        name: "ucx-utils",
        proof: Proof::Program("ucx_info"),
        groups: &[Name::Debian],
    },
    Package {
        name: "libucx-dev",
        proof: Proof::File("/usr/include/ucp/api/ucp.h"),
        groups: &[Name::Debian],
    },
    Package {
        name: "libfabric-bin",
        proof: Proof::Program("fi_info"),
        groups: &[Name::Debian],
    },
    Package {
        name: "libmpich-dev",
        proof: Proof::Program("mpicc.mpich"),
        groups: &[Name::Debian],
    },
    Package {
        name: "libopenmpi-dev",
        proof: Proof::Program("mpicc.openmpi"),
        groups: &[Name::Debian],
    },
    Package {
        name: "mpich",
        proof: Proof::Program("mpirun.mpich"),
        groups: &[Name::Debian],
    },
    Package {
        name: "openmpi-bin",
        proof: Proof::Program("mpirun.openmpi"),
        groups: &[Name::Debian],
    },
    Package {
        name: "libibverbs-dev",
        proof: Proof::File("/usr/include/infiniband/verbs.h"),
        groups: &[Name::Process, Name::Debian],
    },
    Package {
        name: "librdmacm-dev",
        proof: Proof::File("/usr/include/rdma/rdma_cma.h"),
        groups: &[Name::Process, Name::Debian],
    },
    Package {
        name: "man-db",
        proof: Proof::Program("man"),
        groups: &[Name::Process],
    },
    Package {
        name: "tshark",
        proof: Proof::Program("tshark"),
        groups: &[Name::Process, Name::Interop],
    },
    Package {
        name: "iperf3",
        proof: Proof::Program("iperf3"),
        groups: &[Name::Debian],
    },
    Package {
        name: "sip-tester",
        proof: Proof::Program("sipp"),
        groups: &[Name::Debian],
    },
    Package {
        name: "sockperf",
        proof: Proof::Program("sockperf"),
        groups: &[Name::Debian],
    },
    Package {
        name: "ffmpeg",
        proof: Proof::Program("ffmpeg"),
        groups: &[Name::Debian],
    },
    Package {
        name: "netcat-traditional",
        proof: Proof::Program("nc.traditional"),
        groups: &[Name::Debian],
    },
    Package {
        name: "netcat-openbsd",
        proof: Proof::Program("nc.openbsd"),
        groups: &[Name::Debian],
    },
    Package {
        name: "redis-server",
        proof: Proof::Program("redis-server"),
        groups: &[Name::Debian],
    },
    Package {
        name: "postgresql",
        proof: Proof::Program("pg_createcluster"),
        groups: &[Name::Debian],
    },
    Package {
        name: "openssh-server",
        proof: Proof::Program("sshd"),
        groups: &[Name::Debian],
    },
    Package {
        name: "openssh-client",
        proof: Proof::Program("ssh"),
        groups: &[Name::Debian],
    },
    Package {
        name: "rsync",
        proof: Proof::Program("rsync"),
        groups: &[Name::Debian],
    },
    Package {
        name: "python3",
        proof: Proof::Program("python3"),
        groups: &[Name::Debian],
    },
    Package {
        name: "python3-grpcio",
        proof: Proof::File("/usr/lib/python3/dist-packages/grpc"),
        groups: &[Name::Debian],
    },
    Package {
        name: "webfs",
        proof: Proof::Program("webfsd"),
        groups: &[Name::Debian],
    },
    Package {
        name: "curl",
        proof: Proof::Program("curl"),
        groups: &[Name::Debian],
    },
    Package {
        name: "lftp",
        proof: Proof::Program("lftp"),
        groups: &[Name::Debian],
    },
    Package {
        name: "tnftp",
        proof: Proof::Program("tnftp"),
        groups: &[Name::Debian],
    },
    Package {
        name: "vsftpd",
        proof: Proof::Program("vsftpd"),
        groups: &[Name::Debian],
    },
    Package {
        name: "python3-pyftpdlib",
        proof: Proof::File("/usr/lib/python3/dist-packages/pyftpdlib"),
        groups: &[Name::Debian],
    },
    Package {
        name: "python3-openssl",
        proof: Proof::File("/usr/lib/python3/dist-packages/OpenSSL"),
        groups: &[Name::Debian],
    },
    Package {
        name: "wget",
        proof: Proof::Program("wget"),
        groups: &[Name::Debian],
    },
    Package {
        name: "valgrind",
        proof: Proof::Program("valgrind"),
        groups: &[Name::Debian],
    },
    Package {
        name: "gzip",
        proof: Proof::Program("gzip"),
        groups: &[Name::Debian],
    },
    Package {
        name: "dash",
        proof: Proof::Program("sh"),
        groups: &[Name::Debian],
    },
    Package {
        name: "bash",
        proof: Proof::Program("bash"),
        groups: &[Name::Debian],
    },
    Package {
        name: "xz-utils",
        proof: Proof::Program("xz"),
        groups: &[Name::Interop],
    },
];

/// The packages that the given groups use and that are not there.
#[must_use]
pub fn missing(groups: &[Name]) -> Vec<&'static Package> {
    PACKAGES
        .iter()
        .filter(|package| package.groups.iter().any(|group| groups.contains(group)))
        .filter(|package| !is_there(package.proof))
        .collect()
}

fn is_there(proof: Proof) -> bool {
    match proof {
        Proof::Program(name) => find_program(name).is_some(),
        Proof::File(path) => Path::new(path).exists(),
    }
}

/// Looks for a program in PATH, then in the sbin folders, which the PATH of an ordinary user lacks.
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file())
}

/// The line that a person types to get the packages.
#[must_use]
pub fn install_line(packages: &[&Package]) -> String {
    let names: Vec<_> = packages.iter().map(|package| package.name).collect();
    format!(
        "apt-get install --no-install-recommends {}",
        names.join(" ")
    )
}

/// Makes sure that the packages of these groups are there: installs what is missing if this process is root and
/// `apt-get` exists, else prints the line to type. Never fails: tests that lack something say so themselves.
pub fn provide(groups: &[Name], may_install: bool) {
    let wanted = missing(groups);
    if wanted.is_empty() {
        return;
    }
    let line = install_line(&wanted);
    let can_install = nix::unistd::geteuid().is_root() && find_program("apt-get").is_some();
    if !(may_install && can_install) {
        println!(
            "Some tests need Debian packages that are not installed here and will be skipped. To run them too:"
        );
        println!("    {line}");
        return;
    }
    println!("Installing the Debian packages that tests need: {line}");
    let installed = apt_get(&["update"]) && {
        let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
        arguments.extend(wanted.iter().map(|package| package.name));
        apt_get(&arguments)
    };
    let left = missing(groups);
    if !installed || !left.is_empty() {
        println!("That did not work; tests that need them are skipped. To try again by hand:");
        println!(
            "    {}",
            install_line(if left.is_empty() { &wanted } else { &left })
        );
    }
}

fn apt_get(arguments: &[&str]) -> bool {
    Command::new("apt-get")
        .args(["-q", "-o", "DPkg::Lock::Timeout=120"])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_outside_path_too() {
        assert_eq!(
            find_program("sh").and_then(|path| path.file_name().map(ToOwned::to_owned)),
            Some("sh".into())
        );
        assert_eq!(find_program("no-such-program-anywhere"), None);
    }

    #[test]
    fn only_packages_of_the_chosen_groups_are_asked_for() {
        let of_unit = PACKAGES
            .iter()
            .filter(|p| p.groups.contains(&Name::Unit))
            .count();
        assert_eq!(
            of_unit, 0,
            "unit tests run on any machine that builds the project"
        );
    }

    #[test]
    fn the_line_names_every_package() {
        let all: Vec<_> = PACKAGES.iter().collect();
        let line = install_line(&all);
        for package in PACKAGES {
            assert!(line.split(' ').any(|word| word == package.name));
        }
        assert!(line.starts_with("apt-get install --no-install-recommends gcc "));
    }
}
