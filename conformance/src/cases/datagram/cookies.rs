//! Cookies, and memory that only some may write.

use std::net::SocketAddr;

use serde_json::json;

use super::scene::{FILL, Refusal, Scene, WRITABLE, octets};
use super::{Case, datagrams};
use crate::agent::{AgentError, MARGIN, Memory, memory};
use crate::bench::{Bench, Broken};
use crate::station::{Heard, Station};
use crate::wire::datagram::{Datagram, Exchange, Segment, sealed};
use crate::wire::hex;

const COOKIES: &str = "Datagram §6";
const ORDER: &str = "Datagram §5";

pub(super) const CASES: &[Case] = &[
    datagrams(
        "D14",
        "memory for one peer, or for those who proved their address",
        &[ORDER, COOKIES],
        d14,
    ),
    datagrams("D15", "cookie exchanges", &[COOKIES], d15),
];

/// Memory with something special.
fn special(bench: &mut Bench<'_>, name: &str, with: serde_json::Value) -> Result<Memory, Broken> {
    let mut all = json!({ "length": 256, "access": WRITABLE, "fill": FILL, "margin": MARGIN });
    for (key, value) in with.as_object().into_iter().flatten() {
        all[key] = value.clone();
    }
    let answer = match bench.agent()?.call("reg_mr", all) {
        Err(AgentError::Refused { .. }) => {
            return Err(Broken::Datagram(format!("no memory {name}")));
        }
        answer => answer?,
    };
    Ok(memory("reg_mr", &answer, 256, MARGIN)?)
}

fn write(station: &mut Station, memory: Memory) -> Segment {
    let message = station.message(16);
    Segment::write_record(memory.stag, memory.to, message, &[5; 16])
}

/// Notes whether a Write-Record is placed and recorded.
fn placed(
    bench: &mut Bench<'_>,
    scene: &mut Scene,
    what: &str,
    memory: Memory,
) -> Result<(), Broken> {
    let record = scene.record(bench)?;
    let there = bench.agent()?.peek(memory, memory.margin, 16)?;
    bench.expect(
        what,
        record.as_ref().is_some_and(|record| record.valid == 16) && there == [5; 16],
        format!("{record:?}, {}", hex(&there, 16)),
        "placed, and a record",
        ORDER,
        &scene.station,
    );
    Ok(())
}

fn d14(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, json!({}))?;
    let here = scene.station.address().map_err(Broken::Connect)?;
    let with = json!({ "only_address": here.ip().to_string(), "only_qpn": here.port() });
    let mine = special(bench, "for one peer", with)?;
    let mut stranger = bench.station(scene.qpn)?;
    let forbidden = |what| Refusal {
        what,
        counter: "wrong-peer",
        clause: ORDER,
        memory: std::slice::from_ref(&mine),
    };
    let before = scene.counters(bench)?;
    let segment = write(&mut stranger, mine);
    stranger.send(segment);
    scene.dropped(bench, forbidden("memory for another port"), 1, &before)?;
    let segment = write(&mut scene.station, mine);
    scene.station.send(segment);
    placed(bench, &mut scene, "memory for the tester's own port", mine)?;

    let proved = special(bench, "with a cookie", json!({ "cookie": 1 }))?;
    let all = [proved];
    let refusal = |what| Refusal {
        what,
        counter: "bad-cookie",
        clause: COOKIES,
        memory: &all,
    };
    let cookie = scene.cookie()?;
    let epoch = scene.station.epoch;
    let without = octets(write(&mut scene.station, proved));
    scene.refuses(bench, refusal("no cookie"), &[without])?;
    let wrong: Vec<_> = [cookie ^ 1, cookie ^ 1 << 63, 0, !0]
        .map(|cookie| octets(write(&mut scene.station, proved).with_cookie(cookie)))
        .to_vec();
    scene.refuses(bench, refusal("cookies that are none"), &wrong)?;
    scene.station.epoch ^= 1;
    let other = octets(write(&mut scene.station, proved).with_cookie(cookie));
    scene.station.epoch = epoch;
    scene.refuses(bench, refusal("the cookie of another epoch"), &[other])?;
    let before = scene.counters(bench)?;
    stranger.epoch = epoch;
    let segment = write(&mut stranger, proved).with_cookie(cookie);
    stranger.send(segment);
    scene.dropped(
        bench,
        refusal("a stranger with the tester's cookie"),
        1,
        &before,
    )?;
    let segment = write(&mut scene.station, proved).with_cookie(cookie);
    scene.station.send(segment);
    placed(bench, &mut scene, "the tester with its cookie", proved)
}

