//! MPI: Debian's MPICH and Open MPI, unmodified, over UCX's and libfabric's transports for verbs. The program (`tests/c/mpi`) checks the content of
//! messages, and the results of collectives and of one-sided communication.

use crate::common::{RUN, have};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tempfile::TempDir;
use xtask::lab::relay::{Config as Relay, LinkConfig, Loss};
use xtask::lab::{Config, INTERFACE, Lab, Link, Side};
use xtask::skips;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Library {
    Mpich,
    OpenMpi,
}

use Library::{Mpich, OpenMpi};

impl Library {
    const fn word(self) -> &'static str {
        match self {
            Mpich => "mpich",
            OpenMpi => "openmpi",
        }
    }

    /// Debian's packages of programs and headers.
    const fn packages(self) -> [&'static str; 2] {
        match self {
            Mpich => ["mpich", "libmpich-dev"],
            OpenMpi => ["openmpi-bin", "libopenmpi-dev"],
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    /// UCX over RC queue pairs, which it connects by UD.
    Rc,
    /// UCX over UD queue pairs.
    Ud,
    /// libfabric's reliable datagrams over RC queue pairs.
    Rxm,
}

use Transport::{Rc, Rxm, Ud};

impl Transport {
    /// Values of `UCX_TLS`; libfabric has none.
    const fn ucx(self) -> Option<&'static str> {
        match self {
            Rc => Some("rc_verbs,ud_verbs,self"),
            Ud => Some("ud_verbs,self"),
            Rxm => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// All ranks on this host.
    Here,
    /// Half of the ranks at either end of a virtual cable of MTU 1500.
    Apart,
    /// Likewise with a long path that loses packets, and RC queue pairs on reliable datagrams.
    Far,
}

use Place::{Apart, Far, Here};

/// A round trip of 20 ms, and 1 % of loss.
fn far() -> Config {
    let link = LinkConfig {
        delay: Duration::from_millis(10),
        loss: Loss::Independent(0.01),
        ..LinkConfig::default()
    };
    Config {
        link: Link::Relay(Relay::both(link, 7)),
        ..Config::default()
    }
}

/// One job.
#[derive(Clone, Copy, Debug)]
struct Row {
    library: Library,
    transport: Transport,
    ranks: usize,
    place: Place,
    /// `DGIWARP_FAULT`, where the transport is of datagrams.
    fault: &'static str,
    /// Longest message in octets.
    longest: usize,
    parts: &'static [&'static str],
}

const ALL: &[&str] = &[
    "point",
    "collectives",
    "nonblocking",
    "windows",
    "communicators",
];
/// For Open MPI on RC queue pairs: see the program.
const FLUSHED: &[&str] = &[
    "point",
    "collectives",
    "nonblocking",
    "windows-flushed",
    "communicators",
];
const THREADS: &[&str] = &["point", "collectives", "communicators", "threads"];
const NO_FAULT: &str = "";
const LOSS: &str = "drop=0.01,seed=3";

const fn row(
    library: Library,
    transport: Transport,
    ranks: usize,
    place: Place,
    fault: &'static str,
    longest: usize,
    parts: &'static [&'static str],
) -> Row {
    Row {
        library,
        transport,
        ranks,
        place,
        fault,
        longest,
        parts,
    }
}

const MIB: usize = 1 << 20;

/// With every change.
#[rustfmt::skip]
const QUICK: &[Row] = &[
    row(Mpich, Rc, 2, Apart, NO_FAULT, 16 * MIB, ALL),
    row(Mpich, Ud, 4, Here, NO_FAULT, MIB, ALL),
    row(OpenMpi, Rc, 4, Here, NO_FAULT, MIB, FLUSHED),
    row(OpenMpi, Ud, 2, Apart, NO_FAULT, 16 * MIB, ALL),
    row(OpenMpi, Ud, 2, Here, LOSS, 5000, ALL),
    row(OpenMpi, Rxm, 2, Apart, NO_FAULT, 16 * MIB, ALL),
    row(Mpich, Rc, 2, Far, NO_FAULT, 5000, &["collectives"]),
];

