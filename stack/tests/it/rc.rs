//! Connected queue pairs over the loopback interface.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use dgiwarp::{
    Access, Buffer, Config, ConnectError, Cq, CrcPreference, MpaConfig, Mr, Pd, RcEnd, RcListener,
    RcOptions, RcQp, RcQpAttr, RcSendWr, ReadDepths, RecvWr, Rnic, RtrSet, Wc, WcOpcode, WcStatus,
};

const SOON: Duration = Duration::from_secs(5);
const DEPTHS: ReadDepths = ReadDepths { ird: 4, ord: 4 };

/// A queue pair of a device of its own, with registered memory.
struct End {
    qp: RcQp,
    cq: Cq,
    memory: Buffer,
    mr: Mr,
    _pd: Pd,
}

impl End {
    fn new(octets: usize) -> Self {
        Self::with(octets, RcOptions::default())
    }

    fn with(octets: usize, options: RcOptions) -> Self {
        let rnic = Rnic::open(Config::default()).unwrap();
        let pd = rnic.alloc_pd();
        let cq = rnic.create_cq(64).unwrap();
        let attr = RcQpAttr {
            options: Some(options),
            ..RcQpAttr::new(&cq, &cq)
        };
        let qp = pd.create_rc_qp(&attr).unwrap();
        let memory = Buffer::zeroed(octets).unwrap();
        let mr = pd.register(memory.region(), Access::LOCAL_WRITE).unwrap();
        Self {
            qp,
            cq,
            memory,
            mr,
            _pd: pd,
        }
    }

    fn post_recv(&self, wr_id: u64) {
        let sges = [self.mr.sge(..)];
        self.qp.post_recv(&[RecvWr { wr_id, sges: &sges }]).unwrap();
    }

    fn post_send(&self, wr_id: u64, octets: &[u8]) {
        self.memory.write(0, octets);
        let sges = [self.mr.sge(..octets.len())];
        self.qp.post_send(&[RcSendWr::send(wr_id, &sges)]).unwrap();
    }

    #[track_caller]
    fn wait(&self, opcode: WcOpcode) -> Wc {
        let wc = self.cq.wait(SOON).unwrap().expect("a completion");
        assert_eq!(wc.opcode, opcode, "{wc:?}");
        wc
    }
}

fn listener(mpa: MpaConfig) -> (RcListener, SocketAddr) {
    let listener = RcListener::bind((Ipv4Addr::LOCALHOST, 0).into(), mpa).unwrap();
    let address = listener.local_addr();
    (listener, address)
}

/// Connects two ends that want the same; the first is the Initiator.
fn connect(client: &End, server: &End, mpa: &MpaConfig) {
    let (listener, address) = listener(mpa.clone());
    thread::scope(|scope| {
        scope.spawn(|| {
            let request = listener.accept(SOON).unwrap().expect("a request");
            assert_eq!(request.request().private_data, b"ask");
            request.accept(&server.qp, DEPTHS, b"answer").unwrap();
        });
        let established = client.qp.connect(address, mpa, b"ask").unwrap();
        assert_eq!(established.private_data, b"answer");
    });
}

#[test]
fn sends_of_all_sizes_both_ways() {
    let peer_to_peer = MpaConfig {
        peer_to_peer: true,
        ..MpaConfig::default()
    };
    let rtr_read = MpaConfig {
        rtr: RtrSet {
            read: true,
            ..RtrSet::NONE
        },
        depths: ReadDepths { ird: 0, ord: 0 },
        ..peer_to_peer.clone()
    };
    let markers = MpaConfig {
        markers: true,
        ..MpaConfig::default()
    };
    let bare = MpaConfig {
        crc: CrcPreference::Never,
        ..MpaConfig::default()
    };
    for mpa in [MpaConfig::default(), peer_to_peer, rtr_read, markers, bare] {
        let (client, server) = (End::new(4 << 20), End::new(4 << 20));
        client.post_recv(1);
        server.post_recv(2);
        connect(&client, &server, &mpa);
        for size in [0u32, 1, 16, 1441, 65_536, 4 << 20] {
            let message: Vec<u8> = (0..size).map(|i| (i * 31 + 7).to_le_bytes()[0]).collect();
            client.post_send(3, &message);
            let wc = server.wait(WcOpcode::Recv);
            assert_eq!((wc.wr_id, wc.byte_len), (2, size));
            assert!(
                server.memory.to_vec(0, message.len()) == message,
                "{size} octets"
            );
            assert_eq!(client.wait(WcOpcode::Send).status, WcStatus::Success);
            server.post_recv(2);

            let inverted: Vec<u8> = message.iter().map(|octet| !octet).collect();
            server.post_send(4, &inverted);
            let wc = client.wait(WcOpcode::Recv);
            assert_eq!((wc.wr_id, wc.byte_len), (1, size));
            assert!(
                client.memory.to_vec(0, message.len()) == inverted,
                "{size} octets back"
            );
            assert_eq!(server.wait(WcOpcode::Send).status, WcStatus::Success);
            client.post_recv(1);
        }
    }
}

