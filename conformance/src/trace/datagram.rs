//! The datagram mapping over UDP (`rfc-notes/datagram-mapping.md`): what is it among the datagrams, and which rules of a sender does it break?
//!
//! A datagram is the mapping's if its CRC is right. One whose CRC is wrong is told of if its sender has sent right ones before.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use dgiwarp_codec::crc;

use super::reads::Reads;
use super::reliable::Associations;
use super::{Report, Rule, SeenDatagram, rules, terminate};
use crate::wire::datagram::{
    Datagram, Dropped, Exchange, Extension, Lookup, Segment, flag, format, opcode,
};
use crate::wire::ddp::{Place, ReadRequest};

/// Things of one kind that are remembered; the oldest make room.
const MOST: usize = 65_536;
/// The longest datagram that is sent (Datagram §8).
const LONGEST: usize = 65_000;
/// Epochs of requests with one nonce that are kept.
const MOST_EPOCHS: usize = 8;
/// Octets of the shortest datagram: a cookie exchange has 36, a header and CRC 18.
const SHORTEST: usize = 18;

/// A map that forgets what was put into it first.
#[derive(Debug)]
pub(super) struct Recent<K, V> {
    map: BTreeMap<K, V>,
    order: VecDeque<K>,
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self {
            map: BTreeMap::new(),
            order: VecDeque::new(),
        }
    }
}

impl<K: Ord + Copy, V> Recent<K, V> {
    /// The value of a key; the new one, and true, if it had none.
    pub(super) fn entry(&mut self, key: K, new: V) -> (&mut V, bool) {
        let is_new = !self.map.contains_key(&key);
        if is_new {
            self.order.push_back(key);
            if self.order.len() > MOST
                && let Some(oldest) = self.order.pop_front()
            {
                self.map.remove(&oldest);
            }
        }
        (self.map.entry(key).or_insert(new), is_new)
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.map.get(key)
    }
}

/// Fields of a message that every segment carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Message {
    opcode: u8,
    length: u32,
    /// STag and the TO of the first octet, of tagged ones.
    base: Option<(u32, u64)>,
}

/// Source, destination, epoch and number.
type MessageKey = (SocketAddr, SocketAddr, u32, u32);

/// Where messages of an epoch go: to single peers, or to one group.
type Destination = Option<IpAddr>;

/// Where a datagram comes from and goes to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) whole_only: bool,
    pub(super) no_checksum: bool,
}

/// State of the datagram mapping in a recording.
#[derive(Debug, Default)]
pub(super) struct Datagrams {
    speakers: Recent<SocketAddr, ()>,
    epochs: Recent<(SocketAddr, u32), Destination>,
    messages: Recent<MessageKey, (Message, Option<usize>)>,
    nonces: Recent<(SocketAddr, SocketAddr, u64), Vec<u32>>,
    lookups: Recent<(SocketAddr, SocketAddr, u64, u8), u32>,
    reads: Reads,
    reliable: Associations,
    pub(super) count: u64,
}

