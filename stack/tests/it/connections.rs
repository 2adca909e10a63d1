//! Many connections at a time, reported by events.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd as _;
use std::time::Duration;

use crate::common::{Process, now, role, wait_until};
use dgiwarp::{
    Config, ConnectError, ConnectionChannel, ConnectionEvent, ConnectionPort, ConnectionSink, Cq,
    Error, MpaConfig, MpaRevision, Pd, PortOptions, QpAttr, RcEnd, RcOptions, RcQp, RcQpAttr,
    RcRequest, RcSendWr, ReadDepths, RecvWr, Rnic, WcStatus,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

pub(crate) const SOON: Duration = Duration::from_secs(20);
pub(crate) const DEPTHS: ReadDepths = ReadDepths { ird: 4, ord: 4 };
pub(crate) const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A receive for a message without octets.
pub(crate) const EMPTY: RecvWr<'static> = RecvWr {
    wr_id: 8,
    sges: &[],
};

/// A device with a channel.
pub(crate) struct Side {
    pub(crate) channel: ConnectionChannel,
    pub(crate) cq: Cq,
    pub(crate) pd: Pd,
}

impl Side {
    pub(crate) fn new() -> Self {
        Self::with(Config::default())
    }

    pub(crate) fn with(config: Config) -> Self {
        let rnic = Rnic::open(config).unwrap();
        Self {
            channel: rnic.create_connection_channel().unwrap(),
            cq: rnic.create_cq(16_384).unwrap(),
            pd: rnic.alloc_pd(),
        }
    }

    pub(crate) fn qp(&self) -> RcQp {
        let attr = RcQpAttr::from(QpAttr {
            max_send_wr: 4,
            max_recv_wr: 4,
            ..QpAttr::new(&self.cq, &self.cq)
        });
        self.pd.create_rc_qp(&attr).unwrap()
    }

    #[track_caller]
    pub(crate) fn next(&self) -> ConnectionEvent {
        self.channel.next_event(SOON).expect("an event")
    }

    /// The next event, which is a Request.
    #[track_caller]
    pub(crate) fn request(&self) -> RcRequest {
        match self.next() {
            ConnectionEvent::Request { request, .. } => request,
            other => panic!("not a request: {other:?}"),
        }
    }

