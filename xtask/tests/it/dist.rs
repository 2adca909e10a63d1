//! `cargo xtask dist` in an empty folder, what it made, and installations of it.

mod documents;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use xtask::debian::find_program;
use xtask::dist::{self, Build, Dist};
use xtask::install::Place;
use xtask::lab::{Config, Lab};
use xtask::skips::skip;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Artefacts that all tests check, made once.
static MADE: LazyLock<Dist> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dist");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    dist::make(&folder, build()).unwrap()
});

/// The environment variable that has these tests pack the release build.
const RELEASE: &str = "DGIWARP_TEST_RELEASE";

fn build() -> Build {
    match std::env::var_os(RELEASE) {
        Some(_) => Build::Release,
        None => Build::Tests,
    }
}

/// Runs to a good end.
fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Whether a program is here; else the test is skipped.
fn have(test: &str, programs: &[&str]) -> bool {
    let missing = programs.iter().find(|name| find_program(name).is_none());
    if let Some(name) = missing {
        skip(test, &format!("there is no {name} here"));
    }
    missing.is_none()
}

/// Everything below a folder that is no folder, as paths below it.
fn files(folder: &Path) -> BTreeSet<String> {
    let listed = succeed(
        Command::new("find")
            .args([".", "!", "-type", "d", "-printf", "%P\\n"])
            .current_dir(folder),
    );
    text(&listed).lines().map(ToOwned::to_owned).collect()
}

fn assert_same(left: &Path, right: &Path) {
    let same = Command::new("diff")
        .args(["--recursive", "--no-dereference"])
        .args([left, right])
        .output()
        .unwrap();
    assert!(same.status.success(), "{}", text(&same));
}

#[test]
fn the_tree_is_complete_and_its_programs_run() {
    let tree = &MADE.tree;
    assert_eq!(
        tree.file_name().unwrap().to_str().unwrap(),
        format!("dgiwarp-{VERSION}")
    );
    let perf = succeed(Command::new(tree.join("bin/dgiwarp-perf")).arg("--version"));
    assert_eq!(text(&perf).trim(), format!("dgiwarp-perf {VERSION}"));
    assert!(!tree.join("bin/xtask").exists());
    let lib = tree.join("lib/dgiwarp");
    for name in ["libibverbs.so.1", "librdmacm.so.1", "libefa.so.1"] {
        assert_eq!(
            fs::read_link(lib.join(name)).unwrap(),
            Path::new("libdgiwarp_verbs.so")
        );
    }
    let pkgconfig = fs::read_to_string(tree.join("lib/pkgconfig/dgiwarp.pc")).unwrap();
    assert!(pkgconfig.contains("libdir=${pcfiledir}/../dgiwarp\n"));
    assert!(!pkgconfig.contains('@'), "{pkgconfig}");
    let files = files(tree);
    for name in [
        "README.md",
        "LICENSE-MIT",
        "LICENSE-APACHE",
        "SECURITY.md",
        "CHANGELOG.md",
        "THIRD-PARTY.txt",
        "docs/use/settings.md",
        "docs/pictures/overview.svg",
        "rfc-notes/datagram-mapping.md",
    ] {
        assert!(
            files.contains(&format!("share/doc/dgiwarp/{name}")),
            "{name}"
        );
    }
    assert!(files.contains("share/man/man7/dgiwarp.7"));
    assert!(files.contains("share/dgiwarp/wireshark/dgiwarp.lua"));
    assert!(files.contains("share/dgiwarp/suppressions/tsan.supp"));
    assert!(files.contains("share/dgiwarp/suppressions/valgrind.supp"));
    for program in fs::read_dir(tree.join("bin")).unwrap() {
        let name = program.unwrap().file_name().into_string().unwrap();
        for file in [
            format!("share/man/man1/{name}.1"),
            format!("share/bash-completion/completions/{name}"),
            format!("share/zsh/site-functions/_{name}"),
            format!("share/fish/vendor_completions.d/{name}.fish"),
        ] {
            assert!(files.contains(&file), "{file}");
        }
    }
}

#[test]
fn the_archive_is_the_tree_and_works_wherever_it_is_put() {
    let folder = tempfile::tempdir().unwrap();
    succeed(
        Command::new("tar")
            .arg("-xf")
            .arg(&MADE.archive)
            .arg("-C")
            .arg(folder.path()),
    );
    let unpacked = folder.path().join(MADE.tree.file_name().unwrap());
    assert_same(&MADE.tree, &unpacked);
    let moved = folder.path().join("moved");
    fs::rename(unpacked, &moved).unwrap();
    let run = succeed(Command::new(moved.join("bin/dgiwarp-run")).args([
        "sh",
        "-c",
        "echo $LD_LIBRARY_PATH; cat /sys/class/infiniband/dgiwarp0/fw_ver",
    ]));
    let text = text(&run);
    let (path, firmware) = text.split_once('\n').unwrap();
    assert_eq!(firmware.trim(), VERSION);
    let lib = fs::canonicalize(moved.join("lib/dgiwarp")).unwrap();
    assert_eq!(path.trim().split(':').next(), lib.to_str(), "{run:?}");
}

