//! The tester can fail: each bug of `conformance/seeded-bugs.psv`, sown into our own stack, is found by the cases that stand beside it there.

#![expect(clippy::unwrap_used, reason = "what cannot be started fails the test")]

#[path = "../device/programs.rs"]
#[allow(dead_code, reason = "the other tests need the rest")]
mod programs;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Seek};
use std::sync::Mutex;

use dgiwarp_codec::seeded::{Bug, VARIABLE};
use programs::{Run, Server, tester};
use table::Row;

/// Devices at a time: most of what a case does is to wait for what should not come.
const WORKERS: usize = 16;

/// Runs these cases, or all, against a device with one bug, or none, that is otherwise as the row wants it.
fn run(row: &Row, bug: bool, cases: Option<&str>, patience: &str) -> Run {
    let mut environment = row.environment();
    if bug {
        environment.push((VARIABLE, &row.bug));
    }
    // A bug may end in a panic, which is nobody's concern unless the test fails.
    let mut said = tempfile::tempfile().unwrap();
    let stderr = said.try_clone().unwrap();
    let agent = Server::agent_that_says(&environment, stderr.into());
    let address = agent.address();
    let mut arguments = vec!["--agent", &address, "--token", &agent.token];
    arguments.extend(["--allow-crash", "--many", "8", "--patience", patience]);
    if let Some(cases) = cases {
        arguments.extend(["--case", cases]);
    }
    let mut done = tester(&arguments);
    said.rewind().unwrap();
    said.read_to_string(&mut done.stderr).unwrap();
    done
}

/// What `each` makes of each row, several at a time.
fn of_all<T: Send>(rows: &[Row], each: impl Fn(&Row) -> T + Sync) -> Vec<T> {
    let todo = Mutex::new(rows.iter().enumerate());
    let done = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let next = todo.lock().unwrap().next();
                    let Some((number, row)) = next else { break };
                    let made = each(row);
                    done.lock().unwrap().insert(number, made);
                }
            });
        }
    });
    done.into_inner().unwrap().into_values().collect()
}

/// A device with this outcome of a case was found out.
fn is_found(outcome: &str) -> bool {
    matches!(outcome, "fail" | "dead")
}

#[test]
fn every_bug_is_found_by_the_cases_of_the_table() {
    let rows = table::rows();
    let wrong: Vec<String> = of_all(&rows, |row| {
        // Most answers take a millisecond; those that a bug keeps back are waited for.
        let done = run(row, true, Some(&row.cases), "2");
        let missed: Vec<_> = row
            .cases()
            .filter(|case| !is_found(done.outcome(case)))
            .map(|case| {
                format!(
                    "{}: {case}: {}\n{}",
                    row.bug,
                    done.outcome(case),
                    done.report()
                )
            })
            .collect();
        missed.join("\n")
    });
    let wrong: String = wrong.concat();
    assert!(wrong.is_empty(), "{wrong}");
}

/// The same cases find nothing where there is no bug.
#[test]
fn the_cases_of_the_table_pass_without_a_bug() {
    let mut cases: BTreeMap<String, (Row, BTreeSet<String>)> = BTreeMap::new();
    for row in table::rows() {
        let of_row: Vec<_> = row.cases().map(ToOwned::to_owned).collect();
        let key = row.environment.clone();
        let (_, all) = cases.entry(key).or_insert_with(|| (row, BTreeSet::new()));
        all.extend(of_row);
    }
    for (row, cases) in cases.values() {
        let list: Vec<_> = cases.iter().map(String::as_str).collect();
        let done = run(row, false, Some(&list.join(",")), "30");
        assert_eq!(done.status, Some(0), "{}", done.report());
        for case in cases {
            assert_eq!(done.outcome(case), "pass", "{case}");
        }
    }
}

/// The table has the bugs that there are, and at least thirty of them over all families of cases.
#[test]
fn the_table_is_complete() {
    let rows = table::rows();
    let named: Vec<_> = rows.iter().map(|row| row.bug.as_str()).collect();
    let sown: Vec<_> = Bug::ALL.iter().map(|bug| bug.name()).collect();
    assert_eq!(named, sown);
    assert!(rows.len() >= 30);
    let all = dgiwarp_conform::cases::all();
    let mut families = BTreeSet::new();
    for row in &rows {
        for id in row.cases() {
            let case = all.iter().find(|case| case.id == id);
            let case = case.unwrap_or_else(|| panic!("{}: there is no case {id}", row.bug));
            families.insert(case.family);
        }
        let is_clause = ["RFC ", "Datagram "]
            .iter()
            .any(|it| row.clause.starts_with(it));
        assert!(is_clause && row.clause.contains('§'), "{}", row.bug);
        assert!(!row.what.is_empty(), "{}", row.bug);
    }
    for case in &all {
        assert!(
            families.contains(&case.family),
            "no bug for {:?}",
            case.family
        );
    }
}

/// A name that is none is said, and opens no device.
#[test]
fn a_bug_that_is_none_is_refused() {
    let said = Server::agent_that_ends(&[(VARIABLE, "no-such-bug")]);
    assert!(
        said.contains("DGIWARP_SEEDED_BUG: no bug has the name \"no-such-bug\""),
        "{said}"
    );
}

/// Which cases find which bug: everything against every bug.
#[test]
#[ignore = "every case against every bug, a quarter of an hour"]
fn soak_the_matrix_of_bugs_and_cases() {
    let rows = table::rows();
    let lines = of_all(&rows, |row| {
        let done = run(row, true, None, "5");
        let mut found: Vec<_> = done.found().collect();
        found.sort_unstable();
        println!("{:<28} {}", row.bug, found.join(" "));
        (
            row.bug.clone(),
            found
                .iter()
                .any(|one| row.cases().any(|case| one.starts_with(case))),
        )
    });
    let missed: Vec<_> = lines.iter().filter(|(_, found)| !found).collect();
    assert!(missed.is_empty(), "{missed:?}");
}
