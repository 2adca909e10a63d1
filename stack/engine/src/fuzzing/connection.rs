//! The engine of connected queue pairs: two of them with a link that cuts, stops, ends and changes octets, or one and octets of a stranger.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use arbitrary::{Result, Unstructured};
use dgiwarp_ddp::{STag, TaggedOffset};
use dgiwarp_llp_tcp_mpa::framing::Framer;
use dgiwarp_llp_tcp_mpa::{Config, Connection, ReadDepths, TcpEnd};
use dgiwarp_rdmap::wire::AtomicOperation;

use super::guarded::SLOT;
use super::hostile::{place, stag, ulpdu};
use super::rc_end::{End, Sent};
use super::start;
use crate::connected::{MAX_INLINE, MemoryWork, RcData, RcSendWqe, RcWork};
use crate::mr::Bind;
use crate::recv_queue::SgeList;
use crate::types::{Completion, MwType, NoReceive, RcOptions, Sge};
use dgiwarp_memory::Access;

/// More would only be slow.
const STEPS: usize = 150;

/// Calls of programs and input of networks to connected queue pairs. Nothing lands where nobody gave leave, every work request completes once and
/// in order, messages arrive as they were sent, and what waits is bounded.
pub fn connection(start: Instant, data: &[u8]) {
    super::begin(start);
    run(&mut Unstructured::new(data)).expect("what short inputs lack is zero");
}

fn run(u: &mut Unstructured<'_>) -> Result<()> {
    let stranger: bool = u.arbitrary()?;
    let crc: bool = u.ratio(3u8, 4u8)?;
    let (config, depth) = (config(u, crc)?, *u.choose(&[2, 4, 1, 0])?);
    let (client, server) = startup(&config, depth);
    let mut scene = Scene {
        ends: [end(u, client)?, end(u, server)?],
        stranger: stranger.then(|| Framer::new(crc, config.markers)),
        msns: [1; 4],
        crc,
        changed: false,
    };
    let mut steps = 0;
    while !u.is_empty() && steps < STEPS {
        scene.step(u)?;
        steps += 1;
    }
    scene.settle();
    Ok(())
}

fn config(u: &mut Unstructured<'_>, crc: bool) -> Result<Config> {
    Ok(Config {
        crc: crc.into(),
        markers: u.arbitrary()?,
        emss: *u.choose(&[1448, 128, 536, 20_000])?,
        ..Config::default()
    })
}

fn end(u: &mut Unstructured<'_>, mpa: Connection) -> Result<End> {
    let options = RcOptions {
        hello: u.arbitrary()?,
        completion: *u.choose(&[Completion::Placed, Completion::Local])?,
        no_receive: *u.choose(&[NoReceive::Wait, NoReceive::Terminate])?,
        receive_timeout: u.ratio(1u8, 4u8)?.then_some(Duration::from_millis(500)),
        outlives_peer: u.arbitrary()?,
    };
    Ok(End::new(mpa, options, u.arbitrary()?, u.ratio(1u8, 4u8)?))
}

/// Both ends behind MPA's startup, the Initiator first.
fn startup(config: &Config, depth: u16) -> (Connection, Connection) {
    let mut client =
        Connection::initiator(start(), config.clone(), b"").expect("the configuration is good");
    let mut server = Connection::responder(start(), config.clone());
    let request = client.poll_transmit(start()).to_vec();
    client.transmitted(request.len());
    server.handle_input(start(), &mut &request[..]);
    let depths = ReadDepths {
        ird: depth,
        ord: depth,
    };
    server.accept(depths, b"").expect("the Request is there");
    let reply = server.poll_transmit(start()).to_vec();
    server.transmitted(reply.len());
    client.handle_input(start(), &mut &reply[..]);
    while client.poll_event().is_some() {}
    while server.poll_event().is_some() {}
    (client, server)
}

struct Scene {
    ends: [End; 2],
    /// Makes FPDUs in place of the first end.
    stranger: Option<Framer>,
    msns: [u32; 4],
    crc: bool,
    /// An octet changed on the way.
    changed: bool,
}

