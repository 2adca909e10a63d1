//! An association as one of its ends sees it: datagrams in flight, and which of them were acknowledged or lost.

use std::collections::BTreeMap;

use dgiwarp_conform::wire::reliable::{Ack, Frame, Reliable, SegmentFrame};
use serde_json::{Value, json};

use super::{frames, millis};

/// Datagrams in flight that are kept: of an end whose peer's datagrams are not in the file none leaves.
const MOST: usize = 1 << 16;

/// Events of one datagram.
type Events = Vec<(&'static str, Value)>;

/// State of the end.
#[derive(Debug, Default)]
pub(super) struct View {
    /// Identifiers that the peer and this end drew.
    drawn: [Option<u32>; 2],
    /// Datagrams that elicit acknowledgements: their octets, and when they left.
    in_flight: BTreeMap<u64, (usize, u64)>,
    octets: usize,
    /// Largest number that was reported lost.
    lost: Option<u64>,
    /// Octets of the longest segment of a message that goes on, of either end.
    whole: [usize; 2],
}

/// State of a path, as an end writes it beside a datagram in its capture file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Path {
    window: Option<u64>,
    in_flight: Option<u64>,
    smoothed_us: Option<u64>,
    minimum_us: Option<u64>,
    lost: Option<u64>,
}

impl Path {
    fn parse(comment: &str) -> Option<Self> {
        let mut path = Self::default();
        for part in comment.split(", ") {
            let (place, rest) = [
                (&mut path.window, "window "),
                (&mut path.in_flight, "in flight "),
                (&mut path.smoothed_us, "RTT "),
                (&mut path.minimum_us, "minimum "),
                (&mut path.lost, "lost to "),
            ]
            .into_iter()
            .find_map(|(place, name)| Some((place, part.strip_prefix(name)?)))?;
            let number = rest.strip_suffix(" us").unwrap_or(rest);
            *place = Some(number.parse().ok()?);
        }
        Some(path)
    }
}

impl View {
    /// Whether an identifier that this end, or its peer, drew is that of this association.
    pub(super) fn belongs(&mut self, id: u32, is_own: bool) -> bool {
        *self.drawn[usize::from(is_own)].get_or_insert(id) == id
    }

    /// A datagram that this end sent.
    pub(super) fn sent(&mut self, at: u64, octets: usize, datagram: &Reliable) -> Events {
        let elicits = datagram.frames.iter().any(|frame| {
            matches!(
                frame,
                Frame::Segment(_) | Frame::Error { .. } | Frame::Hello(_) | Frame::Ping(_)
            )
        });
        let mut events = vec![("transport:packet_sent", self.packet(octets, datagram, true))];
        if elicits
            && self
                .in_flight
                .insert(datagram.number, (octets, at))
                .is_none()
        {
            self.octets += octets;
            if self.in_flight.len() > MOST {
                self.remove_first();
            }
            events.push((
                "recovery:metrics_updated",
                json!({ "bytes_in_flight": self.octets }),
            ));
        }
        events
    }

    /// A datagram that arrived, and the comment on it.
    pub(super) fn received(
        &mut self,
        at: u64,
        octets: usize,
        datagram: &Reliable,
        comment: Option<&str>,
    ) -> Events {
        let packet = self.packet(octets, datagram, false);
        if let Some(reason) = comment.and_then(|it| it.strip_prefix("dropped: ")) {
            let mut packet = packet;
            packet["details"] = reason.into();
            return vec![("transport:packet_dropped", packet)];
        }
        let mut events = vec![("transport:packet_received", packet)];
        let mut metrics = json!({});
        for frame in &datagram.frames {
            if let Frame::Ack(ack) = frame
                && let Some(sample) = self.acknowledge(at, ack)
            {
                metrics["latest_rtt"] = millis(sample).into();
            }
        }
        let path = comment.and_then(Path::parse).unwrap_or_default();
        if let Some(lost) = path.lost
            && Some(lost) > self.lost
        {
            self.lost = Some(lost);
            self.lose(lost, &mut events);
        }
        metrics["bytes_in_flight"] = path.in_flight.unwrap_or(self.octets as u64).into();
        if let Some(window) = path.window {
            metrics["congestion_window"] = window.into();
        }
        for (name, micros) in [
            ("smoothed_rtt", path.smoothed_us),
            ("min_rtt", path.minimum_us),
        ] {
            if let Some(micros) = micros {
                metrics[name] = millis(micros * 1000).into();
            }
        }
        events.push(("recovery:metrics_updated", metrics));
        events
    }

    fn packet(&mut self, octets: usize, datagram: &Reliable, is_own: bool) -> Value {
        let whole = &mut self.whole[usize::from(is_own)];
        let mut before = |segment: &SegmentFrame| {
            if !segment.last {
                *whole = (*whole).max(segment.octets.len());
            }
            u64::from(segment.index) * *whole as u64
        };
        let frames: Vec<Value> = (datagram.frames.iter())
            .map(|frame| frames::value(frame, &mut before))
            .collect();
        let kind = match datagram.frames.first() {
            Some(Frame::Hello(hello)) if hello.retry => "retry",
            Some(Frame::Hello(_)) => "initial",
            _ => "1RTT",
        };
        json!({
            "header": { "packet_type": kind, "packet_number": datagram.number },
            "raw": { "length": octets },
            "frames": frames,
        })
    }

