//! Many queue pairs on one completion queue get alike, and a slow receiver loses nothing to a sender that keeps a window.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use crate::common::node::{Node, SEND, SOON};
use crate::common::{Process, given, now, overruns, role};
use dgiwarp::{Config, Destination, DropReason, Operation, Rnic, SendWr, WcOpcode, WcStatus};

/// Queue pairs on one completion queue.
const QPS: usize = 64;

/// Passes time as a program does that works on what it received.
fn work(time: Duration) {
    let until = now() + time;
    while now() < until {
        std::hint::spin_loop();
    }
}

fn as_f64(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap())
}

/// The least is at least that share of the mean.
#[track_caller]
fn assert_fair(what: &str, counts: &[u64], share: f64) {
    let mean = as_f64(counts.iter().sum::<u64>()) / as_f64(u64::try_from(counts.len()).unwrap());
    let least = as_f64(*counts.iter().min().unwrap());
    println!("{what}: the least {least}, {mean} in the mean");
    assert!(least >= share * mean, "{what}: {counts:?}");
}

fn node_on(rnic: &Rnic, cq: &dgiwarp::Cq, octets: usize) -> Node {
    Node::on(rnic.clone(), cq.clone(), octets, |attr| {
        attr.qp.max_recv_wr = 32
    })
}

/// Sends to all of the ports in turn, `train` messages at a time, until it is killed.
fn flood() {
    let train: usize = given("TRAIN").parse().unwrap();
    let node = Node::new(64);
    let ways: Vec<Destination> = given("PORTS")
        .split(' ')
        .map(|port| node.to_port(Ipv4Addr::LOCALHOST.into(), port.parse().unwrap()))
        .collect();
    let sges = [node.mr.sge(..)];
    loop {
        for way in &ways {
            let wrs: Vec<_> = (0..train)
                .map(|place| SendWr {
                    wr_id: 0,
                    operation: SEND,
                    destination: way.clone(),
                    sges: &sges,
                    signaled: place + 1 == train,
                    solicited: false,
                })
                .collect();
            node.qp.post_send(&wrs).unwrap();
            assert_eq!(node.wait().status, WcStatus::Success);
        }
    }
}

/// One thread polls for 64 queue pairs, all of whose sockets always hold something.
fn receivers(test: &str, train: usize) {
    if role().is_some() {
        return flood();
    }
    let mut config = Config::default();
    // Sockets that are soon full.
    config.receive_buffer = 32 << 10;
    let rnic = Rnic::open(config).unwrap();
    let cq = rnic.create_cq(1 << 14).unwrap();
    let nodes: Vec<_> = (0..QPS).map(|_| node_on(&rnic, &cq, 64)).collect();
    for node in &nodes {
        (0..32).for_each(|_| node.post_recv(0, 0..64));
    }
    let ports: Vec<_> = nodes.iter().map(|node| node.qp.qpn().to_string()).collect();
    let variables = [("PORTS", ports.join(" ")), ("TRAIN", train.to_string())];
    let _sender = Process::start(test, "sender", &variables);
    let index_of = |qpn: u32| {
        nodes
            .iter()
            .position(|node| u32::from(node.qp.qpn()) == qpn)
            .unwrap()
    };
    let receive = |count: usize| {
        let mut counts = vec![0; QPS];
        for _ in 0..count {
            let wc = cq.wait(SOON).unwrap().expect("the sender never stops");
            assert_eq!((wc.opcode, wc.status), (WcOpcode::Recv, WcStatus::Success));
            // So long that each socket is filled faster than all of them are emptied.
            work(Duration::from_micros(300));
            let index = index_of(wc.qpn);
            nodes[index].post_recv(0, 0..64);
            counts[index] += 1;
        }
        counts
    };
    // Until all sockets are full.
    receive(QPS * 10);
    assert_fair(test, &receive(QPS * 40), 0.5);
}

#[test]
fn receivers_of_single_messages_get_alike() {
    receivers(here!("receivers_of_single_messages_get_alike"), 1);
}

#[test]
fn receivers_of_trains_get_alike() {
    receivers(here!("receivers_of_trains_get_alike"), 16);
}

