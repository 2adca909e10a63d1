//! Our reliable datagrams in Wireshark: the dissector of `tools/wireshark` finds in each what our own decoder finds.

use std::fs;
use std::path::Path;

use super::datagrams::{SOON, complaints, one_packet, seal, tshark};
use dgiwarp::{
    Access, Buffer, Config, Cq, Destination, Mr, Pd, QpAttr, RcOperation, RcSendWr, RdQp, RdQpAttr,
    RdSendWr, RecvWr, Rnic, WcStatus,
};
use dgiwarp_conform::trace::{Item, Reader, Trace, What};
use dgiwarp_conform::wire::datagram::Datagram;
use dgiwarp_conform::wire::reliable::{Frame, Reliable};

const LENGTH: usize = 20_000;

/// Fields that both decoders know, in this order. Fields of frames come once for each frame that has them.
const FIELDS: [&str; 14] = [
    "dgiwarp.rd.packet",
    "dgiwarp.rd.association",
    "dgiwarp.rd.epoch",
    "dgiwarp.rd.hello",
    "dgiwarp.frame.type",
    "dgiwarp.segment.number",
    "dgiwarp.segment.message",
    "dgiwarp.segment.index",
    "dgiwarp.segment.opcode",
    "dgiwarp.ack.largest",
    "dgiwarp.placed.next",
    "dgiwarp.credit.receives",
    "dgiwarp.close.reason",
    "dgiwarp.crc.status",
];

struct End {
    qp: RdQp,
    cq: Cq,
    mr: Mr,
    pd: Pd,
    _memory: Buffer,
}

impl End {
    fn new(folder: &Path) -> Self {
        let mut config = Config::default();
        config.pcap = Some(folder.to_owned());
        let rnic = Rnic::open(config).unwrap();
        let pd = rnic.alloc_pd();
        let cq = rnic.create_cq(64).unwrap();
        let memory = Buffer::zeroed(LENGTH).unwrap();
        let qp = pd.create_rd_qp(&RdQpAttr::new(QpAttr::new(&cq, &cq)));
        Self {
            qp: qp.unwrap(),
            mr: pd.register(memory.region(), Access::all()).unwrap(),
            cq,
            pd,
            _memory: memory,
        }
    }

    fn post(&self, to: &Self, operation: RcOperation, length: usize) {
        let sges = [self.mr.sge(..length)];
        let wr = RdSendWr {
            destination: Destination {
                ah: self.pd.create_ah("127.0.0.1".parse().unwrap()).unwrap(),
                qpn: to.qp.qpn(),
                qkey: 0,
            },
            wr: RcSendWr {
                operation,
                ..RcSendWr::send(1, &sges)
            },
        };
        self.qp.post_send(&[wr]).unwrap();
        self.completes();
    }

    fn completes(&self) {
        let wc = self.cq.wait(SOON).unwrap().expect("a completion");
        assert_eq!(wc.status, WcStatus::Success);
    }
}

/// Messages of several kinds.
fn traffic(folder: &Path) {
    let (client, server) = (End::new(folder), End::new(folder));
    let (rkey, remote_addr) = (server.mr.rkey(), server.mr.addr());
    for length in [0, 100, LENGTH] {
        let sges = [server.mr.sge(..)];
        let wr_id = 2;
        let receive = RecvWr { wr_id, sges: &sges };
        server.qp.post_recv(&[receive]).unwrap();
        let send = RcSendWr::send(1, &[]).operation;
        client.post(&server, send, length);
        server.completes();
        for operation in [
            RcOperation::Write {
                rkey,
                remote_addr,
                immediate: None,
            },
            RcOperation::Read { rkey, remote_addr },
        ] {
            client.post(&server, operation, length);
        }
    }
}

