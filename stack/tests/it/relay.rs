//! Two peers with an unreliable network between them: a sender, a relay and a receiver, each a process of its own.
//!
//! The relay uses nothing of dgiwarp. By seed it loses, doubles and reorders datagrams, and it logs the octets that it
//! forwarded. The receiver reports the validity maps of its records, and which octets of its memory were really written;
//! both must be equal to the log, bit for bit. `RELAY_SEED` repeats a run.

mod control;
mod forwarder;
mod plan;
mod receiver;
mod report;
mod sender;

use std::path::PathBuf;
use std::time::Duration;

use crate::common::{Process, given, harness_path, now, role};
use plan::{Case, Kind, NTH_SEGMENTS, SEND_LENGTH, WRITE_SEGMENT, union};
use report::{Log, Results};

/// A run takes a few seconds.
const RUN: Duration = Duration::from_secs(60);

fn seed() -> u64 {
    let seed = match std::env::var("RELAY_SEED") {
        Ok(seed) => seed.parse().expect("a number"),
        Err(_) => getrandom::u64().expect("randomness"),
    };
    println!("RELAY_SEED={seed}");
    seed
}

/// Runs the three processes of the test `test`.
fn run(test: &str, case: Case) -> (Log, Results) {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let path = |what: &str| {
        folder.join(format!(
            "{}-{}.{what}",
            harness_path(test).replace("::", "-"),
            case.loss
        ))
    };
    let (log, results) = (path("log"), path("results"));
    let mut variables = vec![
        ("RELAY_CASE", case.to_string()),
        ("RELAY_LOG", log.display().to_string()),
        ("RELAY_RESULTS", results.display().to_string()),
    ];
    let mut relay = Process::start(test, "relay", &variables);
    let control = relay.tells("control ", RUN);
    variables.push(("RELAY_CONTROL", control));
    let receiver = Process::start(test, "receiver", &variables);
    let sender = Process::start(test, "sender", &variables);
    sender.finish(RUN);
    relay.finish(RUN);
    receiver.finish(RUN);
    (Log::read(&log), Results::read(&results))
}

/// Whether this process is one of the three; then it has done its part.
fn played() -> bool {
    let Some(role) = role() else {
        return false;
    };
    let case = given("RELAY_CASE").parse().unwrap();
    match role.as_str() {
        "relay" => forwarder::run(case),
        "receiver" => receiver::run(case),
        "sender" => sender::run(case),
        other => panic!("no role {other}"),
    }
    true
}

/// Laws of every run with Write-Records.
fn compare(case: Case, log: &Log, results: &Results) {
    assert_eq!(log.messages.len(), case.messages);
    assert_eq!(results.memory.len(), case.messages);
    for (index, message) in &log.messages {
        let all = union([&message.forwarded[..], &message.lost[..]].concat());
        assert_eq!(all, [(0, message.length)], "the sender sent all of {index}");
        let forwarded = union(message.forwarded.clone());
        let memory = &results.memory[index];
        assert_eq!(
            (memory.length, &memory.ranges),
            (message.length, &forwarded),
            "memory of {index}"
        );
        let record = results.records.get(index);
        if forwarded.is_empty() {
            assert_eq!(record, None, "nothing of message {index} came");
            continue;
        }
        let record = record.unwrap_or_else(|| panic!("message {index} has no record"));
        assert_eq!(record.ranges, forwarded, "record of {index}");
        assert_eq!(
            (record.place, record.length),
            (memory.place, message.length)
        );
        let valid: u32 = forwarded.iter().map(|(start, end)| end - start).sum();
        assert_eq!(record.valid, valid);
    }
    assert!(results.records.len() <= log.messages.len());
    for (reason, count) in &results.dropped {
        // Doubled segments; all else would be a segment that was not used.
        let expected = ["Late", "Duplicate"].contains(&reason.as_str());
        assert!(expected, "{count} segments dropped: {reason}");
    }
    let dropped: u64 = results.dropped.values().sum();
    assert_eq!(dropped, log.doubled(), "what was doubled is dropped once");
}

