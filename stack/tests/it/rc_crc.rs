//! CRCs within one host: connections of a Request and by exchanged numbers do without them unless an end prefers them.

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use dgiwarp::{
    Access, Buffer, Config, CrcPreference, MpaConfig, MpaRevision, Pairing, RcListener, RcQp,
    RcQpAttr, ReadDepths, Rnic,
};

const SOON: Duration = Duration::from_secs(20);
const PREFERENCES: [CrcPreference; 3] = [
    CrcPreference::Always,
    CrcPreference::BetweenHosts,
    CrcPreference::Never,
];
/// Offset and bit of C in a startup frame (RFC 5044 §7.1.1).
const C_BIT: (usize, u8) = (16, 0x40);

fn qp(rnic: &Rnic, paired: bool) -> RcQp {
    let cq = rnic.create_cq(16).unwrap();
    let attr = RcQpAttr {
        paired,
        ..RcQpAttr::new(&cq, &cq)
    };
    let pd = rnic.alloc_pd();
    // Nothing is sent here, but a program has memory.
    let memory = Buffer::zeroed(64).unwrap();
    pd.register(memory.region(), Access::LOCAL_WRITE).unwrap();
    pd.create_rc_qp(&attr).unwrap()
}

/// Whether a connection has CRCs, as both ends have it.
fn has_crcs(listen: IpAddr, to: IpAddr, client: &MpaConfig, server: &MpaConfig) -> bool {
    let rnic = Rnic::open(Config::default()).unwrap();
    let (one, two) = (qp(&rnic, false), qp(&rnic, false));
    let listener = RcListener::bind((listen, 0).into(), server.clone()).unwrap();
    let to = SocketAddr::new(to, listener.local_addr().port());
    thread::scope(|scope| {
        let accepted = scope.spawn(|| {
            let request = listener.accept(SOON).unwrap().expect("a request");
            let depths = ReadDepths { ird: 4, ord: 4 };
            request.accept(&two, depths, b"").unwrap().crc
        });
        let ours = one.connect(to, client, b"").unwrap().negotiation.crc;
        assert_eq!(accepted.join().unwrap(), ours);
        ours
    })
}

#[test]
fn within_one_host_crcs_are_for_an_end_that_prefers_them() {
    let here = IpAddr::from(Ipv4Addr::LOCALHOST);
    for revision in [MpaRevision::One, MpaRevision::Two] {
        for client in PREFERENCES {
            for server in PREFERENCES {
                let of = |crc| MpaConfig {
                    crc,
                    revision,
                    ..MpaConfig::default()
                };
                let always = [client, server].contains(&CrcPreference::Always);
                let found = has_crcs(here, here, &of(client), &of(server));
                assert_eq!(found, always, "{revision:?} {client:?} {server:?}");
            }
        }
    }
}

#[test]
fn any_two_addresses_of_this_host_are_one_host() {
    let any = IpAddr::from(Ipv6Addr::UNSPECIFIED);
    let places = [
        (Ipv4Addr::UNSPECIFIED.into(), [127, 4, 5, 6].into()),
        (any, Ipv6Addr::LOCALHOST.into()),
        (any, Ipv4Addr::LOCALHOST.into()),
    ];
    for (listen, to) in places {
        let mpa = MpaConfig::default();
        assert!(!has_crcs(listen, to, &mpa, &mpa), "{listen} {to}");
    }
}

/// The first frame that a queue pair sends which connects by exchanged numbers.
fn request(crc: CrcPreference) -> [u8; 20] {
    let mut config = Config::default();
    config.mpa.crc = crc;
    let rnic = Rnic::open(config).unwrap();
    let qp = qp(&rnic, true);
    let here = IpAddr::from(Ipv4Addr::LOCALHOST);
    // The end with the smaller number connects.
    let listener = loop {
        let listener = TcpListener::bind((here, 0)).unwrap();
        if u32::from(listener.local_addr().unwrap().port()) > qp.qpn() >> 8 {
            break listener;
        }
    };
    let port = listener.local_addr().unwrap().port();
    let pairing = Pairing {
        peer: here,
        scope_id: 0,
        peer_qpn: u32::from(port) << 8,
        source: here,
        rq_psn: 7,
        ird: 4,
    };
    qp.pair(&pairing).unwrap();
    qp.start(8, 4, None).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut frame = [0; 20];
    stream.read_exact(&mut frame).unwrap();
    frame
}

#[test]
fn connections_by_exchanged_numbers_have_the_devices_preference() {
    for (crc, wants) in PREFERENCES.into_iter().zip([true, false, false]) {
        let frame = request(crc);
        assert_eq!(&frame[..16], b"MPA ID Req Frame");
        assert_eq!(frame[C_BIT.0] & C_BIT.1 != 0, wants, "{crc:?}");
    }
}
