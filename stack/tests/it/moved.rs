//! Listeners whose TCP port another socket has (`rfc-notes/datagram-mapping.md` §10.1).

use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use crate::common::{crc32c, sleep};
use crate::connections::{ANY, DEPTHS, SOON, Side};
use dgiwarp::{
    ChannelListener, Config, ConnectionEvent, ConnectionPort, Error, MpaConfig, PortOptions, RcQp,
    ServiceEvent, ServicePort,
};

const MAY_MOVE: PortOptions = PortOptions {
    only_v6: false,
    tos: None,
    port_when_connected: false,
    may_move: true,
};

fn bind(at: SocketAddr) -> Result<ConnectionPort, Error> {
    ConnectionPort::bind(at, MAY_MOVE)
}

fn listen(side: &Side, at: SocketAddr) -> ChannelListener {
    let port = bind(at).unwrap();
    let mpa = MpaConfig::default();
    side.channel.listen_on(port, mpa, 128, 1).unwrap()
}

/// Connects, and returns both ends.
#[track_caller]
fn connect(client: &Side, server: &Side, to: SocketAddr) -> (RcQp, RcQp) {
    let ours = client.qp();
    let mpa = MpaConfig::default();
    client.channel.connect(&ours, to, &mpa, b"who", 2).unwrap();
    let theirs = server.qp();
    match server.next() {
        ConnectionEvent::Request {
            context: 1,
            request,
        } => {
            assert_eq!(request.request().private_data, b"who");
            request.accept(&theirs, DEPTHS, b"me").unwrap();
        }
        other => panic!("{other:?}"),
    }
    match client.next() {
        ConnectionEvent::Established {
            context: 2,
            established,
        } => assert_eq!(established.private_data, b"me"),
        other => panic!("{other:?}"),
    }
    (ours, theirs)
}

/// A listener of TCP alone, and its address.
fn stranger() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(ANY).unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
}

/// A socket of the test at the UDP port of this number, for a listener at another port, as after a move, and that port.
fn moved_from(server: &Side, at: SocketAddr) -> (UdpSocket, ChannelListener, u16) {
    let at_port = UdpSocket::bind(at).unwrap();
    let listener = listen(server, ANY);
    let moved = listener.local_addr().port();
    (at_port, listener, moved)
}

fn is_taken<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Bind { source, .. }) if source.kind() == std::io::ErrorKind::AddrInUse)
}

fn to(ip: impl Into<IpAddr>, at: SocketAddr) -> SocketAddr {
    SocketAddr::new(ip.into(), at.port())
}

#[test]
fn a_listener_shares_its_port_with_a_stranger_that_came_first() {
    let addresses: [(IpAddr, IpAddr); 4] = [
        (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()),
        (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::LOCALHOST.into()),
        (Ipv6Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()),
        (Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::LOCALHOST.into()),
    ];
    for (listens, named) in addresses {
        let (client, server) = (Side::new(), Side::new());
        let stranger = TcpListener::bind((listens, 0)).unwrap();
        let at = stranger.local_addr().unwrap();
        let listener = listen(&server, at);
        assert_eq!(listener.local_addr(), at);
        let _first = connect(&client, &server, to(named, at));
        let _second = connect(&client, &server, to(named, at));
        // By RcQp::connect as well.
        let qp = client.qp();
        let mpa = MpaConfig::default();
        thread::scope(|scope| {
            let asks = scope.spawn(|| qp.connect(to(named, at), &mpa, b""));
            let request = server.request();
            let theirs = server.qp();
            request.accept(&theirs, DEPTHS, b"").unwrap();
            asks.join().unwrap().unwrap();
        });
        drop(stranger);
        // The listener goes on, where nobody has the TCP port.
        let _third = connect(&client, &server, to(named, at));
        drop(listener);
        // Both ports are free again.
        let _tcp = TcpListener::bind(at).unwrap();
        let _udp = UdpSocket::bind(at).unwrap();
    }
}

