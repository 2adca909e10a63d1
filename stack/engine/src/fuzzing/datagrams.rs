//! The engine of datagram queue pairs: two of them with a network that loses, repeats, reorders and changes datagrams, or one and datagrams of a stranger.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use arbitrary::{Result, Unstructured};
use dgiwarp_codec::{PayloadSlice, crc};
use dgiwarp_llp_udp::{Format, Peer, plain};
use dgiwarp_rdmap::datagram::segment::{self, Parsed, WriteSegment};

use super::ud_end::{Asked, DEPTH, End, Plan, QKEY, path};
use crate::datagram::{SendOutcome, SendWqe};
use crate::recv_queue::SgeList;
use crate::types::Operation;

/// More would only be slow.
const STEPS: usize = 150;
/// Where both ends are, and others.
const PEERS: [&str; 4] = ["192.0.2.1:1", "192.0.2.2:2", "192.0.2.3:1", "192.0.2.1:3"];

/// Calls of programs and input of networks to datagram queue pairs. Nothing lands where nobody gave leave, every work request completes once,
/// messages arrive as they were sent, and octets that a validity map shows as valid did arrive.
pub fn datagrams(start: Instant, data: &[u8]) {
    super::begin(start);
    run(&mut Unstructured::new(data)).expect("what short inputs lack is zero");
}

fn run(u: &mut Unstructured<'_>) -> Result<()> {
    let (stranger, connected) = (u.arbitrary()?, u.ratio(1u8, 4u8)?);
    let mut ends = [end(u, 1, connected)?, end(u, 2, connected)?];
    if connected {
        let [first, second] = &mut ends;
        assert!(first.engine.connect(peer(1)) && second.engine.connect(peer(0)));
    }
    let arrived = || vec![false; ends[0].memory.open.len];
    let mut scene = Scene {
        arrived: [arrived(), arrived()],
        ends,
        connected,
        stranger,
        messages: [Vec::new(), Vec::new()],
    };
    let mut steps = 0;
    while !u.is_empty() && steps < STEPS {
        scene.step(u)?;
        steps += 1;
    }
    scene.settle();
    Ok(())
}

fn peer(who: usize) -> Peer {
    let address = PEERS[who % PEERS.len()];
    Peer::ip(address.parse().expect("an address"))
}

fn end(u: &mut Unstructured<'_>, number: u32, connected: bool) -> Result<End> {
    let plan = Plan {
        connected,
        grh: u.arbitrary()?,
        record_slots: *u.choose(&[8, 64, 1, 0])?,
        segment_completions: u.ratio(1u8, 4u8)?,
        send_copy: u.ratio(1u8, 4u8)?,
        max_rate: *u.choose(&[0, 0, 0, 1 << 20])?,
    };
    Ok(End::new(number, plan))
}

struct Scene {
    ends: [End; 2],
    connected: bool,
    /// The first end is nobody, and others send.
    stranger: bool,
    /// Sends of each end.
    messages: [Vec<Vec<u8>>; 2],
    /// Which octets of each end's open area came in intact Write-Records.
    arrived: [Vec<bool>; 2],
}

impl Scene {
    fn step(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let who = usize::from(self.stranger || u.arbitrary()?);
        match u.int_in_range(0..=13u8)? {
            0..=2 => self.post(u, who)?,
            3 => {
                let elements = (part(u)?, part(u)?);
                self.ends[who].post_receive(elements);
            }
            4 | 5 => {
                let outcomes = outcomes(u)?;
                let mtu = *u.choose(&[1500, 600, 9000])?;
                self.ends[who].transmit(outcomes, mtu);
            }
            6..=8 => self.network(u, who)?,
            9 => {
                let time = Duration::from_millis(u.arbitrary::<u8>()?.into());
                self.ends[who].time_passes(time * u.int_in_range(1..=20)?);
            }
            10 | 11 => self.stranger_sends(u, who)?,
            12 => self.ends[who].release_record(),
            _ => self.mishap(u, who)?,
        }
        self.look();
        Ok(())
    }

