//! The group on the loopback interface.

use std::net::Ipv4Addr;
use std::time::Duration;

use dgiwarp_ripc::{CallOptions, Config, Endpoint, Group, Payload};

use super::{ECHO, SOON};

/// A group of this test alone: its port is of the system's choice.
fn group() -> Group {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut group = Group::default();
    group.address.set_port(socket.local_addr().unwrap().port());
    group.interface = Some(Ipv4Addr::LOCALHOST);
    group
}

#[test]
fn all_of_a_thousand_services_are_listed() {
    let group = group();
    let mut config = Config::listening("127.0.0.1:0".parse().unwrap());
    config.group = Some(group);
    let servers: Vec<_> = (0..4)
        .map(|_| Endpoint::open(config.clone()).unwrap())
        .collect();
    for (at, server) in servers.iter().enumerate() {
        for service in 0..250 {
            server
                .open_inbox(&format!("service-{at}-{service}"))
                .unwrap();
        }
    }
    config.listen = None;
    let client = Endpoint::open(config).unwrap();
    let count = |found: &[dgiwarp_ripc::Found]| {
        let names = found.iter().flat_map(|it| &it.services);
        names.filter(|it| it.name.starts_with("service-")).count()
    };
    // A loaded machine may take long to answer.
    let found = (0..50)
        .map(|_| client.list(Duration::from_secs(1)).unwrap())
        .find(|found| count(found) == 1000);
    assert_eq!(found.expect("a thousand services").len(), 4);
}

#[test]
fn services_are_found_by_name_and_listed() {
    let group = group();
    let open = |listens: bool| {
        let mut config = Config::default();
        config.listen = listens.then(|| "127.0.0.1:0".parse().unwrap());
        config.group = Some(group);
        Endpoint::open(config).unwrap()
    };
    let servers = [open(true), open(true)];
    for (server, name) in servers.iter().zip(["kv", "17"]) {
        server
            .serve(name, move |_| Ok(Payload::short(name)))
            .unwrap();
    }
    servers[1].open_inbox("box").unwrap();
    let client = open(false);
    for name in ["kv", "17"] {
        let service = client.resolve(name, SOON).unwrap().expect(name);
        let reply = service.call(ECHO, Payload::new(), &CallOptions::timeout(SOON));
        assert_eq!(reply.unwrap().bytes(0), name.as_bytes());
    }
    let short = Duration::from_millis(200);
    assert!(client.resolve("nobody", short).unwrap().is_none());
    // A loaded machine may take long to answer.
    let found = (0..50)
        .map(|_| client.list(short).unwrap())
        .find(|found| found.len() == 2);
    let mut names: Vec<_> = found
        .expect("two endpoints")
        .iter()
        .flat_map(|it| it.services.iter().map(ToString::to_string))
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["17", "box", "kv"]);
}
