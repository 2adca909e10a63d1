//! Our datagrams in Wireshark: the dissector of `tools/wireshark` finds in each what our own decoder finds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use dgiwarp::{
    Access, Buffer, Config, Cq, Destination, Mr, Operation, Pd, RecvWr, Rnic, SendWr, UdQp,
    UdQpAttr, WcOpcode, WcStatus,
};
use dgiwarp_codec::crc;
use dgiwarp_conform::trace::{Reader, Trace, What};
use dgiwarp_conform::wire::datagram::{Datagram, opcode};
use dgiwarp_conform::wire::ddp::{Place, ReadRequest};
use etherparse::PacketBuilder;

pub(super) const SOON: Duration = Duration::from_secs(20);
const LENGTH: usize = 20_000;

/// Fields that both decoders know, in this order.
const FIELDS: [&str; 19] = [
    "dgiwarp.opcode",
    "dgiwarp.stag",
    "dgiwarp.to",
    "dgiwarp.qkey",
    "dgiwarp.sender_epoch",
    "dgiwarp.qn",
    "dgiwarp.msn",
    "dgiwarp.mo",
    "dgiwarp.ext.epoch",
    "dgiwarp.ext.number",
    "dgiwarp.ext.length",
    "dgiwarp.ext.offset",
    "dgiwarp.cookie",
    "dgiwarp.payload_length",
    "dgiwarp.read.sink_stag",
    "dgiwarp.read.size",
    "dgiwarp.exchange.type",
    "dgiwarp.exchange.nonce",
    "dgiwarp.crc.status",
];
type Row = [Option<u64>; FIELDS.len()];

struct End {
    qp: UdQp,
    cq: Cq,
    mr: Mr,
    pd: Pd,
    _memory: Buffer,
}

impl End {
    fn new(folder: &Path) -> Self {
        let mut config = Config::default();
        config.max_mtu = 1500;
        config.pcap = Some(folder.to_owned());
        let rnic = Rnic::open(config).unwrap();
        let pd = rnic.alloc_pd();
        let cq = rnic.create_cq(64).unwrap();
        let attr = UdQpAttr {
            record_slots: 16,
            ..UdQpAttr::new(&cq, &cq)
        };
        let memory = Buffer::zeroed(LENGTH).unwrap();
        memory.write(0, &[7; LENGTH]);
        Self {
            qp: pd.create_ud_qp(&attr).unwrap(),
            mr: pd.register(memory.region(), Access::all()).unwrap(),
            cq,
            pd,
            _memory: memory,
        }
    }

    fn post(&self, to: &Self, operation: Operation, length: usize) {
        let wr = SendWr {
            wr_id: 1,
            operation,
            destination: Destination {
                ah: self.pd.create_ah("127.0.0.1".parse().unwrap()).unwrap(),
                qpn: to.qp.qpn(),
                qkey: 0,
            },
            sges: &[self.mr.sge(..length)],
            signaled: true,
            solicited: false,
        };
        self.qp.post_send(&[wr]).unwrap();
        self.completes();
    }

    fn completes(&self) -> WcOpcode {
        let wc = self.cq.wait(SOON).unwrap().expect("a completion");
        assert_eq!(wc.status, WcStatus::Success);
        wc.opcode
    }
}

/// Messages of every kind; gives the capture files of both queue pairs.
fn traffic(folder: &Path) -> Vec<PathBuf> {
    let (client, server) = (End::new(folder), End::new(folder));
    let (rkey, remote_addr) = (server.mr.rkey(), server.mr.addr());
    for length in [0, 100, LENGTH] {
        let sges = [server.mr.sge(..)];
        server
            .qp
            .post_recv(&[RecvWr {
                wr_id: 2,
                sges: &sges,
            }])
            .unwrap();
        client.post(&server, Operation::Send { immediate: None }, length);
        assert_eq!(server.completes(), WcOpcode::Recv);
        let record = Operation::WriteRecord {
            rkey,
            remote_addr,
            immediate: Some(5),
        };
        client.post(&server, record, length);
        assert_eq!(server.completes(), WcOpcode::WriteRecord);
        let timeout = Some(SOON);
        let read = Operation::Read {
            rkey,
            remote_addr,
            timeout,
        };
        client.post(&server, read, length);
    }
    drop((client, server));
    let files = fs::read_dir(folder).unwrap();
    files.map(|file| file.unwrap().path()).collect()
}