fn writes(test: &str, loss: u32) {
    if played() {
        return;
    }
    let began = now();
    let case = Case {
        kind: Kind::Write,
        seed: seed(),
        loss,
        messages: 3_600,
        batch: 100,
    };
    let (log, results) = run(test, case);
    compare(case, &log, &results);
    let long: Vec<f64> = log
        .messages
        .values()
        .filter(|message| message.length.div_ceil(WRITE_SEGMENT) >= 16)
        .map(|message| message.kept())
        .collect();
    let count = f64::from(u32::try_from(long.len()).unwrap());
    let kept = long.iter().sum::<f64>() / count;
    let partial = results
        .records
        .values()
        .filter(|record| record.ranges != [(0, record.length)]);
    println!(
        "loss {loss}/100000: {} segments of {} messages, {} lost, {} doubled, {} overtaken, {} records partial of which {} closed by later \
         messages, {} messages of 16 segments or more kept {kept:.5}, {:?}",
        log.segments(),
        case.messages,
        log.lost(),
        log.doubled(),
        log.overtaken,
        partial.count(),
        results.early_partial,
        long.len(),
        now().duration_since(began),
    );
    assert!(log.segments() >= 100_000, "{}", log.segments());
    assert!(long.len() * 4 >= case.messages, "{}", long.len());
    // Within a factor of two of what was asked for.
    let expected = log.segments() * u64::from(loss) / 100_000;
    assert!(
        (expected / 2..=expected * 2).contains(&log.lost()),
        "{}",
        log.lost()
    );
    assert!(log.overtaken > 0, "the relay reordered nothing");
    if loss <= 1_000 {
        assert!(kept >= 0.98, "{kept}");
    }
    if loss >= 1_000 {
        assert!(results.early_partial > 0, "the reorder window closed none");
    }
}

#[test]
fn validity_maps_equal_the_log_at_a_loss_of_one_in_a_thousand() {
    writes(
        here!("validity_maps_equal_the_log_at_a_loss_of_one_in_a_thousand"),
        100,
    );
}

#[test]
fn validity_maps_equal_the_log_at_a_loss_of_one_in_a_hundred() {
    writes(
        here!("validity_maps_equal_the_log_at_a_loss_of_one_in_a_hundred"),
        1_000,
    );
}

#[test]
fn validity_maps_equal_the_log_at_a_loss_of_five_in_a_hundred() {
    writes(
        here!("validity_maps_equal_the_log_at_a_loss_of_five_in_a_hundred"),
        5_000,
    );
}

#[test]
fn whichever_segment_is_lost_only_its_octets_are_missing() {
    if played() {
        return;
    }
    let case = Case {
        kind: Kind::Nth,
        seed: seed(),
        loss: 0,
        messages: 60,
        batch: 20,
    };
    let (log, results) = run(
        here!("whichever_segment_is_lost_only_its_octets_are_missing"),
        case,
    );
    compare(case, &log, &results);
    for (index, message) in &log.messages {
        let nth = index % NTH_SEGMENTS;
        let start = nth * WRITE_SEGMENT;
        let end = message.length.min(start + WRITE_SEGMENT);
        assert_eq!(message.lost, [(start, end)], "message {index}");
        let expected: Vec<_> = [(0, start), (end, message.length)]
            .into_iter()
            .filter(|(start, end)| start < end)
            .collect();
        assert_eq!(results.records[index].ranges, expected, "message {index}");
    }
}

#[test]
fn segmented_sends_arrive_whole_or_not_at_all() {
    if played() {
        return;
    }
    let case = Case {
        kind: Kind::Send,
        seed: seed(),
        loss: 1_000,
        messages: 60,
        batch: 2,
    };
    let (log, results) = run(here!("segmented_sends_arrive_whole_or_not_at_all"), case);
    assert_eq!(log.messages.len(), case.messages);
    // A batch that took longer than this may have been given up by the receiver's clock.
    let in_time = 150;
    let mut slow = 0;
    let mut delivered = 0;
    for (index, message) in &log.messages {
        let whole = union(message.forwarded.clone()) == [(0, SEND_LENGTH)];
        let received = results.records.contains_key(index);
        assert!(
            whole || !received,
            "message {index} was delivered with holes"
        );
        let (millis, _) = results.batches[usize::try_from(*index).unwrap() / case.batch];
        if millis >= in_time {
            slow += 1;
        } else {
            assert_eq!(received, whole, "message {index}");
        }
        delivered += usize::from(received);
    }
    println!(
        "{} segments, {delivered} of {} Sends delivered, {slow} slow",
        log.segments(),
        case.messages
    );
    assert!(slow * 4 <= case.messages, "{slow} took too long to tell");
    assert!((1..case.messages).contains(&delivered), "{delivered}");
    for reason in results.dropped.keys() {
        let expected = ["Late", "Duplicate", "ReassemblyTimeout"].contains(&reason.as_str());
        assert!(expected, "{:?}", results.dropped);
    }
}
