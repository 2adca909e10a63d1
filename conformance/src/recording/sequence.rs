//! Traffic of one connection as steps that a person can read: frames and segments, decoded.

use core::fmt;
use std::time::Duration;

use super::{Conversation, Piece, Way};
use crate::wire::datagram::Datagram;
use crate::wire::ddp::Segment;
use crate::wire::framing::Deframer;
use crate::wire::startup::{HEADER, M, MOST_PRIVATE_DATA, REPLY, REQUEST, Startup};

/// Steps of the beginning, and of the end, that are kept.
const FIRST: usize = 8;
const LAST: usize = 40;
/// Octets of a step that are kept.
const KEPT: usize = 128;

/// One frame, segment or datagram of one end, or its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Which way.
    pub way: Way,
    /// When its last octet came or went, since the connection's first.
    pub at: Duration,
    /// Decoded contents.
    pub what: String,
    /// Its first octets.
    pub octets: Vec<u8>,
    /// How many it has.
    pub length: usize,
}

/// One direction of a TCP connection.
#[derive(Debug)]
struct Half {
    way: Way,
    buffer: Vec<u8>,
    /// Where in the buffer the next frame begins.
    begin: usize,
    frame: Option<Startup>,
    deframer: Option<Deframer>,
    /// Where it is in its frames is not known any more.
    lost: bool,
}

impl Half {
    fn new(way: Way) -> Self {
        Self {
            way,
            buffer: Vec::new(),
            begin: 0,
            frame: None,
            deframer: None,
            lost: false,
        }
    }

    /// Takes more octets.
    fn extend(&mut self, octets: &[u8]) {
        self.buffer.drain(..std::mem::take(&mut self.begin));
        self.buffer.extend(octets);
    }

    /// Octets of no frame yet.
    fn rest(&self) -> &[u8] {
        &self.buffer[self.begin..]
    }

    fn wants_markers(&self) -> bool {
        self.frame.as_ref().is_some_and(|frame| frame.has(M))
    }

    /// The next whole frame, and what it is; `markers` says whether the other end asked for them.
    fn next(&mut self, markers: bool) -> Option<(String, Vec<u8>)> {
        if self.lost || self.rest().is_empty() {
            return None;
        }
        if self.frame.is_none() {
            return self.startup();
        }
        let deframer = self.deframer.get_or_insert_with(|| Deframer::new(markers));
        let fpdu = deframer.take(&self.buffer[self.begin..])?;
        let mut what = match Segment::parse(&fpdu.ulpdu) {
            Some(segment) => segment.to_string(),
            None => format!("an FPDU with {} octets only", fpdu.ulpdu.len()),
        };
        if !fpdu.crc_is_right && !fpdu.crc_is_zero {
            what.push_str("; CRC wrong");
        }
        if !fpdu.pad_is_zero {
            what.push_str("; pad not zero");
        }
        if !fpdu.markers_are_right {
            what.push_str("; Marker wrong");
        }
        Some((what, self.cut(fpdu.octets)))
    }

    fn startup(&mut self) -> Option<(String, Vec<u8>)> {
        let mut frame = Startup::parse(self.rest().first_chunk::<HEADER>()?);
        let length = usize::from(frame.pd_length);
        if ![REQUEST, REPLY].contains(&frame.key) || length > MOST_PRIVATE_DATA {
            self.lost = true;
            let what = frame.to_string();
            let all = self.rest().len();
            return Some((what, self.cut(all)));
        }
        if self.rest().len() < HEADER + length {
            return None;
        }
        let octets = self.cut(HEADER + length);
        frame.private_data = octets.get(HEADER..).unwrap_or(&[]).to_vec();
        let what = frame.to_string();
        self.frame = Some(frame);
        Some((what, octets))
    }

    fn cut(&mut self, octets: usize) -> Vec<u8> {
        let end = self.buffer.len().min(self.begin + octets);
        let begin = std::mem::replace(&mut self.begin, end);
        self.buffer[begin..end].to_vec()
    }
}