/// One socket always holds more than its program can take. Another of the same completion queue has its turn all the same.
#[test]
fn a_flooded_queue_pair_does_not_starve_another() {
    let test = here!("a_flooded_queue_pair_does_not_starve_another");
    if role().is_some() {
        return flood();
    }
    let rnic = Rnic::open(Config::default()).unwrap();
    let cq = rnic.create_cq(1 << 14).unwrap();
    let [flooded, quiet] = [(); 2].map(|()| node_on(&rnic, &cq, 64));
    (0..32).for_each(|_| flooded.post_recv(0, 0..64));
    (0..32).for_each(|_| quiet.post_recv(1, 0..64));
    let port = flooded.qp.qpn().to_string();
    let variables = [("PORTS", port), ("TRAIN", 16.to_string())];
    let _sender = Process::start(test, "sender", &variables);
    let other = Node::new(64);
    let to = other.to(&quiet.qp);
    let take = || {
        let wc = cq.wait(SOON).unwrap().expect("the flood never stops");
        assert_eq!((wc.opcode, wc.status), (WcOpcode::Recv, WcStatus::Success));
        work(Duration::from_micros(20));
        let node = if wc.wr_id == 1 { &quiet } else { &flooded };
        node.post_recv(wc.wr_id, 0..64);
        wc.wr_id
    };
    let mut longest = 0;
    for _ in 0..10 {
        // Long enough for the quiet one to be forgotten.
        (0..3000).for_each(|_| assert_eq!(take(), 0));
        other.send(0, &to, 0..64);
        assert_eq!(other.wait().status, WcStatus::Success);
        let until = now() + SOON;
        let mut between = 0;
        while take() == 0 {
            between += 1;
            assert!(now() < until, "{between} messages of the flood came first");
        }
        longest = longest.max(between);
    }
    println!("at most {longest} messages of the flood before one of the other");
    assert!(longest <= 2000, "{longest}");
}

/// All have more to send than one turn takes; what the others still have must not wait for the first to end. They are slow until all are
/// posted to, and counted from the moment when all are fast: those who were first had the time until then for themselves.
#[test]
fn senders_of_long_messages_get_alike() {
    let mut config = Config::default();
    config.max_mtu = 1500;
    let rnic = Rnic::open(config).unwrap();
    let cq = rnic.create_cq(1 << 14).unwrap();
    let length = 8 << 20;
    let sink = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = sink.local_addr().unwrap().port();
    let slow = |attr: &mut dgiwarp::UdQpAttr<'_>| attr.max_rate = 1;
    let nodes: Vec<_> = (0..QPS)
        .map(|_| Node::on(rnic.clone(), cq.clone(), length, slow))
        .collect();
    let each = 8;
    for node in &nodes {
        let to = node.to_port(Ipv4Addr::LOCALHOST.into(), port);
        for _ in 0..each {
            node.post(0, SEND, &to, &[node.mr.sge(..)]).unwrap();
        }
    }
    for node in &nodes {
        node.qp.set_max_rate(0);
    }
    let sent = || -> Vec<u64> {
        let counters = nodes.iter().map(|node| node.qp.counters());
        counters.map(|counters| counters.octets_sent).collect()
    };
    let before = sent();
    let all = u64::try_from(each * length).unwrap();
    let first = *before.iter().max().unwrap();
    // Until the one with the longest head start is through with half of what it had left.
    let until = first + (all - first) / 2;
    let after = loop {
        let wc = cq.wait(SOON).unwrap().expect("they are sent");
        assert_eq!((wc.opcode, wc.status), (WcOpcode::Send, WcStatus::Success));
        let after = sent();
        if after.iter().any(|&octets| octets >= until) {
            break after;
        }
    };
    let turns: Vec<_> = std::iter::zip(after, before)
        .map(|(after, before)| (after - before) >> 16)
        .collect();
    println!("{} MiB ahead", first >> 20);
    assert_fair("senders", &turns, 0.75);
}

/// Octets of a message.
const MESSAGE: usize = 1024;
/// Messages of a run.
const RUN: u32 = 3000;
/// Time that the receiver spends on each: longer than two messages take to be sent.
const WORK: Duration = Duration::from_micros(40);

/// Sends runs of messages: as many as fit the window ahead of the receiver's credits, or without regard to it.
fn sender_of_runs() {
    let node = Node::with(4096, Config::default(), |attr| attr.qp.max_recv_wr = 1024);
    let to = node.to_port(Ipv4Addr::LOCALHOST.into(), given("PORT").parse().unwrap());
    let window: u32 = given("WINDOW").parse().unwrap();
    (0..1024).for_each(|_| node.post_recv(0, 2048..2048 + 16));
    let mut credits = window;
    for number in 0.. {
        while credits == 0 || cq_has_credit(&node, &mut credits) {
            if credits == 0 {
                let wc = node.wait();
                take_credit(&node, wc, &mut credits);
            }
        }
        let operation = Operation::Send {
            immediate: Some(number),
        };
        // A socket without room, as on a loaded machine, leaves the queue full for a while.
        while let Err(failure) = node.post(0, operation, &to, &[node.mr.sge(..MESSAGE)]) {
            assert_eq!(failure.source, dgiwarp::PostError::QueueFull);
            cq_has_credit(&node, &mut credits);
        }
        // Without a window this never gets less.
        credits -= u32::from(window < u32::MAX);
    }
}

fn cq_has_credit(node: &Node, credits: &mut u32) -> bool {
    let Some(wc) = node.cq.poll_one().unwrap() else {
        return false;
    };
    take_credit(node, wc, credits);
    true
}

