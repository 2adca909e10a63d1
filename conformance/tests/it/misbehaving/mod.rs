//! A device that misbehaves on purpose: it has nothing of our stack in it, passes the tester without a fault, and with a named one does just that.

mod agent;
mod control;
pub(crate) mod datagrams;
mod device;
mod faults;
mod memory;
mod out;
mod startup;
mod stream;
mod works;
mod world;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dgiwarp_conform::agent::Agent;
use dgiwarp_conform::bench::{Settings, Verdict};
use dgiwarp_conform::cases::{self, Case, Family};
use dgiwarp_conform::peer::Patience;
use dgiwarp_conform::report::{self, Subject};
use dgiwarp_conform::run::{self, Done, Outcome, Plan};
use dgiwarp_conform::selection::Selection;

use device::{Device, Setup};
pub(crate) use faults::FAULTS;
use faults::{
    ALLOWED, Fault, Mode, OFTEN, ONLY_WITHOUT_CRC, SLOW, SOMETIMES, WITH_MARKERS, in_mode,
};

/// Devices at a time: most of what a run does is waiting.
const AT_ONCE: usize = 8;

/// Cases that bring all faults to light: every kind of frame and message, at both ends.
const SOME: &[&str] = &[
    "R00", "T00", "M01", "M02", "M03", "M04", "M05", "M07", "M12", "M14", "M15", "K01", "C01",
    "C02", "C03", "C06", "C07", "E02", "E03", "E04", "E07", "E08", "E12", "F07", "T01", "T02",
    "T03", "T05", "T11", "U03", "U04", "U05", "U06", "U14", "R01", "R02", "R03", "R04", "R05",
    "R06", "R09", "R14", "R16", "R20", "R21", "A01", "A02", "A03", "A04", "A05", "A07", "A09",
    "I01", "M20", "M21", "M22", "M23", "M24", "M25", "E20", "E25", "E41", "A40", "A41", "I40",
    "T40", "R40", "R44", "K20", "R12",
];

/// Cases that take their time, which the long runs have too.
const MORE: &[&str] = &[
    "M40", "M42", "M43", "C05", "E11", "E13", "E21", "E22", "E40", "E42", "F22", "T04", "T06",
    "T08", "T12", "T13", "T14", "T15", "U01", "U02", "U08", "U09", "U12", "R03", "R08", "R10",
    "R11", "R22", "R42", "R43", "R45", "R46", "R47", "A06", "A08", "A42", "I03", "I04",
];

/// Goes through cases of TCP, in both roles.
fn tested(setup: Setup, chosen: impl Fn(&str) -> bool) -> Vec<Done> {
    tested_with(setup, true, chosen)
}

/// Goes through cases with the agent, or without.
fn tested_with(setup: Setup, agent: bool, chosen: impl Fn(&str) -> bool) -> Vec<Done> {
    let device = Device::start(setup);
    let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let control = agent.then(|| at(device.control));
    let how = (setup.revision, setup.crc);
    tested_by(at(device.port), control, how, |case| {
        case.family == Family::Sent
            || !matches!(case.family, Family::Datagram | Family::Reliable) && chosen(case.id)
    })
}

/// Goes through cases against a device with its port and the control port of its agent, with a revision, and with CRCs or without.
fn tested_by(
    target: SocketAddr,
    control: Option<SocketAddr>,
    (revision, crc): (u8, bool),
    chosen: impl Fn(&Case) -> bool,
) -> Vec<Done> {
    let agent = control.map(|control| Agent::connect(control, "").unwrap());
    let all = cases::all();
    let chosen = all.iter().filter(|case| chosen(case));
    let mut plan = Plan {
        settings: Settings {
            target,
            revision,
            crc,
            patience: Patience {
                answer: Duration::from_secs(30),
                quiet: Duration::from_millis(10),
                // It needs no second FPDU.
                nudge: Duration::from_secs(20),
            },
            many: 8,
            seed: 1,
            ports: None,
        },
        selection: Selection {
            cases: chosen.map(|case| case.id.to_owned()).collect(),
            ..Selection::default()
        },
        allow_crash: true,
        slow: false,
        profile: None,
    };
    run::run(&mut plan, agent, &mut |_| {})
}

fn findings(all: &[Done]) -> impl Iterator<Item = &Done> {
    all.iter().filter(|done| {
        !matches!(
            done.outcome,
            Outcome::Pass | Outcome::Skipped | Outcome::Inconclusive
        )
    })
}

/// Time of all cases of a run.
fn took(all: &[Done]) -> Duration {
    all.iter().map(|done| done.took).sum()
}

/// The findings with what the device did, for a failure's message.
fn listing(all: &[Done]) -> String {
    let mut text = String::new();
    for done in findings(all) {
        writeln!(text, "  {} {}", done.case.id, done.reason).unwrap();
        let failed = done
            .trials
            .iter()
            .filter(|trial| trial.verdict == Verdict::Fail);
        for trial in failed.take(3) {
            let allowed = trial.allowed.join("; ");
            writeln!(text, "    {}: {} [{allowed}]", trial.what, trial.seen).unwrap();
        }
    }
    text
}