/// Of long runs: with every number of ranks.
#[rustfmt::skip]
const LONG: &[Row] = &[
    row(Mpich, Rc, 0, Here, NO_FAULT, 16 * MIB, ALL),
    row(Mpich, Rc, 0, Apart, NO_FAULT, 16 * MIB, ALL),
    row(Mpich, Ud, 0, Here, NO_FAULT, 16 * MIB, ALL),
    row(Mpich, Ud, 0, Apart, NO_FAULT, 16 * MIB, ALL),
    row(Mpich, Ud, 0, Apart, LOSS, MIB, ALL),
    row(Mpich, Rc, 0, Here, LOSS, MIB, ALL),
    row(Mpich, Rc, 0, Here, NO_FAULT, MIB, THREADS),
    row(Mpich, Ud, 0, Here, NO_FAULT, MIB, THREADS),
    row(OpenMpi, Rc, 0, Here, NO_FAULT, 16 * MIB, FLUSHED),
    row(OpenMpi, Rc, 0, Apart, NO_FAULT, 16 * MIB, FLUSHED),
    row(OpenMpi, Ud, 0, Here, NO_FAULT, 16 * MIB, ALL),
    row(OpenMpi, Ud, 0, Apart, NO_FAULT, 16 * MIB, ALL),
    row(OpenMpi, Ud, 0, Here, LOSS, MIB, ALL),
    row(OpenMpi, Rc, 0, Here, NO_FAULT, MIB, THREADS),
    row(OpenMpi, Ud, 0, Here, NO_FAULT, MIB, THREADS),
    row(OpenMpi, Rxm, 0, Here, NO_FAULT, 16 * MIB, ALL),
    row(OpenMpi, Rxm, 0, Apart, NO_FAULT, 16 * MIB, ALL),
];

/// One job at a time: their ranks poll.
static CORES: Mutex<()> = Mutex::new(());

/// Where jobs run: folder of compiled program and of the library's own files, and the network of those that are apart.
#[derive(Debug)]
struct Stage {
    library: Library,
    folder: TempDir,
    lab: Option<Lab>,
    /// The network of jobs that are far apart.
    far: Option<Lab>,
}

