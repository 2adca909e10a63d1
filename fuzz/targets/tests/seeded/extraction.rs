//! Corpora out of captures of real traffic: one frame of each kind.
//!
//! `FUZZ_EXTRACT=1 cargo test -p dgiwarp-fuzz-targets --all-features --test seeded extract` writes them anew.

#[path = "../../../../conformance/tests/it/captures/trace.rs"]
mod trace;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use dgiwarp_conform::wire::ddp::Segment;
use dgiwarp_conform::wire::framing::Deframer;
use dgiwarp_conform::wire::startup::{HEADER, M, Startup};

/// Longer frames differ from shorter ones in nothing that parsers look at.
const LONGEST: usize = 160;
/// Octets of a stream: a startup frame and the first FPDUs.
const STREAM: usize = 900;
/// Octets of a capture file: a connection's beginning.
const FILE: usize = 2400;
/// Captures whose beginnings differ for whoever reads them.
const FILES: [&str; 4] = [
    "probe-rev1-markers",
    "rping-crc-p2p-rtr1",
    "rping-default-v6",
    "rdma_client-default",
];

type Corpus = BTreeMap<String, Vec<u8>>;

fn folder(of: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(of)
}

/// One direction of a connection.
struct Direction {
    startup: Vec<u8>,
    markers: bool,
    fpdus: Vec<u8>,
    ulpdus: Vec<Vec<u8>>,
}

fn split(octets: &[u8]) -> Option<(Startup, &[u8], &[u8])> {
    let frame = Startup::parse(octets.first_chunk::<HEADER>()?);
    let (startup, fpdus) = octets.split_at_checked(HEADER + usize::from(frame.pd_length))?;
    Some((frame, startup, fpdus))
}

fn direction(octets: &[u8], other: &[u8]) -> Option<Direction> {
    let (_, startup, fpdus) = split(octets)?;
    // Markers are what the other end asked for.
    let markers = split(other)?.0.has(M);
    let mut deframer = Deframer::new(markers);
    let (mut rest, mut ulpdus) = (fpdus, Vec::new());
    while let Some(fpdu) = deframer.take(rest) {
        rest = &rest[fpdu.octets..];
        ulpdus.push(fpdu.ulpdu);
    }
    Some(Direction {
        startup: startup.to_vec(),
        markers,
        fpdus: fpdus.to_vec(),
        ulpdus,
    })
}

/// Properties of a ULPDU that matter to parsers: its control octets, queue, and whether there is payload.
fn kind(ulpdu: &[u8]) -> Option<String> {
    let segment = Segment::parse(ulpdu)?;
    let payload = segment.payload.len().min(8);
    Some(format!(
        "{:02x}-{:02x}-{payload}",
        segment.ddp, segment.rdmap
    ))
}

/// How an input of `deframer` begins: pieces of 37 octets, an octet stream, whether it has CRCs, whether Markers.
fn stream_input(markers: bool, fpdus: &[u8]) -> Vec<u8> {
    let mut input = vec![0, 36, 0, 2, 1, u8::from(markers)];
    input.extend(&fpdus[..fpdus.len().min(STREAM)]);
    input
}

/// Input for one end of a connection: revision 2 with CRCs, without Markers of its own, in the other role than `octets`' sender.
fn startup_input(responds: bool, octets: &[u8]) -> Vec<u8> {
    let mut input = vec![0, 36, 0, 0, 1, 1, 1, 1, 1, 0, 16, 0, 16, 0, 0, 0, 0xa8, 5];
    input.extend([u8::from(!responds), 0]);
    input.extend(&octets[..octets.len().min(STREAM)]);
    input
}

/// The packets at the beginning of a capture file (pcap, little endian).
fn beginning(path: &Path) -> Vec<u8> {
    let file = fs::read(path).unwrap();
    let mut end = 24;
    while let Some(header) = file.get(end..end + 16) {
        let next = end + 16 + u32::from_le_bytes(header[8..12].try_into().unwrap()) as usize;
        if next > FILE {
            break;
        }
        end = next;
    }
    file[..end].to_vec()
}

/// Inputs from the captures of siw's traffic, by target.
fn extract() -> BTreeMap<&'static str, Corpus> {
    let mut corpora: BTreeMap<&'static str, Corpus> = BTreeMap::new();
    let (mut frames, mut streams) = (BTreeSet::new(), BTreeSet::new());
    let mut put = |target, name: String, octets: &[u8]| {
        let corpus = corpora.entry(target).or_default();
        corpus.entry(name).or_insert_with(|| octets.to_vec());
    };
    let mut captures: Vec<_> = fs::read_dir(folder("conformance/interop/captures"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|it| it == "pcap"))
        .collect();
    captures.sort();
    for path in captures {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if FILES.contains(&name.as_str()) {
            put("captures", format!("file-{name}.pcap"), &beginning(&path));
        }
        for stream in trace::streams(&path) {
            let (ours, theirs) = (&stream.from_initiator, &stream.from_responder);
            for (octets, other, end) in [(ours, theirs, "request"), (theirs, ours, "reply")] {
                let Some(found) = direction(octets, other) else {
                    continue;
                };
                let capture = format!("{name}-{end}");
                if frames.insert(found.startup.clone()) {
                    put("parsers", format!("startup-{capture}"), &found.startup);
                    put("captures", format!("startup-{capture}"), &found.startup);
                    let input = startup_input(end == "request", octets);
                    put("deframer", format!("startup-{capture}"), &input);
                }
                let kinds: BTreeSet<_> = found.ulpdus.iter().filter_map(|it| kind(it)).collect();
                if streams.insert((found.markers, kinds)) {
                    let input = stream_input(found.markers, &found.fpdus);
                    put("deframer", format!("fpdus-{capture}"), &input);
                }
                for ulpdu in &found.ulpdus {
                    let Some(kind) = kind(ulpdu) else { continue };
                    let short = &ulpdu[..ulpdu.len().min(LONGEST)];
                    put("parsers", format!("ulpdu-{kind}"), short);
                    put("captures", format!("ulpdu-{kind}"), short);
                    let payload = Segment::parse(short).unwrap().payload;
                    // Read Requests, atomics and Terminates have headers of their own behind that of DDP.
                    if ulpdu[0] & 0x80 == 0 && !matches!(ulpdu[1] & 0xf, 3..=6) {
                        put("parsers", format!("payload-{kind}"), &payload);
                    }
                }
            }
        }
    }
    corpora
}

#[test]
fn extracted_frames_are_those_of_the_captures() {
    let write = std::env::var_os("FUZZ_EXTRACT").is_some();
    for (target, corpus) in extract() {
        let folder = folder("fuzz/corpus").join(target);
        if write {
            fs::create_dir_all(&folder).unwrap();
        }
        assert!(corpus.len() > 5, "{target}: {}", corpus.len());
        for (name, octets) in corpus {
            let path = folder.join(format!("siw-{name}"));
            if write {
                fs::write(&path, &octets).unwrap();
            }
            let kept =
                fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert!(kept == octets, "{}", path.display());
        }
    }
}