/// A good device.
fn good(mode: Mode) -> Setup {
    Setup {
        fault: "",
        crc: mode != Mode::NoCrc,
        markers: false,
        revision: if mode == Mode::Revision1 { 1 } else { 2 },
    }
}

/// Asserts that the tester finds nothing about a device, in almost all cases.
fn passes(setup: Setup, without: &[&str]) {
    let all = tested(setup, |id| {
        !["N01", "N04"].contains(&id) && !without.contains(&id)
    });
    assert_eq!(findings(&all).count(), 0, "{}", listing(&all));
    let passed = |done: &&Done| done.outcome == Outcome::Pass && done.case.family != Family::Sent;
    assert!(all.iter().filter(passed).count() > 70);
}

#[test]
fn without_a_fault_nothing_is_found() {
    for markers in [false, true] {
        let setup = Setup {
            markers,
            ..good(Mode::Usual)
        };
        passes(setup, &[]);
    }
}

#[test]
fn without_a_fault_nothing_is_found_where_crcs_are_off() {
    // C20: it should ask for them.
    passes(good(Mode::NoCrc), &["C20"]);
}

#[test]
fn without_a_fault_nothing_is_found_with_revision_1() {
    passes(good(Mode::Revision1), &[]);
}

/// Faults with these names.
fn named(names: &[&str]) -> Vec<&'static Fault> {
    let found: Vec<_> = FAULTS
        .iter()
        .filter(|(name, _)| names.contains(name))
        .collect();
    assert_eq!(found.len(), names.len(), "names that are in the table");
    found
}

/// Runs the tester against the device with each of these faults, and asserts that it finds what the table has, and nothing else.
fn each(mode: Mode, faults: &[&Fault], more: &[&str]) {
    let wrong = wrong_in(mode, faults, more, AT_ONCE);
    assert!(wrong.is_empty(), "{wrong}");
}

/// Faults of which the tester finds something else than the table has.
fn wrong_in(mode: Mode, faults: &[&Fault], more: &[&str], at_once: usize) -> String {
    let faults: Vec<_> = faults.iter().map(|fault| in_mode(mode, fault)).collect();
    wrong_of(&faults, at_once, |fault| {
        let setup = Setup {
            fault,
            ..good(mode)
        };
        tested(setup, |id| SOME.contains(&id) || more.contains(&id))
    })
}

/// A device that asks for Markers, with a fault.
fn with_markers(fault: &'static str) -> Setup {
    Setup {
        fault,
        markers: true,
        ..good(Mode::Usual)
    }
}

/// Runs the tester for each of these faults, several at a time, and asserts that it finds what is listed, and nothing else.
fn each_of(faults: &[Fault], tested: impl Fn(&'static str) -> Vec<Done> + Sync) {
    let wrong = wrong_of(faults, AT_ONCE, tested);
    assert!(wrong.is_empty(), "{wrong}");
}

/// Faults of which the tester finds something else than is listed.
fn wrong_of(
    faults: &[Fault],
    at_once: usize,
    tested: impl Fn(&'static str) -> Vec<Done> + Sync,
) -> String {
    // The last of the table keep the tester waiting longest.
    let queue = Mutex::new(faults.iter().rev());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let wrong = Mutex::new(String::new());
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some((fault, wanted)) = next() {
                    let all = tested(fault);
                    eprintln!("{fault}: {:.1?}", took(&all));
                    let found: BTreeSet<_> = findings(&all).map(|done| done.case.id).collect();
                    if found != wanted.iter().copied().collect() {
                        let told = format!("{fault}: {wanted:?} wanted\n{}", listing(&all));
                        eprintln!("{told}");
                        let mut wrong = wrong.lock().unwrap_or_else(PoisonError::into_inner);
                        writeln!(wrong, "{told}").unwrap();
                    }
                }
            });
        }
    });
    wrong.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_fault_is_found_and_nothing_else() {
    each(Mode::Usual, &named(OFTEN), &[]);
}

#[test]
fn a_fault_is_found_and_nothing_else_without_crcs_and_with_revision_1() {
    for mode in [Mode::NoCrc, Mode::Revision1] {
        each(mode, &named(SOMETIMES), &[]);
    }
    each(
        Mode::NoCrc,
        &ONLY_WITHOUT_CRC.iter().collect::<Vec<_>>(),
        &[],
    );
}