/// Asks for a cookie; the answer, and its octets.
fn ask(
    scene: &mut Scene,
    station: Option<&mut Station>,
    epoch: u32,
    nonce: u64,
) -> Result<Exchange, Heard> {
    let station = station.unwrap_or(&mut scene.station);
    station.send(Exchange::request(epoch, nonce));
    match station.answer() {
        Heard::Datagram(Datagram::Exchange(answer)) => Ok(answer),
        heard => Err(heard),
    }
}

fn d15(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, json!({}))?;
    let epoch = scene.station.epoch;
    let mut cookies = Vec::new();
    for (what, epoch, nonce) in [
        ("a request", epoch, 0x1111),
        ("the same with another nonce", epoch, u64::MAX),
        ("another epoch", epoch ^ 1, 0x1111),
    ] {
        let answer = ask(&mut scene, None, epoch, nonce);
        let right = answer.as_ref().is_ok_and(|answer| {
            (answer.kind, answer.epoch, answer.nonce) == (2, epoch, nonce)
                && (answer.reserved, answer.end) == ([0; 2], [0; 8])
                && answer.cookie != 0
        });
        bench.expect(
            what,
            right,
            format!("{answer:?}"),
            "an answer of 36 octets with epoch and nonce, reserved octets zero, and a cookie",
            COOKIES,
            &scene.station,
        );
        cookies.push(answer.map(|answer| answer.cookie).unwrap_or_default());
    }
    let mut other = bench.station(scene.qpn)?;
    let answer = ask(&mut scene, Some(&mut other), epoch, 0x1111);
    cookies.push(answer.map(|answer| answer.cookie).unwrap_or_default());
    let [first, again, of_epoch, of_port] = cookies[..] else {
        return Ok(());
    };
    bench.expect(
        "the cookies",
        first == again && first != of_epoch && first != of_port && of_epoch != of_port,
        format!("{first:#x}, again {again:#x}, epoch {of_epoch:#x}, port {of_port:#x}"),
        "the same for the same address, port and epoch, and else another",
        COOKIES,
        &scene.station,
    );
    let body = |change: fn(&mut Vec<u8>)| {
        let mut octets = Datagram::from(Exchange::request(epoch, 3)).to_bytes();
        octets.truncate(32);
        change(&mut octets);
        sealed(octets)
    };
    let wrong = [
        body(|octets| octets.truncate(31)),
        body(|octets| octets.push(0)),
        body(|octets| octets.resize(1400, 0)),
        body(|octets| octets[1] = 0),
        body(|octets| octets[1] = 3),
        body(|octets| octets[1] = 255),
    ];
    let refusal = |what, counter| Refusal {
        what,
        counter,
        clause: COOKIES,
        memory: &[],
    };
    scene.refuses(
        bench,
        refusal("another length, another type", "malformed"),
        &wrong,
    )?;
    let answers = [octets(Exchange::answer(epoch, 3, 4))];
    scene.refuses(
        bench,
        refusal("an answer that nobody asked for", "unsolicited"),
        &answers,
    )?;
    // The loopback interface has a broadcast address too; other networks' are not the tester's to know.
    if scene.station.to.ip().is_loopback() && scene.station.to.is_ipv4() {
        let before = scene.counters(bench)?;
        let to = SocketAddr::new([127, 255, 255, 255].into(), scene.qpn);
        let request = octets(Exchange::request(epoch, 5));
        scene.station.octets_to(&request, to);
        scene.probe(bench)?;
        let counted = scene.counted_as(bench, &before, "not-well-known 1")?;
        let answer = scene.station.at_once();
        bench.expect(
            "a request to the broadcast address",
            matches!(answer, Heard::Nothing),
            format!("{answer}; {counted}"),
            "no answer",
            COOKIES,
            &scene.station,
        );
    }
    Ok(())
}
