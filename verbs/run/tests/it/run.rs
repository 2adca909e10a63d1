//! Messages of `dgiwarp-run` when it cannot or need not run anything.

use crate::common::scene::{Place, Scene};
use crate::common::{RUN, compile, scratch, skip, succeed};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use xtask::lab::Side;

fn fails(command: &mut Command, status: i32) -> String {
    let Output {
        status: got,
        stderr,
        ..
    } = command.output().unwrap();
    let text = String::from_utf8(stderr).unwrap();
    assert_eq!(got.code(), Some(status), "{text}");
    text
}

#[test]
fn alone_it_shows_the_device_and_three_programs() {
    let output = succeed(&mut Command::new(RUN));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("dgiwarp0: "), "{text}");
    assert_eq!(
        text.lines()
            .filter(|line| line.trim_start().starts_with("dgiwarp-run "))
            .count(),
        3,
        "{text}"
    );
}

#[test]
fn a_missing_program_names_its_package() {
    let text = fails(
        Command::new(RUN)
            .arg("ib_write_bw")
            .env("PATH", "/nonexistent"),
        127,
    );
    assert!(
        text.contains("not found") && text.contains("apt install perftest"),
        "{text}"
    );
    let text = fails(Command::new(RUN).arg("no-such-program-at-all"), 127);
    assert!(
        text.contains("not found") && !text.contains("apt"),
        "{text}"
    );
    fails(Command::new(RUN).arg("--no-such-option"), 2);
}

#[test]
fn programs_that_would_ignore_the_library_are_refused_with_the_reason() {
    let directory = scratch("refused");
    let plain = directory.join("plain");
    fs::write(&plain, "no program").unwrap();
    assert!(fails(Command::new(RUN).arg(&plain), 126).contains("not an executable"));
    fs::set_permissions(&plain, PermissionsExt::from_mode(0o755)).unwrap();
    assert!(
        fails(Command::new(RUN).arg(&plain), 126).contains("neither an ELF program nor a script")
    );

    // The wrapper itself with another machine in its ELF header.
    let mut foreign = fs::read(RUN).unwrap();
    foreign[18..20].copy_from_slice(&243_u16.to_le_bytes());
    let path = directory.join("foreign");
    fs::write(&path, foreign).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    let text = fails(Command::new(RUN).arg(&path), 126);
    assert!(text.contains("riscv64"), "{text}");

    let mut musl = fs::read(RUN).unwrap();
    let name = musl.windows(9).position(|at| at == b"/ld-linux").unwrap();
    musl[name..name + 9].copy_from_slice(b"/ld-musl-");
    let path = directory.join("musl");
    fs::write(&path, musl).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    let text = fails(Command::new(RUN).arg(&path), 126);
    assert!(text.contains("/ld-musl-"), "{text}");

    let Some(program) = compile(
        "static",
        &directory,
        "int main(void) { return 0; }",
        &["-static"],
    ) else {
        return;
    };
    let text = fails(Command::new(RUN).arg(program), 126);
    assert!(text.contains("statically linked"), "{text}");
}

/// The kernel sets AT_SECURE for these, and the dynamic linker then has no search path.
#[test]
fn programs_with_rights_of_their_own_are_refused_to_others_than_root() {
    const TEST: &str = "programs_with_rights_of_their_own";
    /// Revision 2, effective: CAP_NET_RAW permitted, nothing inherited.
    const NET_RAW: [u32; 5] = [0x0200_0001, 1 << 13, 0, 0, 0];
    if !nix::unistd::geteuid().is_root() {
        skip(TEST, "only root can make such programs");
        return;
    }
    let Some(scene) = Scene::new(TEST, Place::Loopback) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = directory.path().join("true");
    fs::copy("/bin/true", &program).unwrap();
    let as_nobody = || {
        let mut command = scene.dgiwarp_run(Side::Client);
        command.arg(&program);
        command
    };

    let value: Vec<u8> = NET_RAW.iter().flat_map(|word| word.to_le_bytes()).collect();
    xattr::set(&program, "security.capability", &value).unwrap();
    let text = fails(&mut as_nobody(), 126);
    assert!(text.contains("file capabilities"), "{text}");
    succeed(Command::new(RUN).arg(&program));
    xattr::remove(&program, "security.capability").unwrap();
    succeed(&mut as_nobody());

    for (mode, refused) in [(0o4755, true), (0o2755, true), (0o711, false)] {
        fs::set_permissions(&program, PermissionsExt::from_mode(mode)).unwrap();
        if refused {
            let text = fails(&mut as_nobody(), 126);
            assert!(text.contains("set-user-ID"), "{text}");
            succeed(Command::new(RUN).arg(&program));
        } else {
            succeed(&mut as_nobody());
        }
    }
}