    pub(crate) fn has_event(&self) -> bool {
        let mut fds = [PollFd::new(self.channel.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
    }
}

pub(crate) fn raise_descriptor_limit() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
}

/// Two thousand connections come up together, and every end is reported to both sides once.
#[test]
fn two_thousand_connections_at_once() {
    const COUNT: u64 = 2000;
    raise_descriptor_limit();
    let (client, server) = (Side::new(), Side::new());
    let listener = server.channel.listen(ANY, MpaConfig::default(), 7).unwrap();
    let qps: Vec<RcQp> = (0..COUNT)
        .map(|context| {
            let qp = client.qp();
            let data = context.to_be_bytes();
            let to = listener.local_addr();
            client
                .channel
                .connect(&qp, to, &MpaConfig::default(), &data, context)
                .unwrap();
            qp
        })
        .collect();
    let mut accepted = Vec::new();
    for _ in 0..COUNT {
        let ConnectionEvent::Request { context, request } = server.next() else {
            panic!("not a request");
        };
        assert_eq!(context, 7);
        let data = request.request().private_data.clone();
        let number = u64::from_be_bytes(data.as_slice().try_into().unwrap());
        let qp = server.qp();
        qp.post_recv(&[RecvWr {
            wr_id: number,
            sges: &[],
        }])
        .unwrap();
        server
            .channel
            .accept(request, &qp, DEPTHS, &data, number)
            .unwrap();
        accepted.push(qp);
    }
    let mut seen = vec![false; qps.len()];
    for _ in 0..COUNT {
        let ConnectionEvent::Established {
            context,
            established,
        } = client.next()
        else {
            panic!("not established");
        };
        assert_eq!(established.private_data, context.to_be_bytes());
        let seen = &mut seen[usize::try_from(context).unwrap()];
        assert!(!std::mem::replace(seen, true), "told twice");
    }
    assert!(!client.has_event() && !server.has_event());
    for qp in &qps {
        qp.disconnect();
    }
    for (side, expected) in [(&client, RcEnd::Closed), (&server, RcEnd::PeerClosed)] {
        let mut ended = vec![false; qps.len()];
        for _ in 0..COUNT {
            let ConnectionEvent::Disconnected { context, end } = side.next() else {
                panic!("not an end");
            };
            assert_eq!(end, expected);
            let ended = &mut ended[usize::try_from(context).unwrap()];
            assert!(!std::mem::replace(ended, true), "told twice");
        }
        assert!(!side.has_event());
    }
    let mut flushed = 0;
    while let Some(wc) = server.cq.poll_one().unwrap() {
        assert_eq!(wc.status, WcStatus::Flushed);
        flushed += 1;
    }
    assert_eq!(flushed, COUNT);
}

/// The server of the soak, in a process of its own, since descriptors are counted by process.
fn serve(count: u64) {
    raise_descriptor_limit();
    let server = Side::new();
    let listener = server.channel.listen(ANY, MpaConfig::default(), 0).unwrap();
    println!("at {}", listener.local_addr());
    let mut qps = Vec::new();
    let mut ended = 0;
    while ended < count {
        match server.next() {
            ConnectionEvent::Request { request, .. } => {
                let qp = server.qp();
                server.channel.accept(request, &qp, DEPTHS, b"", 0).unwrap();
                qps.push(qp);
            }
            ConnectionEvent::Disconnected { .. } => ended += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(u64::try_from(qps.len()).unwrap(), count);
}

#[test]
#[ignore = "a fifth of it runs every time"]
fn soak_ten_thousand_connections_at_once() {
    const COUNT: u64 = 10_000;
    if role().is_some() {
        return serve(COUNT);
    }
    raise_descriptor_limit();
    let mut server = Process::start(
        here!("soak_ten_thousand_connections_at_once"),
        "server",
        &[],
    );
    let to: SocketAddr = server.tells("at ", SOON).parse().unwrap();
    let client = Side::new();
    let mpa = MpaConfig {
        startup_timeout: SOON * 3,
        ..MpaConfig::default()
    };
    let mut qps = Vec::new();
    for context in 0..COUNT {
        let qp = client.qp();
        client.channel.connect(&qp, to, &mpa, b"", context).unwrap();
        qps.push(qp);
    }
    for _ in 0..COUNT {
        let event = client.next();
        assert!(
            matches!(event, ConnectionEvent::Established { .. }),
            "{event:?}"
        );
    }
    assert!(qps.iter().all(|qp| qp.end().is_none()));
    for qp in &qps {
        qp.disconnect();
    }
    server.finish(SOON * 3);
}

/// An attempt without a descriptor fails at once, and may be repeated; attempts on the way come up when there are descriptors again.
#[test]
fn without_descriptors_nothing_is_lost() {
    if role().is_none() {
        let test = here!("without_descriptors_nothing_is_lost");
        return Process::start(test, "alone", &[]).finish(SOON * 3);
    }
    let (client, server) = (Side::new(), Side::new());
    let listener = server.channel.listen(ANY, MpaConfig::default(), 0).unwrap();
    let to = listener.local_addr();
    let mpa = MpaConfig::default();
    let (before, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let used = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let few = u64::try_from(used).unwrap() + 20;
    setrlimit(Resource::RLIMIT_NOFILE, few, hard).unwrap();
    let mut on_the_way = Vec::new();
    let refused = loop {
        assert!(
            on_the_way.len() < 100,
            "20 descriptors are not enough for that"
        );
        let qp = client.qp();
        match client.channel.connect(&qp, to, &mpa, b"", 1) {
            Ok(()) => on_the_way.push(qp),
            Err(ConnectError::Tcp(error)) => {
                assert_eq!(error.raw_os_error(), Some(24), "EMFILE");
                break qp;
            }
            Err(other) => panic!("{other:?}"),
        }
    };
    assert!(!on_the_way.is_empty());
    setrlimit(Resource::RLIMIT_NOFILE, before, hard).unwrap();
    client.channel.connect(&refused, to, &mpa, b"", 1).unwrap();
    on_the_way.push(refused);
    let mut accepted = Vec::new();
    for _ in &on_the_way {
        let request = server.request();
        let qp = server.qp();
        request.accept(&qp, DEPTHS, b"").unwrap();
        accepted.push(qp);
    }
    for _ in &on_the_way {
        let event = client.next();
        assert!(
            matches!(event, ConnectionEvent::Established { .. }),
            "{event:?}"
        );
    }
    assert!(!client.has_event() && !server.has_event());
}

#[test]
fn nobody_there_and_rejections_are_told_and_the_queue_pair_stays_usable() {
    let (client, server) = (Side::new(), Side::new());
    let qp = client.qp();
    let nobody = {
        let listener = TcpListener::bind(ANY).unwrap();
        listener.local_addr().unwrap()
    };
    let mpa = MpaConfig::default();
    match client.channel.connect(&qp, nobody, &mpa, b"", 1) {
        Err(ConnectError::Tcp(_)) => {}
        Err(error) => panic!("{error}"),
        Ok(()) => {
            let failed = client.next();
            assert!(
                matches!(failed, ConnectionEvent::Failed { context: 1, peer, error: ConnectError::Tcp(_) } if peer == nobody)
            );
        }
    }
    let listener = server.channel.listen(ANY, mpa.clone(), 0).unwrap();
    let to = listener.local_addr();
    client.channel.connect(&qp, to, &mpa, b"", 2).unwrap();
    let again = client.channel.connect(&qp, to, &mpa, b"", 3);
    assert!(matches!(again, Err(ConnectError::State)), "on its way");
    let request = server.request();
    request.reject(b"no").unwrap();
    let ConnectionEvent::Rejected { context, rejection } = client.next() else {
        panic!("not rejected");
    };
    assert_eq!((context, &rejection.private_data[..]), (2, &b"no"[..]));
    client.channel.connect(&qp, to, &mpa, b"", 4).unwrap();
    // Dropped without an answer, so that it is asked again in revision 1.
    for expected in [MpaRevision::Two, MpaRevision::One] {
        let request = server.request();
        assert_eq!(request.request().revision, expected);
    }
    let failed = client.next();
    assert!(
        matches!(
            failed,
            ConnectionEvent::Failed {
                context: 4,
                error: ConnectError::Mpa(_),
                ..
            }
        ),
        "{failed:?}"
    );
}

/// Programs publish their port first and listen at it then.
#[test]
fn who_listens_a_moment_later_is_reached() {
    let (client, server) = (Side::new(), Side::new());
    let reserved = TcpListener::bind(ANY).unwrap();
    let to = reserved.local_addr().unwrap();
    drop(reserved);
    let mpa = MpaConfig::default();
    let qp = client.qp();
    client.channel.connect(&qp, to, &mpa, b"", 1).unwrap();
    // Long enough for a refusal or two.
    assert!(
        client
            .channel
            .next_event(Duration::from_millis(10))
            .is_none()
    );
    let _listener = server.channel.listen(to, mpa, 7).unwrap();
    // Nobody else waits on the client's side.
    let event = loop {
        let _not_yet = client.channel.next_event(Duration::from_millis(1));
        if let Some(event) = server.channel.next_event(Duration::from_millis(1)) {
            break event;
        }
    };
    assert!(matches!(event, ConnectionEvent::Request { context: 7, .. }));
}

/// One that is to be asked again is given up like any other.
#[test]
fn a_refused_attempt_can_be_given_up() {
    let client = Side::new();
    let reserved = TcpListener::bind(ANY).unwrap();
    let to = reserved.local_addr().unwrap();
    drop(reserved);
    let (qp, mpa) = (client.qp(), MpaConfig::default());
    client.channel.connect(&qp, to, &mpa, b"", 1).unwrap();
    assert!(
        client
            .channel
            .next_event(Duration::from_millis(10))
            .is_none()
    );
    client.channel.cancel(1);
    assert!(
        client
            .channel
            .next_event(Duration::from_millis(500))
            .is_none()
    );
    // It is free for another.
    client.channel.connect(&qp, to, &mpa, b"", 2).unwrap();
    let ConnectionEvent::Failed { context, error, .. } = client.next() else {
        panic!("not a failure");
    };
    assert_eq!(context, 2);
    assert!(
        matches!(error, ConnectError::Tcp(error) if error.kind() == std::io::ErrorKind::ConnectionRefused)
    );
}

#[test]
fn a_queue_pair_may_go_before_its_connection_comes() {
    let (client, server) = (Side::new(), Side::new());
    let mpa = MpaConfig::default();
    let listener = server.channel.listen(ANY, mpa.clone(), 0).unwrap();
    let qp = client.qp();
    let to = listener.local_addr();
    client.channel.connect(&qp, to, &mpa, b"", 9).unwrap();
    let request = server.request();
    drop(qp);
    let own = server.qp();
    server
        .channel
        .accept(request, &own, DEPTHS, b"", 5)
        .unwrap();
    let failed = client.next();
    assert!(
        matches!(
            failed,
            ConnectionEvent::Failed {
                context: 9,
                error: ConnectError::State,
                ..
            }
        ),
        "{failed:?}"
    );
    assert!(matches!(
        server.next(),
        ConnectionEvent::Disconnected { context: 5, .. }
    ));
}

/// A Responder of revision 1 alone closes upon an enhanced Request (RFC 6581 §10).
#[test]
fn an_old_peer_is_asked_again_in_revision_1() {
    let old = TcpListener::bind(ANY).unwrap();
    let to = old.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut frame = [0; 20];
            let (mut stream, _) = old.accept().unwrap();
            stream.read_exact(&mut frame).unwrap();
            assert_eq!(frame[17], 2, "revision");
            drop(stream);
            let (mut stream, _) = old.accept().unwrap();
            stream.read_exact(&mut frame).unwrap();
            assert_eq!(&frame[..16], b"MPA ID Req Frame");
            assert_eq!(frame[17], 1, "revision");
            stream.write_all(b"MPA ID Rep Frame\x40\x01\0\0").unwrap();
            let _ = stream.read(&mut frame);
        });
        let side = Side::new();
        let qp = side.qp();
        let established = qp.connect(to, &MpaConfig::default(), b"").unwrap();
        assert_eq!(established.negotiation.revision, MpaRevision::One);
    });
}

