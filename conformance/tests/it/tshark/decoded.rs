//! A capture as tshark decodes it.

use std::path::Path;
use std::process::Command;

/// Expert items that our traffic may have, each with the reason.
const EXPECTED_EXPERTS: &[(&str, &str)] = &[
    (
        "Connection establish request (SYN)",
        "information about TCP",
    ),
    (
        "Connection establish acknowledge (SYN+ACK)",
        "information about TCP",
    ),
    ("Connection finish (FIN)", "information about TCP"),
    (
        "This frame initiates the connection closing",
        "information about TCP",
    ),
    (
        "This frame undergoes the connection closing",
        "information about TCP",
    ),
    ("TCP window update", "information about TCP"),
    (
        "TCP Zero Window",
        "a receiver that is slower than its sender for a moment",
    ),
    (
        "TCP window specified by the receiver is now completely full",
        "a receiver that is slower than its sender for a moment",
    ),
    (
        "This frame is a (suspected)",
        "a retransmission of the kernel's TCP, when its timer is early",
    ),
    ("D-SACK Sequence", "the answer to such a retransmission"),
    ("Duplicate ACK", "the answer to such a retransmission"),
    (
        "Rev field is NOT set to one",
        "RFC 6581 §6 made the enhanced setup revision 2; the decoder knows RFC 5044 only",
    ),
    (
        "Res field is NOT set to zero",
        "the S bit of RFC 6581 §9 is one of the bits that RFC 5044 reserves",
    ),
];

/// A decoded capture.
#[derive(Default)]
pub(crate) struct Decoded {
    /// Frames that the decoder could not make sense of.
    pub(crate) malformed: Vec<String>,
    /// FPDUs whose CRC is what the decoder calculates.
    pub(crate) good_crcs: usize,
    /// The others.
    pub(crate) bad_crcs: usize,
    /// FPDUs found.
    pub(crate) fpdus: usize,
    /// Terminate messages among them.
    pub(crate) terminates: usize,
    experts: Vec<String>,
}

/// The fields that are looked at, in this order.
const FIELDS: [&str; 5] = [
    "frame.number",
    "_ws.malformed",
    "iwarp_mpa.ulpdulength",
    "iwarp_rdma.term_ctrl",
    "_ws.expert.message",
];

impl Decoded {
    pub(crate) fn read(file: &Path) -> Self {
        let mut fields = vec!["-T", "fields", "-E", "separator=/t", "-E", "aggregator=|"];
        fields.extend(FIELDS.iter().flat_map(|field| ["-e", field]));
        let mut decoded = Self::default();
        for line in tshark(file, &fields).lines() {
            decoded.take(line);
        }
        // Whether a CRC is right, it says in words only.
        let words = tshark(file, &["-O", "iwarp_mpa"]);
        decoded.good_crcs = words.matches("(Good CRC32)").count();
        decoded.bad_crcs = words.matches("(Bad CRC32").count();
        decoded
    }

    fn take(&mut self, line: &str) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [frame, malformed, lengths, terminates, experts] = fields[..] else {
            panic!("not what was asked for: {line}");
        };
        if !malformed.is_empty() {
            self.malformed.push(format!("frame {frame}: {malformed}"));
        }
        self.fpdus += values(lengths).count();
        self.terminates += values(terminates).count();
        let unexpected = values(experts).filter(|expert| {
            !EXPECTED_EXPERTS
                .iter()
                .any(|(text, _)| expert.contains(text))
        });
        self.experts
            .extend(unexpected.map(|expert| format!("frame {frame}: {expert}")));
    }

    /// Expert items that are not in the list.
    pub(crate) fn unexpected_experts(&self) -> &[String] {
        &self.experts
    }
}

fn values(field: &str) -> impl Iterator<Item = &str> {
    field.split('|').filter(|value| !value.is_empty())
}

fn tshark(file: &Path, arguments: &[&str]) -> String {
    let output = Command::new("tshark")
        .arg("-r")
        .arg(file)
        .args(["-o", "tcp.desegment_tcp_streams:TRUE"])
        // Port numbers and first octets make these claim the stream.
        .args(["--disable-protocol", "rpcordma"])
        .args(["--disable-protocol", "nvme-tcp"])
        .args(arguments)
        .output()
        .unwrap();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complained}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