#[test]
fn a_stranger_gets_no_octet_of_an_attempt() {
    let (client, server) = (Side::new(), Side::new());
    let (stranger, at) = stranger();
    let _listener = listen(&server, at);
    for _ in 0..3 {
        let _qps = connect(&client, &server, at);
    }
    // TCP may have been closed before its handshake's end.
    stranger.set_nonblocking(true).unwrap();
    while let Ok((mut stream, _)) = stranger.accept() {
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut octets = Vec::new();
        let _ = stream.read_to_end(&mut octets);
        assert_eq!(octets, b"");
    }
}

#[test]
fn a_listener_gives_its_port_up() {
    let (client, server) = (Side::new(), Side::new());
    let listener = listen(&server, ANY);
    let at = listener.local_addr();
    assert!(TcpListener::bind(at).is_err());
    // Plain TCP at the port, as iWARP devices and older peers connect.
    let before = connect(&client, &server, at);
    // One that TCP has connected, and whose Request comes behind the move.
    let early = TcpStream::connect(at).unwrap();
    listener.move_away().unwrap();
    listener.move_away().unwrap();
    let stranger = TcpListener::bind(at).unwrap();
    let _after = connect(&client, &server, at);
    let _again = connect(&client, &server, at);
    std::io::Write::write_all(
        &mut &early,
        b"MPA ID Req Frame\x50\x02\x00\x04\x00\x10\x00\x10",
    )
    .unwrap();
    server.request().reject(b"").unwrap();
    drop(before);
    drop((listener, stranger));
    let _tcp = TcpListener::bind(at).unwrap();
    let _udp = UdpSocket::bind(at).unwrap();
}

#[test]
fn a_bound_port_is_given_up() {
    let (client, server) = (Side::new(), Side::new());
    let mut port = bind(ANY).unwrap();
    let at = port.local_addr();
    port.move_away().unwrap();
    let _stranger = TcpListener::bind(at).unwrap();
    let mpa = MpaConfig::default();
    let listener = server.channel.listen_on(port, mpa, 128, 1).unwrap();
    assert_eq!(listener.local_addr(), at);
    let _qps = connect(&client, &server, at);
}

/// SO_REUSEADDR, which std's listeners have, allows both to bind before either listens.
#[test]
fn a_stranger_that_listens_between_bind_and_listen() {
    let (client, server) = (Side::new(), Side::new());
    let port = bind(ANY).unwrap();
    let at = port.local_addr();
    let stranger = TcpListener::bind(at).unwrap();
    let mpa = MpaConfig::default();
    let listener = server.channel.listen_on(port, mpa, 128, 1).unwrap();
    assert_eq!(listener.local_addr(), at);
    let _qps = connect(&client, &server, at);
    drop(stranger);
}

/// Only ports of sockets that are none of connection management's are shared.
#[test]
fn two_listeners_have_no_port_in_common() {
    let server = Side::new();
    let listener = listen(&server, ANY);
    let at = listener.local_addr();
    assert!(is_taken(bind(at)));
    listener.move_away().unwrap();
    let _stranger = TcpListener::bind(at).unwrap();
    assert!(is_taken(bind(at)));
    drop(listener);
    assert!(bind(at).is_ok());
    // Without the option a taken port is an error, as it was.
    assert!(is_taken(ConnectionPort::bind(at, PortOptions::default())));
}

/// A UDP port that a stranger has cannot be answered from.
#[test]
fn both_ports_are_a_strangers() {
    let server = Side::new();
    let (_stranger, at) = stranger();
    let udp = UdpSocket::bind(at).unwrap();
    let mpa = MpaConfig::default();
    let listened = bind(at).and_then(|port| server.channel.listen_on(port, mpa.clone(), 128, 1));
    assert!(is_taken(listened));
    drop(udp);
    let listener = listen(&server, ANY);
    let _udp = UdpSocket::bind(listener.local_addr()).unwrap();
    assert!(is_taken(listener.move_away()));
    let client = Side::new();
    let _qps = connect(&client, &server, listener.local_addr());
}

/// A port answer with its CRC.
fn answer(query: &[u8], port: u16, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut octets = query[..24].to_vec();
    octets[1] = 6;
    octets[18..20].copy_from_slice(&port.to_be_bytes());
    change(&mut octets);
    let crc = crc32c(&octets);
    octets.extend(crc.to_le_bytes());
    octets
}