/// A channel asks an old peer again too, also where peer-to-peer mode was requested but is not insisted on.
#[test]
fn an_old_peer_of_a_channel_is_asked_again_too() {
    let old = TcpListener::bind(ANY).unwrap();
    let to = old.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut frame = [0; 24];
            let (mut stream, _) = old.accept().unwrap();
            stream.read_exact(&mut frame).unwrap();
            assert_eq!(frame[20] & 0x80, 0x80, "peer-to-peer mode");
            drop(stream);
            let (mut stream, _) = old.accept().unwrap();
            let mut frame = [0; 20];
            stream.read_exact(&mut frame).unwrap();
            assert_eq!(frame[17], 1, "revision");
            stream.write_all(b"MPA ID Rep Frame\x40\x01\0\0").unwrap();
            let _ = stream.read(&mut frame);
        });
        let side = Side::new();
        let qp = side.qp();
        let mpa = MpaConfig {
            peer_to_peer: true,
            client_server_will_do: true,
            ..MpaConfig::default()
        };
        side.channel.connect(&qp, to, &mpa, b"", 3).unwrap();
        let ConnectionEvent::Established {
            context,
            established,
        } = side.next()
        else {
            panic!("not established");
        };
        assert_eq!((context, established.negotiation.rtr), (3, None));
        assert_eq!(established.negotiation.revision, MpaRevision::One);
    });
}

