//! `cargo xtask test`: runs the groups and reports.

mod report;
mod side_by_side;

use std::error::Error;
use std::fs;
use std::io::{self, IsTerminal as _, Write};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

use crate::clock;
use crate::debian;
use crate::groups::{self, BUILD_CHECKS, Check, GROUPS, Group, Name};
use crate::interrupt::Interrupt;
use crate::libtest::{Reader, Tally};
use crate::skips;
use crate::stream::End;
use crate::workspace::{self, TestProgram};
use report::{Report, Row};
use side_by_side::{Ended, Finished, observe};

/// How long one compilation may take before it counts as hanging; a slow machine is no failure.
const COMPILATION_LIMIT: Duration = Duration::from_secs(1800);

/// Test programs that run at a time, unless the command line names another number.
pub const JOBS: usize = 2;

/// Options of the command line.
#[derive(Clone, Debug)]
pub struct Options {
    /// Run the `soak_` tests too.
    pub soak: bool,
    /// Count skipped tests as failures.
    pub no_skip: bool,
    /// Leave Debian packages alone.
    pub no_install: bool,
    /// Test programs that run at a time; at least 1.
    pub jobs: usize,
    /// Only these packages' tests; empty: all.
    pub packages: Vec<String>,
    /// Only these groups; empty: all but `soak`.
    pub groups: Vec<Name>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            soak: false,
            no_skip: false,
            no_install: false,
            jobs: JOBS,
            packages: Vec::new(),
            groups: Vec::new(),
        }
    }
}

impl Options {
    fn chosen(&self) -> Vec<Group> {
        GROUPS
            .into_iter()
            .filter(|group| {
                let asked = self.groups.contains(&group.name) || self.groups.is_empty();
                let soak = group.name == Name::Soak;
                if soak {
                    self.soak || self.groups.contains(&Name::Soak)
                } else {
                    asked
                }
            })
            .collect()
    }
}

/// Runs what `options` ask for, printing as it goes and the report at the end. The result is the process's exit status:
/// 0, 1 if anything failed, 128 + signal if it was interrupted.
///
/// # Errors
/// Something outside the tests: cargo cannot be run, no temporary file.
pub fn run(options: &Options, interrupt: &Interrupt) -> Result<i32, Box<dyn Error>> {
    let groups = options.chosen();
    let names: Vec<_> = groups.iter().map(|group| group.name).collect();
    debian::provide(&names, !options.no_install);
    let scratch = tempfile::tempdir()?;
    let mut run = Run {
        options,
        interrupt,
        skips: scratch.path().join("skips"),
        programs: Vec::new(),
        compiled: false,
        report: Report::default(),
        out: Box::new(io::stdout()),
    };
    run.compile(&groups)?;
    let tests: Vec<_> = groups
        .iter()
        .filter(|group| group.name != Name::Build)
        .collect();
    let programs = std::mem::take(&mut run.programs);
    if run.compiled {
        run.groups(&tests, &programs)?;
    } else if !tests.is_empty() && interrupt.caught().is_none() {
        run.report
            .failures
            .push("no test was run, because they do not all compile".to_owned());
    }
    if !names.contains(&Name::Soak) {
        run.report.left_out = programs.iter().map(|program| program.ignored.len()).sum();
    }
    if let Some(signal) = interrupt.caught() {
        println!("\nInterrupted by signal {signal}; this is what ran before:");
    }
    print!("{}", run.report.render(options.no_skip));
    Ok(match interrupt.caught() {
        Some(signal) => 128 + signal,
        None => i32::from(run.report.total(options.no_skip).failed > 0),
    })
}

struct Run<'a> {
    options: &'a Options,
    interrupt: &'a Interrupt,
    /// The file that skipped tests append to.
    skips: std::path::PathBuf,
    programs: Vec<TestProgram>,
    /// Whether `programs` are all there are.
    compiled: bool,
    report: Report,
    /// Where the output of the programs goes.
    out: Box<dyn Write>,
}