/// Whom datagrams are told, with the rules that they break.
pub(super) type Told<'a> = dyn FnMut(&SeenDatagram<'_>, Vec<(&'static Rule, String)>) + 'a;

impl Datagrams {
    /// Has all that comes from this address judged, its first datagram too: its sender is known to have the mapping.
    pub(super) fn expect(&mut self, from: SocketAddr) {
        self.speakers.entry(from, ());
    }

    /// Takes the payload of a UDP datagram, or of a train that the kernel cuts later.
    pub(super) fn take(
        &mut self,
        route: Route,
        payload: &[u8],
        comment: Option<&str>,
        told: &mut Told<'_>,
    ) {
        let known = self.speakers.get(&route.from).is_some();
        let one = Datagram::parse(payload);
        let bad = matches!(one, Err(Dropped::BadCrc { .. }));
        if !bad && payload.len() >= SHORTEST {
            return self.one(route, payload, one, (1, 1), comment, told);
        }
        if let Some(size) = train(payload) {
            let count = payload.len().div_ceil(size);
            for (number, octets) in (1..).zip(payload.chunks(size)) {
                self.one(
                    route,
                    octets,
                    Datagram::parse(octets),
                    (number, count),
                    comment,
                    told,
                );
            }
        } else if known {
            self.one(route, payload, one, (1, 1), comment, told);
        }
    }

    fn one(
        &mut self,
        route: Route,
        octets: &[u8],
        parsed: Result<Datagram, Dropped>,
        train: (usize, usize),
        comment: Option<&str>,
        told: &mut Told<'_>,
    ) {
        self.count += 1;
        let mut broken = Vec::new();
        let mut report = |rule, detail| broken.push((rule, detail));
        self.judge(route, octets, &parsed, &mut report);
        if !matches!(parsed, Err(Dropped::BadCrc { .. })) {
            self.speakers.entry(route.from, ());
        }
        let seen = SeenDatagram {
            octets,
            parsed: parsed.as_ref(),
            train,
            comment,
        };
        told(&seen, broken);
    }

    fn judge(
        &mut self,
        route: Route,
        octets: &[u8],
        parsed: &Result<Datagram, Dropped>,
        report: &mut Report<'_>,
    ) {
        if !route.whole_only {
            report(rules::DATAGRAM_FRAGMENT, "DF is clear".to_owned());
        }
        if route.no_checksum {
            report(
                rules::DATAGRAM_CHECKSUM,
                "UDP's checksum is left out".to_owned(),
            );
        }
        if octets.len() > LONGEST {
            report(rules::DATAGRAM_LENGTH, format!("{} octets", octets.len()));
        }
        match parsed {
            Ok(Datagram::Segment(segment)) => self.segment(route, segment, report),
            Ok(Datagram::Exchange(exchange)) => self.exchange(route, exchange, report),
            Ok(Datagram::Lookup(lookup)) => self.lookup(route, lookup, octets, report),
            Ok(Datagram::Reliable(datagram)) => {
                self.reliable
                    .judge((route.from, route.to), datagram, octets, report);
            }
            Err(dropped) => report(rule_of(*dropped, octets), dropped.to_string()),
        }
    }

    fn segment(&mut self, route: Route, segment: &Segment, report: &mut Report<'_>) {
        if segment.control & 0x30 != 0 {
            report(
                rules::DATAGRAM_RESERVED,
                format!("the octet is {:#04x}", segment.control),
            );
        }
        if let Some(extension) = segment.extension {
            self.extension(route, segment, extension, report);
        }
        let group = is_group(route.to.ip());
        match (segment.opcode(), segment.place) {
            (opcode::READ_REQUEST, _) => {
                if let Some(request) = ReadRequest::parse(&segment.payload) {
                    self.reads
                        .request(route, request, (segment.cookie.is_some(), group), report);
                }
            }
            (opcode::READ_RESPONSE, Place::Tagged { stag, to }) => {
                if segment.cookie.is_some() {
                    report(rules::READ_RESPONSE, "it has a cookie".to_owned());
                }
                self.reads.response(route, (stag, to), segment, report);
            }
            (opcode::TERMINATE, _) => terminate::check_of_datagram(segment, report),
            _ => {}
        }
    }

    fn extension(
        &mut self,
        route: Route,
        segment: &Segment,
        extension: Extension,
        report: &mut Report<'_>,
    ) {
        const FLAGS: u8 = flag::IMMEDIATE | flag::SOLICITED | flag::WRITE;
        let unused = extension.flags & flag::IMMEDIATE == 0 && extension.immediate != 0;
        if extension.flags & !FLAGS != 0 || extension.reserved != [0; 3] || unused {
            let detail = format!(
                "flags {:#04x}, reserved {:02x?}, immediate {:#x}",
                extension.flags, extension.reserved, extension.immediate
            );
            report(rules::EXTENSION_RESERVED, detail);
        }
        let Extension { epoch, number, .. } = extension;
        let destination = is_group(route.to.ip()).then(|| route.to.ip());
        let (before, _) = self.epochs.entry((route.from, epoch), destination);
        if *before != destination {
            let word =
                |to: Destination| to.map_or_else(|| "single peers".to_owned(), |ip| ip.to_string());
            let detail = format!(
                "epoch {epoch:#x} went to {} before, now to {}",
                word(*before),
                word(destination)
            );
            report(rules::GROUP_EPOCH, detail);
        }
        let base = match segment.place {
            Place::Tagged { stag, to } => Some((stag, to.wrapping_sub(extension.offset.into()))),
            Place::Untagged { .. } => None,
        };
        let message = Message {
            opcode: segment.opcode(),
            length: extension.length,
            base,
        };
        let key = (route.from, route.to, epoch, number);
        let size = (!segment.is_last()).then_some(segment.payload.len());
        let ((first, first_size), _) = self.messages.entry(key, (message, size));
        if *first != message {
            report(
                rules::MESSAGE_CONSTANT,
                format!("it began as {first:x?} and is now {message:x?}"),
            );
        }
        if let Some(size) = size {
            let expected = *first_size.get_or_insert(size);
            if expected != size {
                report(
                    rules::MESSAGE_EQUAL,
                    format!("{expected} octets before, now {size}"),
                );
            }
        }
    }

    fn exchange(&mut self, route: Route, exchange: &Exchange, report: &mut Report<'_>) {
        let asks = exchange.kind == 1;
        if exchange.reserved != [0; 2] || exchange.end != [0; 8] || asks && exchange.cookie != 0 {
            report(rules::COOKIE_RESERVED, exchange.to_string());
        }
        if exchange.is_invitation() {
            return;
        }
        if asks {
            let key = (route.from, route.to, exchange.nonce);
            let (epochs, _) = self.nonces.entry(key, Vec::new());
            if !epochs.contains(&exchange.epoch) && epochs.len() < MOST_EPOCHS {
                epochs.push(exchange.epoch);
            }
            return;
        }
        let key = (route.to, route.from, exchange.nonce);
        let Some(epochs) = self.nonces.get(&key) else {
            return;
        };
        // A nonce that was used again with another epoch: the capture may lack that request.
        let used = self.epochs.get(&(route.to, exchange.epoch)).is_some();
        if !used && epochs.len() < MOST_EPOCHS && !epochs.contains(&exchange.epoch) {
            let detail = format!(
                "the request has epoch {epochs:#x?}, the answer {:#x}",
                exchange.epoch
            );
            report(rules::COOKIE_ANSWER, detail);
        }
    }

    fn lookup(&mut self, route: Route, lookup: &Lookup, octets: &[u8], report: &mut Report<'_>) {
        const LOOKUP: u8 = 1;
        const ANSWER: u8 = 2;
        const REJECT: u8 = 3;
        let Lookup {
            kind,
            status,
            qpn,
            qkey,
            ..
        } = *lookup;
        let nobody = !matches!(kind, LOOKUP | ANSWER) && (qpn, qkey) != (0, 0);
        let filled = kind == LOOKUP && lookup.fill.iter().any(|octet| *octet != 0);
        if kind != REJECT && status != 0 || nobody || filled {
            let detail = format!("type {kind}, status {status}, QPN {qpn:#x}, Q_Key {qkey:#x}");
            report(rules::SERVICE_RESERVED, detail);
        }
        let key = (route.from, route.to, lookup.transaction, kind);
        // A CRC over its own octets would be the same for all.
        let sum = crc::crc32c(
            octets
                .split_last_chunk::<4>()
                .map_or(octets, |(before, _)| before),
        );
        let (before, _) = self.lookups.entry(key, sum);
        if *before != sum {
            report(
                rules::SERVICE_REPEAT,
                format!("transaction {:#x}, type {kind}", lookup.transaction),
            );
        }
    }
}

fn rule_of(dropped: Dropped, octets: &[u8]) -> &'static Rule {
    let kind = octets.first().map_or(0, |first| first >> 2 & 0xf);
    match (dropped, kind) {
        (Dropped::BadCrc { .. }, _) => rules::DATAGRAM_CRC,
        (Dropped::UnknownFormat(_), _) => rules::DATAGRAM_FORMAT,
        (Dropped::BadVersion { .. }, _) => rules::DATAGRAM_VERSION,
        (_, format::EXCHANGE) => rules::COOKIE_LAYOUT,
        (_, format::LOOKUP) => rules::SERVICE_LAYOUT,
        (Dropped::UnexpectedOpcode(_), _) => rules::DATAGRAM_OPCODE,
        (Dropped::Malformed(_), _) => rules::DATAGRAM_LAYOUT,
    }
}

