//! Servers that are lost and started again, and memory that is given for replies.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use bytes::Bytes;
use dgiwarp_ripc_service::{CallOptions, Context, LoadBalancing, service};
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, JoinSet};

use super::*;

/// Set in a process of this test that serves.
const SERVES: &str = "RIPC_TEST_SERVES";

#[service]
trait Holder {
    async fn hold(&self, context: Context) -> Result<(), dgiwarp_ripc::Status>;
    /// Handlers that have begun, of gRPC too.
    async fn begun(&self, context: Context) -> Result<usize, dgiwarp_ripc::Status>;
}

impl Holder for Service {
    async fn hold(&self, _: Context) -> Result<(), dgiwarp_ripc::Status> {
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        std::future::pending().await
    }

    async fn begun(&self, _: Context) -> Result<usize, dgiwarp_ripc::Status> {
        Ok(self.0.begun.load(Ordering::SeqCst))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_spread_over_servers_and_leave_one_that_is_gone() {
    let services = [Service::default(), Service::default()];
    let mut servers = services.clone().map(|service| {
        let server = endpoint("127.0.0.1:0");
        Server::new()
            .add_service(GreeterServer::new(service))
            .serve(&server, Handle::current())
            .unwrap();
        Some(server)
    });
    let addresses = servers.iter().flatten();
    let addresses = addresses.map(|it| it.local_addr().unwrap()).collect();
    let caller = Endpoint::open(Config::default().without_group()).unwrap();
    let channel = Channel::balanced(&caller, addresses, LoadBalancing::LeastOutstanding);
    let client = GreeterClient::new(channel);
    let held: Vec<_> = (0..2)
        .map(|_| {
            let mut client = client.clone();
            tokio::spawn(async move { client.hello(hello("sleep long")).await })
        })
        .collect();
    for service in &services {
        begun(&service.0.begun, 1).await;
    }
    held.iter().for_each(JoinHandle::abort);
    servers[0] = None;
    let mut client = client;
    let mut failed = 0;
    for _ in 0..20 {
        // The first one may find its connection lost.
        failed += usize::from(client.hello(hello("you")).await.is_err());
    }
    assert!(failed <= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_a_server_has_no_room_for_goes_to_another() {
    let services = [Service::default(), Service::default()];
    let mut small = Config::listening("127.0.0.1:0".parse().unwrap()).without_group();
    small.limits.waiting = 0;
    let servers = [Endpoint::open(small).unwrap(), endpoint("127.0.0.1:0")];
    for (server, service) in servers.iter().zip(&services) {
        let greeter = GreeterServer::new(service.clone());
        let services = Server::new().add_service(greeter);
        services.serve(server, Handle::current()).unwrap();
    }
    let caller = Endpoint::open(Config::default().without_group()).unwrap();
    let addresses = servers.each_ref().map(|it| it.local_addr().unwrap());
    let mut client = GreeterClient::new(Channel::new(&caller, addresses.to_vec()));
    for _ in 0..3 {
        let mut request = hello("you");
        request.set_timeout(SOON);
        assert_eq!(
            client.hello(request).await.unwrap().into_inner().text,
            "Hello you!"
        );
    }
    let begun = services
        .each_ref()
        .map(|it| it.0.begun.load(Ordering::SeqCst));
    assert_eq!(begun, [0, 3]);
    // Where there is no other one, the status is that of the server.
    let mut alone = GreeterClient::new(Channel::new(&caller, vec![addresses[0]]));
    let status = alone.hello(hello("you")).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_goes_away_fails_no_call_and_executes_none_twice() {
    const CALLS: usize = 300;
    let services = [Service::default(), Service::default()];
    let servers = [endpoint("127.0.0.1:0"), endpoint("127.0.0.1:0")];
    for (server, service) in servers.iter().zip(&services) {
        let greeter = GreeterServer::new(service.clone());
        let services = Server::new().add_service(greeter);
        services.serve(server, Handle::current()).unwrap();
    }
    let caller = Endpoint::open(Config::default().without_group()).unwrap();
    let addresses = servers.each_ref().map(|it| it.local_addr().unwrap());
    let channel = Channel::balanced(&caller, addresses.to_vec(), LoadBalancing::TwoChoices);
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let mut client = GreeterClient::new(channel.clone());
        tasks.spawn(async move {
            for _ in 0..CALLS {
                client.hello(hello("you")).await.unwrap();
            }
        });
    }
    begun(&services[0].0.begun, CALLS / 2).await;
    let [gone, _kept] = servers;
    let closed = tokio::task::spawn_blocking(move || gone.close(SOON)).await;
    assert!(closed.unwrap());
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    let begun = services
        .each_ref()
        .map(|it| it.0.begun.load(Ordering::SeqCst));
    assert_eq!(begun.iter().sum::<usize>(), 4 * CALLS);
}

/// A process that serves both kinds of services; it ends with this one.
struct Process {
    child: Child,
    address: SocketAddr,
}

impl Process {
    /// Runs this test in another process, which then serves.
    fn start(test: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]);
        command.env(SERVES, "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let address = output.lines().find_map(|line| {
            let line = line.unwrap();
            let (_, address) = line.split_once("serves at ")?;
            Some(address.parse().unwrap())
        });
        let address = address.unwrap();
        Self { child, address }
    }

    /// Body of that process.
    async fn serve() {
        let server = endpoint("127.0.0.1:0");
        let service = Service::default();
        Server::new()
            .add_service(GreeterServer::new(service.clone()))
            .serve(&server, Handle::current())
            .unwrap();
        Holder::serve(service, &server, Handle::current()).unwrap();
        let address = server.local_addr().unwrap();
        println!("serves at {address}");
        let ends = || std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        tokio::task::spawn_blocking(ends).await.unwrap();
    }

    /// Ends it by SIGKILL.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn of_typed(status: &dgiwarp_ripc::Status) -> (bool, String) {
    let is_unavailable = status.code == dgiwarp_ripc::Code::Unavailable;
    (is_unavailable, status.to_string())
}

fn of_tonic(status: &Status) -> (bool, String) {
    (status.code() == Code::Unavailable, status.to_string())
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::disallowed_methods, reason = "it measures until a deadline")]
async fn calls_amid_which_a_server_is_killed_fail_promptly() {
    if std::env::var_os(SERVES).is_some() {
        return Process::serve().await;
    }
    let test = "lost::calls_amid_which_a_server_is_killed_fail_promptly";
    let process = tokio::task::spawn_blocking(|| Process::start(test));
    let mut process = process.await.unwrap();
    // Calls that stay open limit how many others of their endpoint a server keeps in mind.
    let [(typed, greeter), (often, mut other)] = [(); 2].map(|()| {
        let client = Endpoint::open(Config::default().without_group()).unwrap();
        let addresses = vec![process.address];
        let typed = HolderClient::new(&client, addresses.clone());
        (typed, GreeterClient::new(Channel::new(&client, addresses)))
    });
    let mut endless = CallOptions::default();
    endless.timeout = None;
    let mut calls = JoinSet::new();
    for at in 0..16 {
        let held = match at % 2 {
            0 => typed.clone().with_options(endless.clone()),
            _ => typed.clone().with_options(CallOptions::timeout(10 * SOON)),
        };
        calls.spawn(async move { of_typed(&held.hold().await.unwrap_err()) });
        let mut held = greeter.clone();
        let mut request = hello("sleep long");
        if at % 2 == 0 {
            request.set_timeout(10 * SOON);
        }
        calls.spawn(async move { of_tonic(&held.hello(request).await.unwrap_err()) });
    }
    let often = often.with_options(CallOptions::timeout(SOON));
    let begun = async |count| while often.begun().await.unwrap() < count {};
    tokio::time::timeout(SOON, begun(32)).await.unwrap();
    // Calls follow each other meanwhile.
    let again = often.clone().with_options(endless);
    calls.spawn(async move {
        loop {
            if let Err(status) = again.begun().await {
                return of_typed(&status);
            }
        }
    });
    calls.spawn(async move {
        loop {
            if let Err(status) = other.hello(hello("you")).await {
                return of_tonic(&status);
            }
        }
    });
    tokio::time::timeout(SOON, begun(1000)).await.unwrap();
    let killed = Instant::now();
    process.kill();
    while let Some(ended) = tokio::time::timeout(SOON, calls.join_next()).await.unwrap() {
        let (is_unavailable, status) = ended.unwrap();
        assert!(is_unavailable, "{status}");
    }
    // Five seconds are promised; the machine may be loaded.
    assert!(
        killed.elapsed() < Duration::from_secs(20),
        "{:?}",
        killed.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_to_a_lost_server_fail_and_those_to_its_successor_do_not() {
    let service = Service::default();
    let (server, channel) = over_ripc(&service);
    let address = server.local_addr().unwrap();
    let mut client = GreeterClient::new(channel);
    let mut other = client.clone();
    let pending = tokio::spawn(async move { other.hello(hello("sleep long")).await });
    begun(&service.0.begun, 1).await;
    // The connections of a process that is killed end so.
    let _ = tokio::task::spawn_blocking(move || {
        server.close(Duration::ZERO);
        drop(server);
    })
    .await;
    let lost = tokio::time::timeout(SOON, pending).await.unwrap();
    let status = lost.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let status = client.hello(hello("nobody")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let again = endpoint(&address.to_string());
    let services = Server::new().add_service(GreeterServer::new(Service::default()));
    let runtime = Handle::current();
    services.serve(&again, runtime).unwrap();
    assert!(client.hello(hello("again")).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_message_goes_into_room_or_is_read() {
    let server = endpoint("127.0.0.1:0");
    let service = GreeterServer::new(Service::default()).max_decoding_message_size(64 << 20);
    let runtime = Handle::current();
    let services = Server::new().add_service(service);
    services.serve(&server, runtime).unwrap();
    let client = Endpoint::open(Config::default().without_group()).unwrap();
    let channel = Channel::new(&client, vec![server.local_addr().unwrap()]);
    let data: Vec<_> = (0..32_usize << 20)
        .map(|at| (at % 251).to_le_bytes()[0])
        .collect();
    let data = Bytes::from(data);
    for channel in [channel.clone().with_room(33 << 20), channel] {
        let client = GreeterClient::new(channel);
        let mut client = client.max_decoding_message_size(64 << 20);
        let mut request = hello("you");
        request.get_mut().data = data.clone();
        let reply = client.hello(request).await.unwrap().into_inner();
        assert!(reply.data == data);
    }
}
