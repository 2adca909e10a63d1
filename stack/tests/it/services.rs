//! Services and their lookup over real sockets.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::common::strangers::is_port_query;
use crate::common::{Process, crc32c, file_in, now, role, sleep};
use dgiwarp::{
    Config, DropReason, Error, LookupError, RejectStatus, Rnic, ServiceChannel, ServiceEvent,
    ServiceListener, ServicePort, ServiceQp, ServiceRequest, ServiceSink,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

const QP: ServiceQp = ServiceQp {
    qpn: 40_000,
    qkey: 0x0123_4567,
};
const PATIENCE: Duration = Duration::from_secs(20);

fn channel() -> ServiceChannel {
    let rnic = Rnic::open(Config::default()).unwrap();
    rnic.create_service_channel().unwrap()
}

fn port(address: &str) -> ServicePort {
    ServicePort::bind(address.parse().unwrap(), false).unwrap()
}

fn service(channel: &ServiceChannel, backlog: usize) -> (ServiceListener, SocketAddr) {
    let listener = channel.listen(port("127.0.0.1:0"), backlog, 1).unwrap();
    let address = listener.local_addr();
    (listener, address)
}

fn request(channel: &ServiceChannel) -> ServiceRequest {
    match channel.next_event(PATIENCE) {
        Some(ServiceEvent::Request {
            context: 1,
            request,
        }) => request,
        other => panic!("{other:?}"),
    }
}

fn end(channel: &ServiceChannel) -> ServiceEvent {
    channel.next_event(PATIENCE).expect("an event")
}

#[test]
fn a_service_is_found_and_both_programs_are_heard() {
    for (server, client) in [
        ("127.0.0.1:0", "127.0.0.1:0"),
        ("[::1]:0", "[::]:0"),
        ("[::]:0", "0.0.0.0:0"),
    ] {
        let (offering, asking) = (channel(), channel());
        let service = offering.listen(port(server), 5, 1).unwrap();
        let number = service.local_addr().port();
        let host = if client == "[::]:0" {
            "[::1]"
        } else {
            "127.0.0.1"
        };
        let to: SocketAddr = format!("{host}:{number}").parse().unwrap();
        let own = ServiceQp { qpn: 7, qkey: 8 };
        let from = port(client);
        let asked_from = from.local_addr().port();
        let _lookup = asking.look_up(from, to, Some(own), b"who", 2).unwrap();

        let request = request(&offering);
        assert_eq!(request.private_data(), b"who");
        assert_eq!(request.asker(), Some(own));
        assert_eq!(request.peer(), SocketAddr::new(to.ip(), asked_from));
        assert_eq!(request.local(), Some(to));
        request.accept(QP, b"me").unwrap();

        let ServiceEvent::Found {
            context: 2,
            peer,
            qp,
            private_data,
        } = end(&asking)
        else {
            panic!("not found");
        };
        assert_eq!((peer, qp, &private_data[..]), (to, QP, &b"me"[..]));
    }
}

#[test]
fn a_service_says_no_and_so_does_one_that_says_nothing() {
    let channel = channel();
    let (_service, to) = service(&channel, 5);
    for said in [&b"go away"[..], b""] {
        let _lookup = channel
            .look_up(port("127.0.0.1:0"), to, None, b"", 2)
            .unwrap();
        let request = request(&channel);
        if said.is_empty() {
            drop(request);
        } else {
            request.reject(said).unwrap();
        }
        let ServiceEvent::Rejected {
            context: 2,
            status,
            private_data,
        } = end(&channel)
        else {
            panic!("not rejected");
        };
        assert_eq!((status, &private_data[..]), (RejectStatus::REJECTED, said));
    }
}

#[test]
fn nobody_there_is_told_at_once() {
    let channel = channel();
    let (service, to) = service(&channel, 5);
    drop(service);
    let began = now();
    let _lookup = channel
        .look_up(port("127.0.0.1:0"), to, None, b"", 2)
        .unwrap();
    let ServiceEvent::Failed {
        context: 2,
        error: LookupError::NoService,
    } = end(&channel)
    else {
        panic!("somebody there");
    };
    // Much sooner than silence is given up.
    assert!(began.elapsed() < Duration::from_secs(4));
}

#[test]
fn a_service_that_begins_in_that_moment_is_found() {
    let (offering, asking) = (channel(), channel());
    let port = port("127.0.0.1:0");
    let to = port.local_addr();
    drop(port);
    let _lookup = asking
        .look_up(self::port("127.0.0.1:0"), to, None, b"", 2)
        .unwrap();
    // The first question has found nobody.
    let port = ServicePort::bind(to, false).unwrap();
    let _service = offering.listen(port, 5, 1).unwrap();
    request(&offering).accept(QP, b"").unwrap();
    assert!(matches!(end(&asking), ServiceEvent::Found { qp: QP, .. }));
}

#[test]
fn silence_is_given_up_within_five_seconds() {
    let channel = channel();
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = silent.local_addr().unwrap();
    let _lookup = channel
        .look_up(port("127.0.0.1:0"), to, None, b"", 2)
        .unwrap();
    let ServiceEvent::Failed {
        context: 2,
        error: LookupError::TimedOut,
    } = end(&channel)
    else {
        panic!("heard something");
    };
    let mut repeats = 0;
    silent.set_nonblocking(true).unwrap();
    let mut octets = [0; 512];
    while let Ok(length) = silent.recv(&mut octets) {
        if is_port_query(&octets[..length]) {
            continue;
        }
        assert_eq!(length, 284);
        repeats += 1;
    }
    assert!((2..=8).contains(&repeats), "{repeats}");
}

/// Datagrams that a raw socket sends to a service, and what comes back.
#[test]
fn a_question_is_asked_once_and_hostile_datagrams_are_counted() {
    let channel = channel();
    let (service, to) = service(&channel, 5);
    let own = UdpSocket::bind("127.0.0.1:0").unwrap();
    own.set_read_timeout(Some(PATIENCE)).unwrap();
    own.connect(to).unwrap();

    // The example of the specification, with this service's number: its CRC fits no more. And far too short a one.
    let mut lookup = [0; 284];
    lookup[..14].copy_from_slice(&[0x4d, 1, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0]);
    own.send_to(&lookup, to).unwrap();
    own.send_to(&[0x4d], to).unwrap();
    lookup[12..14].copy_from_slice(&to.port().to_be_bytes());
    let crc = crc32c(&lookup[..280]);
    lookup[280..].copy_from_slice(&crc.to_le_bytes());
    for _ in 0..3 {
        own.send_to(&lookup, to).unwrap();
    }

    let request = request(&channel);
    let mut octets = [0; 512];
    for _ in 0..2 {
        let length = own.recv(&mut octets).unwrap();
        assert_eq!((length, octets[1]), (28, 4), "the program has not said");
    }
    request.accept(QP, b"").unwrap();
    own.send_to(&lookup, to).unwrap();
    for _ in 0..2 {
        let length = own.recv(&mut octets).unwrap();
        assert_eq!((length, octets[1]), (28, 2));
        assert_eq!(octets[16..20], QP.qpn.to_be_bytes());
    }
    assert!(channel.next_event(Duration::ZERO).is_none(), "asked once");
    assert_eq!(channel.counters().dropped(DropReason::BadCrc), 1);
    assert_eq!(channel.counters().dropped(DropReason::Malformed), 1);
    assert_eq!(channel.counters().dropped(DropReason::Duplicate), 3);
    assert_eq!(channel.counters().segments_received, 1);
    let rnic = channel.rnic().clone();
    let counted = channel.counters();
    assert_eq!(rnic.counters(), counted);
    drop((channel, service));
    assert_eq!(rnic.counters(), counted, "also when it is gone");
}

/// A program that is killed while it thinks about a question: the failure of its askers comes soon.
#[test]
fn a_killed_service_is_noticed() {
    if role().is_some() {
        let channel = channel();
        let (_service, to) = service(&channel, 5);
        println!("at {to}");
        let _request = request(&channel);
        println!("asked");
        sleep(PATIENCE);
        return;
    }
    let mut server = Process::start(here!("a_killed_service_is_noticed"), "server", &[]);
    let to = server.tells("at ", PATIENCE).parse().unwrap();
    let channel = channel();
    let _lookup = channel
        .look_up(port("127.0.0.1:0"), to, None, b"", 2)
        .unwrap();
    server.tells("asked", PATIENCE);
    server.kill();
    let began = now();
    let ServiceEvent::Failed {
        context: 2,
        error: LookupError::NoService,
    } = end(&channel)
    else {
        panic!("it lives");
    };
    // The longest pause between questions is a second.
    assert!(began.elapsed() < Duration::from_secs(4));
}

#[test]
fn a_port_is_taken_by_one_and_free_afterwards() {
    let channel = channel();
    let (service, to) = service(&channel, 5);
    let taken = ServicePort::bind(to, false);
    let Err(Error::Bind { source, .. }) = taken else {
        panic!("bound twice");
    };
    assert_eq!(source.kind(), std::io::ErrorKind::AddrInUse);

    // A question that has no answer keeps it; the answer still gets through.
    let asking = self::channel();
    let _lookup = asking
        .look_up(port("127.0.0.1:0"), to, None, b"", 2)
        .unwrap();
    let request = request(&channel);
    drop(service);
    assert!(ServicePort::bind(to, false).is_err());
    request.accept(QP, b"").unwrap();
    assert!(matches!(end(&asking), ServiceEvent::Found { qp: QP, .. }));
    assert!(ServicePort::bind(to, false).is_ok());

    let elsewhere = ServicePort::bind("192.0.2.77:0".parse().unwrap(), false);
    let Err(Error::Bind { source, .. }) = elsewhere else {
        panic!("not our address");
    };
    assert_eq!(source.kind(), std::io::ErrorKind::AddrNotAvailable);
}

#[test]
fn more_questions_than_the_backlog_are_all_answered_in_the_end() {
    let (offering, asking) = (channel(), channel());
    let (_service, to) = service(&offering, 2);
    let ask = |context| {
        asking
            .look_up(port("127.0.0.1:0"), to, None, b"", context)
            .unwrap()
    };
    let lookups: Vec<_> = (0..12).map(ask).collect();
    for _ in &lookups {
        request(&offering).accept(QP, b"").unwrap();
    }
    let mut found: Vec<_> = lookups
        .iter()
        .map(|_| match end(&asking) {
            ServiceEvent::Found { context, .. } => context,
            other => panic!("{other:?}"),
        })
        .collect();
    found.sort_unstable();
    assert_eq!(found, (0..12).collect::<Vec<_>>());
}

#[test]
fn a_sink_is_told_by_the_background_thread_and_a_dropped_lookup_is_silent() {
    #[derive(Debug)]
    struct Sink(mpsc::Sender<ServiceEvent>);
    impl ServiceSink for Sink {
        fn happened(&self, event: ServiceEvent) {
            self.0.send(event).unwrap();
        }
    }
    let (sender, receiver) = mpsc::channel();
    let rnic = Rnic::open(Config::default()).unwrap();
    let channel = rnic
        .create_service_channel_to(Arc::new(Sink(sender)))
        .unwrap();
    let (_service, to) = service(&channel, 5);
    let forgotten = channel
        .look_up(port("127.0.0.1:0"), to, None, b"", 3)
        .unwrap();
    let Ok(ServiceEvent::Request { request: first, .. }) = receiver.recv_timeout(PATIENCE) else {
        panic!("no request");
    };
    drop(forgotten);
    first.accept(QP, b"").unwrap();
    let _lookup = channel
        .look_up(port("127.0.0.1:0"), to, None, b"", 4)
        .unwrap();
    let Ok(ServiceEvent::Request { request, .. }) = receiver.recv_timeout(PATIENCE) else {
        panic!("no request");
    };
    request.accept(QP, b"").unwrap();
    let next = receiver.recv_timeout(PATIENCE);
    assert!(
        matches!(next, Ok(ServiceEvent::Found { context: 4, .. })),
        "{next:?}"
    );
}

#[test]
fn the_channel_is_readable_while_it_has_an_event() {
    let channel = channel();
    let readable = |millis: u16| {
        let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::from(millis)).unwrap() == 1
    };
    let (service, to) = service(&channel, 5);
    drop(service);
    assert!(!readable(0));
    let _lookup = channel
        .look_up(port("127.0.0.1:0"), to, None, b"", 2)
        .unwrap();
    assert!(readable(20_000), "the background thread looks after it");
    assert!(matches!(end(&channel), ServiceEvent::Failed { .. }));
    assert!(!readable(0));
}

