//! The stream is cut after every octet, by a relay between the two ends: in the startup and in operation, in either direction, with an end of
//! the stream or a reset.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use dgiwarp::{Config, ConnectError, MpaConfig, RcListener, RcOperation, Rnic, WcStatus};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::SockRef;
use std::os::fd::AsFd as _;

use super::end::{DEPTHS, End, LIMIT};
use crate::common::now;

/// Where the octets are counted that the relay lets pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToClient,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// The end of the stream, both ways.
    Fin,
    Reset,
}

/// How the relay cuts.
#[derive(Debug, Clone, Copy)]
struct Cut {
    direction: Direction,
    manner: Manner,
    /// Octets that pass in that direction.
    after: usize,
}

/// Lets octets pass both ways until it cuts. Returns how many passed in the direction that counts.
fn relay(client: TcpStream, server: TcpStream, cut: Cut, stop: &AtomicBool) -> usize {
    let mut left = cut.after;
    let mut passed = 0;
    let mut open = [true; 2];
    let mut buffer = [0; 4096];
    while !stop.load(Ordering::Relaxed) && left > 0 && open != [false; 2] {
        let events = |open| {
            if open {
                PollFlags::POLLIN
            } else {
                PollFlags::empty()
            }
        };
        let mut fds = [
            PollFd::new(client.as_fd(), events(open[0])),
            PollFd::new(server.as_fd(), events(open[1])),
        ];
        poll(&mut fds, PollTimeout::from(20u8)).unwrap();
        let ready = fds.map(|fd| fd.any().unwrap_or(false));
        for (index, (mut from, mut to, direction)) in [
            (&client, &server, Direction::ToServer),
            (&server, &client, Direction::ToClient),
        ]
        .into_iter()
        .enumerate()
        {
            if !ready[index] || !open[index] {
                continue;
            }
            let counts = direction == cut.direction;
            let most = if counts {
                left.min(buffer.len())
            } else {
                buffer.len()
            };
            match from.read(&mut buffer[..most]) {
                Ok(0) | Err(_) => {
                    open[index] = false;
                    let _ = to.shutdown(Shutdown::Write);
                }
                Ok(len) => {
                    if counts {
                        left -= len;
                        passed += len;
                    }
                    if to.write_all(&buffer[..len]).is_err() {
                        open[index] = false;
                    }
                }
            }
        }
    }
    if cut.manner == Manner::Reset {
        for stream in [&client, &server] {
            let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
        }
    }
    passed
}

/// Private data of the reply of a server at an address. Another run has another one.
fn welcome(server: SocketAddr) -> [u8; 2] {
    server.port().to_be_bytes()
}

/// One connection through a relay that cuts. Returns how many octets passed.
fn run(rnics: &[Rnic; 2], cut: Cut) -> usize {
    // One of its own: what came too late for another run is not this one's.
    let on = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = &RcListener::bind(on, MpaConfig::default()).unwrap();
    let ends = rnics.each_ref().map(|rnic| End::on(rnic, 4096));
    let [client, server] = &ends;
    for wr_id in 0..3 {
        client.post_recv(wr_id);
        server.post_recv(wr_id);
    }
    server.memory.write(1024, &[7; 512]);
    let front = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = front.local_addr().unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        // Also when it panics: the scope waits for the relay.
        let over = Over(&stop);
        let relaying = scope.spawn(|| relay_first(front, listener.local_addr(), cut, &stop));
        let accepting = scope.spawn(|| accept(listener, server, &stop));
        // An Initiator that tries again may find a stranger's listener at the port that the relay had.
        let connected = match client.qp.connect(at, &MpaConfig::default(), b"hello") {
            Ok(established) => established.private_data == welcome(listener.local_addr()),
            Err(ConnectError::Mpa(_) | ConnectError::Tcp(_) | ConnectError::Rejected(_)) => false,
            Err(other) => panic!("{cut:?}: {other}"),
        };
        let deadline = now() + LIMIT;
        if connected {
            use_connection(client, server);
            let statuses = client.all(3 + 5, deadline);
            statuses.check_order();
            let read = statuses.sends.iter().find(|(wr_id, _)| *wr_id == 11);
            if read == Some(&(11, WcStatus::Success)) {
                // The value that the atomic found lies in the first eight.
                assert_eq!(client.memory.to_vec(8, 56), [7; 56], "{cut:?}");
            }
        } else {
            stop.store(true, Ordering::Relaxed);
        }
        if accepting.join().unwrap() {
            server.all(3 + 1, deadline).check_order();
        }
        drop(over);
        relaying.join().unwrap()
    })
}

