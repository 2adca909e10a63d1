//! RDMA Reads that the device makes, of memory that the tester plays.

use std::ops::Range;
use std::time::Duration;

use serde_json::json;

use super::scene::{FILL, Scene, WRITABLE, as_u64, difference, picture, ranges, union};
use super::{Case, datagrams};
use crate::agent::{AgentError, Completion, Memory};
use crate::bench::{Bench, Broken};
use crate::clock;
use crate::dice::Dice;
use crate::station::{Heard, Station};
use crate::wire::datagram::{Datagram, Exchange, Segment, opcode};
use crate::wire::ddp::{Place, ReadRequest, Terminate};

const READ: &str = "Datagram §7.1";
const COOKIES: &str = "Datagram §6";
const HEADERS: &str = "Datagram §2";
const TERMINATE: &str = "Datagram §7.2";

pub(super) const CASES: &[Case] = &[
    datagrams(
        "D18",
        "the device's Read Requests and cookie requests",
        &[READ, COOKIES, HEADERS],
        d18,
    ),
    datagrams(
        "D19",
        "Responses that are lost, twice, late, elsewhere, and of others",
        &[READ],
        d19,
    ),
    Case {
        version: 2,
        ..datagrams(
            "D21",
            "Reads that nobody answers end in time, with a map of what came; so do those that a Terminate refuses",
            &[READ, TERMINATE],
            d21,
        )
    },
];

const REGION: usize = 160_000;
/// Where the sink is in the region.
const SINK: usize = 512;
/// STag that the tester gives for its memory.
const STAG: u32 = 0x0102_0304;
const REMOTE: u64 = 0x7f00_0000_1000;
const COOKIE: u64 = 0x00c0_0c1e_00c0_0c1e;
const WR_ID: u64 = 77;
/// `IBV_WC_RDMA_READ`.
const READ_DONE: u64 = 2;
const SEGMENT: usize = 1400;

/// Requests of the device during a Read.
#[derive(Debug, Default)]
struct Asked {
    /// Each request, and whether it carried the tester's cookie.
    requests: Vec<(Segment, ReadRequest, bool)>,
    /// The nonces of cookie requests.
    nonces: Vec<u64>,
    /// Whether a cookie request was the first that came.
    cookie_first: bool,
    /// Datagrams that are neither.
    others: Vec<String>,
}

impl Asked {
    fn first(&self) -> Option<ReadRequest> {
        self.requests.first().map(|(_, request, _)| *request)
    }
}

/// A Read of the device.
struct Read {
    memory: Memory,
    size: usize,
    octets: Vec<u8>,
}

impl Read {
    fn post(
        bench: &mut Bench<'_>,
        scene: &Scene,
        dice: &mut Dice,
        size: usize,
        limit_ms: u64,
    ) -> Result<Self, Broken> {
        let memory = bench.agent()?.register(as_u64(REGION), WRITABLE, FILL)?;
        let with = json!({
            "opcode": 4, "mr": memory.id, "offset": SINK, "length": size, "wr_id": WR_ID,
            "rkey": STAG, "remote": REMOTE, "limit_ms": limit_ms,
        });
        scene.post(bench, with)?;
        Ok(Self {
            memory,
            size,
            octets: dice.octets(size),
        })
    }

    /// The segments of the Response to a request.
    fn response(&self, request: ReadRequest) -> Vec<(Range<usize>, Segment)> {
        let start = usize::try_from(request.sink_to).unwrap_or(usize::MAX);
        let end = start
            .saturating_add(usize::try_from(request.size).unwrap_or(0))
            .min(self.size);
        let mut all = Vec::new();
        let mut at = start.min(end);
        loop {
            let to = (at + SEGMENT).min(end);
            let octets = &self.octets[at..to];
            let segment = Segment::read_response(request.sink_stag, as_u64(at), to == end, octets);
            all.push((at..to, segment));
            if to == end {
                return all;
            }
            at = to;
        }
    }

    /// Whether nothing but these ranges of the message is in the sink.
    fn there(
        &self,
        bench: &mut Bench<'_>,
        placed: &[Range<usize>],
    ) -> Result<(bool, String), Broken> {
        let there = bench.agent()?.all(self.memory)?;
        let placed: Vec<_> = placed
            .iter()
            .map(|range| (range.clone(), &self.octets[range.clone()]))
            .collect();
        let right = picture(self.memory, SINK, &placed);
        Ok((there == right, difference(&there, &right)))
    }