#[test]
fn the_same_build_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    // A stale file goes away.
    let stale = folder.path().join(format!("dgiwarp-{VERSION}/stale"));
    fs::create_dir_all(stale).unwrap();
    let again = dist::make(folder.path(), build()).unwrap();
    assert_same(&MADE.tree, &again.tree);
    let same = |left: &Path, right: &Path| fs::read(left).unwrap() == fs::read(right).unwrap();
    assert!(same(&MADE.archive, &again.archive), "the archives differ");
    if let (Some(left), Some(right)) = (&MADE.package, &again.package) {
        assert!(same(left, right), "the packages differ");
    }
}

#[test]
fn manual_pages_are_without_fault() {
    const TEST: &str = "manual_pages_are_without_fault";
    if !have(TEST, &["man", "troff"]) {
        return;
    }
    let man = MADE.tree.join("share/man");
    let pages: Vec<_> = files(&man).into_iter().collect();
    assert!(pages.len() >= 6, "{pages:?}");
    for page in &pages {
        let shown = succeed(
            Command::new("man")
                .args(["--warnings", "-E", "UTF-8", "-l", "-Tutf8"])
                .arg(man.join(page))
                .env("LC_ALL", "C.UTF-8")
                .env("MANROFFSEQ", "")
                .env("MANWIDTH", "80"),
        );
        let complaints = String::from_utf8_lossy(&shown.stderr).into_owned();
        assert!(complaints.is_empty(), "{page}: {complaints}");
        assert!(!shown.stdout.is_empty(), "{page}");
    }
}

#[test]
fn completions_are_read_by_their_shells() {
    let share = MADE.tree.join("share");
    for (shell, folder) in [
        ("bash", "bash-completion/completions"),
        ("zsh", "zsh/site-functions"),
        ("fish", "fish/vendor_completions.d"),
    ] {
        // Every Debian has bash; the others are asked where they are.
        if find_program(shell).is_none() {
            assert_ne!(shell, "bash");
            continue;
        }
        let folder = share.join(folder);
        for file in files(&folder) {
            succeed(Command::new(shell).arg("-n").arg(folder.join(file)));
        }
    }
    let script = ". \"$1\"; COMP_WORDS=(dgiwarp-info --fun); COMP_CWORD=1; \
                  complete=$(complete -p dgiwarp-info); function=${complete#*-F }; \
                  ${function%% *} dgiwarp-info --fun dgiwarp-info; echo \"${COMPREPLY[@]}\"";
    let completed = succeed(
        Command::new("bash")
            .args(["-c", script, "bash"])
            .arg(share.join("bash-completion/completions/dgiwarp-info")),
    );
    assert_eq!(text(&completed).trim(), "--functions");
}

/// An installation in an empty folder.
fn installed() -> (tempfile::TempDir, Place) {
    let folder = tempfile::tempdir().unwrap();
    let place = Place::new(folder.path(), None).unwrap();
    place.install(&MADE.tree).unwrap();
    (folder, place)
}