/// The steps of a connection, the first and the last of them if there are many.
#[must_use]
pub fn steps(conversation: &Conversation) -> Vec<Step> {
    let begin = conversation.pieces.first().map(|piece| piece.at);
    let since = |piece: &Piece| {
        let begin = begin.unwrap_or(piece.at);
        piece.at.duration_since(begin).unwrap_or_default()
    };
    let mut steps = Vec::new();
    let mut halves = [Half::new(Way::Sent), Half::new(Way::Received)];
    for piece in &conversation.pieces {
        let at = since(piece);
        if conversation.datagrams {
            let what = match Datagram::parse(&piece.octets) {
                Ok(datagram) => datagram.to_string(),
                Err(dropped) => format!("a datagram that receivers drop: {dropped}"),
            };
            steps.push(step(piece.way, at, what, &piece.octets));
            continue;
        }
        let [ours, theirs] = &mut halves;
        let (half, other) = match piece.way {
            Way::Sent => (ours, theirs),
            Way::Received => (theirs, ours),
        };
        half.extend(&piece.octets);
        while let Some((what, octets)) = half.next(other.wants_markers()) {
            steps.push(step(piece.way, at, what, &octets));
        }
        if piece.octets.is_empty() || half.lost {
            let rest = half.cut(usize::MAX - half.begin);
            unfinished(&mut steps, piece.way, at, &rest);
        }
        if piece.octets.is_empty() {
            steps.push(step(piece.way, at, "end of stream".to_owned(), &[]));
        }
    }
    let at = conversation.pieces.last().map(since).unwrap_or_default();
    for half in halves {
        unfinished(&mut steps, half.way, at, half.rest());
    }
    if steps.len() > FIRST + LAST {
        steps.drain(FIRST..steps.len() - LAST);
    }
    steps
}

fn unfinished(steps: &mut Vec<Step>, way: Way, at: Duration, octets: &[u8]) {
    if !octets.is_empty() {
        let what = format!("{} octets that are no whole frame", octets.len());
        steps.push(step(way, at, what, octets));
    }
}

fn step(way: Way, at: Duration, what: String, octets: &[u8]) -> Step {
    Step {
        way,
        at,
        what,
        octets: octets.iter().take(KEPT).copied().collect(),
        length: octets.len(),
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sent => "tester",
            Self::Received => "device",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::wire::ddp::opcode;
    use crate::wire::framing::{Framer, Wrong};
    use crate::wire::startup::C;

    fn said(pieces: &[(Way, Vec<u8>)]) -> Vec<Step> {
        let here = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
        steps(&Conversation {
            datagrams: false,
            ours: here,
            theirs: here,
            we_connected: true,
            left_open: None,
            asks_nothing: false,
            pieces: (0..)
                .zip(pieces)
                .map(|(at, (way, octets))| Piece {
                    at: UNIX_EPOCH + Duration::from_millis(at),
                    way: *way,
                    octets: octets.clone(),
                })
                .collect(),
        })
    }

    #[test]
    fn frames_segments_and_their_faults_are_read_however_they_are_cut() {
        let frame = |key| Startup::new(key, C, 1, b"data").to_bytes();
        let mut framer = Framer::new(true, false);
        let send = Segment::untagged(opcode::SEND, 0, 1, b"hello").to_bytes();
        let wrong = Wrong {
            crc: 1,
            pad: 2,
            ..Wrong::default()
        };
        let good = framer.fpdu(&send);
        let bad = framer.wrong_fpdu(&send, wrong);
        let mut pieces = vec![(Way::Sent, frame(REQUEST)), (Way::Received, frame(REPLY))];
        for octet in good.iter().chain(&bad) {
            pieces.push((Way::Sent, vec![*octet]));
        }
        pieces.push((Way::Received, b"torn".to_vec()));
        pieces.push((Way::Received, Vec::new()));
        let what: Vec<_> = said(&pieces).into_iter().map(|step| step.what).collect();
        assert_eq!(what.len(), 6, "{what:#?}");
        assert!(what[0].starts_with("MPA Request") && what[1].starts_with("MPA Reply"));
        assert!(what[2].starts_with("Send, 5 octets") && !what[2].contains("wrong"));
        assert!(what[3].ends_with("; CRC wrong; pad not zero"), "{what:?}");
        assert_eq!(
            what[4..],
            ["4 octets that are no whole frame", "end of stream"]
        );
    }

    #[test]
    fn many_steps_are_their_beginning_and_their_end() {
        let mut framer = Framer::new(true, false);
        let mut pieces = vec![(Way::Sent, Startup::new(REQUEST, C, 1, b"").to_bytes())];
        for number in 1..=200 {
            let send = Segment::untagged(opcode::SEND, 0, number, b"").to_bytes();
            pieces.push((Way::Sent, framer.fpdu(&send)));
        }
        let steps = said(&pieces);
        assert_eq!(steps.len(), FIRST + LAST);
        assert!(steps[FIRST - 1].what.contains("MSN 7,"), "{steps:?}");
        assert!(steps[FIRST].what.contains("MSN 161,"));
        assert!(steps[FIRST + LAST - 1].what.contains("MSN 200,"));
    }
}