#[test]
fn a_send_of_the_accepting_side_waits_for_the_first_of_the_other() {
    // Ends that greet each other have sent something.
    let quiet = RcOptions {
        hello: false,
        ..RcOptions::default()
    };
    let (client, server) = (End::with(64, quiet), End::new(64));
    client.post_recv(1);
    server.post_recv(2);
    connect(&client, &server, &MpaConfig::default());
    server.post_send(4, b"early");
    assert_eq!(client.cq.wait(Duration::from_millis(100)).unwrap(), None);
    client.post_send(3, b"first");
    assert_eq!(server.wait(WcOpcode::Recv).byte_len, 5);
    assert_eq!(client.wait(WcOpcode::Send).wr_id, 3);
    let wc = client.wait(WcOpcode::Recv);
    assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 5));
}

#[test]
fn the_end_of_one_side_flushes_the_other() {
    let (client, server) = (End::new(64), End::new(64));
    server.post_recv(1);
    server.post_recv(2);
    connect(&client, &server, &MpaConfig::default());
    client.post_send(3, b"last words");
    client.qp.disconnect();
    assert_eq!(server.wait(WcOpcode::Recv).byte_len, 10);
    assert_eq!(client.wait(WcOpcode::Send).status, WcStatus::Success);
    assert_eq!(server.wait(WcOpcode::Recv).status, WcStatus::Flushed);
    assert_eq!(client.qp.end(), Some(RcEnd::Closed));
    assert_eq!(server.qp.end(), Some(RcEnd::PeerClosed));
    server.post_send(4, b"too late");
    assert_eq!(server.wait(WcOpcode::Send).status, WcStatus::Flushed);
}

#[test]
fn a_rejection_comes_with_private_data_and_the_queue_pair_stays_usable() {
    let (client, server) = (End::new(64), End::new(64));
    let (listener, address) = listener(MpaConfig::default());
    thread::scope(|scope| {
        scope.spawn(|| {
            let request = listener.accept(SOON).unwrap().expect("a request");
            request.reject(b"not today").unwrap();
        });
        let refused = client.qp.connect(address, &MpaConfig::default(), b"");
        let Err(ConnectError::Rejected(rejection)) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(rejection.private_data, b"not today");
    });
    server.post_recv(1);
    connect(&client, &server, &MpaConfig::default());
    client.post_send(2, b"now");
    assert_eq!(server.wait(WcOpcode::Recv).byte_len, 3);
    let again = client.qp.connect(address, &MpaConfig::default(), b"");
    assert!(matches!(again, Err(ConnectError::State)));
}

#[test]
fn a_stranger_costs_the_listener_one_error() {
    let (listener, address) = listener(MpaConfig::default());
    // Another protocol, and an Initiator that does not wait for the Reply.
    let early = b"MPA ID Req Frame\x40\x01\0\0early";
    for says in [&b"GET / HTTP/1.1\r\n"[..], early] {
        let mut stranger = std::net::TcpStream::connect(address).unwrap();
        std::io::Write::write_all(&mut stranger, says).unwrap();
        let error = listener.accept(SOON).unwrap_err();
        assert!(matches!(error, ConnectError::Mpa(_)), "{error}");
    }
    assert!(
        listener
            .accept(Duration::from_millis(10))
            .unwrap()
            .is_none()
    );
}
