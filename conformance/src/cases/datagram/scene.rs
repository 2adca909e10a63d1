//! A queue pair of the device, the tester's station before it, and what both know of each other.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use serde_json::{Value, json};

use crate::agent::{AgentError, Completion, Connection, Memory, access, connection, number};
use crate::bench::{Bench, Broken};
use crate::clock;
use crate::station::{Heard, Station};
use crate::wire::datagram::{Datagram, Exchange, Extension, Segment};

/// The Q_Key of the device's queue pairs here.
pub(super) const QKEY: u32 = 0x1ee7;
/// Octet that fills memory of the device before anything is placed.
pub(super) const FILL: u8 = 0xcd;
/// Octets of a receive before the payload: the verbs' GRH.
pub(super) const GRH: usize = 40;
/// `IBV_WC_DRIVER1`: a record is closed.
pub(super) const RECORD: u64 = 135;
/// `IBV_WC_RECV`.
pub(super) const RECV: u64 = 128;
/// Memory that peers may write.
pub(super) const WRITABLE: u64 = access::LOCAL_WRITE | access::REMOTE_WRITE;

/// A record as the device's program sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) base: u64,
    pub(super) stag: u32,
    pub(super) length: usize,
    pub(super) valid: usize,
    pub(super) immediate: Option<u32>,
    pub(super) source: u64,
    pub(super) ranges: Vec<Range<usize>>,
}

/// The queue pair and the station.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) station: Station,
    pub(super) on: Connection,
    pub(super) qpn: u16,
    pub(super) qkey: u32,
    slot: usize,
    probes: u32,
    /// Completions that came while something else was waited for.
    pub(super) others: Vec<Completion>,
}

/// The counters of segments that are used, and not dropped.
const NOT_DROPS: &[&str] = &[
    "sent", "received", "octets", "requests", "repeats", "staged",
];

impl Scene {
    /// A UD queue pair with four receives of 4096 octets and records, or as `with` says.
    pub(super) fn new(bench: &mut Bench<'_>, with: Value) -> Result<Self, Broken> {
        let mut all = json!({ "qkey": QKEY, "receives": 4, "octets": 4096 });
        let uc = with["uc"] == json!(1);
        for (name, value) in with.as_object().into_iter().flatten() {
            all[name] = value.clone();
        }
        let octets = all["octets"].as_u64().unwrap_or_default();
        let answer = bench.agent()?.call("ud_open", all);
        let answer = match answer {
            Err(AgentError::Refused { reason, .. })
                if reason.contains("no datagrams") || reason.contains("without") =>
            {
                return Err(Broken::Skip(
                    "needs a device with the datagram mapping, and its header for the agent",
                ));
            }
            answer => answer?,
        };
        let qpn = number("ud_open", &answer, "qpn")?;
        let qpn = u16::try_from(qpn).map_err(|_| Broken::Skip("its QPN is no UDP port"))?;
        let on = connection("ud_open", &answer)?;
        let station = bench.station(qpn)?;
        Ok(Self {
            station,
            on,
            qpn,
            qkey: if uc { 0 } else { QKEY },
            slot: usize::try_from(octets).unwrap_or(0),
            probes: 0,
            others: Vec::new(),
        })
    }

    /// Has the device send to this address.
    pub(super) fn point(&self, bench: &mut Bench<'_>, to: SocketAddr) -> Result<(), Broken> {
        let with = json!({ "conn": self.on.id, "address": to.ip().to_string(), "qpn": to.port() });
        bench.agent()?.call("ud_to", with)?;
        Ok(())
    }

    /// Has the device send to the station.
    pub(super) fn point_here(&self, bench: &mut Bench<'_>) -> Result<(), Broken> {
        let to = self.station.address().map_err(Broken::Connect)?;
        self.point(bench, to)
    }

    /// Posts a work request on the device.
    pub(super) fn post(&self, bench: &mut Bench<'_>, with: Value) -> Result<(), Broken> {
        Ok(bench.agent()?.post(self.on, with)?)
    }

