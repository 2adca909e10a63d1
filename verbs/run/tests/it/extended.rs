//! Functions of libibverbs beyond its first version, as C programs written against the installed headers see it.

use crate::common::each::{compiled, for_each_gid, gids, runs, runs_as};
use dgiwarp::{Access, Buffer, Config, Rnic, UdQpAttr, WcOpcode};
use std::time::Duration;

#[test]
fn work_requests_are_prepared_call_by_call() {
    for_each_gid("batch", include_str!("../c/batch.c"));
}

#[test]
fn a_write_to_an_address_is_a_write_record() {
    let Some(program) = compiled("record", include_str!("../c/record.c")) else {
        return;
    };
    let rnic = Rnic::open(Config::default()).unwrap();
    let pd = rnic.alloc_pd();
    let cq = rnic.create_cq(16).unwrap();
    let attr = UdQpAttr {
        record_slots: 8,
        ..UdQpAttr::new(&cq, &cq)
    };
    let target = pd.create_ud_qp(&attr).unwrap();
    let memory = Buffer::zeroed(8192).unwrap();
    let mr = pd.register(memory.region(), Access::REMOTE_WRITE).unwrap();
    for (index, _) in gids().iter() {
        let numbers = [u64::from(target.qpn()), mr.rkey().into(), mr.addr()];
        let first = std::iter::once(index.to_string());
        let arguments: Vec<_> = first.chain(numbers.iter().map(u64::to_string)).collect();
        memory.write(0, &[0; 8192]);
        runs(&program, &arguments);
        for (length, immediate) in [(5000, Some(4711)), (6, None)] {
            let wc = cq.wait(Duration::from_secs(5)).unwrap().unwrap();
            assert_eq!(wc.opcode, WcOpcode::WriteRecord);
            assert_eq!((wc.byte_len, wc.immediate), (length, immediate));
            assert!(target.release_record(wc.record()));
        }
        assert_eq!(memory.to_vec(0, 5000), [b'r'; 5000]);
        assert_eq!(memory.to_vec(5000, 7), b"inline\0");
    }
}

#[test]
fn completions_are_polled_one_by_one_and_queues_resized() {
    for_each_gid("cq", include_str!("../c/cq.c"));
}

#[test]
fn memory_is_registered_anew_and_opened_through_windows() {
    for_each_gid("memory", include_str!("../c/memory.c"));
}

#[test]
fn objects_are_destroyed_once_and_pointers_to_others_are_refused() {
    if let Some(program) = compiled("twice", include_str!("../c/twice.c")) {
        runs(&program, &[]);
    }
}

#[test]
fn a_region_without_memory_is_read_as_zeroes_and_written_to_nowhere() {
    for_each_gid("null_mr", include_str!("../c/null_mr.c"));
    if let Some(program) = compiled("null_mr", include_str!("../c/null_mr.c")) {
        runs_as("iwarp", &program, &["0".into()]);
    }
}

#[test]
fn device_memory_is_copied_and_registered() {
    for_each_gid("dm", include_str!("../c/dm.c"));
}

#[test]
fn files_are_registered_and_may_be_cut_shorter() {
    for_each_gid("dmabuf", include_str!("../c/dmabuf.c"));
    if let Some(program) = compiled("dmabuf", include_str!("../c/dmabuf.c")) {
        runs_as("iwarp", &program, &["0".into()]);
    }
}

#[test]
fn pages_on_demand_come_and_go() {
    for_each_gid("on_demand", include_str!("../c/on_demand.c"));
    if let Some(program) = compiled("on_demand", include_str!("../c/on_demand.c")) {
        runs(&program, &["0".into(), "denied".into()]);
    }
}

#[test]
fn threads_that_wait_can_be_cancelled() {
    if let Some(program) = compiled("cancel", include_str!("../c/cancel.c")) {
        runs(&program, &["0".into()]);
    }
}

#[test]
fn events_tell_of_objects_and_are_acknowledged() {
    for_each_gid("events", include_str!("../c/events.c"));
}

#[test]
fn eight_threads_share_queues_and_nothing_is_lost_doubled_or_overtaken() {
    if let Some(program) = compiled("threads", include_str!("../c/threads.c")) {
        runs(&program, &["0".into()]);
    }
}

/// In shared memory a bell may come when the message has been taken already, on a busy machine now and then.
#[test]
fn a_message_costs_one_sleep() {
    if let Some(program) = compiled("sleeps", include_str!("../c/sleeps.c")) {
        for (same_host, of_ten_messages) in [("off", "13"), ("auto", "17")] {
            runs(
                &program,
                &["0".into(), same_host.into(), of_ten_messages.into()],
            );
        }
    }
}

#[test]
fn descriptors_are_readable_exactly_while_there_is_something_to_take() {
    for_each_gid("readable", include_str!("../c/readable.c"));
}

#[test]
fn children_let_go_of_what_is_their_parents() {
    for_each_gid("fork", include_str!("../c/fork.c"));
}