    fn forget(self, bench: &mut Bench<'_>) -> Result<(), Broken> {
        Ok(bench.agent()?.deregister(self.memory)?)
    }
}

/// Plays the target until the Read completes: cookies are given, requests are left to `answer`.
fn serve(
    bench: &mut Bench<'_>,
    scene: &mut Scene,
    give_cookies: bool,
    answer: &mut dyn FnMut(&mut Station, &Segment, ReadRequest),
) -> Result<(Option<Completion>, Asked), Broken> {
    let mut asked = Asked::default();
    let until = clock::now() + bench.patience().answer * 2;
    while clock::now() < until {
        match scene.station.next_within(Duration::from_millis(2)) {
            Heard::Datagram(Datagram::Exchange(exchange)) if exchange.kind == 1 => {
                asked.cookie_first |= asked.requests.is_empty();
                asked.nonces.push(exchange.nonce);
                if give_cookies {
                    let answer = Exchange::answer(exchange.epoch, exchange.nonce, COOKIE);
                    scene.station.send(answer);
                }
            }
            Heard::Datagram(Datagram::Segment(segment))
                if segment.opcode() == opcode::READ_REQUEST =>
            {
                if let Some(request) = ReadRequest::parse(&segment.payload) {
                    let proved = segment.cookie == Some(COOKIE);
                    asked.requests.push((segment.clone(), request, proved));
                    answer(&mut scene.station, &segment, request);
                }
            }
            Heard::Nothing => {
                if let Some(wc) = scene.poll(bench, Duration::ZERO)? {
                    return Ok((Some(wc), asked));
                }
            }
            heard => asked.others.push(heard.to_string()),
        }
    }
    Ok((None, asked))
}

fn is_success(wc: Option<&Completion>) -> bool {
    wc.is_some_and(|wc| (wc.status, wc.wr_id, wc.opcode) == (0, WR_ID, READ_DONE))
}

fn whole(size: usize) -> Vec<Range<usize>> {
    if size == 0 {
        Vec::new()
    } else {
        super::scene::one(0..size)
    }
}

/// Faults of the requests of a Read whose answers all came.
fn faults(asked: &Asked, size: usize, epoch: &mut Option<u32>) -> Vec<String> {
    let mut faults = asked.others.clone();
    let stag = asked.first().map(|request| request.sink_stag);
    let mut numbers = Vec::new();
    for (segment, request, proved) in &asked.requests {
        let Place::Untagged { rsvd, qn, msn, mo } = segment.place else {
            continue;
        };
        numbers.push(msn);
        if *epoch.get_or_insert(rsvd) != rsvd {
            faults.push(format!("epoch {rsvd:#x}"));
        }
        if (qn, mo, segment.is_last(), segment.control) != (1, 0, true, 0x41) {
            faults.push(segment.to_string());
        }
        let source = (
            request.source_stag,
            request.source_to.wrapping_sub(request.sink_to),
        );
        if Some(request.sink_stag) != stag || source != (STAG, REMOTE) {
            faults.push(format!("{request:x?}"));
        }
        if !proved && request.size > 132 {
            faults.push(format!(
                "{} octets asked for without the cookie",
                request.size
            ));
        }
    }
    if numbers
        .windows(2)
        .any(|pair| pair[1] != pair[0].wrapping_add(1))
    {
        faults.push(format!("MSNs {numbers:x?}"));
    }
    let covered = asked.requests.iter().map(|(_, request, _)| {
        let start = usize::try_from(request.sink_to).unwrap_or(0);
        start..start + usize::try_from(request.size).unwrap_or(0)
    });
    let covered = union(covered.filter(|range| !range.is_empty()).collect());
    if covered != whole(size) {
        faults.push(format!("asked for {covered:?} of {size} octets"));
    }
    if (size > 132) != (asked.cookie_first || asked.nonces.is_empty() && size > 132) {
        faults.push("a cookie was asked for first".to_owned());
    }
    faults
}

