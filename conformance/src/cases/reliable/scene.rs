//! A queue pair of the device, and the tester's end of an association with it (Reliable §4).

use std::time::Duration;

use serde_json::{Value, json};

use crate::agent::{AgentError, Completion, Connection, connection, number};
use crate::bench::{Bench, Broken};
use crate::clock;
use crate::station::{Heard, Station};
use crate::wire::datagram::Datagram;
use crate::wire::reliable::{Ack, Frame, Hello, Reliable, SegmentFrame, flag};

/// The Q_Key of the device's queue pairs here.
pub(super) const QKEY: u32 = 0x1ee7;
/// `IBV_WC_RECV`.
pub(super) const RECV: u64 = 128;
/// Identifier that the tester draws.
const IDENTIFIER: u32 = 0x0a0b_0c0d;
/// Time after which the device is taken to be silent: many delays of acknowledgements, and less than its patience with a silent peer.
pub(super) const SILENCE: Duration = Duration::from_millis(400);

/// The queue pair, and an end of the tester.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) station: Station,
    pub(super) on: Connection,
    slot: usize,
    /// The tester's identifier, and the device's once it is known.
    pub(super) identifier: u32,
    pub(super) device: Option<u32>,
    /// Next packet, segment and message number.
    pub(super) packet: u64,
    segment: u32,
    message: u32,
    /// Credit that the tester's HELLO grants.
    pub(super) receives: u32,
    /// Packet numbers of the device that were received.
    pub(super) seen: Vec<u64>,
}

impl Scene {
    /// A queue pair with receives as `with` says.
    pub(super) fn new(bench: &mut Bench<'_>, with: &Value) -> Result<Self, Broken> {
        let mut all = json!({ "qkey": QKEY, "receives": 8, "octets": 4096 });
        for (name, value) in with.as_object().into_iter().flatten() {
            all[name] = value.clone();
        }
        let octets = all["octets"].as_u64().unwrap_or_default();
        let answer = match bench.agent()?.call("rd_open", all) {
            Err(AgentError::Refused { reason, .. })
                if ["datagrams", "without", "no such op"]
                    .iter()
                    .any(|it| reason.contains(it)) =>
            {
                return Err(Broken::Skip(
                    "needs a device with reliable datagrams, and its header for the agent",
                ));
            }
            answer => answer?,
        };
        let qpn = number("rd_open", &answer, "qpn")?;
        let qpn = u16::try_from(qpn).map_err(|_| Broken::Skip("its QPN is no UDP port"))?;
        Ok(Self {
            station: bench.station(qpn)?,
            on: connection("rd_open", &answer)?,
            slot: usize::try_from(octets).unwrap_or(0),
            identifier: IDENTIFIER,
            device: None,
            packet: 0,
            segment: 0,
            message: 0,
            receives: 64,
            seen: Vec::new(),
        })
    }

    /// A HELLO of the tester's.
    pub(super) fn hello(&self) -> Frame {
        Frame::Hello(Hello {
            retry: false,
            features: 0,
            association: self.identifier,
            receives: self.receives,
            window: 1 << 20,
            proof: 0,
            cookie: 0x1111_1111_2222_2222,
        })
    }

    /// A datagram with the next packet number.
    pub(super) fn datagram(&mut self, frames: Vec<Frame>) -> Reliable {
        let number = self.packet;
        self.packet += 1;
        let hello = matches!(frames.first(), Some(Frame::Hello(_)));
        Reliable {
            flags: flag::EAGER | if hello { flag::HELLO } else { 0 },
            association: self.device.unwrap_or(0),
            number,
            time: 1,
            epoch: self.station.epoch,
            frames,
        }
    }

    /// Sends frames in a datagram of their own.
    pub(super) fn send(&mut self, frames: Vec<Frame>) {
        let datagram = self.datagram(frames);
        self.station.send(Datagram::Reliable(datagram));
    }

    /// A Send of one segment, of no stream's order, with the next numbers.
    pub(super) fn message(&mut self, payload: &[u8]) -> SegmentFrame {
        let (number, message) = (self.segment, self.message);
        self.segment += 1;
        self.message += 1;
        let mut octets = vec![0x41, 0x43];
        for word in [QKEY, 0, message + 1, 0] {
            octets.extend(word.to_be_bytes());
        }
        octets.extend(payload);
        SegmentFrame {
            last: true,
            receive: true,
            number,
            message,
            index: 0,
            stream: 0,
            after: 0,
            octets,
        }
    }

    /// Gives the numbers of the latest message to the next one.
    pub(super) const fn take_back(&mut self) {
        self.segment -= 1;
        self.message -= 1;
    }

    /// The next reliable datagram of the device within a time. Packet numbers are kept.
    pub(super) fn next_within(&mut self, time: Duration) -> Result<Option<Reliable>, Broken> {
        match self.station.next_within(time) {
            Heard::Datagram(Datagram::Reliable(it)) => {
                self.seen.push(it.number);
                Ok(Some(it))
            }
            Heard::Nothing => Ok(None),
            other => Err(Broken::Datagram(format!(
                "{other} in place of a reliable datagram"
            ))),
        }
    }