fn row(datagram: &Datagram) -> Row {
    let mut row = Row::default();
    let mut set = |name: &str, value: u64| {
        let at = FIELDS
            .iter()
            .position(|field| field.strip_prefix("dgiwarp.") == Some(name));
        row[at.unwrap()] = Some(value);
    };
    set("crc.status", 1);
    match datagram {
        Datagram::Segment(segment) => {
            set("opcode", segment.opcode().into());
            match segment.place {
                Place::Tagged { stag, to } => {
                    set("stag", stag.into());
                    set("to", to);
                }
                Place::Untagged { rsvd, qn, msn, mo } => {
                    set(if qn == 0 { "qkey" } else { "sender_epoch" }, rsvd.into());
                    set("qn", qn.into());
                    set("msn", msn.into());
                    set("mo", mo.into());
                }
            }
            if let Some(extension) = segment.extension {
                set("ext.epoch", extension.epoch.into());
                set("ext.number", extension.number.into());
                set("ext.length", extension.length.into());
                set("ext.offset", extension.offset.into());
            }
            if let Some(cookie) = segment.cookie {
                set("cookie", cookie);
            }
            if segment.opcode() == opcode::READ_REQUEST {
                let request = ReadRequest::parse(&segment.payload).unwrap();
                set("read.sink_stag", request.sink_stag.into());
                set("read.size", request.size.into());
            } else {
                set("payload_length", segment.payload.len() as u64);
            }
        }
        Datagram::Exchange(exchange) => {
            set("exchange.type", exchange.kind.into());
            set("exchange.nonce", exchange.nonce);
            set("cookie", exchange.cookie);
        }
        Datagram::Lookup(_) => panic!("nobody looked for a service"),
        Datagram::Reliable(_) => panic!("no queue pair is reliable"),
    }
    row
}

/// The datagrams of a file as our own decoder has them.
fn ours(file: &Path) -> Vec<(Row, Vec<u8>)> {
    let mut reader = Reader::new(fs::File::open(file).unwrap()).unwrap();
    let mut trace = Trace::new();
    let mut rows = Vec::new();
    let mut sink = |item: &dgiwarp_conform::trace::Item<'_>| match item.what {
        What::Datagram(seen) => rows.push((row(seen.parsed.unwrap()), seen.octets.to_vec())),
        other => panic!("{other:?}"),
    };
    while let Some(packet) = reader.next_packet().unwrap() {
        trace.take(&packet, &mut sink);
    }
    rows
}

/// Output of tshark for these fields, one line for each packet.
pub(super) fn tshark(file: &Path, fields: &[&str]) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/wireshark/dgiwarp.lua");
    let output = Command::new("tshark")
        .arg("-X")
        .arg(format!("lua_script:{}", script.display()))
        // The kernel may give a queue pair a port that Wireshark knows as another protocol's.
        .args(["-o", "udp.try_heuristic_first:TRUE"])
        // The kernel may give a queue pair a port that Wireshark knows as another protocol's.
        .arg("-r")
        .arg(file)
        .args(["-T", "fields", "-E", "separator=/t", "-E", "aggregator=|"])
        .args(fields.iter().flat_map(|field| ["-e", field]))
        .output()
        .unwrap();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && !complained.contains("dgiwarp.lua"),
        "{complained}"
    );
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(ToOwned::to_owned).collect()
}

fn theirs(file: &Path) -> Vec<Row> {
    let number = |text: &str| {
        let digits = text.strip_prefix("0x");
        let value = digits.map_or_else(|| text.parse(), |digits| u64::from_str_radix(digits, 16));
        (!text.is_empty()).then(|| value.unwrap_or_else(|error| panic!("{text}: {error}")))
    };
    (tshark(file, &FIELDS).iter())
        .map(|line| {
            let values: Vec<_> = line.split('\t').map(number).collect();
            values.try_into().unwrap()
        })
        .collect()
}

