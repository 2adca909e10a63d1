//! A conversation of two ends, and the packets of it.

use etherparse::{PacketBuilder, TcpOptionElement};

use crate::wire::ddp::{AtomicRequest, ReadRequest, Segment, Terminate, opcode};
use crate::wire::framing::{Framer, Wrong};
use crate::wire::startup::{C, Depths, M, REPLY, REQUEST, S, Startup};

/// One thing that an end says behind the startup.
#[derive(Clone, Debug)]
pub(super) struct Said {
    /// 0: the Initiator.
    pub(super) way: usize,
    pub(super) ulpdu: Vec<u8>,
    pub(super) wrong: Wrong,
}

/// A conversation.
#[derive(Clone, Debug)]
pub(super) struct Talk {
    pub(super) request: Startup,
    pub(super) reply: Startup,
    pub(super) said: Vec<Said>,
    /// The MSS that both ends announce.
    pub(super) mss: u16,
}

/// Things said in [`Talk::good`] that mutations change.
pub(super) mod at {
    pub(in super::super) const RTR: usize = 0;
    pub(in super::super) const SEND: usize = 1;
    pub(in super::super) const WRITE: usize = 4;
    pub(in super::super) const READ: usize = 6;
    pub(in super::super) const RESPONSE: usize = 8;
    pub(in super::super) const SECOND_RESPONSE: usize = 10;
    pub(in super::super) const ATOMIC: usize = 11;
    pub(in super::super) const ATOMIC_RESPONSE: usize = 12;
    pub(in super::super) const IMMEDIATE: usize = 13;
    pub(in super::super) const INVALIDATE: usize = 14;
    pub(in super::super) const TERMINATE: usize = 15;
}

pub(super) fn depths(ird: u16, ord: u16) -> Depths {
    Depths {
        ird,
        ord,
        peer_to_peer: true,
        send: false,
        write: true,
        read: true,
    }
}

impl Talk {
    /// One with every kind of message and nothing wrong.
    pub(super) fn good() -> Self {
        let read = |size, to| ReadRequest {
            sink_stag: 0x51,
            sink_to: to,
            size,
            source_stag: 0x52,
            source_to: 0,
        };
        let request = |msn, read: ReadRequest| {
            Segment::untagged(opcode::READ_REQUEST, 1, msn, &read.to_bytes())
        };
        let response =
            |to, payload: &[u8]| Segment::tagged(opcode::READ_RESPONSE, 0x51, to, payload);
        let atomic = AtomicRequest {
            identifier: 7,
            ..AtomicRequest::default()
        };
        let mut answer = 7_u32.to_be_bytes().to_vec();
        answer.extend([1; 8]);
        let terminate = Terminate {
            layer: 1,
            etype: 2,
            code: 1,
            header_control: 0b110,
            reserved: 0,
            // About the second Read Request.
            rest: [
                &[0, 46][..],
                &Segment::untagged(opcode::READ_REQUEST, 1, 2, &[]).to_bytes(),
            ]
            .concat(),
        };
        let lines = [
            (0, Segment::tagged(opcode::WRITE, 0, 0, &[])),
            (0, Segment::untagged(opcode::SEND, 0, 1, &[1; 100]).more()),
            (
                0,
                Segment::untagged(opcode::SEND, 0, 1, &[2; 100])
                    .more()
                    .at(100),
            ),
            (0, Segment::untagged(opcode::SEND, 0, 1, &[3; 33]).at(200)),
            (
                0,
                Segment::tagged(opcode::WRITE, 0x61, 0x1000, &[4; 1000]).more(),
            ),
            (0, Segment::tagged(opcode::WRITE, 0x61, 0x13e8, &[5; 10])),
            (0, request(1, read(150, 0x100))),
            (0, request(2, read(10, 0x900))),
            (1, response(0x100, &[6; 100]).more()),
            (1, response(0x164, &[7; 50])),
            (1, response(0x900, &[8; 10])),
            (
                0,
                Segment::untagged(opcode::ATOMIC_REQUEST, 1, 3, &atomic.to_bytes()),
            ),
            (1, Segment::untagged(opcode::ATOMIC_RESPONSE, 3, 1, &answer)),
            (0, Segment::untagged(opcode::IMMEDIATE, 0, 2, &[9; 8])),
            (
                0,
                Segment::untagged(opcode::SEND_INVALIDATE, 0, 3, &[]).invalidating(0x61),
            ),
            (
                1,
                Segment::untagged(opcode::TERMINATE, 2, 1, &terminate.to_bytes()),
            ),
        ];
        let said = lines.into_iter().map(|(way, segment)| Said {
            way,
            ulpdu: segment.to_bytes(),
            wrong: Wrong::default(),
        });
        Self {
            request: Startup::new(REQUEST, C | S, 2, &depths(2, 2).to_bytes()),
            reply: Startup::new(REPLY, C | S, 2, &depths(2, 2).to_bytes()),
            said: said.collect(),
            mss: u16::MAX,
        }
    }