/// The fields of a datagram as tshark shows them.
fn row(reliable: &Reliable) -> String {
    let list = |values: &mut dyn Iterator<Item = String>| values.collect::<Vec<_>>().join("|");
    let frames = || reliable.frames.iter();
    let segments = || {
        frames().filter_map(|frame| match frame {
            Frame::Segment(it) => Some(it),
            _ => None,
        })
    };
    let of = |pick: fn(&Frame) -> Option<String>| list(&mut frames().filter_map(pick));
    [
        reliable.number.to_string(),
        format!("0x{:08x}", reliable.association),
        format!("0x{:08x}", reliable.epoch),
        (if reliable.flags & 2 == 0 { "0" } else { "1" }).to_owned(),
        of(|frame| {
            let kind = match frame {
                Frame::Pad(_) => 0,
                Frame::Segment(_) => 1,
                Frame::Ack(_) => 2,
                Frame::Placed { .. } => 3,
                Frame::Credit { .. } => 4,
                Frame::Rnr { .. } => 5,
                Frame::Error { .. } => 6,
                Frame::Hello(_) => 7,
                Frame::Ping(_) => 8,
                Frame::Pong(_) => 9,
                Frame::Close { .. } => 10,
            };
            Some(kind.to_string())
        }),
        list(&mut segments().map(|it| it.number.to_string())),
        list(&mut segments().map(|it| it.message.to_string())),
        list(&mut segments().map(|it| it.index.to_string())),
        list(&mut segments().map(|it| (it.octets[1] & 0xf).to_string())),
        of(|frame| match frame {
            Frame::Ack(it) => Some(it.ranges[0].1.to_string()),
            _ => None,
        }),
        of(|frame| match frame {
            Frame::Placed { next, .. } => Some(next.to_string()),
            _ => None,
        }),
        of(|frame| match frame {
            Frame::Credit { receives, .. } => Some(receives.to_string()),
            Frame::Hello(it) => Some(it.receives.to_string()),
            _ => None,
        }),
        of(|frame| match frame {
            Frame::Close { reason, .. } => Some(reason.to_string()),
            _ => None,
        }),
        "1".to_owned(),
    ]
    .join("\t")
}

/// The datagrams of a file as our own decoder has them, without a finding.
fn ours(file: &Path) -> Vec<(String, Vec<u8>)> {
    let mut reader = Reader::new(fs::File::open(file).unwrap()).unwrap();
    let mut trace = Trace::new();
    let mut rows = Vec::new();
    let mut sink = |item: &Item<'_>| match item.what {
        What::Datagram(seen) => match seen.parsed.unwrap() {
            Datagram::Reliable(reliable) => rows.push((row(reliable), seen.octets.to_vec())),
            other => panic!("{other}"),
        },
        other => panic!("{other:?}"),
    };
    while let Some(packet) = reader.next_packet().unwrap() {
        trace.take(&packet, &mut sink);
    }
    rows
}

#[test]
fn the_dissector_and_our_decoder_find_the_same_in_reliable_datagrams() {
    if xtask::debian::find_program("tshark").is_none() {
        return super::skip("tshark is missing (Debian package tshark)");
    }
    let folder = tempfile::tempdir().unwrap();
    traffic(folder.path());
    let mut opcodes = Vec::new();
    for file in fs::read_dir(folder.path()).unwrap() {
        let file = file.unwrap().path();
        let ours = ours(&file);
        assert!(ours.len() > 10, "{} datagrams", ours.len());
        let rows: Vec<_> = ours.iter().map(|(row, _)| row.as_str()).collect();
        assert_eq!(tshark(&file, &FIELDS), rows, "{}", file.display());
        assert_eq!(complaints(&file), Vec::<String>::new());
        let column = |row: &&str| row.split('\t').nth(8).unwrap_or_default().to_owned();
        opcodes.extend(rows.iter().map(column));

        let (_, octets) = ours.last().unwrap();
        let path = folder.path().join("changed.pcap");
        for (at, value, complaint) in [
            (24, 11, "A frame of an unknown type"),
            (26, 0xff, "A frame that goes beyond its datagram"),
        ] {
            let mut octets = octets.clone();
            octets[at] = value;
            seal(&mut octets);
            one_packet(&path, &octets);
            assert_eq!(complaints(&path), [complaint, "_ws.malformed"]);
        }
        fs::remove_file(&path).unwrap();
    }
    for opcode in ["0", "1", "2", "3"] {
        assert!(
            opcodes.iter().any(|it| it == opcode),
            "{opcode}: {opcodes:?}"
        );
    }
}
