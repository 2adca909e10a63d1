//! The groups of `cargo xtask test`, the checks of the build, and the group of each test.
//!
//! Unit tests of every package run in `unit`. Integration tests of a package are one program, `tests/it/main.rs`, and each
//! of its modules runs as a process of its own: in `process`, unless a line of [`PLACES`] names another group.

use std::time::Duration;

/// The groups, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Name {
    /// Formatting, lints, documentation, and everything compiled.
    Build,
    /// Unit and property tests, and the tidy test: no process, no socket to another program.
    Unit,
    /// Integration tests that start programs and sockets.
    Process,
    /// Debian's unmodified verbs programs.
    Debian,
    /// The Linux kernel's iWARP in a virtual machine.
    Interop,
    /// Long runs: every test whose name starts with `soak_`.
    Soak,
}

/// One group.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Its name.
    pub name: Name,
    /// Its name on the command line.
    pub word: &'static str,
    /// One line for `--help` and the report.
    pub about: &'static str,
    /// How long it may take on two cores; longer is reported, twice as long in one test program is a failure.
    pub budget: Duration,
}

const fn minutes(n: u64) -> Duration {
    Duration::from_secs(60 * n)
}

/// All groups, in order.
pub const GROUPS: [Group; 6] = [
    Group {
        name: Name::Build,
        word: "build",
        about: "formatting, lints, documentation, everything compiled",
        budget: minutes(5),
    },
    Group {
        name: Name::Unit,
        word: "unit",
        about: "unit, property and documentation tests, tidiness of the sources",
        budget: minutes(4),
    },
    Group {
        name: Name::Process,
        word: "process",
        about: "real processes and sockets",
        budget: minutes(4),
    },
    Group {
        name: Name::Debian,
        word: "debian",
        about: "Debian's unmodified verbs programs",
        budget: minutes(4),
    },
    Group {
        name: Name::Interop,
        word: "interop",
        about: "the Linux kernel's iWARP in a virtual machine",
        budget: minutes(3),
    },
    Group {
        name: Name::Soak,
        word: "soak",
        about: "long runs, only with --soak",
        budget: minutes(120),
    },
];

/// Source of the integration test targets that are split into their modules.
pub const SPLIT: &str = "tests/it/main.rs";

/// The one integration test target with unit tests among its modules.
pub const UNIT_TARGET: (&str, &str) = ("xtask", "tasks");

/// Integration tests that run elsewhere than in `process`: package, module of [`SPLIT`] or another target, group.
pub const PLACES: &[(&str, &str, Name)] = &[
    ("xtask", "tidy", Name::Unit),
    ("dgiwarp-run", "debian", Name::Debian),
    ("dgiwarp-run", "direct", Name::Debian),
    ("dgiwarp-run", "efa", Name::Debian),
    ("dgiwarp-run", "pyverbs", Name::Debian),
    ("dgiwarp-run", "rdmacm", Name::Debian),
    ("dgiwarp-run", "errors", Name::Debian),
    ("dgiwarp-run", "linking", Name::Debian),
    ("dgiwarp-run", "mpi", Name::Debian),
    ("dgiwarp-run", "others", Name::Debian),
    ("dgiwarp-run", "paths", Name::Debian),
    ("dgiwarp-run", "perftest", Name::Debian),
    ("dgiwarp-run", "ports", Name::Debian),
    ("dgiwarp-run", "rdmacm_ud", Name::Debian),
    ("dgiwarp-run", "rsocket", Name::Debian),
    ("dgiwarp-run", "rsocket_peers", Name::Debian),
    ("dgiwarp-run", "sockets", Name::Debian),
    ("dgiwarp-run", "sockets_children", Name::Debian),
    ("dgiwarp-run", "sockets_ss", Name::Debian),
    ("dgiwarp-run", "sockets_udp", Name::Debian),
    ("dgiwarp-run", "sanitizers", Name::Debian),
    ("dgiwarp-run", "traffic", Name::Debian),
    ("dgiwarp-run", "valgrind", Name::Debian),
    ("dgiwarp-perf", "programs", Name::Debian),
    ("dgiwarp-ripc-tool", "grpc", Name::Debian),
    ("dgiwarp-rftp", "ftp_clients", Name::Debian),
    ("dgiwarp-rftp", "ftp_servers", Name::Debian),
    ("dgiwarp-fuzz-targets", "seeded", Name::Debian),
    ("dgiwarp-conform", "device", Name::Debian),
    ("dgiwarp-conform", "laboratory", Name::Debian),
    ("dgiwarp-conform", "mutant_rules", Name::Unit),
    ("dgiwarp-conform", "mutants", Name::Debian),
    ("dgiwarp-conform", "siw", Name::Interop),
    ("dgiwarp-conform", "tshark", Name::Interop),
];