fn d18(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, json!({}))?;
    scene.point_here(bench)?;
    let mut dice = Dice::new(bench.settings.seed, 18);
    let mut epoch = None;
    let mut stags = Vec::new();
    for (index, size) in [1, 0, 132, 133, 1400, 20_000, 150_000]
        .into_iter()
        .enumerate()
    {
        let read = Read::post(bench, &scene, &mut dice, size, 20_000)?;
        let (wc, asked) = serve(bench, &mut scene, true, &mut |station, _, request| {
            for (_, segment) in read.response(request) {
                station.send(segment);
            }
        })?;
        let faults = faults(&asked, size, &mut epoch);
        let (same, seen) = read.there(bench, &whole(size))?;
        bench.expect(
            format!("{size} octets"),
            is_success(wc.as_ref()) && faults.is_empty() && same,
            format!("{wc:?}; wrong: {faults:?}; memory {seen}"),
            "requests on queue 1 for all octets, numbered, with the cookie where more than 132 are asked for; all arrives",
            READ,
            &scene.station,
        );
        if index == 0 {
            bench.expect(
                "the first datagram of a Read of one octet",
                asked.nonces.is_empty() || !asked.cookie_first,
                format!("{} cookie requests", asked.nonces.len()),
                "the request itself",
                READ,
                &scene.station,
            );
        }
        stags.extend(asked.first().map(|request| request.sink_stag));
        read.forget(bench)?;
    }
    let of = stags.len();
    stags.sort_unstable();
    stags.dedup();
    let neighbours = stags.windows(2).any(|pair| pair[1] - pair[0] < 16);
    bench.expect(
        "the Data Sink STags",
        stags.len() == of && !neighbours,
        format!("{stags:#x?}"),
        "drawn at random for each Read",
        READ,
        &scene.station,
    );
    exchange(bench, &mut dice)
}

/// Cookie requests are repeated with new nonces, and no other answer is taken.
fn exchange(bench: &mut Bench<'_>, dice: &mut Dice) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, json!({}))?;
    scene.point_here(bench)?;
    let before = scene.counters(bench)?;
    let read = Read::post(bench, &scene, dice, 1000, 20_000)?;
    let mut requests = Vec::new();
    while requests.len() < 3 {
        match scene.station.answer() {
            Heard::Datagram(Datagram::Exchange(exchange)) => requests.push(exchange),
            _ => break,
        }
    }
    let nonces: Vec<_> = requests.iter().map(|request| request.nonce).collect();
    let right = requests.len() == 3
        && requests.iter().all(|request| {
            (request.kind, request.cookie, request.end) == (1, 0, [0; 8])
                && request.epoch == requests[0].epoch
        })
        && nonces[0] != nonces[1]
        && nonces[1] != nonces[2];
    bench.expect(
        "cookie requests that nobody answers",
        right,
        format!("{requests:x?}"),
        "repeated, each with another nonce",
        COOKIES,
        &scene.station,
    );
    let Some(last) = requests.last().copied() else {
        return read.forget(bench);
    };
    // Wrong ones first; were one taken, the requests would carry its cookie.
    scene
        .station
        .send(Exchange::answer(last.epoch, last.nonce ^ 1, 1));
    scene
        .station
        .send(Exchange::answer(last.epoch ^ 1, last.nonce, 2));
    let mut stranger = bench.station(scene.qpn)?;
    stranger.send(Exchange::answer(last.epoch, last.nonce, 3));
    scene.probe(bench)?;
    let (wc, asked) = serve(bench, &mut scene, true, &mut |station, _, request| {
        for (_, segment) in read.response(request) {
            station.send(segment);
        }
    })?;
    let proved = asked.requests.iter().all(|(_, _, proved)| *proved);
    // A request that was repeated has a second response, which comes too late.
    let counted = scene.counted(bench, &before)?;
    let dropped = counted
        .split(", ")
        .any(|counter| counter == "unsolicited 3");
    bench.expect(
        "answers with another nonce, another epoch, and from a stranger",
        is_success(wc.as_ref()) && proved && dropped,
        format!("{wc:?}; {counted}; {asked:x?}"),
        "dropped as `unsolicited`; the right one is taken",
        COOKIES,
        &scene.station,
    );
    read.forget(bench)
}