impl Scene {
    fn step(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        // The first end is nobody where a stranger is in its place.
        let who = usize::from(self.stranger.is_some() || u.arbitrary()?);
        match u.int_in_range(0..=13u8)? {
            0..=2 => self.post(u, who)?,
            3 => self.post_receives(u, who)?,
            4 | 5 => {
                let most = usize::from(u.arbitrary::<u16>()?);
                self.ends[who].transmit(most, u.arbitrary()?);
            }
            6..=8 => {
                let most = usize::from(u.arbitrary::<u16>()?) + 1;
                self.carry(who, most, u.arbitrary()?);
            }
            9 => {
                let time = Duration::from_millis(u.arbitrary::<u16>()?.into());
                self.ends[who].time_passes(time);
            }
            10 => self.stranger_sends(u, who)?,
            11 => self.mishap(u, who)?,
            12 => {
                let denied = Access::from_bits_truncate(u.arbitrary()?);
                if u.ratio(1u8, 8u8)? {
                    self.ends[who].engine.deny(denied);
                }
            }
            _ => self.change_octet(u, who)?,
        }
        self.look();
        Ok(())
    }

    /// Octets on their way from `who` arrive, after TCP's end if they were the last.
    fn carry(&mut self, who: usize, most: usize, in_place: bool) {
        let [first, second] = &mut self.ends;
        let (from, to) = if who == 0 {
            (first, second)
        } else {
            (second, first)
        };
        let mut wire: VecDeque<u8> = std::mem::take(&mut from.wire);
        to.receive(&mut wire, most, in_place);
        from.wire = wire;
        let over = from.engine.end().is_some() && from.engine.poll_transmit(start()).is_empty();
        if over && from.wire.is_empty() && !to.has_ended {
            to.tcp_ends(TcpEnd::Fin);
        }
    }

    fn change_octet(&mut self, u: &mut Unstructured<'_>, who: usize) -> Result<()> {
        if !u.ratio(1u8, 6u8)? {
            return Ok(());
        }
        let wire = &mut self.ends[who].wire;
        let at = u.choose_index(wire.len().max(1))?;
        if let Some(octet) = wire.get_mut(at) {
            *octet ^= u.int_in_range(1..=255u8)?;
            self.changed = true;
        }
        Ok(())
    }

    fn stranger_sends(&mut self, u: &mut Unstructured<'_>, who: usize) -> Result<()> {
        let Some(framer) = &mut self.stranger else {
            self.ends[who].resume();
            return Ok(());
        };
        let [from, to] = &mut self.ends;
        let ulpdu = ulpdu(u, to, &mut self.msns)?;
        let mut out = Vec::new();
        framer.frame(&mut out, &ulpdu, &[][..]);
        from.wire.extend(out);
        self.carry(0, usize::MAX, u.arbitrary()?);
        Ok(())
    }

    /// Mostly long ones: a message that does not fit ends the connection.
    fn post_receives(&mut self, u: &mut Unstructured<'_>, who: usize) -> Result<()> {
        for _ in 0..u.int_in_range(1..=4u8)? {
            let short = u.ratio(1u8, 8u8)?;
            let elements = if short {
                (part(u)?, part(u)?)
            } else {
                (254, 254)
            };
            let bad_key = u.ratio(1u8, 64u8)?;
            self.ends[who].post_receive(elements, bad_key);
        }
        Ok(())
    }

    fn mishap(&mut self, u: &mut Unstructured<'_>, who: usize) -> Result<()> {
        let end = &mut self.ends[who];
        match u.int_in_range(0..=47u8)? {
            0 => end.close(),
            1 => end.tcp_ends(TcpEnd::Lost),
            2 => end.mrs.deregister(end.memory.sinks.keys),
            3 => end.mrs.deregister(end.memory.receives.keys),
            4 => end.mrs.deregister(end.memory.source.keys),
            // Not while a window is bound to it.
            5 => drop(end.mrs.try_deregister(end.memory.open.keys)),
            6 => end.engine.send_last_notices(true),
            7 if self.stranger.is_some() => end.tcp_ends(TcpEnd::Fin),
            _ => end.resume(),
        }
        Ok(())
    }

