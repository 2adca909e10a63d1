//! `cargo xtask dist` in an empty folder, and the programs in what it made.

use std::fs;
use std::path::Path;
use std::process::Command;

use xtask::dist;

#[test]
fn the_tree_is_complete_and_its_programs_run() {
    let folder = tempfile::tempdir().unwrap();
    let made = dist::make(folder.path()).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(made.tree, folder.path().join(format!("dgiwarp-{version}")));

    let perf = Command::new(made.tree.join("bin/dgiwarp-perf"))
        .arg("--version")
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8(perf.stdout).unwrap().trim(),
        format!("dgiwarp-perf {version}")
    );
    assert!(!made.tree.join("bin/xtask").exists());

    let lib = made.tree.join("lib/dgiwarp");
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        assert_eq!(
            fs::read_link(lib.join(name)).unwrap(),
            Path::new("libdgiwarp_verbs.so")
        );
    }
    let pkgconfig = fs::read_to_string(made.tree.join("lib/pkgconfig/dgiwarp.pc")).unwrap();
    assert!(pkgconfig.contains("libdir=${pcfiledir}/../dgiwarp\n"));
    assert!(!pkgconfig.contains('@'), "{pkgconfig}");
    let library = fs::read(lib.join("libibverbs.so.1")).unwrap();
    assert!(library.starts_with(b"\x7fELF"));
    for document in [
        "README.md",
        "LICENSE-MIT",
        "LICENSE-APACHE",
        "SECURITY.md",
        "CHANGELOG.md",
    ] {
        assert!(
            made.tree.join("share/doc/dgiwarp").join(document).is_file(),
            "{document}"
        );
    }

    // The archive is the tree: unpacked beside it, nothing differs.
    let unpacked = folder.path().join("unpacked");
    fs::create_dir(&unpacked).unwrap();
    let tar = Command::new("tar")
        .arg("-xf")
        .arg(&made.archive)
        .arg("-C")
        .arg(&unpacked)
        .status()
        .unwrap();
    assert!(tar.success());
    let same = Command::new("diff")
        .args(["--recursive", "--no-dereference"])
        .arg(&made.tree)
        .arg(unpacked.join(made.tree.file_name().unwrap()))
        .output()
        .unwrap();
    assert!(
        same.status.success(),
        "{}",
        String::from_utf8_lossy(&same.stdout)
    );

    // It works wherever it is put, and finds its own library there.
    let moved = folder.path().join("moved");
    fs::rename(unpacked.join(made.tree.file_name().unwrap()), &moved).unwrap();
    let run = Command::new(moved.join("bin/dgiwarp-run"))
        .args([
            "sh",
            "-c",
            "echo $LD_LIBRARY_PATH; cat /sys/class/infiniband/dgiwarp0/fw_ver",
        ])
        .output()
        .unwrap();
    let text = String::from_utf8(run.stdout).unwrap();
    let (path, firmware) = text.split_once('\n').unwrap();
    assert_eq!(firmware.trim(), version);
    let lib = fs::canonicalize(moved.join("lib/dgiwarp")).unwrap();
    assert_eq!(
        path.trim().split(':').next(),
        lib.to_str(),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );

    // Once more over the old tree gives the same bytes.
    let before = fs::read(&made.archive).unwrap();
    assert_eq!(dist::make(folder.path()).unwrap(), made);
    assert!(
        before == fs::read(&made.archive).unwrap(),
        "two archives of one build differ"
    );
}