impl Run<'_> {
    /// The `build` group if it was asked for, and the compilation of the tests in any case if one of the groups has some.
    fn compile(&mut self, groups: &[Group]) -> Result<(), Box<dyn Error>> {
        let begin = clock::now();
        let chosen = groups.iter().find(|group| group.name == Name::Build);
        let mut tally = Tally::default();
        if let Some(group) = chosen {
            announce(group);
            for check in BUILD_CHECKS {
                tally += self.check(check, COMPILATION_LIMIT)?;
            }
        }
        let only_unit = groups.iter().all(|group| group.name == Name::Unit);
        if !only_unit {
            let programs = if self.options.packages.is_empty() {
                &groups::TESTS_AND_PROGRAMS
            } else {
                &groups::PROGRAMS_FOR_TESTS
            };
            tally += self.check(programs, COMPILATION_LIMIT)?;
        }
        tally += self.compile_tests(only_unit)?;
        self.report.rows.push(Row {
            word: chosen.map_or("compile", |group| group.word),
            took: begin.elapsed(),
            budget: GROUPS[0].budget,
            tally,
        });
        Ok(())
    }

    /// Compiles the tests of the chosen packages, and learns which programs they are.
    fn compile_tests(&mut self, only_unit: bool) -> Result<Tally, Box<dyn Error>> {
        let selection = workspace::selection(&self.options.packages, only_unit)?;
        let mut arguments = vec!["test", "--no-run", "--all-features"];
        arguments.extend(selection.iter().map(String::as_str));
        let tally = self.cargo("tests", &arguments, None, COMPILATION_LIMIT)?;
        if tally.failed == 0 && self.interrupt.caught().is_none() {
            self.programs = workspace::test_programs(&selection)?;
            self.compiled = true;
        }
        Ok(tally)
    }

    /// Groups of tests. Programs that wait run beside all groups but `unit` and `soak`, and those that run alone run behind both.
    fn groups(
        &mut self,
        groups: &[&Group],
        programs: &[TestProgram],
    ) -> Result<(), Box<dyn Error>> {
        // A library without tests is not worth a heading; an integration test without any is started all the same: it may
        // have a harness of its own.
        let of = |group: &Group| {
            let is_worth_it = move |program: &&TestProgram| {
                if group.name == Name::Soak {
                    program.soak_tests().next().is_some()
                } else {
                    program.group == group.name
                        && (!program.tests.is_empty() || program.group != Name::Unit)
                }
            };
            let mut chosen: Vec<_> = programs.iter().filter(is_worth_it).collect();
            chosen.sort_by_key(|program| !program.is_long());
            chosen
        };
        let mut others = Vec::new();
        for group in groups {
            match group.name {
                Name::Unit => self.unit(group, &of(group))?,
                Name::Build | Name::Process | Name::Debian | Name::Interop => {
                    others.push((*group, of(group)));
                }
                Name::Soak => {}
            }
        }
        self.beside_each_other(&others)?;
        for group in groups.iter().filter(|group| group.name == Name::Soak) {
            self.begin(group);
            for program in of(group) {
                self.program(program, group.name)?;
            }
        }
        if self.interrupt.caught().is_none() && self.options.packages.is_empty() {
            for group in groups {
                self.must_have_tests(group);
            }
        }
        Ok(())
    }

    /// Unit tests, and behind them the examples of the documentation.
    fn unit(&mut self, group: &Group, programs: &[&TestProgram]) -> Result<(), Box<dyn Error>> {
        self.begin(group);
        self.together(programs)?;
        if self.options.packages.is_empty() {
            let begin = clock::now();
            let limit = groups::limit(group.name);
            let tally = self.check(&groups::DOCUMENTATION_TESTS, limit)?;
            self.add(group.name, tally, begin);
        }
        Ok(())
    }

    /// The groups whose programs mostly wait for each other, for timers and for silence.
    fn beside_each_other(
        &mut self,
        groups: &[(&Group, Vec<&TestProgram>)],
    ) -> Result<(), Box<dyn Error>> {
        let one_at_a_time = self.options.jobs < 2;
        let waits = |program: &&TestProgram| !one_at_a_time && program.waits();
        let of_all = || groups.iter().flat_map(|(_, programs)| programs).copied();
        let waiting: Vec<_> = of_all().filter(waits).collect();
        let (interrupt, skips) = (self.interrupt, self.skips.with_file_name("skips-waiting"));
        thread::scope(|scope| {
            let jobs = waiting.len();
            let ended = side_by_side::start(scope, waiting, jobs, interrupt, &skips);
            for (group, programs) in groups {
                self.begin(group);
                let mut programs = programs.clone();
                programs.retain(|program| !waits(program) && !program.runs_alone());
                self.together(&programs)?;
            }
            self.collect(ended)
        })?;
        for program in of_all().filter(|program| program.runs_alone()) {
            self.program(program, program.group)?;
        }
        Ok(())
    }

    /// Test programs that do not mind others beside them.
    fn together(&mut self, programs: &[&TestProgram]) -> Result<(), Box<dyn Error>> {
        if self.options.jobs < 2 {
            let mut programs = programs.iter();
            return programs.try_for_each(|program| self.program(program, program.group));
        }
        let (interrupt, skips) = (self.interrupt, self.skips.clone());
        thread::scope(|scope| {
            let jobs = self.options.jobs;
            let ended = side_by_side::start(scope, programs.to_vec(), jobs, interrupt, &skips);
            self.collect(ended)
        })
    }

    /// Takes the results of programs as they end. The time until then counts for their groups.
    fn collect(&mut self, ended: Receiver<io::Result<Finished<'_>>>) -> Result<(), Box<dyn Error>> {
        let mut begin = clock::now();
        for finished in ended {
            let Finished {
                program,
                ended,
                output,
                took,
            } = finished?;
            println!(
                "\n--- cargo test {} ({} s)",
                program.selection,
                took.as_secs()
            );
            self.out.write_all(&output)?;
            self.out.flush()?;
            let tally = self.conclude(&program.selection, ended, groups::limit(program.group));
            self.add(program.group, tally, begin);
            begin = clock::now();
        }
        Ok(())
    }

    /// Announces a group and gives it a row.
    fn begin(&mut self, group: &Group) {
        if self.interrupt.caught().is_some() {
            return;
        }
        announce(group);
        self.report.rows.push(Row {
            word: group.word,
            took: Duration::ZERO,
            budget: group.budget,
            tally: Tally::default(),
        });
    }

    /// Adds results, and the time since `begin`, to a group's row.
    fn add(&mut self, name: Name, tally: Tally, begin: Instant) {
        let word = groups::named(name).word;
        let mut rows = self.report.rows.iter_mut();
        if let Some(row) = rows.find(|row| row.word == word) {
            row.tally += tally;
            row.took += begin.elapsed();
        }
    }

    fn must_have_tests(&mut self, group: &Group) {
        let mut rows = self.report.rows.iter_mut();
        let Some(row) = rows.find(|row| row.word == group.word && row.tally == Tally::default())
        else {
            return;
        };
        row.tally.failed += 1;
        println!("there are no tests in the group {}", group.word);
        let failure = format!("group {}: no tests", group.word);
        self.report.failures.push(failure);
    }

    /// One test program, by itself.
    fn program(&mut self, program: &TestProgram, group: Name) -> Result<(), Box<dyn Error>> {
        if self.interrupt.caught().is_some() {
            return Ok(());
        }
        let begin = clock::now();
        println!("\n--- cargo test {}", program.selection);
        let mut command = program.command();
        command.args(program.arguments(group == Name::Soak));
        let limit = groups::limit(group);
        let tally = self.tests(&mut command, &program.selection, limit)?;
        self.add(group, tally, begin);
        Ok(())
    }

    /// One of the tables' cargo commands.
    fn check(&mut self, check: &Check, limit: Duration) -> Result<Tally, Box<dyn Error>> {
        self.cargo(check.name, check.arguments, check.environment, limit)
    }

    /// One cargo command: its tests count if it runs some, and it counts as one failure if it fails without.
    fn cargo(
        &mut self,
        name: &str,
        arguments: &[&str],
        environment: Option<(&str, &str)>,
        limit: Duration,
    ) -> Result<Tally, Box<dyn Error>> {
        println!("\n--- {name}: cargo {}", arguments.join(" "));
        let mut command = workspace::cargo();
        command.args(arguments);
        if let Some((variable, value)) = environment {
            command.env(variable, value);
        }
        if self.interrupt.caught().is_some() {
            return Ok(Tally::default());
        }
        self.tests(&mut command, name, limit)
    }

    fn tests(
        &mut self,
        command: &mut Command,
        title: &str,
        limit: Duration,
    ) -> Result<Tally, Box<dyn Error>> {
        if io::stdout().is_terminal() {
            command.env("CARGO_TERM_COLOR", "always");
        }
        let (interrupt, skips) = (self.interrupt, &self.skips);
        let ended = observe(command, limit, interrupt, &mut self.out, skips)?;
        Ok(self.conclude(title, ended, limit))
    }

    /// Takes the results of a program into the report.
    fn conclude(&mut self, title: &str, ended: Ended, limit: Duration) -> Tally {
        let Ended { end, reader, skips } = ended;
        let tally = conclude(&reader, end, skips.len() as u64);
        self.report.skips.extend(skips);
        self.report.failures.extend(
            reader
                .failures
                .iter()
                .map(|test| format!("{title}: {test}")),
        );
        match end {
            End::TimedOut => self
                .report
                .failures
                .push(format!("{title}: killed after {} s", limit.as_secs())),
            End::Status(status) if tally.failed > reader.failures.len() as u64 => {
                self.report.failures.push(format!("{title}: {status}"));
            }
            End::Status(_) | End::Interrupted(_) => {}
        }
        tally
    }
}