    /// The next completion, if one comes in that time.
    pub(super) fn poll(
        &mut self,
        bench: &mut Bench<'_>,
        wait: Duration,
    ) -> Result<Option<Completion>, Broken> {
        match bench.agent()?.poll(self.on, wait) {
            Ok(wc) => Ok(Some(wc)),
            Err(AgentError::Refused { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The next completion, as long as an answer may take.
    pub(super) fn await_one(
        &mut self,
        bench: &mut Bench<'_>,
    ) -> Result<Option<Completion>, Broken> {
        if !self.others.is_empty() {
            return Ok(Some(self.others.remove(0)));
        }
        let patience = bench.patience().answer;
        self.poll(bench, patience)
    }

    /// The octets of a receive, from its payload on.
    pub(super) fn received(
        &self,
        bench: &mut Bench<'_>,
        slot: u64,
        length: usize,
    ) -> Result<Vec<u8>, Broken> {
        let from = usize::try_from(slot).unwrap_or(0) * self.slot;
        let skip = if self.qkey == 0 { 0 } else { GRH };
        let (from, length) = (as_u64(from + skip), as_u64(length));
        Ok(bench.agent()?.peek(self.on.receives, from, length)?)
    }

    /// Posts a receive again.
    pub(super) fn repost(&self, bench: &mut Bench<'_>, slot: u64) -> Result<(), Broken> {
        let with = json!({ "conn": self.on.id, "slot": slot });
        bench.agent()?.call("post_recv", with)?;
        Ok(())
    }

    /// Whether a good Send still arrives. When it has, the device has seen all that was sent before it. Completions of other things are kept.
    pub(super) fn probe(&mut self, bench: &mut Bench<'_>) -> Result<bool, Broken> {
        for _ in 0..5 {
            self.probes += 1;
            let payload = [b"probe".as_slice(), &self.probes.to_be_bytes()].concat();
            let segment = self.station.plain_send(self.qkey, &payload);
            self.station.send(segment);
            let wait = bench.patience().answer / 5;
            while let Some(wc) = self.poll(bench, wait)? {
                if wc.status == 0
                    && wc.opcode == RECV
                    && self.received(bench, wc.wr_id, payload.len())? == payload
                {
                    self.repost(bench, wc.wr_id)?;
                    return Ok(true);
                }
                if wc.opcode == RECV {
                    // It took the receive that the probe needs.
                    self.repost(bench, wc.wr_id)?;
                }
                self.others.push(wc);
            }
        }
        Ok(false)
    }

    /// Counters of the queue pair.
    pub(super) fn counters(&self, bench: &mut Bench<'_>) -> Result<BTreeMap<String, u64>, Broken> {
        let answer = bench
            .agent()?
            .call("counters", json!({ "conn": self.on.id }))?;
        let all = answer.as_object().into_iter().flatten();
        Ok(all
            .filter(|(name, _)| *name != "ok" && !NOT_DROPS.iter().any(|part| name.contains(part)))
            .map(|(name, value)| (name.clone(), value.as_u64().unwrap_or_default()))
            .collect())
    }

    /// Increments of the counters since then, as `name 3`.
    pub(super) fn counted(
        &self,
        bench: &mut Bench<'_>,
        before: &BTreeMap<String, u64>,
    ) -> Result<String, Broken> {
        let all: Vec<_> = self
            .counters(bench)?
            .into_iter()
            .filter_map(|(name, now)| {
                let since = now - before.get(&name).copied().unwrap_or_default();
                (since > 0).then(|| format!("{name} {since}"))
            })
            .collect();
        Ok(all.join(", "))
    }

    /// Increments of the counters, once they are `wanted` or the time is up: datagrams of others, and to other addresses, need
    /// not be seen in order.
    pub(super) fn counted_as(
        &self,
        bench: &mut Bench<'_>,
        before: &BTreeMap<String, u64>,
        wanted: &str,
    ) -> Result<String, Broken> {
        let until = clock::now() + bench.patience().answer / 5;
        loop {
            let counted = self.counted(bench, before)?;
            if counted == wanted || clock::now() >= until {
                return Ok(counted);
            }
            clock::pause(Duration::from_millis(2));
        }
    }

    /// Completes all records.
    pub(super) fn records_now(&self, bench: &mut Bench<'_>) -> Result<(), Broken> {
        bench
            .agent()?
            .call("records_now", json!({ "conn": self.on.id }))?;
        Ok(())
    }

    /// The next record that closes, given back.
    pub(super) fn record(&mut self, bench: &mut Bench<'_>) -> Result<Option<Record>, Broken> {
        match self.await_one(bench)? {
            Some(wc) if (wc.opcode, wc.status) == (RECORD, 0) => {
                self.look(bench, wc.wr_id, false).map(Some)
            }
            Some(wc) => {
                self.others.push(wc);
                Ok(None)
            }
            None => Ok(None),
        }
    }

    /// State of a record, which is given back unless it is to be kept.
    pub(super) fn look(
        &self,
        bench: &mut Bench<'_>,
        record: u64,
        keep: bool,
    ) -> Result<Record, Broken> {
        let with = json!({ "conn": self.on.id, "record": record, "keep": u8::from(keep) });
        let answer = match bench.agent()?.call("record", with) {
            Err(AgentError::Refused { reason, .. }) => {
                let rule = "a record that is there and was not completed before";
                let what = "the record of a completion";
                bench.expect(what, false, &reason, rule, "Datagram §5.1", &self.station);
                return Err(Broken::Datagram(reason));
            }
            answer => answer?,
        };
        let field = |name| answer[name].as_u64().unwrap_or(u64::MAX);
        let small = |name| usize::try_from(field(name)).unwrap_or(usize::MAX);
        let word = |name| u32::try_from(field(name)).unwrap_or(u32::MAX);
        Ok(Record {
            base: field("addr"),
            stag: word("rkey"),
            length: small("length"),
            valid: small("valid"),
            immediate: (field("flags") & 1 == 1).then(|| u32::from_be(word("imm"))),
            source: field("source"),
            ranges: ranges(&answer["ranges"]),
        })
    }

    /// Asks for the device's cookie.
    pub(super) fn cookie(&mut self) -> Result<u64, Broken> {
        let epoch = self.station.epoch;
        let nonce = 0x1122_3344_0000_0000 | u64::from(self.probes);
        self.probes += 1;
        self.station.send(Exchange::request(epoch, nonce));
        // Every requester drops what is no answer to its question (Datagram §6); what the device did wrong then is another case's affair.
        let mut last = String::new();
        loop {
            match self.station.answer() {
                Heard::Datagram(Datagram::Exchange(answer))
                    if answer.kind == 2 && answer.nonce == nonce =>
                {
                    return Ok(answer.cookie);
                }
                heard @ (Heard::Nothing | Heard::Unreachable) => {
                    let came = format!("instead of a cookie: {last} {heard}");
                    return Err(Broken::Datagram(came));
                }
                heard => last = heard.to_string(),
            }
        }
    }
}

/// Ranges as the agent writes them.
pub(super) fn ranges(value: &Value) -> Vec<Range<usize>> {
    let text = value.as_str().unwrap_or_default();
    text.split_whitespace()
        .filter_map(|range| {
            let (start, end) = range.split_once('-')?;
            Some(start.parse().ok()?..end.parse().ok()?)
        })
        .collect()
}

/// Required outcome of datagrams that are refused.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal<'a> {
    /// Their fault.
    pub(super) what: &'a str,
    /// The counter.
    pub(super) counter: &'a str,
    /// The clause.
    pub(super) clause: &'static str,
    /// Memory in which nothing may change.
    pub(super) memory: &'a [Memory],
}

impl Scene {
    /// Sends datagrams, and notes whether each was dropped and counted, and nothing came of them.
    pub(super) fn refuses(
        &mut self,
        bench: &mut Bench<'_>,
        refusal: Refusal<'_>,
        datagrams: &[Vec<u8>],
    ) -> Result<(), Broken> {
        let before = self.counters(bench)?;
        for octets in datagrams {
            self.station.octets(octets);
        }
        self.dropped(bench, refusal, datagrams.len(), &before)
    }

    /// Checks the outcome of datagrams that were sent already, by any station.
    pub(super) fn dropped(
        &mut self,
        bench: &mut Bench<'_>,
        refusal: Refusal<'_>,
        count: usize,
        before: &BTreeMap<String, u64>,
    ) -> Result<(), Broken> {
        let Refusal {
            what,
            counter,
            clause,
            memory,
        } = refusal;
        let lives = self.probe(bench)?;
        let counted = self.counted_as(bench, before, &format!("{counter} {count}"))?;
        let mut changed = Vec::new();
        for memory in memory {
            let there = bench.agent()?.all(*memory)?;
            if let Some(at) = there.iter().position(|octet| *octet != FILL) {
                changed.push(at);
            }
        }
        let answer = self.station.at_once();
        let others = std::mem::take(&mut self.others);
        let holds = lives
            && counted == format!("{counter} {count}")
            && changed.is_empty()
            && others.is_empty()
            && matches!(answer, Heard::Nothing);
        let seen = format!(
            "counted: {counted}; octets changed: {changed:?}; completions: {others:?}; answer: {answer}; a good Send {}",
            if lives { "arrives" } else { "does not arrive" }
        );
        let rule = format!("dropped in silence, `{counter}` {count}, nothing placed");
        bench.expect(what, holds, seen, &rule, clause, &self.station);
        Ok(())
    }
}

/// A number of octets for the agent.
pub(super) fn as_u64(octets: usize) -> u64 {
    u64::try_from(octets).unwrap_or(u64::MAX)
}

/// A number of octets for the wire.
pub(super) fn as_u32(octets: usize) -> u32 {
    u32::try_from(octets).unwrap_or(u32::MAX)
}

/// A datagram's octets.
pub(super) fn octets(datagram: impl Into<Datagram>) -> Vec<u8> {
    datagram.into().to_bytes()
}

/// The segments of a message, cut at these places; `make` builds each from its extension and payload.
pub(super) fn cut(
    message: Extension,
    payload: &[u8],
    cuts: &[usize],
    make: &dyn Fn(Extension, &[u8]) -> Segment,
) -> Vec<(Range<usize>, Segment)> {
    let mut all = Vec::new();
    let mut from = 0;
    for cut in cuts.iter().copied().chain([payload.len()]) {
        let to = cut.clamp(from, payload.len());
        if to > from || payload.is_empty() {
            let mut extension = message;
            extension.offset = as_u32(from);
            all.push((from..to, make(extension, &payload[from..to])));
            from = to;
        }
    }
    all
}

/// Cuts every so many octets.
pub(super) fn every(size: usize, length: usize) -> Vec<usize> {
    (size..length).step_by(size.max(1)).collect()
}

/// A map of one range.
pub(super) fn one(range: Range<usize>) -> Vec<Range<usize>> {
    std::iter::once(range).collect()
}

/// Ranges that touch or overlap, as one.
pub(super) fn union(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_by_key(|range| range.start);
    let mut all: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => all.push(range),
        }
    }
    all
}

/// Expected contents of memory: these octets at their places behind `base` of the memory, all others untouched.
pub(super) fn picture(memory: Memory, base: usize, placed: &[(Range<usize>, &[u8])]) -> Vec<u8> {
    let all = usize::try_from(memory.length + 2 * memory.margin).unwrap_or(0);
    let start = usize::try_from(memory.margin).unwrap_or(0) + base;
    let mut picture = vec![FILL; all];
    for (range, octets) in placed {
        if let Some(there) = picture.get_mut(start + range.start..start + range.end) {
            there.copy_from_slice(octets);
        }
    }
    picture
}

/// The first octet in which two memories differ.
pub(super) fn difference(there: &[u8], wanted: &[u8]) -> String {
    if there.len() != wanted.len() {
        return format!("{} octets in place of {}", there.len(), wanted.len());
    }
    let at = there.iter().zip(wanted).position(|(a, b)| a != b);
    at.map_or_else(
        || "as it must be".to_owned(),
        |at| format!("octet {at} is {:#04x}, not {:#04x}", there[at], wanted[at]),
    )
}

/// Whether the device has a queue pair for datagrams that takes a Send, or cannot have one.
pub(crate) fn lives(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = match Scene::new(bench, json!({})) {
        Ok(scene) => scene,
        Err(Broken::Skip(_)) => return Ok(()),
        Err(broken) => return Err(broken),
    };
    if scene.probe(bench)? {
        Ok(())
    } else {
        Err(Broken::Datagram("a good Send does not arrive".to_owned()))
    }
}