/// A Responder in peer-to-peer mode may send once the Initiator has (RFC 6581 §5), which is reported; in client-server mode it may send at once.
#[test]
fn who_accepts_is_told_of_the_beginning() {
    let (client, server) = (Side::new(), Side::new());
    let listener = server.channel.listen(ANY, MpaConfig::default(), 1).unwrap();
    let to = listener.local_addr();
    for peer_to_peer in [false, true] {
        let mpa = MpaConfig {
            peer_to_peer,
            ..MpaConfig::default()
        };
        let (ours, theirs) = (client.qp(), server.qp());
        client.channel.connect(&ours, to, &mpa, b"", 2).unwrap();
        let request = server.request();
        server
            .channel
            .accept_and_tell(request, &theirs, DEPTHS, b"", 3)
            .unwrap();
        let begun = server.next();
        assert!(
            matches!(&begun, ConnectionEvent::Established { context: 3, established }
                if established.negotiation.rtr.is_some() == peer_to_peer),
            "{begun:?}"
        );
        assert!(matches!(
            client.next(),
            ConnectionEvent::Established { context: 2, .. }
        ));
        ours.disconnect();
        assert!(matches!(
            server.next(),
            ConnectionEvent::Disconnected { context: 3, .. }
        ));
        assert!(matches!(
            client.next(),
            ConnectionEvent::Disconnected { context: 2, .. }
        ));
    }
}