    /// Adds Markers both ways, or leaves CRCs out.
    pub(super) fn with_flags(mut self, markers: bool, crc: bool) -> Self {
        for frame in [&mut self.request, &mut self.reply] {
            frame.flags = S | if markers { M } else { 0 } | if crc { C } else { 0 };
        }
        self
    }

    /// Output of the ends in order: startup frames and FPDUs.
    pub(super) fn pieces(&self) -> Vec<(usize, Vec<u8>)> {
        let crc = self.request.has(C) || self.reply.has(C);
        let markers = [self.reply.has(M), self.request.has(M)];
        let mut framers = markers.map(|markers| Framer::new(crc, markers));
        let mut pieces = vec![(0, self.request.to_bytes()), (1, self.reply.to_bytes())];
        for said in &self.said {
            let framer = &mut framers[said.way];
            pieces.push((said.way, framer.wrong_fpdu(&said.ulpdu, said.wrong)));
        }
        pieces
    }

    pub(super) fn packets(&self) -> Vec<Vec<u8>> {
        packets_with(&self.pieces(), [u32::MAX - 300, 1000], self.mss)
    }
}

/// The packets of a whole connection, with SYNs and FINs.
pub(super) fn packets(pieces: &[(usize, Vec<u8>)], first: [u32; 2]) -> Vec<Vec<u8>> {
    packets_with(pieces, first, u16::MAX)
}

fn packets_with(pieces: &[(usize, Vec<u8>)], first: [u32; 2], mss: u16) -> Vec<Vec<u8>> {
    let mut wire = Wire { next: first, mss };
    let mut packets = vec![wire.packet(0, Flag::Syn, &[])];
    packets.push(wire.packet(1, Flag::Syn, &[]));
    for (way, octets) in pieces {
        packets.push(wire.packet(*way, Flag::None, octets));
    }
    packets.push(wire.packet(0, Flag::Fin, &[]));
    packets.push(wire.packet(1, Flag::Fin, &[]));
    packets
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flag {
    None,
    Syn,
    Fin,
}

struct Wire {
    next: [u32; 2],
    mss: u16,
}

impl Wire {
    fn packet(&mut self, way: usize, flag: Flag, octets: &[u8]) -> Vec<u8> {
        let ends = [([10, 0, 0, 1], 40_000), ([10, 0, 0, 2], 7174)];
        let ((from, from_port), (to, to_port)) = (ends[way], ends[1 - way]);
        let mut tcp = PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4(from, to, 64)
            .tcp(from_port, to_port, self.next[way], 65_535);
        if flag == Flag::Syn {
            let mss = TcpOptionElement::MaximumSegmentSize(self.mss);
            tcp = tcp.syn().options(&[mss]).unwrap();
        }
        if flag == Flag::Fin {
            tcp = tcp.fin();
        }
        if (flag, way) != (Flag::Syn, 0) {
            tcp = tcp.ack(self.next[1 - way]);
        }
        let extra = u32::from(flag != Flag::None);
        let more = u32::try_from(octets.len()).unwrap() + extra;
        self.next[way] = self.next[way].wrapping_add(more);
        let mut packet = Vec::new();
        tcp.write(&mut packet, octets).unwrap();
        packet
    }
}