/// Complaints of the dissector: expert items but its notes on complete messages, our device's comments on datagrams that came too late and on the path, and
/// notes of the UDP dissector on some of the ports that the kernel chooses.
pub(super) fn complaints(file: &Path) -> Vec<String> {
    let lines = tshark(file, &["_ws.expert.message", "_ws.malformed"]);
    let items = lines.iter().flat_map(|line| line.split(['\t', '|']));
    items
        .filter(|item| !item.is_empty() && !item.contains("all of them up to here"))
        .filter(|item| !item.starts_with("dropped: "))
        .filter(|item| !item.contains("in flight "))
        .filter(|item| !item.starts_with("Possible traceroute"))
        .map(ToOwned::to_owned)
        .collect()
}

/// A copy of a file in which the last datagram that fits is another one of the same length.
fn changed(
    file: &Path,
    find: impl Fn(&[u8]) -> bool,
    change: impl FnOnce(&mut Vec<u8>),
) -> PathBuf {
    let all = ours(file);
    let (_, before) = all.iter().rev().find(|(_, octets)| find(octets)).unwrap();
    let mut after = before.clone();
    change(&mut after);
    let mut octets = fs::read(file).unwrap();
    let found = octets
        .windows(before.len())
        .rposition(|window| window == before);
    let at = found.unwrap();
    octets[at..at + after.len()].copy_from_slice(&after);
    let path = file.with_extension("changed");
    fs::write(&path, octets).unwrap();
    path
}

pub(super) fn seal(octets: &mut [u8]) {
    let (before, field) = octets.split_last_chunk_mut::<4>().unwrap();
    *field = crc::to_wire(crc::crc32c(before));
}

/// A file of raw IP with these octets in one datagram of UDP, from a port that is also EtherNet/IP's.
pub(super) fn one_packet(path: &Path, octets: &[u8]) {
    let mut packet = Vec::new();
    let builder = PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).udp(44_818, 50_000);
    builder.write(&mut packet, octets).unwrap();
    let length = u32::try_from(packet.len()).unwrap();
    let header: [u32; 10] = [
        0xa1b2_c3d4,
        4 << 16 | 2,
        0,
        0,
        262_144,
        101,
        1,
        0,
        length,
        length,
    ];
    let mut file: Vec<u8> = header.into_iter().flat_map(u32::to_be_bytes).collect();
    // The two halves of the version are a number each.
    file[4..8].copy_from_slice(&[0, 2, 0, 4]);
    file.extend(packet);
    fs::write(path, file).unwrap();
}

#[test]
fn the_dissector_and_our_decoder_find_the_same() {
    if xtask::debian::find_program("tshark").is_none() {
        return super::skip("tshark is missing (Debian package tshark)");
    }
    let folder = tempfile::tempdir().unwrap();
    let files = traffic(folder.path());
    assert_eq!(files.len(), 2);
    for file in &files {
        let ours = ours(file);
        assert!(ours.len() > 40, "{} datagrams", ours.len());
        let rows: Vec<_> = ours.iter().map(|(row, _)| *row).collect();
        assert_eq!(theirs(file), rows, "{}", file.display());
        assert_eq!(complaints(file), Vec::<String>::new());
    }
    let file = &files[0];
    let is_record = |octets: &[u8]| octets[..2] == [0x81, 0x4c];

    let bad = changed(file, is_record, |octets| octets[100] ^= 1);
    assert_eq!(complaints(&bad), ["Bad CRC32c"]);
    let reserved = changed(file, is_record, |octets| {
        octets[1] |= 0x10;
        seal(octets);
    });
    assert_eq!(complaints(&reserved), ["Reserved bits are not zero"]);
    let malformed = changed(file, is_record, |octets| {
        octets[0] |= 0x40;
        seal(octets);
    });
    assert_eq!(
        complaints(&malformed),
        ["L is not that of the end of the message", "_ws.malformed"]
    );

    // A train as it is recorded where the kernel cuts it later.
    let records = ours(file);
    let train: Vec<u8> = records
        .iter()
        .filter(|(_, octets)| is_record(octets))
        .take(4)
        .flat_map(|(_, octets)| octets.clone())
        .collect();
    let path = folder.path().join("train.pcap");
    one_packet(&path, &train);
    assert_eq!(
        tshark(&path, &["dgiwarp.train", "dgiwarp.crc.status"]),
        ["4\t1|1|1|1"]
    );
}
