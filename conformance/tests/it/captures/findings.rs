//! Findings of a passive check in siw's traffic: deviations that are known, each seen in the octets, and nothing else.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use dgiwarp_conform::trace::{Reader, Trace, What};

/// Files with findings, the rules, and how often. In all others there are none.
const KNOWN: &[(&str, &[(&str, usize)])] = &[
    // The script offers a Send and then writes, because the Reply has nothing else.
    ("probe-rev2-p2p-send.pcap", &[("enhanced-rtr", 1)]),
    ("probe-rev3.pcap", &[("mpa-revision", 1)]),
    // siw pads with what lies in its buffer: the message of two octets at the end of perftest's exchange shows it.
    ("read_bw-default.pcap", &[("mpa-pad", 2)]),
    ("send_bw-crc.pcap", &[("mpa-pad", 2)]),
    ("send_bw-default.pcap", &[("mpa-pad", 2)]),
    ("send_lat-default.pcap", &[("mpa-pad", 2)]),
    ("write_bw-crc-odd-sizes.pcap", &[("mpa-pad", 2)]),
    ("write_bw-crc.pcap", &[("mpa-pad", 2)]),
    ("write_bw-default.pcap", &[("mpa-pad", 2)]),
    ("write_bw-lo64k.pcap", &[("mpa-pad", 2)]),
    ("write_bw-odd-sizes.pcap", &[("mpa-pad", 2)]),
    // siw has M and D six bits further on, among the reserved bits.
    (
        "rping-terminate.pcap",
        &[("terminate-figure", 1), ("terminate-reserved", 1)],
    ),
    // siw's own flag for long FPDUs.
    ("rping-try-gso.pcap", &[("mpa-reserved", 2)]),
];

/// The rules that a file breaks; everything in it can be judged.
fn findings(file: &Path) -> BTreeMap<&'static str, usize> {
    let mut reader = Reader::new(File::open(file).unwrap()).unwrap();
    let mut trace = Trace::new();
    let mut found = BTreeMap::new();
    let mut sink = |item: &dgiwarp_conform::trace::Item<'_>| match item.what {
        What::Finding(finding) => *found.entry(finding.rule.id).or_default() += 1,
        What::Unjudged(why) => panic!("{}: {why}", file.display()),
        What::Startup { .. } | What::Fpdu(_) | What::Datagram(_) => {}
    };
    while let Some(packet) = reader.next_packet().unwrap() {
        trace.take(&packet, &mut sink);
    }
    trace.finish(&mut sink);
    found
}

#[test]
fn known_deviations_are_found_and_nothing_else() {
    for row in super::table::rows(&super::folder()) {
        let known = KNOWN.iter().find(|(file, _)| *file == row.file);
        let known = known.map_or(&[][..], |(_, known)| known);
        let found = findings(&super::folder().join(&row.file));
        assert_eq!(found, known.iter().copied().collect(), "{}", row.file);
    }
}