    fn mishap(&mut self, u: &mut Unstructured<'_>, who: usize) -> Result<()> {
        let end = &mut self.ends[who];
        match u.int_in_range(0..=15u8)? {
            0 => end.mrs.deregister(end.memory.sinks.keys),
            1 => end.mrs.deregister(end.memory.receives.keys),
            2 => end.mrs.deregister(end.memory.source.keys),
            3 => end.mrs.deregister(end.memory.open.keys),
            4 => end.engine.set_qkey(QKEY + 1),
            5 => end.engine.set_max_rate(u.arbitrary::<u16>()?.into()),
            6 => drop(end.engine.poll_error()),
            _ => end.complete_now(),
        }
        Ok(())
    }

    /// Delivers, loses or changes datagrams of one end.
    fn network(&mut self, u: &mut Unstructured<'_>, who: usize) -> Result<()> {
        let waiting = self.ends[who].wire.len();
        if waiting == 0 {
            return Ok(());
        }
        // Mostly in order.
        let at = if u.ratio(3u8, 4u8)? {
            0
        } else {
            u.choose_index(waiting)?
        };
        match u.int_in_range(0..=11u8)? {
            0 => drop(self.ends[who].wire.remove(at)),
            1 => {
                let octets = self.ends[who].wire[at].clone();
                self.arrive(who, &octets, false);
            }
            2 => {
                let octets = &mut self.ends[who].wire[at];
                let index = u.choose_index(octets.len())?;
                octets[index] ^= u.int_in_range(1..=255u8)?;
            }
            3..=6 => {
                for _ in 0..waiting.min(40) {
                    self.arrive_from_wire(who, 0);
                }
            }
            _ => self.arrive_from_wire(who, at),
        }
        Ok(())
    }

    fn arrive_from_wire(&mut self, who: usize, at: usize) {
        if let Some(octets) = self.ends[who].wire.remove(at) {
            self.arrive(who, &octets, false);
        }
    }

    fn arrive(&mut self, from: usize, octets: &[u8], to_group: bool) {
        let to = 1 - from;
        let open = self.ends[to].memory.open;
        let opened = plain::open(PayloadSlice::new(octets)).ok();
        let parsed =
            opened.and_then(|(format, it)| segment::parse(it, format == Format::Cookie).ok());
        if let Some(Parsed::WriteRecord(WriteSegment {
            stag,
            tagged_offset,
            payload,
            ..
        })) = parsed
            && stag.get() == open.keys.rkey
            && let Some(start) = tagged_offset.get().checked_sub(open.addr())
            && let Ok(start) = usize::try_from(start)
        {
            let places = self.arrived[to].iter_mut().skip(start);
            places.take(payload.len()).for_each(|it| *it = true);
        }
        self.ends[to].receive(octets, peer(from), to_group);
    }

    /// A datagram of somebody, with a CRC that is right mostly.
    fn stranger_sends(&mut self, u: &mut Unstructured<'_>, who: usize) -> Result<()> {
        if !self.stranger {
            self.ends[who].complete_now();
            return Ok(());
        }
        let victim = &mut self.ends[1];
        let mut octets = super::hostile::segment(u, &victim.memory)?;
        let sum = crc::crc32c(&octets) ^ u32::from(u.ratio(1u8, 32u8)?);
        octets.extend(crc::to_wire(sum));
        let from = peer(u.int_in_range(0..=3usize)?);
        victim.receive(&octets, from, u.ratio(1u8, 8u8)?);
        Ok(())
    }

