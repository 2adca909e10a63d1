//! Private data of all lengths, rejections, Markers and silence.

use core::time::Duration;

use dgiwarp::{
    Config, ConnectError, Established, MpaConfig, MpaError, MpaFrameError, MpaRevision, RcListener,
    RcQp, RcQpAttr, RecvWr, Rnic,
};
use dgiwarp_conform::siw::{GuestCommand, HOST_IP};

use super::ops::{SOON, Siw, listen};
use super::{DEPTHS, LIMIT, fnv1a, inverted, pattern};

const NOTHING: &str = "reply 0 811c9dc5\n";
const REJECTED: &str = "cannot rdma_connect: Connection refused\nevent RDMA_CM_EVENT_REJECTED\n";
/// Octets of private data that siw can put into a Reply of its own, and into a Request.
const SIWS_MOST: u32 = 251;

fn queue_pair() -> (RcQp, dgiwarp::Cq) {
    let rnic = Rnic::open(Config::default()).unwrap();
    let cq = rnic.create_cq(4).unwrap();
    let pd = rnic.alloc_pd();
    (pd.create_rc_qp(&RcQpAttr::new(&cq, &cq)).unwrap(), cq)
}

fn ask(siw: &Siw<'_>, mpa: &MpaConfig, data: &[u8]) -> (RcQp, Result<Established, ConnectError>) {
    let (qp, _) = queue_pair();
    let to = siw.address();
    let result = siw.vm.in_network(|| qp.connect(to, mpa, data)).unwrap();
    (qp, result)
}

fn said_of(what: &str, data: &[u8]) -> String {
    format!("{what} {} {:08x}\n", data.len(), fnv1a(data))
}

/// Arrival of our private data.
enum Arrives {
    Whole,
    /// As nothing.
    Not,
    /// siw closes, and there is no connection.
    Closed,
}

fn ours(siw: &Siw<'_>) {
    let (one, two) = (MpaRevision::One, MpaRevision::Two);
    // The revision asked for, octets, the revision agreed on, and what arrives.
    let rows = [
        (two, 0, two, Arrives::Whole),
        (two, 1, two, Arrives::Whole),
        (two, 7, two, Arrives::Whole),
        (two, 251, two, Arrives::Whole),
        // With the four octets of the enhanced data, the 256 that siw takes.
        (two, 252, two, Arrives::Whole),
        // siw closes upon more, so that we fall back (RFC 6581 §10), and then it is few enough.
        (two, 253, one, Arrives::Whole),
        (two, 508, one, Arrives::Closed),
        (one, 0, one, Arrives::Whole),
        (one, 1, one, Arrives::Whole),
        (one, 255, one, Arrives::Whole),
        (one, 256, one, Arrives::Not),
        (one, 257, one, Arrives::Closed),
        (one, 512, one, Arrives::Closed),
    ];
    for (asked, len, agreed, arrives) in rows {
        let mpa = MpaConfig {
            revision: asked,
            ..MpaConfig::default()
        };
        let data = pattern(len);
        let (qp, result) = ask(siw, &mpa, &data);
        let arrived = match arrives {
            Arrives::Closed => {
                let error = result.unwrap_err();
                let closed = matches!(
                    error,
                    ConnectError::Mpa(MpaError::TcpLost | MpaError::ClosedInStartup)
                );
                assert!(closed, "{len}: {error:?}");
                continue;
            }
            Arrives::Whole => &data[..],
            Arrives::Not => &[],
        };
        let established = result.unwrap();
        assert_eq!(established.negotiation.revision, agreed, "{len}");
        let answered = arrived.len().min(usize::try_from(SIWS_MOST).unwrap());
        let expected = inverted(&arrived[..answered]);
        assert_eq!(established.private_data, expected, "{len}");
        qp.disconnect();
        let said = siw.says("over\n");
        assert!(said.starts_with(&said_of("request", arrived)), "{said}");
    }
}

