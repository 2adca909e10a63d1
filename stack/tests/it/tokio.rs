//! Completion queues for tasks of the tokio runtime.

use std::time::Duration;

use crate::common;
use crate::common::node::{Node, SOON};
use dgiwarp::{AsyncCq, Config, Rnic, Wc};
use tokio::time::timeout;

/// A node on a queue that a task waits for.
fn node(rnic: &Rnic, octets: usize, records: usize) -> (AsyncCq, Node) {
    let completions = AsyncCq::new(rnic, 4096).unwrap();
    let cq = completions.cq().clone();
    let node = Node::on(rnic.clone(), cq, octets, |attr| {
        attr.record_slots = records;
        attr.qp.max_recv_wr = 4096;
    });
    (completions, node)
}

async fn next(completions: &mut AsyncCq) -> Wc {
    timeout(SOON, completions.next())
        .await
        .expect("in time")
        .unwrap()
}

/// More than one poll of the sockets receives: earlier completions must not be waited for.
async fn a_burst_is_taken_whole() {
    let rnic = Rnic::open(Config::default()).unwrap();
    let (mut completions, target) = node(&rnic, 64, 0);
    let sources: Vec<_> = (0..8).map(|_| Node::new(64)).collect();
    for round in 0..5 {
        for number in 0..400 {
            target.post_recv(number, 0..64);
        }
        for source in &sources {
            let to = source.to(&target.qp);
            for number in 0..50 {
                source.send(number, &to, 0..64);
                source.wait();
            }
        }
        for count in 0..400 {
            assert_eq!(
                next(&mut completions).await.byte_len,
                64,
                "{round}: {count}"
            );
        }
        let more = timeout(Duration::from_millis(20), completions.next()).await;
        assert!(more.is_err(), "nothing more comes");
    }
}

#[test]
fn a_burst_is_taken_whole_by_one_thread() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(a_burst_is_taken_whole());
}

#[test]
fn a_burst_is_taken_whole_by_several_threads() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        tokio::spawn(a_burst_is_taken_whole()).await.unwrap();
    });
}

/// Completions of the queue pair's timer, and those of posts by another thread of the program meanwhile, wake the task too.
#[tokio::test]
async fn timers_and_sends_of_other_threads_wake_the_task() {
    let rnic = Rnic::open({
        let mut config = Config::default();
        // Some datagrams of the message are lost, with this seed; the record completes by its timer.
        config.fault = Some("drop=0.2,seed=1".parse().unwrap());
        config
    })
    .unwrap();
    let (mut completions, target) = node(&rnic, 20_000, 4);
    let mut config = Config::default();
    config.max_mtu = 1500;
    let source = Node::with(20_000, config, |_| ());
    let operation = source.write_to(&target, 0);
    let sges = [source.mr.sge(..)];
    source
        .post(1, operation, &source.to(&target.qp), &sges)
        .unwrap();
    let wc = next(&mut completions).await;
    assert!(wc.byte_len > 0 && wc.byte_len < 20_000, "{wc:?}");

    let to = target.to(&source.qp);
    let thread = std::thread::spawn(move || {
        common::sleep(Duration::from_millis(20));
        target.send(7, &to, 0..64);
        target
    });
    assert_eq!(next(&mut completions).await.wr_id, 7);
    thread.join().unwrap();
}

/// A task with endless work lets others run.
#[tokio::test(flavor = "current_thread")]
async fn endless_completions_leave_turns_to_others() {
    let rnic = Rnic::open(Config::default()).unwrap();
    let (mut completions, node) = node(&rnic, 64, 0);
    let to = node.to(&node.qp);
    let other = tokio::spawn(async {});
    for number in 0..1000 {
        // Nobody posted a receive: the only completions are those of sending.
        node.send(number, &to, 0..64);
        assert_eq!(next(&mut completions).await.wr_id, number);
        if other.is_finished() {
            return;
        }
    }
    panic!("the other task never ran");
}
