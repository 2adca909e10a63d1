//! One TCP connection: which of its octets are startup frames and FPDUs.

use super::capture::packet::Tcp;
use super::stream::half::{Half, Phase, Sought};
use super::stream::seek::{self, Search, whole};
use super::stream::tcp::Next;
use super::{Out, Rule, SeenFpdu, Unjudged, What, rules, startup, terminate};
use crate::wire::ddp::{Segment, opcode};
use crate::wire::framing::{Deframer, Fpdu};
use crate::wire::startup::{C, HEADER, R, REPLY, REQUEST, Startup};

/// Octets of a stream that begins as none of MPA's, before it is taken for something else.
const ENOUGH: usize = 64 << 10;
/// Octets in which an FPDU is looked for before that is given up.
const MOST_SOUGHT: usize = 256 << 10;
/// RFC 5044 §3.
const LONGEST: usize = 64_768;
/// RFC 5044 §4.5: a ULPDU of so many octets is never too long for the EMSS.
const SMALLEST_MULPDU: usize = 128;

/// One of the two ends: 0 or 1.
pub(super) type Way = usize;

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) number: u64,
    halves: [Half; 2],
    initiator: Option<Way>,
    is_iwarp: bool,
    reset: bool,
}

impl Connection {
    pub(super) fn new(number: u64) -> Self {
        Self {
            number,
            halves: [Half::new(), Half::new()],
            initiator: None,
            is_iwarp: false,
            reset: false,
        }
    }

    /// Whether anything of MPA was found in it.
    pub(super) fn is_iwarp(&self) -> bool {
        self.is_iwarp
    }

    /// Whether nothing more comes.
    pub(super) fn is_over(&self) -> bool {
        self.reset || self.halves.iter().all(|half| half.tcp.is_over())
    }

    /// Whether this is the SYN of another connection with the same addresses.
    pub(super) fn is_another(&self, way: Way, tcp: &Tcp<'_>) -> bool {
        let known = &self.halves[way].tcp;
        tcp.syn && known.is_known() && !known.began_with(tcp.sequence)
    }

    /// Whether this segment has nothing that was not there before.
    pub(super) fn is_old(&self, way: Way, tcp: &Tcp<'_>) -> bool {
        self.halves[way].tcp.is_old(tcp.sequence, tcp.payload)
    }

    /// Takes a segment of TCP.
    pub(super) fn take(&mut self, way: Way, tcp: &Tcp<'_>, out: &mut Out<'_, '_>) {
        let other = &mut self.halves[1 - way].tcp;
        let had = tcp
            .acknowledged
            .map_or(0, |sequence| other.acknowledge(sequence));
        let half = &mut self.halves[way];
        if tcp.syn {
            half.tcp.synchronize(tcp.sequence);
            half.mss = half.mss.or(tcp.mss);
            let acknowledges = tcp.acknowledged.is_some();
            self.initiator = Some(if acknowledges { 1 - way } else { way });
        } else {
            half.tcp.take(tcp.sequence, tcp.payload, tcp.fin, had);
        }
        self.reset |= tcp.rst;
        self.pump(false, out);
    }

    /// No more packets come.
    pub(super) fn finish(&mut self, out: &mut Out<'_, '_>) {
        self.pump(true, out);
        for way in [0, 1] {
            let half = &self.halves[way];
            let octets = half.buffer.len() as u64;
            match half.phase {
                Phase::Full(_) if octets > 0 => {
                    out.say(way, What::Unjudged(Unjudged::Cut { octets }));
                }
                Phase::Seek(sought) if self.crc() == Some(false) && sought.passed + octets > 0 => {
                    out.say(way, What::Unjudged(Unjudged::LostFraming));
                }
                Phase::Startup | Phase::Waiting | Phase::Full(_) | Phase::Seek(_) | Phase::Over => {
                }
            }
        }
    }