fn take_credit(node: &Node, wc: dgiwarp::Wc, credits: &mut u32) {
    assert_eq!(wc.status, WcStatus::Success);
    if wc.opcode == WcOpcode::Recv {
        node.post_recv(0, 2048..2048 + 16);
        *credits += wc.immediate.unwrap();
    }
}

/// The receiving end of a run.
struct Slow {
    node: Node,
    /// The default window of the specification, in messages; that many receives are posted.
    window: u32,
}

impl Slow {
    fn new() -> Self {
        let node = Node::with(256 * MESSAGE, Config::default(), |_| ());
        let granted = node.qp.receive_buffer().unwrap();
        let window = ((granted / 4).min(256 << 10) / MESSAGE).min(granted / 1024);
        assert!((4..=256).contains(&window), "{window} of {granted}");
        let this = Self {
            node,
            window: u32::try_from(window).unwrap(),
        };
        (0..u64::from(this.window)).for_each(|slot| this.post(slot));
        this
    }

    fn post(&self, slot: u64) {
        let start = usize::try_from(slot).unwrap() * MESSAGE;
        self.node.post_recv(slot, start..start + MESSAGE);
    }

    /// Receives a message, works on it, and makes room for another. Returns where it came from.
    fn take(&self) -> SocketAddr {
        let wc = loop {
            let wc = self.node.wait();
            assert_eq!(wc.status, WcStatus::Success);
            if wc.opcode == WcOpcode::Recv {
                break wc;
            }
        };
        work(WORK);
        self.post(wc.wr_id);
        wc.source.unwrap()
    }

    /// Messages lost for lack of room in the socket, and for lack of receives.
    fn lost(&self) -> u64 {
        overruns(self.node.qp.qpn()) + self.node.qp.counters().dropped(DropReason::NoReceive)
    }
}

/// How long a run takes whose messages are all there already, window by window.
fn own_time() -> Duration {
    let slow = Slow::new();
    let sender = Node::new(4096);
    let to = sender.to(&slow.node.qp);
    let mut took = Duration::ZERO;
    let mut count = 0;
    while count < RUN {
        for _ in 0..slow.window {
            sender.send(0, &to, 0..MESSAGE);
            assert_eq!(sender.wait().status, WcStatus::Success);
        }
        let began = now();
        (0..slow.window).for_each(|_| {
            slow.take();
        });
        took += now() - began;
        count += slow.window;
    }
    assert_eq!(slow.lost(), 0);
    took.mul_f64(f64::from(RUN) / f64::from(count))
}

/// How long a run takes whose sender is another process and as fast as it can be, or as the window lets it; and what was lost.
fn time_of_run(test: &str, windowed: bool) -> (Duration, u64) {
    let slow = Slow::new();
    let window = if windowed { slow.window } else { u32::MAX };
    let port = slow.node.qp.qpn().to_string();
    let variables = [("PORT", port), ("WINDOW", window.to_string())];
    let _sender = Process::start(test, "sender", &variables);
    let credit = slow.window / 4;
    let mut to = None;
    let mut began = now();
    // The first window is not counted: the sender is still starting.
    for count in 1..=slow.window + RUN {
        let source = slow.take();
        if count == slow.window {
            began = now();
        }
        if windowed && count.is_multiple_of(credit) {
            let to = to.get_or_insert_with(|| slow.node.to_port(source.ip(), source.port()));
            let operation = Operation::Send {
                immediate: Some(credit),
            };
            slow.node.post(0, operation, to, &[]).unwrap();
        }
    }
    (now() - began, slow.lost())
}

/// The receiver's own rate is that at which it takes messages that are there already. With the window it gets nearly
/// that, and loses nothing.
#[test]
fn a_slow_receiver_gets_its_own_rate_with_a_window() {
    let test = here!("a_slow_receiver_gets_its_own_rate_with_a_window");
    if role().is_some() {
        return sender_of_runs();
    }
    // The machine may be busy with something else now and then.
    const TRIES: usize = 12;
    let mut without = (0..TRIES).map(|_| time_of_run(test, false));
    // The sender is half again as fast as the receiver at least.
    let without = without.find(|(_, lost)| *lost >= u64::from(RUN) / 2);
    let (without, _) = without.expect("without a window messages are lost");
    let mut best = 0.0_f64;
    for _ in 0..TRIES {
        let own = own_time().as_secs_f64();
        let (windowed, lost) = time_of_run(test, true);
        assert_eq!(lost, 0, "the window is kept");
        let share = own / windowed.as_secs_f64();
        let without = own / without.as_secs_f64();
        println!("{share:.3} of its own rate with a window, {without:.3} without");
        best = best.max(share);
        if best >= 0.9 {
            return;
        }
    }
    panic!("only {best:.3} of its own rate");
}