/// Stops the others when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The client's part: Write, Read, Send, atomic, and a Send behind them that waits for all.
fn use_connection(client: &End, server: &End) {
    let (rkey, remote_addr) = (server.mr.rkey(), server.mr.addr() + 1024);
    let write = RcOperation::Write {
        rkey,
        remote_addr: remote_addr + 512,
        immediate: None,
    };
    let add = dgiwarp::AtomicOperation::FetchAdd { add: 1, mask: 0 };
    let atomic = RcOperation::Atomic {
        rkey,
        remote_addr: remote_addr + 1024,
        operation: add,
    };
    let send = RcOperation::Send { invalidate: None };
    client.post(10, write, 40);
    client.post(11, RcOperation::Read { rkey, remote_addr }, 64);
    client.post(12, send, 16);
    client.post(13, atomic, 8);
    client.post(14, send, 0);
}

/// Takes what comes until the client has given up or a connection is up. Returns whether one is; then a Send is posted there.
fn accept(listener: &RcListener, server: &End, stop: &AtomicBool) -> bool {
    loop {
        let accepted = match listener.accept(Duration::from_millis(20)) {
            Ok(Some(request)) => {
                request.accept(&server.qp, DEPTHS, &welcome(listener.local_addr()))
            }
            Ok(None) if stop.load(Ordering::Relaxed) => return false,
            Ok(None) | Err(_) => continue,
        };
        if accepted.is_ok() {
            server.post(20, RcOperation::Send { invalidate: None }, 8);
            return true;
        }
    }
}

/// Relays one connection. An Initiator that tries again finds nobody. Returns how many octets passed.
fn relay_first(front: TcpListener, to: SocketAddr, cut: Cut, stop: &AtomicBool) -> usize {
    let (client, _) = front.accept().unwrap();
    let server = TcpStream::connect(to).unwrap();
    for stream in [&client, &server] {
        stream.set_nodelay(true).unwrap();
    }
    drop(front);
    relay(client, server, cut, stop)
}

/// All cuts in one direction and manner, until the whole conversation passes before the cut.
fn cut_everywhere(direction: Direction, manner: Manner) {
    let rnics = [(); 2].map(|()| Rnic::open(Config::default()).unwrap());
    let cut = |after| Cut {
        direction,
        manner,
        after,
    };
    // The startup frames and the messages above are longer than that, the requests more so than the answers.
    let all = match direction {
        Direction::ToServer => 280,
        Direction::ToClient => 170,
    };
    for after in 0..all {
        let passed = run(&rnics, cut(after));
        assert_eq!(passed, after, "{:?}", cut(after));
    }
}

#[test]
fn the_stream_to_the_server_ends_after_any_octet() {
    cut_everywhere(Direction::ToServer, Manner::Fin);
}

#[test]
fn the_stream_to_the_server_is_reset_after_any_octet() {
    cut_everywhere(Direction::ToServer, Manner::Reset);
}

#[test]
fn the_stream_to_the_client_ends_after_any_octet() {
    cut_everywhere(Direction::ToClient, Manner::Fin);
}

#[test]
fn the_stream_to_the_client_is_reset_after_any_octet() {
    cut_everywhere(Direction::ToClient, Manner::Reset);
}