impl Stage {
    /// `None` skips the test.
    fn new(library: Library) -> Option<Self> {
        let word = library.word();
        let [programs, headers] = library.packages();
        let test = format!("mpi {word}");
        if !have(&test, &format!("mpirun.{word}"), programs)
            || !have(&test, &format!("mpicc.{word}"), headers)
        {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let lab = skips::made(&test, Lab::new(&Config::default()));
        let far = skips::made(&test, Lab::new(&far()));
        let stage = Self {
            library,
            folder,
            lab,
            far,
        };
        Some(stage)
    }

    /// The network of a job; `None` where there is none, or the job needs none.
    fn lab(&self, place: Place) -> Option<&Lab> {
        match place {
            Here => None,
            Apart => self.lab.as_ref(),
            Far => self.far.as_ref(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Compiles the program that checks everything.
    fn compile(&self) -> PathBuf {
        let sources = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/mpi"));
        let mut files: Vec<_> = sources
            .read_dir()
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|kind| kind == "c"))
            .collect();
        files.sort();
        let program = self.path("checks");
        let output = Command::new(format!("mpicc.{}", self.library.word()))
            .args(["-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra"])
            // The compiler takes MPICH's `MPI_STATUSES_IGNORE` for an array.
            .args(["-Werror", "-Wno-stringop-overflow", "-pthread", "-o"])
            .arg(&program)
            .args(files)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        program
    }

    /// Stands in for ssh: starts a command in the namespace that has the address.
    fn write_launcher(&self, lab: &Lab) {
        let holder = |side| lab.namespace(side).holder();
        let script = format!(
            "#!/bin/sh\nwhile case $1 in -*) ;; *) false ;; esac; do shift; done\n\
             case $1 in {}) holder={} ;; *) holder={} ;; esac\nshift\n\
             exec nsenter --net=/proc/$holder/ns/net -- sh -c \"$*\"\n",
            Side::Server.address(),
            holder(Side::Server),
            holder(Side::Client),
        );
        let path = self.path("launcher");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    }

    /// The library's starter with its options, ready for a program, in this many seconds at most; `None` without a network for it.
    fn command(&self, row: &Row, seconds: u32) -> Option<Command> {
        let mut command = match row.place {
            Here => Command::new("timeout"),
            Apart | Far => {
                let lab = self.lab(row.place)?;
                self.write_launcher(lab);
                lab.namespace(Side::Server).command("timeout")
            }
        };
        let [server, client] = [Side::Server, Side::Client].map(|side| side.address().to_string());
        let (launcher, ranks) = (self.path("launcher"), row.ranks.to_string());
        command
            .args(["-k", "10", &seconds.to_string(), RUN])
            .arg(format!("mpirun.{}", self.library.word()))
            .env("DGIWARP_FAULT", row.fault)
            .current_dir(self.folder.path());
        if row.place == Far {
            command.env("DGIWARP_RC", "rd");
        }
        if let Some(transports) = row.transport.ucx() {
            command
                .env("UCX_TLS", transports)
                .env("UCX_NET_DEVICES", "dgiwarp0:1")
                .env("UCX_WARN_UNUSED_ENV_VARS", "n");
        }
        match self.library {
            Mpich => {
                // Shared memory and other networks are for comparisons.
                command.env("MPIR_CVAR_NOLOCAL", "1");
                command.env("MPIR_CVAR_POLLS_BEFORE_YIELD", "100");
                // MPICH 4.0 takes pieces that end within an element for truncated messages, and UCX's have 8,255 octets.
                command.env("UCX_RC_VERBS_SEG_SIZE", "8257");
                if row.place != Here {
                    command.args(["-iface", INTERFACE, "-launcher", "ssh", "-launcher-exec"]);
                    command.arg(launcher);
                    command.args(["-hosts", &format!("{server},{client}")]);
                }
                command.args(["-n", &ranks]);
            }
            OpenMpi => {
                // As root, in containers, and with more ranks than cores.
                command.env("OMPI_ALLOW_RUN_AS_ROOT", "1");
                command.env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
                command.env("OMPI_MCA_mpi_yield_when_idle", "1");
                command.env("OMPI_MCA_orte_tmpdir_base", self.folder.path());
                command.args(["--oversubscribe", "--bind-to", "none", "-n", &ranks]);
                if row.place != Here {
                    let half = row.ranks.div_ceil(2);
                    command.args(["--mca", "plm_rsh_agent"]).arg(launcher);
                    command.args(["--host", &format!("{server}:{half},{client}:{half}")]);
                }
                let modules = match row.transport {
                    Rc | Ud => [("pml", "ucx"), ("osc", "ucx"), ("btl", "self")].as_slice(),
                    Rxm => &[
                        ("pml", "cm"),
                        ("mtl", "ofi"),
                        ("osc", "pt2pt"),
                        ("btl", "self"),
                        ("mtl_ofi_provider_include", "verbs;ofi_rxm"),
                    ],
                };
                for (kind, name) in modules {
                    command.args(["--mca", kind, name]);
                }
            }
        }
        Some(command)
    }

    fn run(&self, row: &Row, program: &Path) {
        let Some(mut command) = self.command(row, 600) else {
            return;
        };
        command
            .arg(program)
            .arg(row.longest.to_string())
            .args(row.parts);
        let output = command.output().unwrap();
        let (stdout, stderr) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        let passed = output.status.success()
            && stdout.contains(&format!("checks on {} ranks", row.ranks))
            && row
                .parts
                .iter()
                .all(|part| stdout.contains(&format!("part {part} passed")));
        assert!(
            passed,
            "{row:?}: {}\n{command:?}\n{stdout}{stderr}",
            output.status
        );
    }
}

/// Runs the jobs of a library one after the other.
fn run(library: Library, rows: impl IntoIterator<Item = Row>) {
    let _alone = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(stage) = Stage::new(library) else {
        return;
    };
    let program = stage.compile();
    for row in rows.into_iter().filter(|row| row.library == library) {
        stage.run(&row, &program);
    }
}

#[test]
fn mpich() {
    run(Mpich, QUICK.iter().copied());
}

#[test]
fn openmpi() {
    run(OpenMpi, QUICK.iter().copied());
}

fn every_number_of_ranks() -> impl Iterator<Item = Row> {
    LONG.iter()
        .flat_map(|row| [2, 3, 4, 8].map(|ranks| Row { ranks, ..*row }))
}

#[test]
#[ignore = "five minutes"]
fn soak_mpich() {
    run(Mpich, every_number_of_ranks());
}

#[test]
#[ignore = "five minutes"]
fn soak_openmpi() {
    run(OpenMpi, every_number_of_ranks());
}

/// The HPC Challenge checks its own results: residuals of linear systems, transposed matrices, random updates, Fourier transforms.
#[test]
#[ignore = "five minutes"]
fn soak_hpcc() {
    let test = "soak_hpcc";
    if !have(test, "hpcc", "hpcc") {
        return;
    }
    let _alone = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(stage) = Stage::new(OpenMpi) else {
        return;
    };
    for transport in [Rc, Ud, Rxm] {
        for (ranks, place) in [(2, Here), (2, Apart), (4, Here)] {
            let row = row(OpenMpi, transport, ranks, place, NO_FAULT, 0, &[]);
            // HPL's and PTRANS' matrices, and their process grid.
            let example = fs::read_to_string("/usr/share/doc/hpcc/examples/_hpccinf.txt").unwrap();
            let input = example
                .replace("1000         Ns", "400 Ns")
                .replace("2            Ps", &format!("{} Ps", ranks / 2))
                .replace("1200 10000 30000", "400 800 1200");
            fs::write(stage.path("hpccinf.txt"), input).unwrap();
            let _ = fs::remove_file(stage.path("hpccoutf.txt"));
            let Some(mut command) = stage.command(&row, 600) else {
                return;
            };
            let output = command.arg("hpcc").output().unwrap();
            let results = fs::read_to_string(stage.path("hpccoutf.txt")).unwrap_or_default();
            let has = |line: &str| results.lines().any(|it| it.trim() == line);
            let passed = output.status.success()
                && has("Success=1")
                && has("0 tests completed and failed residual checks.")
                && has("MPIRandomAccess_Errors=0")
                && has("MPIRandomAccess_LCG_Errors=0")
                && !results.contains("FAILED");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(passed, "{row:?}: {}\n{said}\n{results}", output.status);
        }
    }
}

/// mpi4py's own tests, but for those that the page of the book names: they fail without dgiwarp too, or ask UCX for an order that it does not give.
#[test]
#[ignore = "three minutes"]
fn soak_mpi4py() {
    const PACKAGE: &str = "/usr/lib/python3/dist-packages/mpi4py";
    const WITHOUT: [&str; 3] = ["test_win", "test_spawn", "test_dynproc"];
    const UNORDERED: &str = "testGetAccumulate";
    let test = "soak_mpi4py";
    if !have(test, "pip3", "python3-pip") {
        return;
    }
    if !Path::new(PACKAGE).is_dir() {
        return skips::skip(test, "mpi4py is missing (Debian package python3-mpi4py)");
    }
    let _alone = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(stage) = Stage::new(OpenMpi) else {
        return;
    };
    let in_stage = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        let status = command
            .args(arguments)
            .current_dir(stage.folder.path())
            .status();
        assert!(status.is_ok_and(|it| it.success()), "{command:?}");
    };
    // Debian's package has no tests; they are in the sources of its release.
    let download = ["-m", "pip", "download", "--quiet", "--no-deps"];
    let release = ["--no-binary=:all:", "mpi4py==3.1.4"];
    in_stage("/usr/bin/python3", &[&download[..], &release].concat());
    in_stage("tar", &["-xf", "mpi4py-3.1.4.tar.gz"]);
    for transport in [Rc, Ud] {
        for ranks in [1, 2] {
            let row = row(OpenMpi, transport, ranks, Here, NO_FAULT, 0, &[]);
            let Some(mut command) = stage.command(&row, 900) else {
                return;
            };
            command.args(["/usr/bin/python3", "mpi4py-3.1.4/test/runtests.py"]);
            command.args(["--no-builddir", "--verbose"]);
            for name in WITHOUT {
                command.args(["--exclude", name]);
            }
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            let wrong = |line: &&str| {
                (line.starts_with("FAIL: ") || line.starts_with("ERROR: "))
                    && !(transport == Ud && line.contains(UNORDERED))
            };
            let ran = said.lines().filter(|line| line.starts_with("Ran "));
            let ended = ran.count() == ranks && said.lines().filter(wrong).count() == 0;
            assert!(ended, "{row:?}: {}\n{said}", output.status);
        }
    }
}