fn script(path: &Path, interpreter: &Path, text: &str) {
    fs::write(path, format!("#! {} -e\n{text}", interpreter.display())).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

#[test]
fn a_script_runs_with_its_interpreter() {
    let directory = scratch("script");
    let file = directory.join("script");
    script(&file, Path::new("/bin/sh"), "echo \"$LD_PRELOAD\"\n");
    let output = succeed(Command::new(RUN).arg(&file));
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .contains("libibverbs.so.1")
    );

    // A script may be the interpreter of a script; a fault at the end of the chain is reported.
    let second = directory.join("second");
    script(&second, &file, "");
    succeed(Command::new(RUN).arg(&second));
    script(&file, Path::new("/nonexistent/perl"), "");
    for script in [&file, &second] {
        let text = fails(Command::new(RUN).arg(script), 126);
        assert!(
            text.contains("its interpreter /nonexistent/perl is missing"),
            "{text}"
        );
    }
    script(&file, &second, "");
    let text = fails(Command::new(RUN).arg(&file), 126);
    assert!(text.contains("and so on"), "{text}");
}

#[test]
fn what_the_user_set_for_the_dynamic_linker_stays() {
    let output = succeed(
        Command::new(RUN)
            .args([RUN, "sh", "-c", "echo $LD_PRELOAD; echo $LD_LIBRARY_PATH"])
            .env("LD_PRELOAD", "libm.so.6 libdl.so.2")
            .env("LD_LIBRARY_PATH", "/nonexistent/a:/nonexistent/b"),
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let (preload, path) = text.split_once('\n').unwrap();
    assert!(preload.starts_with("libm.so.6:libdl.so.2:/"), "{text}");
    assert_eq!(preload.matches("libibverbs.so.1").count(), 1, "{text}");
    assert!(
        path.trim_end().ends_with(":/nonexistent/a:/nonexistent/b"),
        "{text}"
    );
}

#[test]
fn the_end_of_the_process_writes_statistics_and_the_log_says_what_fails() {
    const LEAVES_IT_OPEN: &str = "
        #include <infiniband/verbs.h>
        int main(void) {
            struct ibv_device **list = ibv_get_device_list(0);
            return list && ibv_open_device(list[0]) ? 0 : 1;
        }";
    let directory = scratch("statistics");
    let Some(program) = compile("leaves_it_open", &directory, LEAVES_IT_OPEN, &["-libverbs"])
    else {
        return;
    };
    let says = |file: &str, level: &str| {
        let mut command = Command::new(RUN);
        command.arg(&program);
        command.env("DGIWARP_STATS", file).env("DGIWARP_LOG", level);
        String::from_utf8(succeed(&mut command).stderr).unwrap()
    };
    let text = says("-", "warn");
    assert!(text.starts_with("{\"queue_pairs\":0,\"pid\":"), "{text}");
    assert_eq!(text.lines().count(), 1);
    let text = says("/nonexistent/file", "warn");
    assert!(
        text.contains("WARN") && text.contains("cannot write statistics"),
        "{text}"
    );
    assert_eq!(says("/nonexistent/file", "off"), "");
    let text = says("", "loud");
    assert!(
        text.contains("DGIWARP_LOG=loud is not understood"),
        "{text}"
    );
}