/// Answers a query from the socket at the port.
fn reply(at_port: &UdpSocket, query: &[u8], port: u16, to: SocketAddr) {
    at_port.send_to(&answer(query, port, |_| ()), to).unwrap();
}

fn query(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    socket.set_read_timeout(Some(SOON)).unwrap();
    let mut octets = [0; 2000];
    let (len, from) = socket.recv_from(&mut octets).unwrap();
    assert_eq!(len, 28);
    (octets[..len].to_vec(), from)
}

/// Answers that are wrong, from elsewhere, or none: the connection is made at the port that was named, by plain iWARP.
#[test]
fn forged_answers_lead_nowhere() {
    let (client, server) = (Side::new(), Side::new());
    let listener = listen(&server, ANY);
    let at = listener.local_addr();
    let at_port = UdpSocket::bind(at).unwrap();
    let elsewhere = UdpSocket::bind(ANY).unwrap();
    let trap = TcpListener::bind(ANY).unwrap();
    let wrong = trap.local_addr().unwrap().port();
    let forger = thread::spawn(move || {
        let (octets, from) = query(&at_port);
        let good = answer(&octets, wrong, |_| ());
        elsewhere.send_to(&good, from).unwrap();
        let mut bad_crc = good.clone();
        bad_crc[25] ^= 1;
        let short = good[..27].to_vec();
        let long = [&good[..], &[0]].concat();
        for octets in [
            answer(&octets, wrong, |it| it[11] ^= 1),
            answer(&octets, wrong, |it| it[13] ^= 1),
            answer(&octets, wrong, |it| it[17] = 1),
            answer(&octets, wrong, |it| it[1] = 2),
            octets.clone(),
            bad_crc,
            short,
            long,
        ] {
            at_port.send_to(&octets, from).unwrap();
        }
        at_port
    });
    let _first = connect(&client, &server, at);
    let at_port = forger.join().unwrap();
    // Silence: a peer without port queries.
    let _second = connect(&client, &server, at);
    // Nobody has moved.
    let denier = thread::spawn(move || {
        let (octets, from) = query(&at_port);
        reply(&at_port, &octets, 0, from);
    });
    let other = Side::new();
    let _third = connect(&other, &server, at);
    denier.join().unwrap();
    trap.set_nonblocking(true).unwrap();
    assert!(trap.accept().is_err());
}

/// The answer of a busy host: it comes when the MPA Request has gone to the stranger, who sends nothing.
#[test]
fn a_late_answer_counts_until_the_reply() {
    let (client, server) = (Side::new(), Side::new());
    let (stranger, at) = stranger();
    let (at_port, _listener, moved) = moved_from(&server, at);
    let late = thread::spawn(move || {
        let (octets, from) = query(&at_port);
        let (mut stream, _) = stranger.accept().unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut request = [0; 20];
        stream.read_exact(&mut request).unwrap();
        assert_eq!(&request[..16], b"MPA ID Req Frame");
        reply(&at_port, &octets, moved, from);
    });
    let _qps = connect(&client, &server, at);
    late.join().unwrap();
}

/// A query that is lost is repeated.
#[test]
fn a_lost_query_is_repeated() {
    let (client, server) = (Side::new(), Side::new());
    let (_stranger, at) = stranger();
    let (at_port, _listener, moved) = moved_from(&server, at);
    let lossy = thread::spawn(move || {
        let (first, _) = query(&at_port);
        let (again, from) = query(&at_port);
        assert_eq!(first, again);
        reply(&at_port, &again, moved, from);
    });
    let _qps = connect(&client, &server, at);
    lossy.join().unwrap();
}