/// Without an agent there is no other way than Writes of nothing: of a device that refuses those nothing is known of CRCs.
#[test]
fn trials_without_a_control_are_inconclusive_in_all_reports() {
    let setup = Setup {
        fault: "write-of-nothing-validated, crc-unchecked",
        ..good(Mode::Usual)
    };
    let all = tested_with(setup, false, |id| {
        ["T00", "C01", "F04", "F07"].contains(&id)
    });
    let found: Vec<_> = findings(&all).map(|done| done.case.id).collect();
    assert_eq!(found, ["T00"], "{}", listing(&all));
    let unknown: Vec<_> = all
        .iter()
        .filter(|done| done.outcome == Outcome::Inconclusive)
        .map(|done| done.case.id)
        .collect();
    assert_eq!(unknown, ["C01", "F04", "F07"]);
    let subject = Subject {
        target: "there".to_owned(),
        device: String::new(),
        control: None,
        options: serde_json::json!({}),
        when: std::time::UNIX_EPOCH,
        hint: None,
        unreached: false,
    };
    let text = report::text(&subject, &all);
    assert!(text.contains("inconclusive C01 "), "{text}");
    let runs = [(subject, all)];
    let json = report::json(&runs);
    assert_eq!(json["summary"]["inconclusive"], 3, "{json:#}");
    let junit = report::junit(&runs);
    assert_eq!(
        junit.matches("<skipped message=\"inconclusive: ").count(),
        3
    );
    let html = report::html(&runs);
    assert!(html.contains("<b>3</b> inconclusive"), "{html}");
}

/// Without an agent there is no other way to ask whether a connection goes on than Reads of nothing.
#[test]
fn what_a_refused_read_of_nothing_would_show_is_inconclusive() {
    let setup = Setup {
        fault: "read-of-nothing-validated",
        ..good(Mode::Usual)
    };
    let all = tested_with(setup, false, |id| {
        ["R00", "M01", "C01", "C03", "F08", "F09"].contains(&id)
    });
    let found: Vec<_> = findings(&all).map(|done| done.case.id).collect();
    assert_eq!(found, ["R00"], "{}", listing(&all));
    for done in &all {
        let wanted = match done.case.id {
            "C01" | "C03" | "F08" | "F09" => Outcome::Inconclusive,
            "M01" => Outcome::Pass,
            _ => continue,
        };
        assert_eq!(done.outcome, wanted, "{} {}", done.case.id, done.reason);
        assert!(wanted == Outcome::Pass || done.reason.starts_with("see R00"));
    }
}

/// The faults of a table that `DGIWARP_FAULTS` names, with `;` between; all of them without it.
fn asked_for(table: &'static [Fault]) -> Vec<&'static Fault> {
    let names: BTreeSet<_> = table.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), table.len(), "names are used once");
    let only = std::env::var("DGIWARP_FAULTS").ok();
    let is_asked_for = |name: &str| {
        only.as_ref()
            .is_none_or(|only| only.split(';').any(|one| one == name))
    };
    table
        .iter()
        .filter(|(name, _)| is_asked_for(name))
        .collect()
}

#[test]
#[ignore = "twenty minutes"]
fn soak_each_fault_is_found_and_nothing_else() {
    let faults = &asked_for(FAULTS);
    in_all_modes(|mode| wrong_in(mode, faults, MORE, AT_ONCE / 2));
}

/// Asserts that no mode has faults of which the tester finds something else than the table has. One that waits long in a mode waits beside the others.
fn in_all_modes(wrong_in: impl Fn(Mode) -> String + Sync) {
    let modes = [Mode::Usual, Mode::NoCrc, Mode::Revision1];
    let wrong: String = std::thread::scope(|scope| {
        let each = modes.map(|mode| {
            let wrong_in = &wrong_in;
            scope.spawn(move || wrong_in(mode))
        });
        each.map(|one| one.join().unwrap())
            .into_iter()
            .zip(modes)
            .filter(|(wrong, _)| !wrong.is_empty())
            .map(|(wrong, mode)| format!("{mode:?}\n{wrong}\n"))
            .collect()
    });
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn faults_of_a_device_that_asks_for_markers_are_found_and_nothing_else() {
    each_of(WITH_MARKERS, |fault| {
        tested(with_markers(fault), |id| SOME.contains(&id))
    });
}

#[test]
fn what_is_allowed_is_no_finding() {
    each_of(ALLOWED, |fault| {
        let setup = Setup {
            fault,
            ..good(Mode::Usual)
        };
        tested(setup, |id| SOME.contains(&id) || id.starts_with(['E', 'K']))
    });
}

#[test]
#[ignore = "four minutes, of waiting"]
fn soak_faults_that_keep_the_tester_waiting_are_found_and_nothing_else() {
    in_all_modes(wrong_of_slow);
}

/// Faults that keep the tester waiting of which it finds something else than the table has.
fn wrong_of_slow(mode: Mode) -> String {
    let faults: Vec<_> = SLOW
        .iter()
        // Where no end asks for CRCs it is no fault.
        .filter(|(fault, ..)| mode != Mode::NoCrc || *fault != "crc-not-asked")
        .map(|(fault, _, findings)| in_mode(mode, &(*fault, *findings)))
        .collect();
    wrong_of(&faults, AT_ONCE, |fault| {
        let setup = Setup {
            fault,
            ..good(mode)
        };
        tested(setup, |id| {
            SLOW.iter()
                .any(|(name, cases, _)| *name == fault && cases.contains(&id))
        })
    })
}
