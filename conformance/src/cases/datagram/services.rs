//! Service lookup: which queue pair stands behind a port.

use serde_json::json;

use super::scene::Scene;
use super::{Case, datagrams};
use crate::agent::number;
use crate::bench::{Bench, Broken};
use crate::station::{Heard, Station};
use crate::wire::datagram::{Datagram, Lookup, sealed};

const SERVICES: &str = "Datagram §10";

pub(super) const CASES: &[Case] = &[datagrams(
    "D27",
    "service lookup: answered once, repeated alike, never with more than was asked with",
    &[SERVICES],
    d27,
)];

/// `RDMA_UDP_QKEY`, which programs of `rdma_cm` have.
const QKEY: u32 = 0x0123_4567;

/// A service of the device, and a station before it.
fn service(
    bench: &mut Bench<'_>,
    scene: &Scene,
    with: serde_json::Value,
) -> Result<Station, Broken> {
    let mut all = with;
    all["conn"] = scene.on.id.into();
    let answer = bench.agent()?.call("ud_service", all)?;
    let port = number("ud_service", &answer, "port")?;
    let port = u16::try_from(port).map_err(|_| Broken::Skip("its port is none of UDP"))?;
    bench.station(port)
}

/// Asks until something comes, as an asker does; what is no answer to this question is passed over.
fn ask(bench: &Bench<'_>, station: &mut Station, question: &Lookup) -> Heard {
    for _ in 0..5 {
        station.send(question.clone());
        loop {
            match station.next_within(bench.patience().answer / 5) {
                Heard::Datagram(Datagram::Lookup(lookup))
                    if lookup.transaction == question.transaction && lookup.kind != 4 =>
                {
                    return Heard::Datagram(lookup.into());
                }
                // Waiting, or an answer to an earlier question's repeat.
                Heard::Datagram(Datagram::Lookup(_)) => {}
                Heard::Nothing => break,
                heard => return heard,
            }
        }
    }
    Heard::Nothing
}

fn said(heard: &Heard) -> Option<&Lookup> {
    match heard {
        Heard::Datagram(Datagram::Lookup(lookup)) => Some(lookup),
        Heard::Datagram(Datagram::Segment(_) | Datagram::Exchange(_) | Datagram::Reliable(_))
        | Heard::Bad(..)
        | Heard::Nothing
        | Heard::Unreachable => None,
    }
}

/// The private data, without zeros that programming interfaces fill up with.
fn starts(private_data: &[u8], with: &[u8]) -> bool {
    private_data
        .strip_prefix(with)
        .is_some_and(|rest| rest.iter().all(|octet| *octet == 0))
}

fn d27(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let scene = Scene::new(bench, json!({ "qkey": QKEY }))?;
    let mut station = service(bench, &scene, json!({}))?;
    let port = station.to.port();
    for (what, transaction, private_data) in [
        ("a lookup", 0x1111_2222_3333_4444, b"who".as_slice()),
        ("one without private data", 1, b""),
        ("one with 256 octets of it", u64::MAX, &[7; 256]),
    ] {
        let question = Lookup::question(transaction, port, private_data);
        let heard = ask(bench, &mut station, &question);
        let right = said(&heard).is_some_and(|l| {
            let fields = (l.kind, l.status, l.port, l.qpn, l.qkey);
            fields == (2, 0, port, u32::from(scene.qpn), QKEY) && starts(&l.private_data, b"said")
        });
        bench.expect(
            what,
            right,
            &heard,
            "an answer with its transaction and port, the queue pair's number and Q_Key",
            SERVICES,
            &station,
        );
        let again = ask(bench, &mut station, &question);
        bench.expect(
            format!("{what}, again"),
            heard.to_string() == again.to_string() && said(&heard) == said(&again),
            &again,
            "the same octets",
            SERVICES,
            &station,
        );
    }
    let question = Lookup::question(2, port ^ 1, b"other");
    let heard = ask(bench, &mut station, &question);
    bench.expect(
        "a lookup for another port",
        said(&heard).is_some_and(|l| (l.kind, l.status) == (3, 1)),
        &heard,
        "a reject with status 1",
        SERVICES,
        &station,
    );
    dropped(bench, &mut station)?;
    held(bench, &scene)?;
    let mut station = service(bench, &scene, json!({ "reject": 1 }))?;
    let question = Lookup::question(9, station.to.port(), b"");
    let heard = ask(bench, &mut station, &question);
    bench.expect(
        "a program that rejects",
        said(&heard)
            .is_some_and(|l| (l.kind, l.status) == (3, 2) && starts(&l.private_data, b"no")),
        &heard,
        "a reject with status 2 and its private data",
        SERVICES,
        &station,
    );
    Ok(())
}