/// A client makes its connections one after the other: the server's events have that order too.
#[test]
fn a_connection_is_established_before_the_request_for_the_next() {
    const ROUNDS: u64 = 200;
    for peer_to_peer in [false, true] {
        let (client, server) = (Side::new(), Side::new());
        let listener = server.channel.listen(ANY, MpaConfig::default(), 0).unwrap();
        let to = listener.local_addr();
        let mpa = MpaConfig {
            peer_to_peer,
            ..MpaConfig::default()
        };
        std::thread::scope(|scope| {
            // Connected until the server has all events: the end of the first may come before the last one is established.
            let clients = scope.spawn(|| {
                let mut qps = Vec::new();
                for context in 1..=ROUNDS {
                    qps.push(client.qp());
                    let qp = qps.last().unwrap();
                    client.channel.connect(qp, to, &mpa, b"", context).unwrap();
                    let event = client.next();
                    assert!(
                        matches!(event, ConnectionEvent::Established { .. }),
                        "{event:?}"
                    );
                }
                qps
            });
            let mut qps = Vec::new();
            for expected in 1..=ROUNDS {
                let event = server.next();
                let ConnectionEvent::Request { request, .. } = event else {
                    panic!("{expected}: {event:?}");
                };
                qps.push(server.qp());
                let qp = qps.last().unwrap();
                server
                    .channel
                    .accept_and_tell(request, qp, DEPTHS, b"", expected)
                    .unwrap();
                let event = server.next();
                assert!(
                    matches!(event, ConnectionEvent::Established { context, .. } if context == expected),
                    "{expected}: {event:?}"
                );
            }
            drop(clients.join().unwrap());
        });
    }
}