    fn post(&mut self, u: &mut Unstructured<'_>, who: usize) -> Result<()> {
        let [first, second] = &mut self.ends;
        let (own, peer) = if who == 0 {
            (first, second)
        } else {
            (second, first)
        };
        let (wqe, about) = work_request(u, own, peer)?;
        if own.room_to_send() {
            if matches!(wqe.work, RcWork::Read { .. } | RcWork::Atomic { .. }) {
                own.memory.clear_slot(own.memory.sinks, wqe.wr_id);
            }
            own.post(wqe, about);
        }
        Ok(())
    }

    fn look(&mut self) {
        // Without CRCs nobody notices.
        let exact = self.crc || !self.changed;
        let known = self.stranger.is_none();
        let [first, second] = &mut self.ends;
        let (ours, theirs) = (&mut first.messages, &mut second.messages);
        let (mut to_first, mut to_second) = (std::mem::take(theirs), std::mem::take(ours));
        first.look(known.then_some(&mut to_first), exact);
        second.look(known.then_some(&mut to_second), exact);
        first.messages = to_second;
        second.messages = to_first;
    }

    /// Everything that can arrive does, and both ends close.
    fn settle(&mut self) {
        let mut quiet = 0;
        // Afterwards nothing new happens but timeouts.
        for _ in 0..50 {
            quiet = if self.ends.iter().all(|end| end.wire.is_empty()) {
                quiet + 1
            } else {
                0
            };
            if quiet > 4 {
                break;
            }
            for who in usize::from(self.stranger.is_some())..2 {
                let end = &mut self.ends[who];
                end.transmit(usize::MAX, who == 0);
                end.resume();
                end.time_passes(Duration::from_millis(100));
                self.carry(who, usize::MAX, who == 0);
                self.look();
            }
        }
        for end in &mut self.ends {
            end.close();
        }
        self.look();
        for end in &self.ends {
            end.check_over();
        }
    }
}

/// Octets of an element in a slot.
fn part(u: &mut Unstructured<'_>) -> Result<u32> {
    Ok(u32::from(u.arbitrary::<u8>()?) * 254 / 255)
}

/// A work request, mostly one that can be done: others end the connection.
fn work_request(u: &mut Unstructured<'_>, own: &End, peer: &End) -> Result<(RcSendWqe, Sent)> {
    let kind = u.int_in_range(0..=20u8)?;
    let wild = u.ratio(1u8, 24u8)?;
    let mut about = Sent::Other;
    let writes = matches!(kind, 9..=13);
    let mut data = RcData::Sges(elements(u, own, writes, wild)?);
    if kind < 14 && u.ratio(1u8, 8u8)? {
        let octets = u.int_in_range(1..=MAX_INLINE)?;
        data = RcData::Inline((0..octets).map(|_| 0x77).collect());
    }
    let sink = |elements| own.memory.sinks.elements(own.sends.next(), elements);
    let parts = (part(u)?, part(u)?);
    match kind {
        14..=17 => data = RcData::Sges(SgeList::from_slice(&sink(parts))),
        18 | 19 => data = RcData::Sges(SgeList::from_slice(&sink((8, 0))[..1])),
        20 => data = RcData::Sges(SgeList::new()),
        _ => {}
    }
    let length = match &data {
        RcData::Sges(sges) => sges.iter().map(|sge| sge.length).sum(),
        RcData::Inline(octets) => u32::try_from(octets.len()).expect("at most 256"),
    };
    let (stag, start) = if wild {
        (
            STag::new(stag(u, peer)?),
            TaggedOffset::new(place(u, peer)?),
        )
    } else {
        target(u, peer, kind, length)?
    };
    let work = match kind {
        0..=7 => RcWork::Send {
            invalidate: wild.then_some(stag),
        },
        8 => RcWork::SendImmediate {
            immediate: u.arbitrary()?,
        },
        9..=13 => RcWork::Write {
            stag,
            start,
            immediate: u.ratio(1u8, 3u8)?.then_some(0x0102_0304),
        },
        14..=17 => {
            about = read_of(peer, (stag, start), parts);
            RcWork::Read { stag, start }
        }
        18 | 19 => RcWork::Atomic {
            stag,
            start,
            operation: operation(u)?,
        },
        _ => RcWork::Memory(memory_work(u, own)?),
    };
    let wqe = RcSendWqe {
        wr_id: own.sends.next(),
        work,
        data,
        length,
        signaled: u.ratio(3u8, 4u8)?,
        solicited: u.arbitrary()?,
        fence: u.ratio(1u8, 8u8)?,
        remote_srqn: 0,
    };
    Ok((wqe, about))
}

