//! Datagrams of our own, as the tap of a queue pair writes them (`Config::pcap`). Keys and epochs are drawn anew each time, so what was extracted once is kept.
//!
//! `FUZZ_EXTRACT=1 cargo test -p dgiwarp-fuzz-targets --all-features --test seeded tap` writes them anew.

use std::fs;
use std::path::Path;
use std::time::Duration;

use dgiwarp::{Access, Buffer, Config, Destination, Operation, RecvWr, Rnic, SendWr, UdQpAttr};
use dgiwarp_conform::trace::Reader;
use dgiwarp_conform::wire::datagram::Datagram;
use etherparse::{SlicedPacket, TransportSlice};

/// Octets of a capture file that is kept.
const FILE: usize = 3000;

/// A Send in one segment, one with immediate, a Write-Record and a Read, between two queue pairs of this host.
fn traffic(folder: &Path) {
    let mut config = Config::default();
    config.pcap = Some(folder.to_path_buf());
    let rnic = Rnic::open(config).unwrap();
    let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(64).unwrap());
    let attr = UdQpAttr {
        record_slots: 8,
        ..UdQpAttr::new(&cq, &cq)
    };
    let (source, target) = (
        pd.create_ud_qp(&attr).unwrap(),
        pd.create_ud_qp(&attr).unwrap(),
    );
    let memory = Buffer::zeroed(4096).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let mr = pd.register(memory.region(), access).unwrap();
    for wr_id in 0..2 {
        let sges = [mr.sge(2048..4096)];
        target.post_recv(&[RecvWr { wr_id, sges: &sges }]).unwrap();
    }
    let (rkey, remote_addr) = (mr.rkey(), mr.addr());
    let operations = [
        Operation::Send { immediate: None },
        Operation::Send { immediate: Some(7) },
        Operation::WriteRecord {
            rkey,
            remote_addr,
            immediate: Some(9),
        },
        Operation::Read {
            rkey,
            remote_addr,
            timeout: None,
        },
    ];
    for (wr_id, operation) in (0..).zip(operations) {
        let destination = Destination {
            ah: pd.create_ah([127, 0, 0, 1].into()).unwrap(),
            qpn: target.qpn(),
            qkey: target.qkey(),
        };
        let sges = [mr.sge(0..100)];
        let request = SendWr {
            wr_id,
            operation,
            destination,
            sges: &sges,
            signaled: true,
            solicited: false,
        };
        source.post_send(&[request]).unwrap();
        // Its own completion, and the target's of what is not a Read.
        for _ in 0..if wr_id < 3 { 2 } else { 1 } {
            cq.wait(Duration::from_secs(60))
                .unwrap()
                .expect("it arrives");
        }
    }
}

/// The UDP payload of a packet of the tap, which begins with the IP header.
fn payload(packet: &[u8]) -> Option<Vec<u8>> {
    let sliced = SlicedPacket::from_ip(packet).ok()?;
    match sliced.transport? {
        TransportSlice::Udp(udp) => Some(udp.payload().to_vec()),
        _ => None,
    }
}

#[test]
fn the_tap_writes_what_parsers_are_tried_on() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus");
    let write = std::env::var_os("FUZZ_EXTRACT").is_some();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tap-{}", std::process::id()));
    traffic(&folder);
    let mut kinds = Vec::new();
    for file in fs::read_dir(&folder).unwrap() {
        let octets = fs::read(file.unwrap().path()).unwrap();
        if write && octets.len() < FILE {
            fs::write(corpus.join("captures/tap-file.pcapng"), &octets).unwrap();
        }
        let mut reader = Reader::new(&octets[..]).unwrap();
        while let Some(packet) = reader.next_packet().unwrap() {
            let Some(datagram) = payload(packet.octets) else {
                continue;
            };
            let parsed = Datagram::parse(&datagram).unwrap();
            let kind = match parsed.segment() {
                Some(segment) => {
                    format!("tap-datagram-{:02x}-{:02x}", segment.first, segment.control)
                }
                None => "tap-datagram-exchange".to_owned(),
            };
            if write {
                for target in ["parsers", "captures"] {
                    fs::write(corpus.join(target).join(&kind), &datagram).unwrap();
                }
            }
            assert!(corpus.join("parsers").join(&kind).is_file(), "{kind}");
            kinds.push(kind);
        }
    }
    kinds.sort();
    kinds.dedup();
    assert!(kinds.len() >= 5, "{kinds:?}");
    fs::remove_dir_all(&folder).unwrap();
}