#[test]
fn an_attempt_that_is_given_up_leaves_nothing() {
    let (client, server) = (Side::new(), Side::new());
    let listener = server.channel.listen(ANY, MpaConfig::default(), 1).unwrap();
    let (to, mpa) = (listener.local_addr(), MpaConfig::default());
    let qp = client.qp();
    client.channel.connect(&qp, to, &mpa, b"", 5).unwrap();
    let request = server.request();
    client.channel.cancel(5);
    client.channel.cancel(6);
    let other = server.qp();
    server
        .channel
        .accept(request, &other, DEPTHS, b"", 7)
        .unwrap();
    assert!(matches!(
        server.next(),
        ConnectionEvent::Disconnected { context: 7, .. }
    ));
    assert!(!client.has_event());
    client.channel.connect(&qp, to, &mpa, b"", 8).unwrap();
    let request = server.request();
    server.channel.reject(request, b"not now").unwrap();
    let ConnectionEvent::Rejected { context, rejection } = client.next() else {
        panic!("not rejected");
    };
    assert_eq!((context, &rejection.private_data[..]), (8, &b"not now"[..]));
}

/// Ports are taken before they listen, and connected from.
#[test]
fn ports_are_bound_for_both_ends() {
    let (client, server) = (Side::new(), Side::new());
    let port = ConnectionPort::bind(ANY, PortOptions::default()).unwrap();
    let to = port.local_addr();
    assert_ne!(to.port(), 0);
    let mpa = MpaConfig::default();
    let listener = server.channel.listen_on(port, mpa.clone(), 8, 1).unwrap();
    assert_eq!(listener.local_addr(), to);
    let taken = ConnectionPort::bind(to, PortOptions::default());
    assert!(matches!(taken, Err(Error::Bind { address, .. }) if address == to));
    let stranger = "192.0.2.1:0".parse().unwrap();
    let elsewhere = ConnectionPort::bind(stranger, PortOptions::default()).unwrap_err();
    assert_eq!(elsewhere.errno(), 99, "EADDRNOTAVAIL");

    let options = PortOptions {
        tos: Some(0x20),
        ..PortOptions::default()
    };
    let from = ConnectionPort::bind(ANY, options).unwrap();
    let ours = from.local_addr();
    let qp = client.qp();
    client
        .channel
        .connect_from(from, &qp, to, &mpa, b"", 2)
        .unwrap();
    let request = server.request();
    assert_eq!((request.peer(), request.local_addr()), (ours, Some(to)));
}

/// Events go to a sink from whatever thread makes progress.
#[test]
fn a_sink_is_told_at_once() {
    #[derive(Debug)]
    struct Sink(std::sync::Mutex<std::sync::mpsc::Sender<ConnectionEvent>>);
    impl ConnectionSink for Sink {
        fn happened(&self, event: ConnectionEvent) {
            self.0.lock().unwrap().send(event).unwrap();
        }
    }
    let (sender, told) = std::sync::mpsc::channel();
    let client = Side::new();
    let rnic = Rnic::open(Config::default()).unwrap();
    let sink = Sink(std::sync::Mutex::new(sender));
    let channel = rnic
        .create_connection_channel_to(std::sync::Arc::new(sink))
        .unwrap();
    let listener = channel.listen(ANY, MpaConfig::default(), 9).unwrap();
    let qp = client.qp();
    let (to, mpa) = (listener.local_addr(), MpaConfig::default());
    client.channel.connect(&qp, to, &mpa, b"", 1).unwrap();
    let event = told.recv_timeout(SOON).unwrap();
    assert!(matches!(event, ConnectionEvent::Request { context: 9, .. }));
    assert!(channel.next_event(Duration::ZERO).is_none());
}

