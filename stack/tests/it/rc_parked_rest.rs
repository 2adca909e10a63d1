//! While messages wait for receives and nothing is read, nobody spins. Alone in its process, whose CPU time it measures.

#![expect(
    clippy::disallowed_methods,
    reason = "tests wait and look at the clock"
)]

use std::thread;
use std::time::{Duration, Instant};

use crate::common::connected::{connect, depths};
use dgiwarp::{Access, Buffer, Config, RcQpAttr, RcSendWr, Rnic};

const SOON: Duration = Duration::from_secs(20);
const LENGTH: usize = 64 << 10;

/// CPU time that this process has used.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    // Ticks of 10 ms, in user mode and in the kernel.
    let ticks: u64 = [11, 12]
        .iter()
        .map(|i| fields[*i].parse::<u64>().unwrap())
        .sum();
    Duration::from_millis(ticks * 10)
}

#[test]
fn nobody_spins_while_nothing_is_read() {
    let rnic = Rnic::open(Config::default()).unwrap();
    let pd = rnic.alloc_pd();
    let [(client, _client_cq), (server, server_cq)] = [(); 2].map(|()| {
        let cq = rnic.create_cq(64).unwrap();
        (pd.create_rc_qp(&RcQpAttr::new(&cq, &cq)).unwrap(), cq)
    });
    connect(&client, &server, depths(0));
    let memory = Buffer::zeroed(LENGTH).unwrap();
    let mr = pd.register(memory.region(), Access::LOCAL_WRITE).unwrap();
    let sges = [mr.sge(..)];
    for wr_id in 0..20 {
        client.post_send(&[RcSendWr::send(wr_id, &sges)]).unwrap();
    }
    let start = Instant::now();
    while server.counters().octets_received < 200_000 {
        assert!(start.elapsed() < SOON);
        thread::sleep(Duration::from_millis(10));
    }
    thread::sleep(Duration::from_millis(100));
    // Nobody polls; then a program sleeps until there is a completion.
    for sleeps in [false, true] {
        let before = cpu_time();
        if sleeps {
            assert_eq!(server_cq.wait(Duration::from_secs(1)).unwrap(), None);
        } else {
            thread::sleep(Duration::from_secs(1));
        }
        let spent = cpu_time() - before;
        assert!(spent < Duration::from_millis(300), "{spent:?}, {sleeps}");
    }
}
