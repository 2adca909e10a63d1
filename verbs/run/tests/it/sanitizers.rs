//! Programs that are built with sanitizers, and race detectors of valgrind: no report of a program without a mistake, and every mistake is reported.

use crate::common::{RUN, compile, have, linked, skip};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

const SOURCE: &str = include_str!("../c/checked.c");
const EVENTS: &str = include_str!("../c/checked_cm.c");

/// Sanitizers before GCC 14 do not start at every address where newer kernels put libraries. Containers may forbid to change that.
fn fixed_addresses(line: &[&str]) -> Command {
    let setarch = ["setarch", "--addr-no-randomize"];
    let may = Command::new(setarch[0]).args([setarch[1], "true"]).output();
    let may = may.is_ok_and(|output| output.status.success());
    let mut command = Command::new("timeout");
    command.arg("200");
    if may {
        command.args(setarch);
    }
    command.args(line);
    command
}

/// Compiles a program; `None` skips the test if the compiler has no such sanitizer or this machine cannot run it.
fn build(name: &str, source: &str, options: &[&str]) -> Option<(TempDir, PathBuf)> {
    build_with(
        name,
        source,
        options,
        &["-lrdmacm", "-libverbs", "-lpthread"],
    )
}

/// Compiles a program as [`build`] does, with these libraries.
fn build_with(
    name: &str,
    source: &str,
    options: &[&str],
    libraries: &[&str],
) -> Option<(TempDir, PathBuf)> {
    const NOTHING: &str = "int main(void) { return 0; }";
    if !have(name, "cc", "gcc") {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let (text, probe) = (folder.path().join("probe.c"), folder.path().join("probe"));
    std::fs::write(&text, NOTHING).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(options).arg(&text).arg("-o").arg(&probe);
    let compiled = compiler.output().unwrap();
    let runs = || {
        fixed_addresses(&[probe.to_str().unwrap()])
            .output()
            .unwrap()
    };
    let said = if compiled.status.success() {
        runs()
    } else {
        compiled
    };
    if !said.status.success() {
        let reason = String::from_utf8_lossy(&said.stderr).into_owned();
        skip(name, &format!("{options:?}: {reason}"));
        return None;
    }
    let mut arguments = vec!["-g", "-w"];
    arguments.extend(options);
    arguments.extend(libraries);
    let program = compile(name, folder.path(), source, &arguments)?;
    Some((folder, program))
}

/// Runs a command line below the wrapper.
fn run(line: &[&str], environment: &[(&str, &str)]) -> Output {
    run_alone(&[&[RUN], line].concat(), environment)
}

/// Runs a command line.
fn run_alone(line: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = fixed_addresses(line);
    for name in [
        "ASAN_OPTIONS",
        "TSAN_OPTIONS",
        "UBSAN_OPTIONS",
        "VALGRIND_OPTS",
    ] {
        command.env_remove(name);
    }
    command.envs(environment.iter().copied());
    // Where addresses are not fixed, ThreadSanitizer ends at once if it has no place.
    let no_place = b"unexpected memory mapping";
    let mut runs = std::iter::repeat_with(|| command.output().unwrap()).take(30);
    let starts = |output: &Output| {
        !output
            .stderr
            .windows(no_place.len())
            .any(|at| at == no_place)
    };
    runs.find(starts).unwrap()
}

fn described(output: &Output) -> String {
    let (stdout, stderr) = (&output.stdout, &output.stderr);
    let text = [
        String::from_utf8_lossy(stdout),
        String::from_utf8_lossy(stderr),
    ]
    .concat();
    format!("{}\n{text}", output.status)
}

/// A run without a mistake prints "ok" and nothing else.
fn is_clean(output: &Output) {
    let ended = (output.status.code(), &output.stdout[..], &output.stderr[..]);
    assert_eq!(
        ended,
        (Some(0), &b"ok\n"[..], &b""[..]),
        "{}",
        described(output)
    );
}

/// A run with a mistake fails with a report that has these words.
fn is_reported(output: &Output, words: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    let all = words.iter().all(|word| said.contains(word));
    assert!(
        all && !output.status.success(),
        "{words:?}: {}",
        described(output)
    );
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn address_sanitizer_reports_the_program_s_mistakes_alone() {
    // With the runtime as a library, and linked into the program.
    for (name, options) in [
        ("address", &["-fsanitize=address"][..]),
        ("address_static", &["-fsanitize=address", "-static-libasan"]),
    ] {
        let Some((_folder, program)) = build(name, SOURCE, options) else {
            return;
        };
        let program = text(&program);
        is_clean(&run(&[program, "0", "none"], &[]));
        let overflow = run(&[program, "0", "overflow"], &[]);
        is_reported(&overflow, &["heap-buffer-overflow", "in overflow"]);
        // The device writes there, and is checked as the program is.
        let registered = run(&[program, "0", "registered"], &[]);
        is_reported(&registered, &["heap-buffer-overflow", "in registered"]);
        let leak = run(&[program, "0", "leak"], &[]);
        is_reported(&leak, &["byte(s) leaked", "in leak"]);
    }
}

#[test]
fn children_with_address_sanitizer_start() {
    let Some((_folder, program)) = build("address_child", SOURCE, &["-fsanitize=address"]) else {
        return;
    };
    let program = text(&program);
    for (line, environment) in [
        // A shell, whose own libraries need no sanitizer.
        (vec!["sh", "-c", "\"$0\" 0 none", program], None),
        (vec![RUN, program, "0", "none"], None),
        // Options of the user stay.
        (
            vec![program, "0", "leak"],
            Some(("ASAN_OPTIONS", "detect_leaks=0")),
        ),
    ] {
        is_clean(&run(&line, environment.as_slice()));
    }
}

#[test]
fn undefined_behaviour_is_reported() {
    let options = ["-fsanitize=undefined", "-fno-sanitize-recover=all"];
    let Some((_folder, program)) = build("undefined", SOURCE, &options) else {
        return;
    };
    is_clean(&run(&[text(&program), "0", "none"], &[]));
    let undefined = run(&[text(&program), "0", "undefined"], &[]);
    is_reported(&undefined, &["signed integer overflow"]);
}

#[test]
fn thread_sanitizer_reports_the_program_s_races_alone() {
    for (name, options) in [
        ("thread", &["-fsanitize=thread"][..]),
        // The library calls functions of the runtime, which Clang exports by itself.
        (
            "thread_static",
            &["-fsanitize=thread", "-static-libtsan", "-rdynamic"],
        ),
    ] {
        let Some((folder, program)) = build(name, SOURCE, options) else {
            return;
        };
        let program = text(&program);
        is_clean(&run(&[program, "0", "none"], &[]));
        is_clean(&run(
            &[program, "0", "none"],
            &[("DGIWARP_PERSONA", "iwarp")],
        ));
        let race = run(&[program, "0", "race"], &[]);
        is_reported(&race, &["data race", "second_thread"]);
        let race = run(&["sh", "-c", "\"$0\" 0 race", program], &[]);
        is_reported(&race, &["data race", "second_thread"]);
        // Suppressions of the user stay, beside ours.
        let file = folder.path().join("own.supp");
        std::fs::write(&file, "race:second_thread\n").unwrap();
        let option = format!("suppressions={}", file.display());
        is_clean(&run(&[program, "0", "race"], &[("TSAN_OPTIONS", &option)]));
    }
}

/// The events of a call come after what the program did before that call.
#[test]
fn thread_sanitizer_sees_the_order_of_connection_events() {
    let Some((_folder, program)) = build("events", EVENTS, &["-fsanitize=thread"]) else {
        return;
    };
    let persona = [("DGIWARP_PERSONA", "iwarp")];
    for environment in [&[][..], &persona] {
        is_clean(&run(&[text(&program), "127.0.0.1", "none"], environment));
    }
    let race = run(&[text(&program), "127.0.0.1", "race"], &[]);
    is_reported(&race, &["data race", "take_events"]);
}

/// Programs that are linked to the library need no wrapper, and the file of suppressions alone.
#[test]
fn linked_programs_are_checked() {
    let suppressions = concat!(
        "suppressions=",
        env!("CARGO_MANIFEST_DIR"),
        "/src/suppressions/tsan.supp"
    );
    let environment = [("TSAN_OPTIONS", suppressions)];
    let Some(flags) = linked::flags("linked") else {
        return;
    };
    let mut libraries: Vec<_> = flags.iter().map(String::as_str).collect();
    libraries.push("-lpthread");
    for (name, option, mistake) in [
        ("linked_address", "-fsanitize=address", "overflow"),
        ("linked_thread", "-fsanitize=thread", "race"),
    ] {
        let Some((_folder, program)) = build_with(name, SOURCE, &[option], &libraries) else {
            return;
        };
        let line = [text(&program), "0", "none"];
        is_clean(&run_alone(&line, &environment));
        is_clean(&run(&line, &[]));
        let reported = run_alone(&[text(&program), "0", mistake], &environment);
        is_reported(&reported, &["SUMMARY", name]);
    }
}

/// Locks and queues of the library that order the program's threads, and threads that end in a wait.
#[test]
fn thread_sanitizer_has_nothing_to_report_of_other_programs() {
    for (name, source) in [
        ("batch", include_str!("../c/batch.c")),
        ("cancel", include_str!("../c/cancel.c")),
        ("threads", include_str!("../c/threads.c")),
    ] {
        let Some((_folder, program)) = build(name, source, &["-fsanitize=thread"]) else {
            return;
        };
        is_clean(&run(&[text(&program), "0"], &[]));
    }
}

/// Runs a program with a mistake, or with none, under a tool of valgrind.
fn valgrind(tool: &str, program: &Path, argument: &str, mistake: &str) -> Output {
    let valgrind = [
        "valgrind",
        "-q",
        tool,
        "--error-exitcode=9",
        "--read-inline-info=no",
    ];
    run(
        &[&valgrind[..], &[text(program), argument, mistake]].concat(),
        &[],
    )
}

#[test]
fn memcheck_checks_what_the_device_writes() {
    if !have("memcheck", "valgrind", "valgrind") {
        return;
    }
    let Some((_folder, program)) = build("memcheck", SOURCE, &[]) else {
        return;
    };
    is_clean(&valgrind("--tool=memcheck", &program, "0", "none"));
    let registered = valgrind("--tool=memcheck", &program, "0", "registered");
    is_reported(&registered, &["Invalid write", "registered (memcheck.c:"]);
}

#[test]
fn helgrind_and_drd_report_the_program_s_races_alone() {
    if !have("helgrind", "valgrind", "valgrind") {
        return;
    }
    for (name, source, argument) in [("posts", SOURCE, "0"), ("events", EVENTS, "127.0.0.1")] {
        let Some((_folder, program)) = build(name, source, &[]) else {
            return;
        };
        for tool in ["--tool=helgrind", "--tool=drd"] {
            is_clean(&valgrind(tool, &program, argument, "none"));
            let race = valgrind(tool, &program, argument, "race");
            is_reported(&race, &[&format!("{name}.c:")]);
        }
    }
}