    fn post(&mut self, u: &mut Unstructured<'_>, who: usize) -> Result<()> {
        let rkeys = {
            let memory = &self.ends[1 - who].memory;
            let keys = [memory.open, memory.source, memory.sinks, memory.foreign];
            keys.map(|area| area.keys.rkey)
        };
        let (connected, open) = (self.connected, self.ends[1 - who].memory.open);
        let own = &mut self.ends[who];
        let source = own.memory.source;
        let length = u32::from(u.arbitrary::<u16>()?);
        let length = if u.ratio(1u8, 4u8)? {
            length % 12_000
        } else {
            length % 400
        };
        let from = u64::from(u.arbitrary::<u16>()?) % (source.len as u64 - u64::from(length));
        let from_index = usize::try_from(from).expect("inside");
        let immediate = u.ratio(1u8, 4u8)?.then_some(0x0102_0304);
        let mut about = Asked::Other;
        let half = u.int_in_range(0..=length)?;
        let lkey = if u.ratio(1u8, 64u8)? {
            own.memory.foreign.keys.lkey
        } else {
            source.keys.lkey
        };
        let element = |addr, length| crate::types::Sge { addr, length, lkey };
        let mut sges = SgeList::from_slice(&[
            element(source.addr() + from, half),
            element(source.addr() + from + u64::from(half), length - half),
        ]);
        let mut length = length;
        let rkey = if u.ratio(7u8, 8u8)? {
            rkeys[0]
        } else {
            *u.choose(&rkeys)?
        };
        let operation = match u.int_in_range(0..=8u8)? {
            0..=3 => Operation::Send { immediate },
            // Octets at an offset in the area of messages go to that offset of the open area.
            4..=6 => Operation::WriteRecord {
                rkey,
                remote_addr: open.addr() + from,
                immediate,
            },
            _ if connected => Operation::Send { immediate },
            _ => {
                let elements = (part(u)?, part(u)?);
                let sink = own.memory.sinks.elements(own.sends.next(), elements);
                sges = SgeList::from_slice(&sink);
                length = elements.0 + elements.1;
                about = Asked::Read {
                    from: from_index,
                    elements,
                };
                Operation::Read {
                    rkey: rkeys[1],
                    remote_addr: source.addr() + from,
                    timeout: u.ratio(1u8, 4u8)?.then_some(Duration::from_millis(300)),
                }
            }
        };
        let wqe = SendWqe {
            wr_id: own.sends.next(),
            operation,
            route: path(None, *u.choose(&[1500, 512, 9000])?),
            peer: peer(1 - who),
            qkey: QKEY,
            sges,
            length,
            signaled: u.ratio(7u8, 8u8)?,
            solicited: u.arbitrary()?,
            unrecorded: connected && u.arbitrary()?,
        };
        self.accept(who, wqe, about, from_index);
        Ok(())
    }

    fn accept(&mut self, who: usize, wqe: SendWqe, about: Asked, from: usize) {
        let own = &mut self.ends[who];
        // A Read may be the last of its slot that completes.
        let slot_is_free = !own.sends.has(wqe.wr_id.wrapping_sub(DEPTH as u64));
        if !own.room_to_send() || !slot_is_free {
            return;
        }
        match wqe.operation {
            Operation::Send { .. } => {
                let octets = super::guarded::pattern(from, wqe.length as usize);
                self.messages[who].push(octets);
            }
            Operation::Read { .. } => own.memory.clear_slot(own.memory.sinks, wqe.wr_id),
            Operation::WriteRecord { .. } => {}
        }
        own.post(wqe, about);
    }

    fn look(&mut self) {
        for who in 0..2 {
            let arrived = (&self.messages[1 - who][..], &self.arrived[who][..]);
            self.ends[who].look((!self.stranger).then_some(arrived));
        }
    }

    /// The network brings what it has, and everything ends.
    fn settle(&mut self) {
        for _ in 0..6 {
            for who in 0..2 {
                self.ends[who].transmit(VecDeque::new(), 1500);
                for _ in 0..self.ends[who].wire.len() {
                    self.arrive_from_wire(who, 0);
                }
                self.ends[who].time_passes(Duration::from_millis(50));
                self.look();
            }
        }
        for end in &mut self.ends {
            end.check_over();
        }
    }
}

/// Octets of an element in a slot.
fn part(u: &mut Unstructured<'_>) -> Result<u32> {
    Ok(u32::from(u.arbitrary::<u8>()?) * 254 / 255)
}

fn outcomes(u: &mut Unstructured<'_>) -> Result<VecDeque<SendOutcome>> {
    let count = u.int_in_range(0..=6u8)?;
    (0..count)
        .map(|_| {
            Ok(match u.int_in_range(0..=9u8)? {
                0 => SendOutcome::WouldBlock,
                1 => SendOutcome::TooBig,
                2 => SendOutcome::Failed(113),
                _ => SendOutcome::Sent,
            })
        })
        .collect()
}