/// Nobody listens at TCP, as after the stranger has left, and the answer is not there at once.
#[test]
fn a_refused_attempt_waits_for_its_answer() {
    let (client, server) = (Side::new(), Side::new());
    let (at_port, _listener, moved) = moved_from(&server, ANY);
    let at = at_port.local_addr().unwrap();
    let late = thread::spawn(move || {
        let (octets, from) = query(&at_port);
        sleep(Duration::from_millis(10));
        reply(&at_port, &octets, moved, from);
        at_port
    });
    let qp = client.qp();
    let mpa = MpaConfig::default();
    client.channel.connect(&qp, at, &mpa, b"", 2).unwrap();
    let at_port = late.join().unwrap();
    // On a machine whose threads wait for a third of a second the attempt has ended.
    if let Some(ConnectionEvent::Request { request, .. }) = server.channel.next_event(SOON / 10) {
        let theirs = server.qp();
        request.accept(&theirs, DEPTHS, b"").unwrap();
        assert!(matches!(
            client.next(),
            ConnectionEvent::Established { context: 2, .. }
        ));
    } else {
        assert!(matches!(
            client.next(),
            ConnectionEvent::Failed { context: 2, .. }
        ));
    }
    drop(at_port);
}

/// A setting leaves the query out: the connection is made at the port that was named, whatever its UDP port answers.
#[test]
fn without_the_setting_nothing_is_queried() {
    let mut config = Config::default();
    config.port_queries = false;
    let (client, server) = (Side::with(config), Side::new());
    let listener = listen(&server, ANY);
    let at_port = UdpSocket::bind(listener.local_addr()).unwrap();
    let _qps = connect(&client, &server, listener.local_addr());
    at_port.set_nonblocking(true).unwrap();
    assert!(at_port.recv(&mut [0; 100]).is_err());
}

/// A service of the same number and its UDP port, in both orders.
#[test]
fn a_service_answers_for_a_listener() {
    for service_first in [true, false] {
        let (client, server) = (Side::new(), Side::new());
        let services = server.channel.rnic().create_service_channel().unwrap();
        let (_stranger, at) = stranger();
        let offer = || services.listen(ServicePort::bind(at, false).unwrap(), 16, 1);
        let (_service, listener) = if service_first {
            (offer().unwrap(), listen(&server, at))
        } else {
            let listener = listen(&server, at);
            assert!(ServicePort::bind(at, false).is_err());
            assert!(server.channel.give_up_queries(at.port()));
            assert!(!server.channel.give_up_queries(at.port()));
            (offer().unwrap(), listener)
        };
        let _qps = connect(&client, &server, at);
        let asks = client.channel.rnic().create_service_channel().unwrap();
        let from = ServicePort::bind(ANY, false).unwrap();
        let _lookup = asks.look_up(from, at, None, b"?", 3).unwrap();
        assert!(matches!(
            services.next_event(SOON),
            Some(ServiceEvent::Request { context: 1, .. })
        ));
        drop(listener);
    }
}

/// Answers to a stranger's queries: as long as they are, and none to anything else.
#[test]
fn strangers_get_no_more_than_they_send() {
    let server = Side::new();
    let (stranger, at) = stranger();
    let _listener = listen(&server, at);
    let socket = UdpSocket::bind(ANY).unwrap();
    socket.connect(at).unwrap();
    let sealed = |octets: &[u8]| [octets, &crc32c(octets).to_le_bytes()].concat();
    let mut asks = [0; 24];
    (asks[0], asks[1], asks[11]) = (0x4d, 5, 7);
    asks[12..14].copy_from_slice(&at.port().to_be_bytes());
    let good = sealed(&asks);
    for len in 0..good.len() {
        socket.send(&good[..len]).unwrap();
        socket.send(&sealed(&asks[..len.min(23)])).unwrap();
    }
    for at in [0, 1] {
        let mut other = asks;
        other[at] ^= 3;
        socket.send(&sealed(&other)).unwrap();
    }
    socket
        .send(&sealed(&[&asks[..], &[0; 256]].concat()))
        .unwrap();
    socket.send(&good).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    let mut octets = [0; 2000];
    let len = socket.recv(&mut octets).unwrap();
    assert_eq!((len, octets[1], octets[11]), (28, 6, 7));
    let moved = u32::from_be_bytes([octets[16], octets[17], octets[18], octets[19]]);
    assert!((1..=65535).contains(&moved) && moved != u32::from(at.port()));
    socket.set_nonblocking(true).unwrap();
    assert!(socket.recv(&mut octets).is_err());
    drop(stranger);
    // The TCP port that was answered takes connections.
    let moved = to(
        at.ip(),
        SocketAddr::new(at.ip(), u16::try_from(moved).unwrap()),
    );
    TcpStream::connect(moved).unwrap();
}