    /// Datagrams of the device until one is as wanted, or the time of an answer is over.
    pub(super) fn until(
        &mut self,
        bench: &Bench<'_>,
        mut wanted: impl FnMut(&Reliable) -> bool,
    ) -> Result<(Vec<Reliable>, bool), Broken> {
        let end = clock::now() + bench.patience().answer;
        let mut all = Vec::new();
        loop {
            let left = end.saturating_duration_since(clock::now());
            let Some(next) = self.next_within(left)? else {
                return Ok((all, false));
            };
            let found = wanted(&next);
            all.push(next);
            if found {
                return Ok((all, true));
            }
        }
    }

    /// Opens the association by a message, and shows the device that its identifier came.
    pub(super) fn open(&mut self, bench: &mut Bench<'_>) -> Result<(), Broken> {
        let message = self.message(b"first");
        self.send(vec![self.hello(), Frame::Segment(message)]);
        let (all, found) = self.until(bench, |it| identifier(it).is_some())?;
        self.device = all.last().and_then(identifier);
        if !found {
            return Err(Broken::Datagram("no HELLO answers one".to_owned()));
        }
        self.acknowledge();
        match self.poll(bench, bench.patience().answer)? {
            Some(wc) if (wc.status, wc.opcode) == (0, RECV) => self.repost(bench, wc.wr_id),
            other => Err(Broken::Datagram(format!(
                "{other:?} in place of the first message"
            ))),
        }
    }

    /// Acknowledges all that was received of the device.
    pub(super) fn acknowledge(&mut self) {
        let ack = self.ack();
        self.send(vec![ack]);
    }

    /// An ACK of all that was received, as many ranges of one number as it takes.
    pub(super) fn ack(&mut self) -> Frame {
        self.seen.sort_unstable();
        self.seen.dedup();
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for number in self.seen.iter().rev().copied() {
            match ranges.last_mut() {
                Some(last) if last.0 == number + 1 => last.0 = number,
                _ => ranges.push((number, number)),
            }
        }
        ranges.truncate(32);
        Frame::Ack(Ack {
            ranges,
            delay: 0,
            echo: 0,
            counts: None,
        })
    }

    /// The next completion, if one comes in that time.
    pub(super) fn poll(
        &self,
        bench: &mut Bench<'_>,
        wait: Duration,
    ) -> Result<Option<Completion>, Broken> {
        match bench.agent()?.poll(self.on, wait) {
            Ok(wc) => Ok(Some(wc)),
            Err(AgentError::Refused { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The octets of each message that arrives until none comes any more; their receives are posted again.
    pub(super) fn arrivals(&self, bench: &mut Bench<'_>) -> Result<Vec<Vec<u8>>, Broken> {
        let mut all = Vec::new();
        while let Some(wc) = self.poll(bench, SILENCE)? {
            if (wc.status, wc.opcode) != (0, RECV) {
                all.push(format!("{wc:?}").into_bytes());
                continue;
            }
            let slot = usize::try_from(wc.wr_id).unwrap_or(0) * self.slot;
            let from = u64::try_from(slot).unwrap_or(u64::MAX);
            all.push(bench.agent()?.peek(self.on.receives, from, wc.length)?);
            self.repost(bench, wc.wr_id)?;
        }
        Ok(all)
    }

    /// Posts a receive again.
    pub(super) fn repost(&self, bench: &mut Bench<'_>, slot: u64) -> Result<(), Broken> {
        let with = json!({ "conn": self.on.id, "slot": slot });
        bench.agent()?.call("post_recv", with)?;
        Ok(())
    }

    /// Notes whether the association still takes a message, and nothing arrived but that.
    pub(super) fn takes_a_message(
        &mut self,
        bench: &mut Bench<'_>,
        what: &str,
        rule: &str,
        clause: &'static str,
    ) -> Result<(), Broken> {
        let message = self.message(b"good");
        self.send(vec![Frame::Segment(message)]);
        let arrived = self.arrivals(bench)?;
        let seen: Vec<_> = arrived
            .iter()
            .map(|it| String::from_utf8_lossy(it))
            .collect();
        let holds = arrived == [b"good".to_vec()];
        bench.expect(
            what,
            holds,
            format!("{seen:?}"),
            rule,
            clause,
            &self.station,
        );
        Ok(())
    }
}

/// The identifier of a HELLO that opens an association.
pub(super) fn identifier(datagram: &Reliable) -> Option<u32> {
    match datagram.frames.first() {
        Some(Frame::Hello(it)) if !it.retry && it.association != 0 => Some(it.association),
        _ => None,
    }
}

/// Whether a datagram acknowledges a packet number.
pub(super) fn acknowledges(datagram: &Reliable, number: u64) -> bool {
    let within = |(from, to): &(u64, u64)| (*from..=*to).contains(&number);
    datagram.frames.iter().any(|frame| match frame {
        Frame::Ack(ack) => ack.ranges.iter().any(within),
        _ => false,
    })
}

/// Datagrams as text.
pub(super) fn text(all: &[Reliable]) -> String {
    let frames = |it: &Reliable| {
        let frames: Vec<_> = it.frames.iter().map(ToString::to_string).collect();
        format!("{} [{}]", it.number, frames.join(", "))
    };
    all.iter().map(frames).collect::<Vec<_>>().join("; ")
}