fn read_skips(path: &Path) -> Vec<(String, String)> {
    let text = fs::read_to_string(path).unwrap_or_default();
    // Absent unless a test was skipped since the last look.
    let _absent = fs::remove_file(path);
    skips::parse(&text)
}

/// The numbers of one program: a skipped test returned early, which its harness counts as passed; a program that failed
/// without a failed test (it crashed, hung, or is no test at all) counts as one failure.
fn conclude(reader: &Reader, end: End, skipped: u64) -> Tally {
    let mut tally = reader.tally;
    tally.skipped = skipped;
    tally.passed = tally.passed.saturating_sub(skipped);
    let interrupted = matches!(end, End::Interrupted(_));
    if !end.is_success() && !interrupted && tally.failed == 0 {
        tally.failed = 1;
    }
    tally
}

fn announce(group: &Group) {
    println!("\n=== {}: {}", group.word, group.about);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    /// A shell script in place of a test program.
    fn script(folder: &Path, name: &str, group: Name, tests: &str, body: &str) -> TestProgram {
        let executable = folder.join(name);
        fs::write(&executable, format!("#!/bin/sh\n{body}\n")).unwrap();
        let tests: Vec<_> = tests.split(' ').map(str::to_owned).collect();
        fs::set_permissions(&executable, fs::Permissions::from_mode(0o755)).unwrap();
        TestProgram {
            package: "p".into(),
            target: name.into(),
            group,
            selection: format!("-p p --test {name}"),
            executable,
            folder: folder.into(),
            module: None,
            ignored: tests.clone(),
            tests,
        }
    }

    #[test]
    fn groups_run_their_programs_and_the_report_tells_all() {
        let folder = tempfile::tempdir().unwrap();
        let result = |passed: u32, failed: u32| {
            format!(
                "echo 'test result: x. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out; finished in 0s'"
            )
        };
        let good = format!("echo 'c: no tun' >>$XTASK_SKIPS; {}", result(3, 0));
        let bad = format!("echo 'test b ... FAILED'; {}; exit 101", result(1, 1));
        let soak = format!(
            "echo \"$*\" >{}; {}",
            folder.path().join("arguments").display(),
            result(1, 0)
        );
        let script =
            |name, group, tests, body: &str| script(folder.path(), name, group, tests, body);
        let interrupt = Interrupt::never();
        // One package chosen, so that the documentation examples of the workspace are not run from here.
        // One program at a time: the report has them in the order in which they ended.
        let options = Options {
            packages: vec!["p".into()],
            jobs: 1,
            ..Options::default()
        };
        let mut run = Run {
            options: &options,
            interrupt: &interrupt,
            skips: folder.path().join("skips"),
            programs: vec![
                script("good", Name::Process, "a b c", &good),
                script("bad", Name::Process, "a b", &bad),
                script("crash", Name::Process, "a", "kill -SEGV $$"),
                script("elsewhere", Name::Unit, "a", "exit 1"),
                script("long", Name::Debian, "soak_it", &soak),
            ],
            compiled: true,
            report: Report::default(),
            out: Box::new(io::sink()),
        };
        let programs = std::mem::take(&mut run.programs);
        run.groups(&[&GROUPS[2]], &programs).unwrap();
        assert_eq!(
            run.report.total(false),
            Tally {
                passed: 3,
                failed: 2,
                skipped: 1
            }
        );
        assert_eq!(run.report.skips, [("c".to_owned(), "no tun".to_owned())]);
        assert_eq!(run.report.failures.len(), 2);
        assert_eq!(run.report.failures[0], "-p p --test bad: b");
        assert!(run.report.failures[1].starts_with("-p p --test crash: signal: 11"));

        run.report = Report::default();
        run.groups(&[&GROUPS[5]], &programs).unwrap();
        assert_eq!(
            run.report.total(false),
            Tally {
                passed: 1,
                failed: 0,
                skipped: 0
            }
        );
        let arguments = fs::read_to_string(folder.path().join("arguments")).unwrap();
        assert_eq!(arguments, "soak_ --ignored --nocapture\n");
    }

    /// A program of the first package and module of a table.
    fn listed(folder: &Path, table: &[(&str, &str)], group: Name, body: &str) -> TestProgram {
        let (package, module) = table[0];
        let mut program = script(folder, module, group, "a", body);
        program.package = package.into();
        program
    }

    #[test]
    fn programs_run_together_but_for_those_that_run_alone() {
        let folder = tempfile::tempdir().unwrap();
        let result = "echo 'test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0s'";
        // Each waits for the others to begin.
        let meets = |me: &str, others: &[&str]| {
            let wait = |other: &&str| {
                format!(
                    "for i in $(seq 600); do [ -e {other} ] && break; sleep 0.05; done; [ -e {other} ] || exit 1;"
                )
            };
            let waits: String = others.iter().map(wait).collect();
            format!(
                "cd {}; touch {me}; {waits} echo a: $0 >>$XTASK_SKIPS; {result}",
                folder.path().display()
            )
        };
        // Runs behind the others, those of a later group too.
        let alone = format!(
            "cd {}; for i in first second waiting later; do [ -e $i ] || exit 1; done; {result}",
            folder.path().display()
        );
        let by_itself = listed(folder.path(), groups::ALONE, Name::Process, &alone);
        assert!(by_itself.runs_alone());
        let waiting = meets("waiting", &["first", "second", "later"]);
        let waiting = listed(folder.path(), groups::WAITING, Name::Debian, &waiting);
        assert!(waiting.waits());
        let process = |name, body: &str| script(folder.path(), name, Name::Process, "a", body);
        let (options, interrupt) = (Options::default(), Interrupt::never());
        let mut run = Run {
            options: &options,
            interrupt: &interrupt,
            skips: folder.path().join("skips"),
            programs: Vec::new(),
            compiled: true,
            report: Report::default(),
            out: Box::new(io::sink()),
        };
        let later = meets("later", &["waiting"]);
        let programs = [
            by_itself,
            process("one", &meets("first", &["second", "waiting"])),
            process("two", &meets("second", &["first"])),
            script(folder.path(), "three", Name::Debian, "a", &later),
            waiting,
        ];
        run.groups(&[&GROUPS[2], &GROUPS[3]], &programs).unwrap();
        let tally = |passed, skipped| Tally {
            passed,
            failed: 0,
            skipped,
        };
        let rows: Vec<_> = run.report.rows.iter().map(|row| row.tally).collect();
        assert_eq!(rows, [tally(1, 2), tally(0, 2)], "{:?}", run.report);
        assert_eq!(run.report.skips.len(), 4);
    }

    #[test]
    fn a_group_without_tests_fails() {
        let (options, interrupt) = (Options::default(), Interrupt::never());
        let mut run = Run {
            options: &options,
            interrupt: &interrupt,
            skips: "none".into(),
            programs: Vec::new(),
            compiled: true,
            report: Report::default(),
            out: Box::new(io::sink()),
        };
        run.groups(&[&GROUPS[3]], &[]).unwrap();
        assert_eq!(run.report.total(false).failed, 1);
    }

    fn reader(line: &str) -> Reader {
        let mut reader = Reader::default();
        reader.line(line);
        reader
    }

    const TEN: &str = "test result: ok. 10 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s";

    #[test]
    fn skipped_tests_are_not_passed_ones() {
        let tally = conclude(&reader(TEN), End::Status(ExitStatus::from_raw(0)), 3);
        assert_eq!((tally.passed, tally.failed, tally.skipped), (7, 0, 3));
    }

    #[test]
    fn a_crash_or_a_hang_is_a_failure() {
        let killed = End::Status(ExitStatus::from_raw(11));
        assert_eq!(conclude(&Reader::default(), killed, 0).failed, 1);
        assert_eq!(conclude(&reader(TEN), End::TimedOut, 0).failed, 1);
        let failed = reader(
            "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s",
        );
        assert_eq!(
            conclude(&failed, End::Status(ExitStatus::from_raw(101 << 8)), 0).failed,
            2
        );
        assert_eq!(
            conclude(&Reader::default(), End::Interrupted(2), 0).failed,
            0
        );
    }

    #[test]
    fn soak_runs_only_when_asked_for() {
        let words = |options: &Options| {
            options
                .chosen()
                .iter()
                .map(|group| group.word)
                .collect::<Vec<_>>()
        };
        let mut options = Options::default();
        assert_eq!(
            words(&options),
            ["build", "unit", "process", "debian", "interop"]
        );
        options.soak = true;
        assert_eq!(words(&options).last(), Some(&"soak"));
        options.groups = vec![Name::Debian];
        assert_eq!(words(&options), ["debian", "soak"]);
        options = Options {
            groups: vec![Name::Soak],
            ..Options::default()
        };
        assert_eq!(words(&options), ["soak"]);
    }

    #[test]
    fn skip_lines_are_read_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("skips");
        fs::write(&path, "a: because\n").unwrap();
        assert_eq!(read_skips(&path).len(), 1);
        assert!(read_skips(&path).is_empty());
    }
}