    /// Takes what each direction goes on with, in an order that can have been: nobody answers what it does not have yet.
    fn pump(&mut self, ended: bool, out: &mut Out<'_, '_>) {
        for half in &mut self.halves {
            while let Some(next) = half.tcp.next(ended) {
                half.held += match &next {
                    Next::Octets(octets, _) => octets.len(),
                    Next::Gap(_) => 0,
                };
                half.queue.push_back(next);
            }
        }
        loop {
            let free = [0, 1].into_iter().find(|way| self.is_free(*way));
            let too_many =
                |half: &&Half| ended || half.held > ENOUGH || half.queue.len() > ENOUGH / 64;
            // Nobody is free if the capture lacks a segment that was repeated later.
            let Some(way) = free.or_else(|| {
                let stuck = |way: &Way| !self.halves[*way].queue.is_empty();
                self.halves
                    .iter()
                    .any(|half| too_many(&half))
                    .then(|| [0, 1].into_iter().find(stuck))?
            }) else {
                return;
            };
            match self.halves[way].queue.pop_front() {
                Some(Next::Octets(octets, had)) => {
                    let half = &mut self.halves[way];
                    half.had = had;
                    half.held -= octets.len();
                    half.released += octets.len() as u64;
                    if !matches!(half.phase, Phase::Over) {
                        half.buffer.extend(octets);
                    }
                }
                Some(Next::Gap(octets)) => {
                    self.halves[way].released += octets;
                    // The missing octet may be a FIN, which is acknowledged as if it were one.
                    if octets > 1 || !ended {
                        self.gap(way, octets, out);
                    }
                }
                None => return,
            }
            self.decode(way, out);
            self.decode(1 - way, out);
        }
    }

    /// Whether what this end goes on with was sent when it had no more than what is known of the other.
    fn is_free(&self, way: Way) -> bool {
        let other = &self.halves[1 - way];
        match self.halves[way].queue.front() {
            Some(Next::Octets(_, had)) => {
                *had <= other.released || other.tcp.is_over() && other.queue.is_empty()
            }
            Some(Next::Gap(_)) => true,
            None => false,
        }
    }

    /// Octets are missing: what was unfinished before them is lost, and what follows has to be found.
    fn gap(&mut self, way: Way, octets: u64, out: &mut Out<'_, '_>) {
        if self.is_iwarp && !matches!(self.halves[way].phase, Phase::Over) {
            out.say(way, What::Unjudged(Unjudged::Gap { octets }));
        }
        let half = &mut self.halves[way];
        let lost = half.buffer.len() as u64;
        half.buffer.clear();
        half.offset += lost + octets;
        if !matches!(half.phase, Phase::Over) {
            self.lose(way, false);
        }
    }

    /// The next FPDU's beginning is unknown and is searched for.
    fn lose(&mut self, way: Way, quiet: bool) {
        let [a, b] = &mut self.halves;
        let (half, other) = if way == 0 { (a, b) } else { (b, a) };
        half.sender.forget();
        half.before.clear();
        half.spoken.forget();
        other.sender.asks.forget();
        let known = half.frame.is_some() && other.frame.is_some();
        half.phase = Phase::Seek(Sought {
            position: known.then(|| half.offset.saturating_sub(half.base)),
            passed: 0,
            quiet,
        });
    }

    /// Whether CRCs are in use, if both frames were seen.
    fn crc(&self) -> Option<bool> {
        let [a, b] = &self.halves;
        Some(a.frame.as_ref()?.has(C) || b.frame.as_ref()?.has(C))
    }