fn d19(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, json!({}))?;
    scene.point_here(bench)?;
    let mut dice = Dice::new(bench.settings.seed, 19);
    for (what, lost, twice) in [
        ("in another order", 0, 0),
        ("each twice", 0, 10),
        ("one of three lost", 3, 2),
        ("two of three lost", 6, 0),
    ] {
        for size in [600, 20_000, 100_000] {
            let read = Read::post(bench, &scene, &mut dice, size, 30_000)?;
            let mut throws = dice.clone();
            let (wc, asked) = serve(bench, &mut scene, true, &mut |station, _, request| {
                let mut segments = read.response(request);
                throws.shuffle(&mut segments);
                for (_, segment) in segments {
                    if throws.below(9) < lost {
                        continue;
                    }
                    station.send(segment.clone());
                    if throws.below(10) < twice {
                        station.send(segment);
                    }
                }
            })?;
            dice = throws;
            let (same, seen) = read.there(bench, &whole(size))?;
            bench.expect(
                format!("{size} octets, {what}"),
                is_success(wc.as_ref()) && same,
                format!(
                    "{wc:?} after {} requests; memory {seen}",
                    asked.requests.len()
                ),
                "what is missing is asked for again until all is there",
                READ,
                &scene.station,
            );
            read.forget(bench)?;
        }
    }
    hostile(bench, &mut dice)
}

/// Responses that must be dropped before they are placed, while a Read of 1000 octets waits.
fn hostile(bench: &mut Bench<'_>, dice: &mut Dice) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, json!({}))?;
    scene.point_here(bench)?;
    let mut stranger = bench.station(scene.qpn)?;
    let before = scene.counters(bench)?;
    let read = Read::post(bench, &scene, dice, 1000, 30_000)?;
    let mut sink = None;
    let mut first = true;
    let (wc, _) = serve(bench, &mut scene, true, &mut |station, _, request| {
        let (stag, octets) = (request.sink_stag, &read.octets);
        sink = Some(stag);
        let bad = |stag, to, payload: &[u8]| Segment::read_response(stag, to, true, payload);
        if std::mem::take(&mut first) {
            stranger.send(bad(stag, 0, &[9; 1000]));
            station.send(bad(!stag, 0, &[9; 1000]));
            station.send(bad(stag ^ 1, 0, &[9; 1000]));
            station.send(bad(STAG, REMOTE, &[9; 1000]));
            station.send(bad(stag, 1, &[9; 1000]));
            station.send(bad(stag, 1000, &[9; 1]));
            station.send(bad(stag, u64::MAX - 499, &[9; 1000]));
            station.send(bad(stag, 1 << 32, &[9; 10]));
            station.send(bad(stag, 0, &[]));
            station.send(Segment::read_response(stag, 0, false, &octets[..400]));
            station.send(Segment::read_response(stag, 0, false, &[9; 400]));
            station.send(Segment::read_response(stag, 100, false, &[9; 200]));
            // The stranger's way may be longer than ours.
            clock::pause(Duration::from_millis(5));
        }
        station.send(Segment::read_response(stag, 400, true, &octets[400..]));
    })?;
    let counted = scene.counted(bench, &before)?;
    let (same, seen) = read.there(bench, &whole(1000))?;
    // Requests may have been repeated meanwhile, and then the last Response came twice: late or duplicate.
    let named = ["bad-stag", "out-of-bounds 4", "malformed 1", "duplicate"];
    bench.expect(
        "Responses of a stranger, to other STags, outside of the message, empty, and of octets that are there",
        is_success(wc.as_ref()) && same && named.iter().all(|name| counted.contains(name)),
        format!("{wc:?}; {counted}; memory {seen}"),
        "dropped by the names `bad-stag`, `out-of-bounds`, `malformed` and `duplicate`; nothing of them is placed",
        READ,
        &scene.station,
    );
    let Some(stag) = sink else {
        return read.forget(bench);
    };
    let before = scene.counters(bench)?;
    for (to, length) in [(0, 1000), (500, 1), (0, 0)] {
        let late = Segment::read_response(stag, to, true, &vec![9; length]);
        scene.station.send(late);
    }
    let lives = scene.probe(bench)?;
    let counted = scene.counted(bench, &before)?;
    let (same, seen) = read.there(bench, &whole(1000))?;
    bench.expect(
        "Responses after the Read's end",
        lives && counted == "bad-stag 3" && same && scene.others.is_empty(),
        format!("{counted}; memory {seen}; {:?}", scene.others),
        "`bad-stag`: its STag is dead",
        READ,
        &scene.station,
    );
    read.forget(bench)
}

