//! Ports at which a program, or two, listen with TCP and with rdma_cm.

use crate::common::each::{addresses, compiled, prints_ok, runs_as};
use crate::common::linked::linked;
use crate::common::scene::{Family, Place, Scene};
use crate::common::session::{self, End, Finish, Ready};
use crate::common::{RUN, compile, have, skip};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use xtask::clock;

const IN_TIME: Duration = Duration::from_secs(60);

/// In both orders, with and without a service of the number, over IPv4 and IPv6.
#[test]
fn tcp_and_rdma_cm_listen_at_one_port() {
    let Some(program) = compiled("port", include_str!("../c/port.c")) else {
        return;
    };
    for persona in ["roce", "iwarp"] {
        for address in addresses() {
            runs_as(persona, &program, &[address.to_string()]);
        }
    }
}

/// Without `dgiwarp-run`, whose library stands before `bind`, TCP has to come first.
#[test]
fn a_linked_program_listens_with_tcp_first() {
    let Some((_directory, program)) = linked("port", include_str!("../c/port.c")) else {
        return;
    };
    let mut command = Command::new("timeout");
    prints_ok(
        command
            .arg("120")
            .arg(program)
            .args(["127.0.0.1", "listens"]),
    );
}

/// UCX's listeners, whose clients reach them by rdma_cm and by TCP.
#[test]
fn ucx_listens_without_a_setting() {
    // Its port is rdma_cm's before it is both's.
    const SERVER: End = End::server("{program} {port} 3")
        .ready(Ready::Says("listening"))
        .says(&["done"])
        .complains(&[])
        .polls();
    // One after the other.
    const CLIENT: End = End::client("{program} {port} {server}")
        .ready(Ready::Ended)
        .says(&["done"])
        .complains(&[])
        .polls();
    const BY_RDMA_CM: &[(&str, &str)] = &[
        ("UCX_TLS", "rc_verbs,ud_verbs"),
        ("UCX_SOCKADDR_TLS_PRIORITY", "rdmacm"),
    ];
    const BY_TCP: &[(&str, &str)] = &[("UCX_TLS", "tcp"), ("UCX_SOCKADDR_TLS_PRIORITY", "tcp")];
    const EITHER: &[(&str, &str)] = &[];
    if !Path::new("/usr/include/ucp/api/ucp.h").is_file() {
        return skip(
            "ucxport",
            "ucp/api/ucp.h is missing (Debian package libucx-dev)",
        );
    }
    for place in [Place::Here, Place::Apart] {
        let Some(scene) = Scene::new("ucxport", place) else {
            continue;
        };
        let source = include_str!("../c/ucxport.c");
        // Where every user can start it.
        let directory = tempfile::tempdir().unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(directory.path(), open).unwrap();
        let libraries = ["-Wall", "-lucp", "-lucs"];
        let Some(program) = compile("ucxport", directory.path(), source, &libraries) else {
            return;
        };
        for environment in [BY_RDMA_CM, EITHER] {
            let client = CLIENT.program(&program).environment(environment);
            let ends = [SERVER.program(&program), client, client, client];
            session::run(&scene, Family::V4, &ends);
        }
        // UCX finds no interface of another namespace than that of the mounted sysfs.
        if place == Place::Apart {
            continue;
        }
        let client = CLIENT.program(&program).environment(BY_TCP);
        let server = SERVER.program(&program).environment(&[("UCX_TLS", "tcp")]);
        session::run(&scene, Family::V4, &[server, client, client, client]);
    }
}

/// UCX's own example: a client posts its message, resets its end at once, and disconnects; the server has the message first, and serves the next client.
#[test]
fn ucx_serves_clients_that_leave_at_once() {
    const SERVER: End = End::server("stdbuf -oL {program} -p {port}")
        .ready(Ready::Says("Waiting for connection"))
        .finish(Finish::Stopped)
        .complains(&["server is listening"])
        .polls();
    const CLIENT: End = End::client("{program} -p {port} -a {server}")
        .ready(Ready::Ended)
        .says(&["Client: iteration #1"])
        .complains(&[])
        .polls();
    const RC: &[(&str, &str)] = &[("UCX_TLS", "rc_verbs,self")];
    const UD: &[(&str, &str)] = &[("UCX_TLS", "ud_verbs,self")];
    const RECEIVED: &str = "UCX data message was received";
    let examples = Path::new("/usr/share/doc/libucx-dev/examples");
    let Ok(source) = std::fs::read_to_string(examples.join("ucp_client_server.c")) else {
        return skip(
            "ucp_client_server",
            "ucp_client_server.c is missing (Debian package libucx-dev, with its documentation)",
        );
    };
    let directory = tempfile::tempdir().unwrap();
    let include = format!("-I{}", examples.display());
    let arguments = [include.as_str(), "-lucp", "-lucs"];
    let test = "ucp_client_server";
    let Some(program) = compile(test, directory.path(), &source, &arguments) else {
        return;
    };
    let Some(scene) = Scene::new(test, Place::Here) else {
        return;
    };
    for (environment, interface) in [(RC, "stream"), (RC, "tag"), (RC, "am"), (UD, "stream")] {
        let client = CLIENT.program(&program).environment(environment);
        let server = SERVER.program(&program).environment(environment);
        let ends = [server, client, client, client, client];
        let words = ["-c", interface];
        let ended = session::run_with(&scene, Family::V4, &ends, &words);
        let received = ended[0].stdout.matches(RECEIVED).count();
        assert_eq!(received, ends.len() - 1, "{ended:?}");
    }
}

/// Whether a socket has a UDP port: ICMP refuses datagrams to others. Binding the port would take it from the server.
fn has_udp_port(port: u16) -> bool {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.send(b"?").is_ok()
        && !socket
            .recv(&mut [0])
            .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// A TCP port that another process has; and afterwards one that another server of rdma_cm has.
#[test]
fn rping_at_a_port_that_another_program_has() {
    if !have("rping_shared", "rping", "rdmacm-utils") {
        return;
    }
    for persona in ["roce", "iwarp"] {
        let stranger = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = stranger.local_addr().unwrap().port();
        let rping = |role: &str| {
            let mut command = Command::new("timeout");
            command
                .args([
                    "60",
                    RUN,
                    "rping",
                    role,
                    "-a",
                    "127.0.0.1",
                    "-C",
                    "10",
                    "-v",
                    "-V",
                ])
                .args(["-S", "200", "-p", &port.to_string()])
                .env("DGIWARP_PERSONA", persona)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            command
        };
        let mut server = rping("-s").spawn().unwrap();
        let began = clock::now();
        while !has_udp_port(port) {
            assert!(began.elapsed() < IN_TIME);
            assert!(server.try_wait().unwrap().is_none(), "rping has ended");
            clock::pause(Duration::from_millis(20));
        }
        let second = rping("-s").output().unwrap();
        let complaint = String::from_utf8_lossy(&second.stderr);
        assert!(complaint.contains("Address already in use"), "{complaint}");
        let client = rping("-c").output().unwrap();
        let said = String::from_utf8_lossy(&client.stdout);
        assert!(said.contains("ping data: rdma-ping-9:"), "{said}{client:?}");
        let server = server.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&server.stdout);
        assert!(said.contains("ping data: rdma-ping-9:"), "{said}{server:?}");
        drop(stranger);
    }
}