    /// Takes acknowledged datagrams out of flight. Returns the time from sending the largest number, if it is newly acknowledged.
    fn acknowledge(&mut self, at: u64, ack: &Ack) -> Option<u64> {
        let (_, largest) = ack.ranges.first().copied()?;
        let sample = self
            .in_flight
            .get(&largest)
            .map(|(_, left)| at.saturating_sub(*left));
        for (from, to) in ack.ranges.iter().copied().filter(|(from, to)| from <= to) {
            let numbers: Vec<u64> = self.in_flight.range(from..=to).map(|(it, _)| *it).collect();
            for number in numbers {
                self.remove(number);
            }
        }
        sample
    }

    /// All that is in flight up to a number is lost.
    fn lose(&mut self, to: u64, events: &mut Events) {
        while let Some((number, _)) = self.in_flight.first_key_value()
            && *number <= to
        {
            events.push((
                "recovery:packet_lost",
                json!({ "header": { "packet_type": "1RTT", "packet_number": number } }),
            ));
            self.remove_first();
        }
    }

    fn remove(&mut self, number: u64) {
        if let Some((octets, _)) = self.in_flight.remove(&number) {
            self.octets -= octets;
        }
    }

    fn remove_first(&mut self) {
        if let Some((_, (octets, _))) = self.in_flight.pop_first() {
            self.octets -= octets;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(number: u64, frames: Vec<Frame>) -> Reliable {
        Reliable {
            flags: 0,
            association: 7,
            number,
            time: 0,
            epoch: 1,
            frames,
        }
    }

    fn segment(number: u32, index: u32, last: bool) -> Frame {
        Frame::Segment(SegmentFrame {
            last,
            receive: true,
            number,
            message: 3,
            index,
            stream: 0,
            after: 0,
            octets: vec![0; if last { 10 } else { 100 }],
        })
    }

    fn ack(ranges: &[(u64, u64)]) -> Frame {
        Frame::Ack(Ack {
            ranges: ranges.to_vec(),
            delay: 250,
            echo: 0,
            counts: Some([5, 0, 1]),
        })
    }

    fn names(events: &Events) -> Vec<&'static str> {
        events.iter().map(|(name, _)| *name).collect()
    }

    #[test]
    fn datagrams_leave_flight_by_acknowledgement_and_by_loss() {
        let mut view = View::default();
        for number in 0..5 {
            let index = u32::try_from(number).unwrap();
            let sent = view.sent(
                number * 1000,
                150,
                &datagram(number, vec![segment(index, index, index == 4)]),
            );
            assert_eq!(
                names(&sent),
                ["transport:packet_sent", "recovery:metrics_updated"]
            );
            let frame = &sent[0].1["frames"][0];
            assert_eq!(frame["offset"], u64::from(index) * 100);
            assert_eq!(frame["fin"], index == 4);
        }
        // An acknowledgement alone elicits none.
        let sent = view.sent(5000, 80, &datagram(5, vec![ack(&[(0, 0)])]));
        assert_eq!(names(&sent), ["transport:packet_sent"]);
        let came = datagram(0, vec![ack(&[(4, 4), (0, 1)])]);
        let comment = "window 14720, in flight 0, RTT 1000 us, minimum 180 us, lost to 3";
        let events = view.received(1_004_000, 90, &came, Some(comment));
        assert_eq!(
            names(&events),
            [
                "transport:packet_received",
                "recovery:packet_lost",
                "recovery:packet_lost",
                "recovery:metrics_updated"
            ]
        );
        assert_eq!(
            events[0].1["frames"][0]["acked_ranges"],
            json!([[0, 1], [4, 4]])
        );
        assert_eq!(events[0].1["frames"][0]["ack_delay"], 0.25);
        assert_eq!(events[2].1["header"]["packet_number"], 3);
        assert_eq!(
            events[3].1,
            json!({
                "bytes_in_flight": 0,
                "congestion_window": 14720,
                "latest_rtt": 1.0,
                "smoothed_rtt": 1.0,
                "min_rtt": 0.18,
            })
        );
        assert!(view.in_flight.is_empty() && view.octets == 0);
    }

    #[test]
    fn a_dropped_datagram_changes_nothing() {
        let mut view = View::default();
        view.sent(0, 150, &datagram(0, vec![segment(0, 0, true)]));
        let came = datagram(0, vec![ack(&[(0, 0)])]);
        let events = view.received(1, 90, &came, Some("dropped: fault"));
        assert_eq!(names(&events), ["transport:packet_dropped"]);
        assert_eq!(events[0].1["details"], "fault");
        assert_eq!(view.octets, 150);
        // Without a comment, the file alone counts.
        let events = view.received(2, 90, &came, None);
        assert_eq!(
            events[1].1,
            json!({ "bytes_in_flight": 0, "latest_rtt": 2e-6 })
        );
    }

    #[test]
    fn flight_is_bounded() {
        let mut view = View::default();
        for number in 0..=MOST as u64 {
            view.sent(0, 150, &datagram(number, vec![segment(0, 0, true)]));
        }
        assert_eq!((view.in_flight.len(), view.octets), (MOST, MOST * 150));
        // A range that is the wrong way round holds nothing.
        view.received(1, 90, &datagram(0, vec![ack(&[(9, 5)])]), None);
        assert_eq!(view.in_flight.len(), MOST);
    }

    #[test]
    fn comments_of_others_are_no_state() {
        for comment in ["", "window", "window x", "in flight 3, mine", "RTT -1 us"] {
            assert_eq!(Path::parse(comment), None, "{comment}");
        }
        let whole = Path::parse("in flight 3").unwrap();
        assert_eq!((whole.in_flight, whole.window), (Some(3), None));
    }
}