/// Queries that get no answer.
fn dropped(bench: &mut Bench<'_>, station: &mut Station) -> Result<(), Broken> {
    let good = Lookup::question(0x5555, station.to.port(), b"who");
    let body = || {
        let mut octets = Datagram::from(good.clone()).to_bytes();
        octets.truncate(octets.len() - 4);
        octets
    };
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut octets = body();
        change(&mut octets);
        sealed(octets)
    };
    let mut all: Vec<Vec<u8>> = (0..body().len())
        .step_by(7)
        .map(|end| sealed(body()[..end].to_vec()))
        .collect();
    all.push(with(&|octets| octets.push(0)));
    all.push(with(&|octets| octets.resize(1000, 0)));
    for kind in [0, 2, 3, 4, 5, 255] {
        all.push(with(&|octets| octets[1] = kind));
    }
    for first in [0xcd, 0x0d, 0x4c, 0x4e, 0x41, 0x49, 0x51] {
        all.push(with(&|octets| octets[0] = first));
    }
    // More private data than there may be, and than there is.
    for length in [257_u16, 0xffff] {
        all.push(with(&|octets| {
            octets[14..16].copy_from_slice(&length.to_be_bytes())
        }));
    }
    let mut wrong = Datagram::from(good.clone()).to_bytes();
    wrong[30] ^= 1;
    all.push(wrong);
    let of = all.len();
    for octets in all {
        station.octets(&octets);
    }
    // An answer behind them came after any answer to them.
    let last = Lookup::question(0x6666, station.to.port(), b"who");
    station.send(last);
    let heard = station.answer();
    let right =
        matches!(&heard, Heard::Datagram(Datagram::Lookup(lookup)) if lookup.transaction == 0x6666);
    bench.expect(
        format!("{of} of another length, type or format, or with a wrong CRC"),
        right,
        &heard,
        "nothing, until a good one comes",
        SERVICES,
        station,
    );
    Ok(())
}

/// A program that takes its time.
fn held(bench: &mut Bench<'_>, scene: &Scene) -> Result<(), Broken> {
    let mut station = service(bench, scene, json!({ "hold": 1 }))?;
    let question = Lookup::question(0x7777, station.to.port(), b"who");
    station.send(question.clone());
    let first = station.next_within(bench.patience().quiet);
    station.send(question.clone());
    let repeat = station.answer();
    bench.expect(
        "a question that waits, and its repeat",
        matches!(first, Heard::Nothing) && said(&repeat).is_some_and(|l| l.kind == 4),
        format!("{first}, then {repeat}"),
        "nothing, then waiting",
        SERVICES,
        &station,
    );
    let answer = bench.agent()?.call("ud_answer", json!({}))?;
    let heard = ask(bench, &mut station, &question);
    let right = said(&heard).is_some_and(|l| l.kind == 2);
    bench.expect(
        "once its program has answered",
        right && answer["questions"] == json!(1),
        format!("{heard}, {} questions for the program", answer["questions"]),
        "the answer, and the program was asked once",
        SERVICES,
        &station,
    );
    Ok(())
}