/// siw rejects us, with our private data inverted.
fn rejected(siw: &Siw<'_>) {
    for revision in [MpaRevision::One, MpaRevision::Two] {
        let mpa = MpaConfig {
            revision,
            ..MpaConfig::default()
        };
        for data in [&b"R"[..], b"Reject this, whatever it is"] {
            let (_, result) = ask(siw, &mpa, data);
            let Err(ConnectError::Rejected(rejection)) = result else {
                panic!("{result:?}");
            };
            assert_eq!(rejection.private_data, inverted(data));
            assert_eq!(rejection.enhanced.is_some(), revision == MpaRevision::Two);
            siw.says("rejected\n");
        }
    }
    // It knows no Markers.
    let markers = MpaConfig {
        markers: true,
        ..MpaConfig::default()
    };
    let (_, result) = ask(siw, &markers, b"");
    assert!(
        matches!(result, Err(ConnectError::Rejected(_))),
        "{result:?}"
    );
    // A program that never answers.
    let impatient = MpaConfig {
        startup_timeout: Duration::from_secs(1),
        ..MpaConfig::default()
    };
    let (_, result) = ask(siw, &impatient, b"I");
    let timeout = matches!(result, Err(ConnectError::Mpa(MpaError::StartupTimeout(_))));
    assert!(timeout, "{result:?}");
    siw.says("ignored\n");
}

fn client(siw: &Siw<'_>, listener: &RcListener, len: u32) -> GuestCommand {
    let port = listener.local_addr().port();
    let command = format!("siw-ops client {HOST_IP} {port} {len}");
    siw.vm.spawn(&command, LIMIT).unwrap()
}

/// siw's private data, and ours in answer to it.
fn theirs(siw: &Siw<'_>) {
    let listener = listen(siw.vm, &MpaConfig::default(), 0);
    for len in [0, 1, 7, SIWS_MOST] {
        let client = client(siw, &listener, len);
        let request = listener.accept(LIMIT).unwrap().expect("siw connects");
        assert_eq!(request.request().private_data, pattern(len), "{len}");
        let (qp, cq) = queue_pair();
        qp.post_recv(&[RecvWr {
            wr_id: 0,
            sges: &[],
        }])
        .unwrap();
        // The most that siw takes, however little it gave.
        let answer = inverted(&pattern(252 - len));
        request.accept(&qp, DEPTHS, &answer).unwrap();
        cq.wait(SOON).unwrap().expect("siw's hello");
        qp.disconnect();
        let said = client.wait().unwrap().stdout;
        assert!(said.starts_with(&said_of("reply", &answer)), "{said}");
    }
    // Its length with the enhanced data overflows an octet of siw's: 256 is 0, and 259 is 3.
    for (len, said) in [(252, 0), (255, 3)] {
        let client = client(siw, &listener, len);
        let error = listener.accept(LIMIT).unwrap_err();
        let expected = MpaError::StartupFrame(MpaFrameError::EnhancedTooShort(said));
        assert!(
            matches!(error, ConnectError::Mpa(found) if found == expected),
            "{error:?}"
        );
        assert!(client.wait().unwrap().stdout.starts_with(REJECTED));
    }
}

/// We reject siw.
fn rejects(siw: &Siw<'_>) {
    let listener = listen(siw.vm, &MpaConfig::default(), 0);
    // More than 252 crash it; see `table::LIMITS`.
    for len in [0, 20, 252] {
        let client = client(siw, &listener, 0);
        let request = listener.accept(LIMIT).unwrap().expect("siw connects");
        let data = pattern(len);
        request.reject(&data).unwrap();
        let output = client.wait().unwrap();
        assert_eq!(output.status.code(), Some(1), "{len}: {output:?}");
        // siw loses it if our end of TCP comes too soon.
        let seen = [said_of("reply", &data), NOTHING.to_owned()];
        let seen = seen.map(|reply| format!("{REJECTED}{reply}"));
        assert!(seen.contains(&output.stdout), "{len}: {output:?}");
    }
    // It refuses a Reply that asks for Markers.
    let markers = MpaConfig {
        markers: true,
        ..MpaConfig::default()
    };
    let listener = listen(siw.vm, &markers, 0);
    let client = client(siw, &listener, 0);
    let request = listener.accept(LIMIT).unwrap().expect("siw connects");
    let (qp, _) = queue_pair();
    request.accept(&qp, DEPTHS, b"").unwrap();
    let said = client.wait().unwrap().stdout;
    assert!(said.starts_with(REJECTED), "{said}");
}

pub(crate) fn all(siw: &Siw<'_>) {
    siw.tried(|| ours(siw));
    siw.tried(|| rejected(siw));
    siw.tried(|| theirs(siw));
    siw.tried(|| rejects(siw));
}
