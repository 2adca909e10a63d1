//! Connections that strangers begin and do not go on with.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::common::{now, sleep};
use crate::connections::{ANY, DEPTHS, EMPTY, SOON, Side, raise_descriptor_limit};
use dgiwarp::{ChannelListener, ConnectError, ConnectionEvent, MpaConfig, RcRequest, WcStatus};

/// Peer-to-peer mode with a Write as RTR indication, revision 2.
const PEER_TO_PEER: &[u8] = b"MPA ID Req Frame\x50\x02\x00\x04\x80\x10\x80\x10";

/// Strangers that send nothing stay for as long as a startup may take, and hold up nobody meanwhile.
#[test]
fn silent_strangers_are_shown_out() {
    raise_descriptor_limit();
    let (client, server) = (Side::new(), Side::new());
    let impatient = MpaConfig {
        startup_timeout: Duration::from_millis(300),
        ..MpaConfig::default()
    };
    let listener = server.channel.listen(ANY, impatient, 1).unwrap();
    let to = listener.local_addr();
    let strangers: Vec<_> = (0..300).map(|_| TcpStream::connect(to).unwrap()).collect();
    let qp = client.qp();
    client
        .channel
        .connect(&qp, to, &MpaConfig::default(), b"", 2)
        .unwrap();
    let mut shown_out = 0;
    loop {
        match server.next() {
            ConnectionEvent::Failed { context, error, .. } => {
                assert_eq!(context, 1);
                assert!(matches!(error, ConnectError::Mpa(_)), "{error}");
                shown_out += 1;
            }
            ConnectionEvent::Request { request, .. } => {
                let qp = server.qp();
                request.accept(&qp, DEPTHS, b"").unwrap();
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    while shown_out < strangers.len() {
        let event = server.next();
        assert!(
            matches!(event, ConnectionEvent::Failed { context: 1, .. }),
            "{event:?}"
        );
        shown_out += 1;
    }
    assert!(matches!(
        client.next(),
        ConnectionEvent::Established { context: 2, .. }
    ));
    drop(strangers);
}

/// An Initiator that has sent a Request for peer-to-peer mode, and the request.
fn requested(server: &Side, listener: &ChannelListener) -> (TcpStream, RcRequest) {
    let mut peer = TcpStream::connect(listener.local_addr()).unwrap();
    peer.write_all(PEER_TO_PEER).unwrap();
    let request = server.request();
    (peer, request)
}

/// An Initiator that asked for peer-to-peer mode and sends nothing behind the Reply has not begun.
#[test]
fn a_peer_that_leaves_before_it_has_begun_has_failed() {
    let server = Side::new();
    let listener = server.channel.listen(ANY, MpaConfig::default(), 1).unwrap();
    let (mut peer, request) = requested(&server, &listener);
    let qp = server.qp();
    let negotiation = server
        .channel
        .accept_and_tell(request, &qp, DEPTHS, b"", 4)
        .unwrap();
    assert!(negotiation.rtr.is_some_and(|rtr| rtr.write));
    let mut reply = [0; 24];
    peer.read_exact(&mut reply).unwrap();
    assert!(!server.has_event(), "nothing came behind the Request");
    drop(peer);
    let failed = server.next();
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

/// An Initiator that keeps its RTR indication to itself holds a connection for five seconds.
#[test]
fn an_initiator_that_stays_silent_after_the_reply_is_given_up() {
    let server = Side::new();
    let listener = server.channel.listen(ANY, MpaConfig::default(), 1).unwrap();
    let (_peer, request) = requested(&server, &listener);
    let qp = server.qp();
    qp.post_recv(&[EMPTY]).unwrap();
    server
        .channel
        .accept_and_tell(request, &qp, DEPTHS, b"", 4)
        .unwrap();
    let failed = server.next();
    assert!(
        matches!(failed, ConnectionEvent::Failed { context: 4, .. }),
        "{failed:?}"
    );
    let wc = server.cq.wait(SOON).unwrap().unwrap();
    assert_eq!((wc.wr_id, wc.status), (8, WcStatus::Flushed));
    assert!(qp.is_over());
}

/// A thousand silent connections, and 500 more each second, keep nobody out.
#[test]
fn silent_connections_keep_nobody_out() {
    /// A hundred milliseconds on a quiet machine; a listener that is locked lets nobody in for ten seconds.
    const PROMPT: Duration = Duration::from_secs(3);
    raise_descriptor_limit();
    let (client, server) = (Side::new(), Side::new());
    let listener = server.channel.listen(ANY, MpaConfig::default(), 1).unwrap();
    let to = listener.local_addr();
    let done = std::sync::atomic::AtomicBool::new(false);
    let mut silent: Vec<TcpStream> = (0..1000).map(|_| TcpStream::connect(to).unwrap()).collect();
    let slowest = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                silent.push(TcpStream::connect(to).unwrap());
                sleep(Duration::from_millis(2));
            }
        });
        let mut slowest = Duration::ZERO;
        for context in 2..42 {
            let (ours, theirs) = (client.qp(), server.qp());
            let began = now();
            let mpa = MpaConfig::default();
            client
                .channel
                .connect(&ours, to, &mpa, b"", context)
                .unwrap();
            let request = server.request();
            server
                .channel
                .accept(request, &theirs, DEPTHS, b"", 1000 + context)
                .unwrap();
            let event = client.next();
            assert!(
                matches!(event, ConnectionEvent::Established { .. }),
                "{event:?}"
            );
            slowest = slowest.max(began.elapsed());
            ours.disconnect();
            while !matches!(server.next(), ConnectionEvent::Disconnected { .. }) {}
            while !matches!(client.next(), ConnectionEvent::Disconnected { .. }) {}
            sleep(Duration::from_millis(50));
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        slowest
    });
    println!("slowest connection: {slowest:?}");
    assert!(slowest < PROMPT, "{slowest:?}");
}