/// Octets of the peer's that it gives leave to: to read some that are known, to write others.
fn target(
    u: &mut Unstructured<'_>,
    peer: &End,
    kind: u8,
    length: u32,
) -> Result<(STag, TaggedOffset)> {
    let reads = matches!(kind, 14..=17);
    let area = if reads {
        peer.memory.source
    } else {
        peer.memory.open
    };
    let room = (area.len as u64).saturating_sub(length.into()) / 8;
    let start = area.addr() + 8 * (u64::from(u.arbitrary::<u16>()?) % room.max(1));
    Ok((STag::new(area.keys.rkey), TaggedOffset::new(start)))
}

/// Expected payload of a Read, if its source is known.
fn read_of(peer: &End, (stag, start): (STag, TaggedOffset), elements: (u32, u32)) -> Sent {
    let source = peer.memory.source;
    let from = start.get().checked_sub(source.addr());
    match from.and_then(|from| usize::try_from(from).ok()) {
        Some(from) if stag.get() == source.keys.rkey => Sent::Read { from, elements },
        Some(_) | None => Sent::Other,
    }
}

/// Elements of the area of messages. Elements of Writes may be long.
fn elements(u: &mut Unstructured<'_>, own: &End, writes: bool, wild: bool) -> Result<SgeList> {
    let count = u.int_in_range(0..=3u8)?;
    let source = own.memory.source;
    (0..count)
        .map(|_| {
            let length = u32::from(u.arbitrary::<u16>()?);
            let most = if writes && u.ratio(1u8, 3u8)? {
                6800
            } else {
                160
            };
            let length = length % if wild { 700 } else { most };
            let room = source.len as u64 - u64::from(length);
            let beyond = if wild { 300 } else { 0 };
            Ok(Sge {
                addr: source.addr() + u64::from(u.arbitrary::<u16>()?) % (room + beyond),
                length,
                lkey: if wild && u.ratio(1u8, 4u8)? {
                    own.memory.foreign.keys.lkey
                } else {
                    source.keys.lkey
                },
            })
        })
        .collect()
}

fn operation(u: &mut Unstructured<'_>) -> Result<AtomicOperation> {
    Ok(if u.arbitrary()? {
        AtomicOperation::FetchAdd {
            add: u.arbitrary()?,
            mask: u.arbitrary()?,
        }
    } else {
        AtomicOperation::CompareSwap {
            compare: u64::from(u.arbitrary::<u8>()?),
            compare_mask: u.arbitrary()?,
            swap: u.arbitrary()?,
            swap_mask: u.arbitrary()?,
        }
    })
}

fn memory_work(u: &mut Unstructured<'_>, own: &End) -> Result<MemoryWork> {
    let variant = u32::from(u.int_in_range(0..=2u8)?);
    Ok(match u.int_in_range(0..=2u8)? {
        0 => MemoryWork::LocalInvalidate {
            stag: STag::new(stag(u, own)?),
        },
        1 => MemoryWork::BindMw(Bind {
            kind: *u.choose(&[MwType::Two, MwType::One])?,
            rkey: own.window ^ variant,
            lkey: *u.choose(&[own.memory.open.keys.lkey, own.memory.sinks.keys.lkey])?,
            addr: place(u, own)?,
            length: u64::from(u.arbitrary::<u16>()?) % (4 * SLOT as u64),
            access: Access::from_bits_truncate(u.arbitrary()?),
            zero_based: u.arbitrary()?,
        }),
        _ => MemoryWork::RegisterMr {
            rkey: own.fast ^ variant,
            access: Access::from_bits_truncate(u.arbitrary()?),
        },
    })
}