#[test]
fn an_installation_is_the_tree_and_leaves_nothing_behind() {
    let (folder, place) = installed();
    let mut expected = files(&MADE.tree);
    expected.insert(xtask::install::LIST.to_owned());
    assert_eq!(files(folder.path()), expected);
    let info = succeed(&mut Command::new(folder.path().join("bin/dgiwarp-info")));
    assert!(text(&info).starts_with("dgiwarp0: "), "{info:?}");
    place.uninstall().unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn verbs_programs_run_on_an_installation() {
    const TEST: &str = "verbs_programs_run_on_an_installation";
    if !have(TEST, &["ibv_devices", "ibv_rc_pingpong"]) {
        return;
    }
    let (folder, _place) = installed();
    let run = folder.path().join("bin/dgiwarp-run");
    let devices = succeed(Command::new(&run).arg("ibv_devices"));
    assert!(text(&devices).contains("dgiwarp0"), "{devices:?}");
    // Between two networks of its own, so that the port of the program is free.
    if let Err(error) = Lab::new(&Config::default()) {
        return skip(TEST, &error.to_string());
    }
    let run = run.to_str().unwrap();
    let pingpong = [run, "ibv_rc_pingpong", "-n", "100"];
    let output = succeed(
        Command::new(env!("CARGO_BIN_EXE_xtask"))
            .args(["lab", "--wait-port", "18515", "--wait", "60", "--"])
            .args(pingpong)
            .arg("--")
            .args(pingpong)
            .arg("10.99.0.1"),
    );
    assert!(text(&output).contains("100 iters"), "{output:?}");
}

#[test]
fn a_program_is_linked_to_an_installation() {
    const TEST: &str = "a_program_is_linked_to_an_installation";
    if !have(TEST, &["cc", "pkg-config"]) {
        return;
    }
    if !Path::new("/usr/include/rdma/rdma_cma.h").exists() {
        return skip(TEST, "there are no headers of rdma-core here");
    }
    let (folder, _place) = installed();
    let flags = succeed(
        Command::new("pkg-config")
            .args(["--cflags", "--libs", "dgiwarp"])
            .env("PKG_CONFIG_PATH", folder.path().join("lib/pkgconfig")),
    );
    let program = folder.path().join("program");
    succeed(
        Command::new("cc")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../verbs/run/tests/c/linking.c"))
            .args(text(&flags).split_ascii_whitespace())
            .arg("-o")
            .arg(&program),
    );
    let output = succeed(
        Command::new(program)
            .env_remove("LD_LIBRARY_PATH")
            .env_remove("LD_PRELOAD"),
    );
    let library = folder.path().join("lib/dgiwarp/libdgiwarp_verbs.so");
    let library = fs::canonicalize(library).unwrap();
    let library = library.display();
    assert_eq!(
        text(&output),
        format!("device dgiwarp0\nibverbs {library}\nrdmacm {library}\n")
    );
}

/// The Debian package, where it could be made.
fn package(test: &str) -> Option<&'static PathBuf> {
    if MADE.package.is_none() {
        skip(test, "there is no dpkg-deb here");
    }
    MADE.package.as_ref()
}

#[test]
fn the_debian_package_has_the_tree_and_what_nobody_else_has() {
    let Some(package) = package("the_debian_package_has_the_tree_and_what_nobody_else_has") else {
        return;
    };
    let field = |name: &str| {
        let shown = succeed(
            Command::new("dpkg-deb")
                .arg("--field")
                .arg(package)
                .arg(name),
        );
        text(&shown).trim().to_owned()
    };
    assert_eq!(field("Package"), "dgiwarp");
    assert_eq!(field("Version"), VERSION);
    let depends = field("Depends");
    assert!(depends.starts_with("libc6 (>= 2."), "{depends}");
    assert!(!depends.contains("ibverbs"), "{depends}");
    let folder = tempfile::tempdir().unwrap();
    succeed(
        Command::new("dpkg-deb")
            .arg("-x")
            .arg(package)
            .arg(folder.path()),
    );
    let usr = folder.path().join("usr");
    for same in ["bin", "lib"] {
        assert_same(&MADE.tree.join(same), &usr.join(same));
    }
    // All names are ours, so no file can be another package's too.
    for file in files(folder.path()) {
        assert!(file.starts_with("usr/"), "{file}");
        let path = Path::new(&file);
        let ours = path.components().any(|part| {
            let part = part.as_os_str().to_string_lossy();
            let name = part.trim_start_matches('_');
            ["dgiwarp", "mz", "rftp", "ripc"]
                .iter()
                .any(|ours| name.starts_with(ours))
        });
        assert!(ours, "{file}");
    }
}

#[test]
fn the_debian_package_is_installed_and_removed() {
    const TEST: &str = "the_debian_package_is_installed_and_removed";
    let Some(package) = package(TEST) else {
        return;
    };
    if !nix::unistd::geteuid().is_root() {
        return skip(TEST, "only root can have dpkg give files to root");
    }
    let root = tempfile::tempdir().unwrap();
    let state = root.path().join("var/lib/dpkg");
    for folder in ["info", "updates"] {
        fs::create_dir_all(state.join(folder)).unwrap();
    }
    fs::create_dir_all(root.path().join("var/log")).unwrap();
    fs::write(state.join("status"), "").unwrap();
    // The C library is not in there.
    let dpkg = |action: &str, what: &Path| {
        succeed(
            Command::new("dpkg")
                .arg(format!("--root={}", root.path().display()))
                .args(["--force-depends", "--force-script-chrootless", action])
                .arg(what)
                .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
        )
    };
    dpkg("--install", package);
    let run = root.path().join("usr/bin/dgiwarp-run");
    let shown = succeed(Command::new(run).args(["cat", "/sys/class/infiniband/dgiwarp0/fw_ver"]));
    assert_eq!(text(&shown).trim(), VERSION);
    dpkg("--verify", Path::new("dgiwarp"));
    dpkg("--purge", Path::new("dgiwarp"));
    assert!(!root.path().join("usr").exists());
}

#[test]
#[ignore = "a release build: only with --soak"]
fn soak_the_release_build_is_packed() {
    let mut tests = Command::new(std::env::current_exe().unwrap());
    let output = succeed(tests.arg("dist::").env(RELEASE, "1"));
    assert!(!text(&output).contains("running 0 tests"), "{output:?}");
}