fn d21(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, json!({}))?;
    scene.point_here(bench)?;
    let mut dice = Dice::new(bench.settings.seed, 21);
    for (what, cookies, chance, size) in [
        ("nothing at all is answered", false, 0, 5000),
        ("cookies, and nothing else", true, 0, 5000),
        ("cookies, and some octets", true, 3, 50_000),
        ("some more octets", true, 7, 50_000),
        ("all but one segment", true, 100, 50_000),
    ] {
        let read = Read::post(bench, &scene, &mut dice, size, 1000)?;
        // Answers do not differ between repeats.
        let kept: Vec<_> = (0..=size / SEGMENT)
            .map(|index| index != 20 && dice.below(10) < chance)
            .collect();
        let mut sent = Vec::new();
        let (wc, _) = serve(bench, &mut scene, cookies, &mut |station, _, request| {
            for (range, _) in read.response(request) {
                // The device cuts its chunks as it likes; what is left out is by place in the message.
                for (index, _) in kept.iter().enumerate().filter(|(_, kept)| **kept) {
                    let (from, to) = (index * SEGMENT, (index + 1) * SEGMENT);
                    let part = range.start.max(from)..range.end.min(to);
                    if part.start < part.end {
                        let octets = &read.octets[part.clone()];
                        let stag = request.sink_stag;
                        station.send(Segment::read_response(
                            stag,
                            as_u64(part.start),
                            false,
                            octets,
                        ));
                        sent.push(part);
                    }
                }
            }
        })?;
        let map = bench
            .agent()?
            .call("read_map", json!({ "conn": scene.on.id, "wr_id": WR_ID }));
        let (length, map) = match map {
            Ok(answer) => (answer["length"].as_u64(), ranges(&answer["ranges"])),
            Err(AgentError::Refused { .. }) => (None, Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let sent = union(sent);
        let (same, seen) = read.there(bench, &sent)?;
        let failed = wc
            .as_ref()
            .is_some_and(|wc| wc.status != 0 && wc.wr_id == WR_ID);
        bench.expect(
            what,
            failed && length == Some(as_u64(size)) && map == sent && same,
            format!("{wc:?}; {length:?} octets, {map:?}; memory {seen}"),
            &format!("an error completion at the deadline, and the map {sent:?}"),
            READ,
            &scene.station,
        );
        read.forget(bench)?;
    }
    terminated(bench, &mut dice)
}

/// A Terminate about an outstanding Read ends it at once, if it comes from the peer.
fn terminated(bench: &mut Bench<'_>, dice: &mut Dice) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, json!({}))?;
    scene.point_here(bench)?;
    let mut stranger = bench.station(scene.qpn)?;
    let before = scene.counters(bench)?;
    let read = Read::post(bench, &scene, dice, 1000, 60_000)?;
    let mut first = true;
    // One ends the Read. A device that is busy may ask once more before it sees that one, and is told again.
    let mut others = 0;
    let (wc, _) = serve(bench, &mut scene, true, &mut |station, _, request| {
        others += 1;
        let told = Terminate {
            layer: 0,
            etype: 1,
            code: 2,
            header_control: 0b001,
            reserved: 0,
            rest: request.to_bytes(),
        };
        let about = |told: &Terminate| {
            Segment::untagged(opcode::TERMINATE, station.epoch, 2, 1, &told.to_bytes())
        };
        if std::mem::take(&mut first) {
            let other = ReadRequest {
                sink_stag: !request.sink_stag,
                ..request
            };
            stranger.send(about(&told));
            let other = about(&Terminate {
                rest: other.to_bytes(),
                ..told
            });
            station.send(other);
        } else {
            let segment = about(&told);
            station.send(segment);
        }
    })?;
    let counted = scene.counted(bench, &before)?;
    let (same, seen) = read.there(bench, &[])?;
    let failed = wc
        .as_ref()
        .is_some_and(|wc| wc.status != 0 && wc.wr_id == WR_ID);
    bench.expect(
        "a Terminate of a stranger, one about another Read, and the peer's about this one",
        failed && same && (2..=others).any(|it| counted.contains(&format!("unsolicited {it}"))),
        format!("{wc:?}; {counted}; memory {seen}"),
        "the third ends the Read before its minute is over, the others are `unsolicited`",
        TERMINATE,
        &scene.station,
    );
    read.forget(bench)
}
