//! A capture that lacks packets, has them twice or in another order accuses nobody of anything that the whole one does not.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use dgiwarp_conform::trace::{Item, Packet, Reader, Trace, What};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// Edits of each capture in the test command, and in a long run.
const SHORT: u64 = 60;
const LONG: u64 = 500;

/// A packet of a capture.
#[derive(Clone)]
struct Kept {
    link: u32,
    octets: Vec<u8>,
}

/// Findings by rule, sender, receiver and octets.
type Found = BTreeMap<(&'static str, SocketAddr, SocketAddr, Vec<u8>), (usize, String)>;

/// Every capture of the tree: those of siw, and the fuzzer's corpus.
fn captures() -> Vec<PathBuf> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/captures");
    let mut files = Vec::new();
    for folder in [super::folder(), corpus] {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "md") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// The packets of a file; none if it is no capture.
fn packets(file: &Path) -> Vec<Kept> {
    let mut packets = Vec::new();
    let octets = std::fs::read(file).unwrap();
    let Ok(mut reader) = Reader::new(&octets[..]) else {
        return packets;
    };
    while let Ok(Some(packet)) = reader.next_packet() {
        packets.push(Kept {
            link: packet.link,
            octets: packet.octets.to_vec(),
        });
    }
    packets
}

fn found(packets: &[Kept]) -> Found {
    let mut trace = Trace::new();
    let mut found = Found::new();
    let mut sink = |item: &Item<'_>| {
        if let What::Finding(finding) = item.what {
            let key = (finding.rule.id, item.from, item.to, finding.octets.clone());
            let entry = found
                .entry(key)
                .or_insert_with(|| (0, finding.detail.clone()));
            entry.0 += 1;
        }
    };
    for (number, kept) in (1..).zip(packets) {
        let packet = Packet {
            number,
            at: number * 1000,
            link: kept.link,
            octets: &kept.octets,
            comment: None,
        };
        trace.take(&packet, &mut sink);
    }
    trace.finish(&mut sink);
    found
}

/// One to four removals, repetitions and exchanges, with their description.
fn edit(packets: &mut Vec<Kept>, random: &mut ChaCha8Rng) -> String {
    let mut done = Vec::new();
    for _ in 0..random.random_range(1..=4) {
        if packets.len() < 2 {
            break;
        }
        let at = random.random_range(0..packets.len());
        let other = random.random_range(0..packets.len());
        match random.random_range(0..4) {
            0 => {
                packets.remove(at);
                done.push(format!("without {at}"));
            }
            1 => {
                let again = packets[at].clone();
                packets.insert(other, again);
                done.push(format!("{at} again at {other}"));
            }
            2 => {
                packets.swap(at, other);
                done.push(format!("{at} for {other}"));
            }
            _ => {
                let next = (at + 1) % packets.len();
                packets.swap(at, next);
                done.push(format!("{at} for {next}"));
            }
        }
    }
    done.join(", ")
}

/// Edits every capture so often, beginning with this seed.
fn nothing_is_added(first: u64, edits: u64) {
    let mut wrong = Vec::new();
    for file in captures() {
        let whole = packets(&file);
        let known = found(&whole);
        for seed in first..first + edits {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            let mut packets = whole.clone();
            let edits = edit(&mut packets, &mut random);
            for (key, (count, detail)) in found(&packets) {
                if known.get(&key).is_none_or(|(known, _)| *known < count) {
                    let (rule, from, to, _) = key;
                    let name = file.file_name().unwrap().display().to_string();
                    wrong.push(format!(
                        "{name}, seed {seed} ({edits}): {rule} of {from} to {to}: {detail}"
                    ));
                }
            }
        }
    }
    let shown = wrong.iter().take(20).cloned().collect::<Vec<_>>();
    assert!(
        wrong.is_empty(),
        "{} in all:\n{}",
        wrong.len(),
        shown.join("\n")
    );
}

#[test]
#[ignore = "about a minute"]
fn soak_removals_repetitions_and_exchanges_add_no_finding() {
    nothing_is_added(SHORT, LONG);
}

#[test]
fn removals_repetitions_and_exchanges_add_no_finding() {
    nothing_is_added(0, SHORT);
}