/// Everything that was sent and received, in order.
#[test]
fn a_capture_file_has_the_conversation() {
    let directory = format!("services-{}", std::process::id());
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(directory);
    let mut config = Config::default();
    config.pcap = Some(directory.clone());
    let channel = Rnic::open(config).unwrap();
    let channel = channel.create_service_channel().unwrap();
    let (_service, to) = service(&channel, 5);
    let _lookup = channel
        .look_up(port("127.0.0.1:0"), to, None, b"which queue pair?", 2)
        .unwrap();
    request(&channel).accept(QP, b"this queue pair!").unwrap();
    assert!(matches!(end(&channel), ServiceEvent::Found { .. }));
    let file = file_in(&directory, &format!("services-{}-", std::process::id()));
    let captured = std::fs::read(file).unwrap();
    std::fs::remove_dir_all(directory).unwrap();
    let position = |text: &[u8]| captured.windows(text.len()).position(|it| it == text);
    let times = |text: &[u8]| {
        captured
            .windows(text.len())
            .filter(|it| *it == text)
            .count()
    };
    // The asker's and the service's view of each, and the question may have been repeated.
    assert!(times(b"which queue pair?") >= 2);
    assert!(times(b"this queue pair!") >= 2);
    assert!(position(b"which queue pair?") < position(b"this queue pair!"));
}