/// Integration tests beside which nothing else runs: package, and module of [`SPLIT`] or another target.
pub const ALONE: &[(&str, &str)] = &[
    // Compare speeds.
    ("dgiwarp", "hostility"),
    ("dgiwarp", "read_floods"),
    ("dgiwarp", "fairness"),
    // Measures.
    ("dgiwarp-perf", "binary"),
    // Compile, on all processors.
    ("xtask", "dist"),
    ("dgiwarp-conform", "mutants"),
];

/// Integration tests that wait nearly all of their time, for silence most of all: package, and module of [`SPLIT`]. They begin first, all at once,
/// and run beside the programs of every group but `unit` that are not [`ALONE`].
pub const WAITING: &[(&str, &str)] = &[
    ("dgiwarp-conform", "device"),
    ("dgiwarp-conform", "misbehaving"),
    ("dgiwarp-run", "lives"),
];

/// Integration tests that would otherwise end long after the others of their group. They begin first there.
pub const LONG: &[(&str, &str)] = &[("dgiwarp", "rc_lost"), ("dgiwarp-run", "perftest")];

/// One cargo command of the `build` group.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Subject of the group, for the report.
    pub name: &'static str,
    /// Arguments of cargo.
    pub arguments: &'static [&'static str],
    /// One environment variable, if it needs one.
    pub environment: Option<(&'static str, &'static str)>,
}

/// The checks of the `build` group, in order. The tests themselves are compiled after them, in the same group.
pub const BUILD_CHECKS: &[Check] = &[
    Check {
        name: "formatting",
        arguments: &["fmt", "--all", "--check"],
        environment: None,
    },
    Check {
        name: "lints",
        arguments: &[
            "clippy",
            "--workspace",
            "--all-features",
            "--all-targets",
            "--",
            "--deny",
            "warnings",
        ],
        environment: None,
    },
    Check {
        name: "documentation",
        arguments: &["doc", "--workspace", "--all-features", "--no-deps"],
        environment: Some(("RUSTDOCFLAGS", "--deny warnings")),
    },
];

/// Compiles the tests, and what they load and start besides their own binaries: libraries and programs in the test profile.
///
/// One command for all of it. The features of a package are those that the selected targets and their dependencies
/// together ask for, so that programs without tests would be compiled from other packages than the tests are, the whole
/// stack among them.
pub const TESTS_AND_PROGRAMS: Check = Check {
    name: "tests and programs",
    arguments: &[
        "build",
        "--workspace",
        "--all-features",
        "--lib",
        "--bins",
        "--tests",
        "--examples",
    ],
    environment: None,
};

/// Compiles what the tests of some packages load and start: libraries and programs of all of them.
pub const PROGRAMS_FOR_TESTS: Check = Check {
    name: "programs for the tests",
    arguments: &["build", "--workspace", "--all-features"],
    environment: None,
};

/// Runs the examples in the documentation comments.
pub const DOCUMENTATION_TESTS: Check = Check {
    name: "documentation examples",
    arguments: &["test", "--workspace", "--all-features", "--doc"],
    environment: None,
};

/// The group of a module of [`SPLIT`], or of another integration test target.
#[must_use]
pub fn place(package: &str, part: &str) -> Name {
    let listed = PLACES.iter().find(|(p, t, _)| (*p, *t) == (package, part));
    match listed {
        Some((_, _, name)) => *name,
        None => Name::Process,
    }
}

/// The group of a name.
///
/// # Panics
/// Never: [`GROUPS`] has every name.
#[must_use]
pub fn named(name: Name) -> Group {
    let group = GROUPS.into_iter().find(|group| group.name == name);
    group.expect("every name is listed")
}

/// How long one test program of a group may run: twice the budget of the group.
#[must_use]
pub fn limit(name: Name) -> Duration {
    2 * named(name).budget
}

/// The group with this name on the command line.
#[must_use]
pub fn by_word(word: &str) -> Option<Name> {
    GROUPS
        .iter()
        .find(|group| group.word == word)
        .map(|group| group.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_listed_once_and_in_order() {
        assert!(GROUPS.windows(2).all(|pair| pair[0].name < pair[1].name));
        for group in GROUPS {
            assert_eq!(by_word(group.word), Some(group.name));
        }
        assert_eq!(by_word("units"), None);
    }

    #[test]
    fn who_runs_alone_does_not_run_beside_others() {
        for listed in WAITING {
            assert!(!ALONE.contains(listed), "{listed:?}");
            assert_ne!(place(listed.0, listed.1), Name::Unit, "{listed:?}");
        }
    }

    #[test]
    fn tests_go_where_the_tables_say() {
        assert_eq!(place("dgiwarp-run", "debian"), Name::Debian);
        assert_eq!(place("dgiwarp-run", "abi"), Name::Process);
        assert_eq!(place("xtask", "tidy"), Name::Unit);
        assert_eq!(
            place("dgiwarp", "debian"),
            Name::Process,
            "the package counts too"
        );
    }
}