/// A queue pair of `client`'s, number 2, connected to one of `server`'s, number 3, that has a receive and may outlive its peer.
fn connected(client: &Side, server: &Side, outlives_peer: bool) -> (RcQp, RcQp) {
    let listener = server.channel.listen(ANY, MpaConfig::default(), 1).unwrap();
    let (to, mpa) = (listener.local_addr(), MpaConfig::default());
    let theirs = client.qp();
    client.channel.connect(&theirs, to, &mpa, b"", 2).unwrap();
    let request = server.request();
    let options = RcOptions {
        outlives_peer,
        ..RcOptions::default()
    };
    let attr = RcQpAttr {
        options: Some(options),
        ..RcQpAttr::new(&server.cq, &server.cq)
    };
    let ours = server.pd.create_rc_qp(&attr).unwrap();
    ours.post_recv(&[EMPTY]).unwrap();
    server
        .channel
        .accept(request, &ours, DEPTHS, b"", 3)
        .unwrap();
    assert!(matches!(
        client.next(),
        ConnectionEvent::Established { context: 2, .. }
    ));
    (theirs, ours)
}

/// A queue pair that outlives its peer keeps what is posted until its own side ends the connection.
#[test]
fn what_is_posted_may_outlive_the_peer() {
    let (client, server) = (Side::new(), Side::new());
    let (theirs, ours) = connected(&client, &server, true);
    theirs.disconnect();
    assert!(matches!(
        server.next(),
        ConnectionEvent::Disconnected {
            context: 3,
            end: RcEnd::PeerLeft
        }
    ));
    assert_eq!(server.cq.poll_one().unwrap(), None);
    assert!(!ours.is_over());
    ours.disconnect();
    let wc = server.cq.wait(SOON).unwrap().unwrap();
    assert_eq!((wc.wr_id, wc.status), (8, WcStatus::Flushed));
    assert!(ours.is_over());
    assert!(!server.has_event());
}

/// Sends to a peer, which has the message then. The completion is not taken.
fn send_last(client: &Side, [theirs, ours]: [&RcQp; 2]) {
    theirs.post_recv(&[EMPTY]).unwrap();
    ours.post_send(&[RcSendWr::send(5, &[])]).unwrap();
    let wc = client.cq.wait(SOON).unwrap().unwrap();
    assert_eq!((wc.wr_id, wc.status), (8, WcStatus::Success));
}

/// A program that destroys a queue pair upon the event of its end loses no completion of a message that the peer's program has. The end is reported after an earlier destruction, too.
#[test]
fn completions_come_before_the_end() {
    // The end is reported later in any case. A slow machine may poll too late, but not each time.
    const ROUNDS: usize = 50;
    const QUICK: Duration = Duration::from_millis(200);
    for outlives_peer in [false, true] {
        let mut rounds = (0..ROUNDS).map(|_| {
            let (client, server) = (Side::new(), Side::new());
            let (theirs, ours) = connected(&client, &server, outlives_peer);
            let began = now();
            send_last(&client, [&theirs, &ours]);
            if outlives_peer {
                drop(theirs);
            } else {
                theirs.disconnect();
            }
            wait_until(SOON, "the end", || ours.end().is_some());
            let told = server.has_event();
            let quick = began.elapsed() < QUICK;
            assert!(!told || !quick, "the end was told first");
            if outlives_peer {
                drop(ours);
            }
            let wc = server.cq.poll_one().unwrap().unwrap();
            assert_eq!((wc.wr_id, wc.status), (5, WcStatus::Success));
            let ConnectionEvent::Disconnected { context: 3, .. } = server.next() else {
                panic!("not an end");
            };
            quick
        });
        assert!(rounds.any(|quick| quick));
    }
}

/// The end is reported to a program that takes no completions, too.
#[test]
fn an_end_does_not_wait_for_ever() {
    let (client, server) = (Side::new(), Side::new());
    let (theirs, ours) = connected(&client, &server, true);
    send_last(&client, [&theirs, &ours]);
    theirs.disconnect();
    assert!(matches!(
        server.next(),
        ConnectionEvent::Disconnected {
            context: 3,
            end: RcEnd::PeerLeft
        }
    ));
    assert_eq!(server.cq.poll_one().unwrap().unwrap().wr_id, 5);
}