#[test]
fn private_data_has_a_limit() {
    let channel = channel();
    let (_service, to) = service(&channel, 5);
    let too_long = channel.look_up(port("127.0.0.1:0"), to, None, &[1; 257], 2);
    assert!(matches!(too_long, Err(Error::Limit { .. })));
    let longest = [1; 256];
    let _lookup = channel
        .look_up(port("127.0.0.1:0"), to, None, &longest, 2)
        .unwrap();
    let request = request(&channel);
    assert_eq!(request.private_data(), longest);
    request.accept(QP, &longest).unwrap();
    let ServiceEvent::Found { private_data, .. } = end(&channel) else {
        panic!("not found");
    };
    assert_eq!(private_data, longest);
}

/// Lost and doubled datagrams change nothing but the time it takes.
#[test]
fn faults_are_survived() {
    let fault = "drop=0.05,dup=0.2,corrupt=0.05,seed=7".parse().unwrap();
    let mut config = Config::default();
    config.fault = Some(fault);
    let rnic = Rnic::open(config).unwrap();
    let channel = rnic.create_service_channel().unwrap();
    let (_service, to) = service(&channel, 64);
    let ask = |context| {
        channel
            .look_up(port("127.0.0.1:0"), to, None, b"", context)
            .unwrap()
    };
    let _lookups: Vec<_> = (0..32).map(ask).collect();
    let (mut asked, mut found) = (0, 0);
    while found < 32 {
        match end(&channel) {
            ServiceEvent::Request { request, .. } => {
                asked += 1;
                request.accept(QP, b"").unwrap();
            }
            ServiceEvent::Found { .. } => found += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(asked, 32, "each question once");
}
