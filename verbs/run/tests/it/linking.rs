//! Programs that are linked to the library through pkg-config, and run without a wrapper.

use crate::common::{compile, have, library, scratch, succeed};
use std::fs;
use std::process::Command;

#[test]
fn a_program_linked_by_pkg_config_runs_without_the_wrapper() {
    if !have("linking", "pkg-config", "pkg-config") {
        return;
    }
    let library = library();
    let profile = library.ancestors().nth(2).unwrap();
    let flags = succeed(
        Command::new("pkg-config")
            .args(["--cflags", "--libs", "dgiwarp"])
            .env("PKG_CONFIG_PATH", profile.join("pkgconfig")),
    );
    let flags = String::from_utf8(flags.stdout).unwrap();
    let flags: Vec<&str> = flags.split_ascii_whitespace().collect();
    let directory = scratch("linking");
    let Some(program) = compile(
        "linking",
        &directory,
        include_str!("../c/linking.c"),
        &flags,
    ) else {
        return;
    };
    let output = succeed(
        Command::new(program)
            .env_remove("LD_LIBRARY_PATH")
            .env_remove("LD_PRELOAD")
            .current_dir("/"),
    );
    let file = fs::canonicalize(library).unwrap();
    let file = file.display();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        format!("device dgiwarp0\nibverbs {file}\nrdmacm {file}\n")
    );
}