/// Whether an address is that of a group (Datagram §8.1). A network's own broadcast address cannot be told from others.
pub(super) fn is_group(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            ip.is_multicast() || ip.is_broadcast() || ip == Ipv4Addr::new(127, 255, 255, 255)
        }
        IpAddr::V6(ip) => ip.is_multicast(),
    }
}

/// The length of the datagrams of a train that was recorded before it was cut: all are right, the last may be shorter.
fn train(octets: &[u8]) -> Option<usize> {
    let first = *octets.first()?;
    // Datagrams of other protocols are not searched.
    if first & 3 != 1 || first >> 2 & 0xf > format::LOOKUP || octets.len() < 2 * SHORTEST {
        return None;
    }
    let is_right = |octets: &[u8]| {
        octets.len() >= SHORTEST
            && octets
                .split_last_chunk::<4>()
                .is_some_and(|(before, field)| crc::from_wire(*field) == crc::crc32c(before))
    };
    let mut sum = 0;
    let mut summed = 0;
    for size in SHORTEST..octets.len() {
        let end = size - 4;
        sum = crc::crc32c_append(sum, octets.get(summed..end)?);
        summed = end;
        let field = *octets.get(end..)?.first_chunk()?;
        if crc::from_wire(field) == sum && octets.chunks(size).all(is_right) {
            return Some(size);
        }
    }
    None
}
