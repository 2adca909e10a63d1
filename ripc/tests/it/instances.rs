//! Several instances of a service: which one a call goes to, and what happens when one is gone.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use dgiwarp_ripc::{CallOptions, Client, Code, Config, Endpoint, LoadBalancing, MethodId, Payload};

use super::{ECHO, SOON, server_config};

const WAIT: MethodId = MethodId::named("wait");

fn patient() -> CallOptions {
    CallOptions::timeout(SOON)
}

/// Instances whose replies are their position, with the numbers of their executions. `WAIT` waits until the sender is dropped.
struct Servers {
    endpoints: Vec<Option<Endpoint>>,
    executed: Vec<Arc<AtomicUsize>>,
    addresses: Vec<SocketAddr>,
    ends: Vec<mpsc::Sender<()>>,
}

impl Servers {
    fn new(configs: Vec<Config>) -> Self {
        let mut servers = Self {
            endpoints: Vec::new(),
            executed: Vec::new(),
            addresses: Vec::new(),
            ends: Vec::new(),
        };
        for (position, config) in (0_u8..).zip(configs) {
            let server = Endpoint::open(config).unwrap();
            let executed = Arc::new(AtomicUsize::new(0));
            let (end, ended) = mpsc::channel::<()>();
            let ended = Mutex::new(ended);
            let counter = Arc::clone(&executed);
            let handler = move |request: dgiwarp_ripc::Request| {
                counter.fetch_add(1, Ordering::SeqCst);
                if request.method == WAIT {
                    let _ = ended.lock().unwrap().recv();
                }
                Ok(Payload::short([position]))
            };
            server.serve("kv", handler).unwrap();
            servers.addresses.push(server.local_addr().unwrap());
            servers.endpoints.push(Some(server));
            servers.executed.push(executed);
            servers.ends.push(end);
        }
        servers
    }

    fn client(&self, endpoint: &Endpoint, policy: LoadBalancing) -> Client {
        let client = endpoint.client("kv".parse().unwrap(), self.addresses.clone());
        client.balanced(policy)
    }

    fn executed(&self) -> Vec<usize> {
        let executed = self.executed.iter();
        executed.map(|it| it.load(Ordering::SeqCst)).collect()
    }
}

fn position(reply: &Payload) -> u8 {
    reply.bytes(0)[0]
}

#[test]
fn calls_go_to_the_instance_with_fewer_under_way() {
    let servers = Servers::new(vec![server_config(); 2]);
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    for policy in [LoadBalancing::LeastOutstanding, LoadBalancing::TwoChoices] {
        let client = servers.client(&endpoint, policy);
        let held = client.begin(WAIT, Payload::new(), &patient()).unwrap();
        let replies: Vec<_> = (0..20)
            .map(|_| client.call(ECHO, Payload::new(), &patient()).unwrap())
            .collect();
        let other = position(&replies[0]);
        assert!(replies.iter().all(|it| position(it) == other), "{policy:?}");
        servers.ends[usize::from(1 - other)].send(()).unwrap();
        assert_eq!(position(&held.wait().unwrap()), 1 - other);
    }
    // The first one takes all of a client that does not balance.
    let before = servers.executed();
    let client = servers.client(&endpoint, LoadBalancing::PickFirst);
    let held = client.begin(WAIT, Payload::new(), &patient()).unwrap();
    for _ in 0..20 {
        client.call(ECHO, Payload::new(), &patient()).unwrap();
    }
    servers.ends[0].send(()).unwrap();
    held.wait().unwrap();
    assert_eq!(servers.executed(), [before[0] + 21, before[1]]);
}

#[test]
fn an_instance_that_goes_away_loses_no_call_and_none_is_executed_twice() {
    let mut servers = Servers::new(vec![server_config(); 3]);
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let client = Arc::new(servers.client(&endpoint, LoadBalancing::TwoChoices));
    const CALLS: usize = 400;
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let client = Arc::clone(&client);
            thread::spawn(move || {
                for _ in 0..CALLS {
                    client.call(ECHO, Payload::new(), &patient()).unwrap();
                }
            })
        })
        .collect();
    for at in [2, 0] {
        while servers.executed().iter().sum::<usize>() < CALLS * (3 - at) / 2 {
            thread::sleep(Duration::from_millis(1));
        }
        let gone = servers.endpoints[at].take().unwrap();
        assert!(gone.close(SOON));
    }
    for thread in threads {
        thread.join().unwrap();
    }
    let executed = servers.executed();
    assert_eq!(executed.iter().sum::<usize>(), 4 * CALLS);
    assert!(executed[1] > 0);
}

#[test]
fn a_call_that_an_instance_has_no_room_for_goes_to_another() {
    let mut small = server_config();
    small.limits.waiting = 0;
    let servers = Servers::new(vec![small, server_config()]);
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let client = servers.client(&endpoint, LoadBalancing::PickFirst);
    for _ in 0..3 {
        let reply = client.call(ECHO, Payload::new(), &patient()).unwrap();
        assert_eq!(position(&reply), 1);
    }
    assert_eq!(servers.executed(), [0, 3]);
    // Where there is no other one, its status is that of the call.
    let address = vec![servers.addresses[0]];
    let alone = endpoint.client("kv".parse().unwrap(), address);
    let status = alone.call(ECHO, Payload::new(), &patient()).unwrap_err();
    assert_eq!(status.code, Code::ResourceExhausted);
}

#[test]
fn a_status_of_the_service_itself_is_the_end_of_the_call() {
    let executed = Arc::new(AtomicUsize::new(0));
    let servers: Vec<_> = (0..2)
        .map(|_| {
            let server = Endpoint::open(server_config()).unwrap();
            let executed = Arc::clone(&executed);
            let handler = move |_| {
                executed.fetch_add(1, Ordering::SeqCst);
                let text = "the service says so";
                Err(dgiwarp_ripc::Status::new(Code::Unavailable, text))
            };
            server.serve("kv", handler).unwrap();
            server
        })
        .collect();
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let addresses = servers.iter().map(|it| it.local_addr().unwrap()).collect();
    let client = endpoint.client("kv".parse().unwrap(), addresses);
    let options = patient().and_idempotent();
    let status = client.call(ECHO, Payload::new(), &options).unwrap_err();
    assert_eq!(status.text, "the service says so");
    assert_eq!(executed.load(Ordering::SeqCst), 1);
}