    fn decode(&mut self, way: Way, out: &mut Out<'_, '_>) {
        loop {
            let goes_on = match &self.halves[way].phase {
                Phase::Startup => self.startup(way, out),
                Phase::Waiting => self.waiting(way, out),
                Phase::Full(_) => self.fpdu(way, out),
                Phase::Seek(sought) => {
                    let sought = *sought;
                    self.seek(way, sought, out)
                }
                Phase::Over => {
                    self.halves[way].buffer.clear();
                    false
                }
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Takes the startup frame. True if there may be more to do.
    fn startup(&mut self, way: Way, out: &mut Out<'_, '_>) -> bool {
        let buffer = &self.halves[way].buffer;
        if buffer.is_empty() {
            return false;
        }
        let begins = |key: &[u8]| key.starts_with(&buffer[..buffer.len().min(key.len())]);
        let (request, reply) = (begins(&REQUEST), begins(&REPLY));
        let initiator = match self.initiator {
            Some(initiator) => initiator == way,
            // The SYNs were not recorded; the keys differ in their eleventh octet.
            None if (request || reply) && buffer.len() < REQUEST.len() => return false,
            None if request || reply => {
                self.initiator = Some(if request { way } else { 1 - way });
                request
            }
            None => {
                self.lose(way, false);
                return true;
            }
        };
        let asked = self.halves[1 - way].frame.is_some();
        match (initiator, request, reply) {
            (true, true, _) | (false, _, true) => {}
            (true, false, _) => {
                // Whatever it is, it is not MPA.
                self.halves.iter_mut().for_each(Half::end);
                return false;
            }
            (false, ..) if !asked => {
                let too_long = buffer.len() > ENOUGH;
                if too_long {
                    self.halves.iter_mut().for_each(Half::end);
                }
                return false;
            }
            (false, true, _) => {
                if buffer.len() < REQUEST.len() {
                    return false;
                }
                let octets = buffer.clone();
                out.finding(
                    way,
                    rules::MPA_REPLY_KEY,
                    "it sends that of Requests".to_owned(),
                    &octets,
                );
                self.halves.iter_mut().for_each(Half::end);
                return false;
            }
            (false, false, false) => {
                out.say(way, What::Unjudged(Unjudged::NotMpa));
                self.halves.iter_mut().for_each(Half::end);
                return false;
            }
        }
        self.startup_frame(way, initiator, out)
    }

    fn startup_frame(&mut self, way: Way, initiator: bool, out: &mut Out<'_, '_>) -> bool {
        let half = &mut self.halves[way];
        let Some(header) = half.buffer.first_chunk::<HEADER>() else {
            return false;
        };
        let mut frame = Startup::parse(header);
        let mut broken: Vec<(&'static Rule, String)> = Vec::new();
        let mut report = |rule, detail| broken.push((rule, detail));
        let good = startup::check_header(&frame, &mut report);
        let all = HEADER + usize::from(frame.pd_length);
        if good && half.buffer.len() < all {
            return false;
        }
        let octets = half.consume(if good { all } else { HEADER });
        frame.private_data = octets.get(HEADER..).unwrap_or(&[]).to_vec();
        if good {
            startup::check_enhanced(&frame, &mut report);
            if let Some(request) = self.halves[1 - way].frame.as_ref().filter(|_| !initiator) {
                startup::check_pair(request, &frame, &mut report);
            }
        }
        self.is_iwarp = true;
        out.say(
            way,
            What::Startup {
                frame: &frame,
                octets: &octets,
            },
        );
        // Of a frame without the enhanced data that it announces the length may be wrong.
        let ends = !good || broken.iter().any(|(rule, _)| *rule == rules::ENHANCED_DATA);
        for (rule, detail) in broken {
            out.finding(way, rule, detail, &octets);
        }
        if ends {
            self.halves.iter_mut().for_each(Half::end);
            return false;
        }
        let half = &mut self.halves[way];
        half.base = half.offset;
        half.frame = Some(frame);
        half.phase = Phase::Waiting;
        true
    }

    /// Both frames are needed before FPDUs can be read.
    fn waiting(&mut self, way: Way, out: &mut Out<'_, '_>) -> bool {
        let [a, b] = &mut self.halves;
        let (half, other) = if way == 0 { (a, b) } else { (b, a) };
        let early = self.initiator == Some(way) && half.had == 0 && other.tcp.is_synchronized();
        if early && !half.buffer.is_empty() && !half.told_early {
            // All that TCP had when it sent these octets was acknowledged with them: nothing.
            half.told_early = true;
            let octets = half.buffer.clone();
            let detail = format!("{} octets follow the Request", octets.len());
            out.finding(way, rules::MPA_BEFORE_REPLY, detail, &octets);
        }
        let (Some(_), Some(theirs)) = (&half.frame, &other.frame) else {
            let waits = matches!(other.phase, Phase::Startup | Phase::Waiting);
            if half.buffer.is_empty() {
                return false;
            }
            if half.buffer.len() > ENOUGH || !waits {
                self.lose(way, false);
                return true;
            }
            return false;
        };
        let rejected = [&half.frame, &other.frame]
            .into_iter()
            .flatten()
            .any(|frame| frame.key == REPLY && frame.has(R));
        if rejected {
            // RFC 5044 §7.1.2: both exit MPA, and the ULPs may use the connection for what they like.
            half.end();
            return false;
        }
        let markers = startup::wants_markers(theirs);
        if half.told_early && markers {
            // It could not have Markers before the Reply.
            half.end();
            return false;
        }
        half.phase = Phase::Full(Deframer::new(markers));
        if let (Some(mine), Some(theirs)) = (&half.frame, &other.frame)
            && let (Some(_), Some(theirs)) = (startup::enhanced(mine), startup::enhanced(theirs))
            && theirs.ird != crate::wire::startup::NOT_NEGOTIATED
        {
            half.sender.asks.limit(theirs.ird);
        }
        true
    }

    /// Takes an FPDU.
    fn fpdu(&mut self, way: Way, out: &mut Out<'_, '_>) -> bool {
        let crc = self.crc().unwrap_or(true);
        self.other_pad(way, crc, out);
        let half = &mut self.halves[way];
        let Phase::Full(deframer) = &mut half.phase else {
            return false;
        };
        let markers = deframer.markers;
        let taken = whole(deframer, &half.buffer);
        // Of a connection that was joined it is not known whether there are Markers.
        let joined = half.frame.is_none() || self.halves[1 - way].frame.is_none();
        let half = &mut self.halves[way];
        let wrong = crc && !joined && !taken.as_ref().is_some_and(|fpdu| fpdu.crc_is_right);
        if wrong && markers && seek::is_unmarked(&half.buffer) {
            half.phase = Phase::Full(Deframer::new(false));
            let octets = half.buffer.clone();
            let detail = "there are none".to_owned();
            out.finding(way, rules::MPA_MARKER, detail, &octets);
            return true;
        }
        let padded = (wrong && !markers)
            .then(|| seek::padded_otherwise(&half.buffer))
            .flatten();
        let short = padded.and_then(|pad| seek::padded(&half.buffer, pad));
        let Some(mut fpdu) = taken.or(short) else {
            return false;
        };
        if let Some(pad) = padded {
            (fpdu.crc_is_right, fpdu.pad_is_zero) = (true, true);
            fpdu.octets = seek::octets(fpdu.ulpdu.len(), pad);
        }
        let believable = fpdu.crc_is_right || !crc;
        let offset = half.offset;
        let octets = half.consume(fpdu.octets);
        half.spoken.add(&fpdu.ulpdu);
        let segment = Segment::parse(&fpdu.ulpdu).filter(|_| believable);
        if half.resumed && !crc && !segment.as_ref().is_some_and(seek::is_known) {
            // The header that was taken for a beginning may have been none.
            half.back(offset, &octets);
            self.lose(way, false);
            return true;
        }
        self.is_iwarp = true;
        out.say(
            way,
            What::Fpdu(&SeenFpdu {
                offset,
                fpdu: &fpdu,
                segment: segment.as_ref(),
                crc,
                octets: &octets,
            }),
        );
        let mut broken = Vec::new();
        if let Some(pad) = padded {
            broken.push((rules::MPA_PAD, pad_detail(pad, fpdu.ulpdu.len())));
            self.halves[way].align();
        }
        if !believable && joined {
            // Told when the next one is found.
        } else if !believable {
            broken.push((
                rules::MPA_CRC,
                format!("{} octets of ULPDU", fpdu.ulpdu.len()),
            ));
        } else {
            self.judge(way, &fpdu, segment.as_ref(), &mut broken);
        }
        let lost = broken
            .iter()
            .any(|(rule, _)| [rules::DDP_HEADER, rules::DDP_VERSION].contains(rule));
        for (rule, detail) in broken {
            out.finding(way, rule, detail, &octets);
        }
        if !believable {
            // Its length may be what is wrong: the next one is looked for right behind its first word.
            self.halves[way].back(offset, &octets);
            self.lose(way, !joined);
        } else if lost && !crc {
            self.lose(way, true);
        } else if !crc && !markers {
            self.halves[way].before = octets;
        }
        true
    }

    /// Without CRCs a pad of another length shows by the place of the next header.
    fn other_pad(&mut self, way: Way, crc: bool, out: &mut Out<'_, '_>) {
        let half = &mut self.halves[way];
        if crc || half.resumed || half.before.is_empty() {
            return;
        }
        let Some(pad) = seek::other_pad(&half.before, &half.buffer) else {
            return;
        };
        let before = std::mem::take(&mut half.before);
        let length = before.first_chunk();
        let length = length.map_or(0, |length| u16::from_be_bytes(*length).into());
        let end = seek::octets(length, pad);
        if let Some(rest) = before.get(end..) {
            half.offset -= rest.len() as u64;
            half.buffer.splice(..0, rest.iter().copied());
        } else {
            half.consume(end - before.len());
        }
        half.align();
        out.finding(way, rules::MPA_PAD, pad_detail(pad, length), &before);
    }

    /// Judges an FPDU whose octets can be believed.
    fn judge(
        &mut self,
        way: Way,
        fpdu: &Fpdu,
        segment: Option<&Segment>,
        broken: &mut Vec<(&'static Rule, String)>,
    ) {
        let initiator = self.initiator == Some(way);
        let [a, b] = &mut self.halves;
        let (half, other) = if way == 0 { (a, b) } else { (b, a) };
        let mut report = |rule, detail| broken.push((rule, detail));
        if let Some(mss) = other.mss
            && fpdu.octets > mss.into()
            && fpdu.ulpdu.len() > SMALLEST_MULPDU
        {
            let detail = format!("{} octets, and the receiver's MSS is {mss}", fpdu.octets);
            report(rules::MPA_EMSS, detail);
        }
        if fpdu.ulpdu.len() > LONGEST {
            report(rules::MPA_LENGTH, format!("it has {}", fpdu.ulpdu.len()));
        }
        if !fpdu.pad_is_zero {
            report(
                rules::MPA_PAD,
                format!("behind {} octets of ULPDU", fpdu.ulpdu.len()),
            );
        }
        if !fpdu.markers_are_right {
            report(
                rules::MPA_MARKER,
                format!("in an FPDU of {} octets", fpdu.octets),
            );
        }
        half.sender.fpdus += 1;
        let Some(segment) = segment else {
            report(
                rules::DDP_HEADER,
                format!("the ULPDU has {} octets", fpdu.ulpdu.len()),
            );
            half.sender.forget();
            return other.sender.asks.forget();
        };
        if half.sender.fpdus == 1
            && let (Some(mine), Some(theirs)) = (&half.frame, &other.frame)
        {
            // A segment acknowledges all that its sender had when it sent it.
            let synchronized = other.tcp.is_synchronized();
            if initiator {
                if synchronized && half.had == 0 && !half.told_early {
                    half.told_early = true;
                    report(rules::MPA_BEFORE_REPLY, segment.to_string());
                }
                if !half.told_early {
                    startup::check_first((mine, theirs), segment, &mut report);
                }
            } else if synchronized && half.had <= other.base {
                report(rules::MPA_EARLY, segment.to_string());
            }
        }
        if segment.opcode() == opcode::TERMINATE && !half.sender.terminated {
            terminate::check_subject(&segment.payload, &other.spoken, &mut report);
        }
        half.sender
            .take(segment, &mut other.sender.asks, &mut report);
    }

    /// Looks for the beginning of an FPDU.
    fn seek(&mut self, way: Way, sought: Sought, out: &mut Out<'_, '_>) -> bool {
        let crc = self.crc();
        let [a, b] = &mut self.halves;
        let (half, other) = if way == 0 { (a, b) } else { (b, a) };
        let begin = sought.position;
        let search = Search {
            position: begin,
            markers: other.frame.as_ref().is_some_and(startup::wants_markers),
            crc: crc != Some(false),
        };
        if let Some((at, deframer)) = search.find(&half.buffer) {
            half.consume(at);
            half.phase = Phase::Full(deframer);
            half.resumed = true;
            let octets = sought.passed + at as u64;
            if !self.is_iwarp {
                out.say(way, What::Unjudged(Unjudged::Joined { octets }));
            } else if !sought.quiet {
                out.say(way, What::Unjudged(Unjudged::Skipped { octets }));
            }
            return true;
        }
        // A candidate of which not all is here can be anywhere in the longest that there is.
        const KEPT: usize = 66 << 10;
        let drop = half.buffer.len().saturating_sub(KEPT) & !3;
        if sought.passed + drop as u64 > MOST_SOUGHT as u64 {
            if self.is_iwarp {
                let octets = sought.passed + half.buffer.len() as u64;
                out.say(way, What::Unjudged(Unjudged::Skipped { octets }));
            }
            half.end();
            return false;
        }
        half.consume(drop);
        half.phase = Phase::Seek(Sought {
            position: begin.map(|begin| begin + drop as u64),
            passed: sought.passed + drop as u64,
            ..sought
        });
        false
    }
}

fn pad_detail(pad: usize, length: usize) -> String {
    let right = (2 + length).next_multiple_of(4) - 2 - length;
    format!("{pad} octets behind {length} octets of ULPDU, where {right} belong")
}
