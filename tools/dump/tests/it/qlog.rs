//! qlog files of real traffic: two devices, one of which loses datagrams on purpose and keeps a capture file.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dgiwarp::{
    Access, AddressHandle, Buffer, Config, Cq, Destination, Fault, Mr, QpAttr, RcSendWr, RdQp,
    RdQpAttr, RdSendWr, RecvWr, Rnic, WcOpcode, WcStatus,
};
use serde_json::Value;

use super::{dump, text};

const SOON: Duration = Duration::from_secs(60);
/// Octets of a message, and messages.
const LENGTH: usize = 20_000;
const MESSAGES: usize = 300;
const OUTSTANDING: usize = 32;

struct End {
    qp: RdQp,
    cq: Cq,
    mr: Mr,
    ah: AddressHandle,
    _memory: Buffer,
}

impl End {
    fn new(config: Config) -> Self {
        let rnic = Rnic::open(config).unwrap();
        let pd = rnic.alloc_pd();
        let cq = rnic.create_cq(1024).unwrap();
        let qp = pd
            .create_rd_qp(&RdQpAttr::new(QpAttr::new(&cq, &cq)))
            .unwrap();
        let memory = Buffer::zeroed(LENGTH).unwrap();
        let mr = pd.register(memory.region(), Access::LOCAL_WRITE).unwrap();
        let ah = pd.create_ah(Ipv4Addr::LOCALHOST.into()).unwrap();
        Self {
            qp,
            cq,
            mr,
            ah,
            _memory: memory,
        }
    }

    fn post_recv(&self) {
        let sges = [self.mr.sge(0..LENGTH)];
        let wr = RecvWr {
            wr_id: 0,
            sges: &sges,
        };
        self.qp.post_recv(&[wr]).unwrap();
    }

    fn send(&self, qpn: u16) {
        let sges = [self.mr.sge(0..LENGTH)];
        let destination = Destination {
            ah: self.ah.clone(),
            qpn,
            qkey: 0,
        };
        let wr = RcSendWr::send(0, &sges);
        self.qp.post_send(&[RdSendWr { destination, wr }]).unwrap();
    }

    fn wait(&self, opcode: WcOpcode) {
        let wc = self.cq.wait(SOON).unwrap().unwrap();
        assert_eq!((wc.status, wc.opcode), (WcStatus::Success, opcode));
    }
}

/// Sends messages to another device. Returns the addresses of sender and receiver, as they are in names of files.
fn exchange(captures: &Path) -> [String; 2] {
    let mut config = Config::default();
    config.pcap = Some(captures.to_owned());
    config.fault = Some("drop=0.05,delay=1ms,seed=7".parse::<Fault>().unwrap());
    let sender = End::new(config);
    let mut config = Config::default();
    config.fault = Some("drop=0.02,seed=8".parse::<Fault>().unwrap());
    let receiver = End::new(config);
    for _ in 0..OUTSTANDING {
        receiver.post_recv();
    }
    for number in 0..MESSAGES + OUTSTANDING {
        if number < MESSAGES {
            sender.send(receiver.qp.qpn());
        }
        if number >= OUTSTANDING {
            receiver.wait(WcOpcode::Recv);
            receiver.post_recv();
            sender.wait(WcOpcode::Send);
        }
    }
    [&sender, &receiver].map(|end| format!("127.0.0.1-{}", end.qp.qpn()))
}

/// The header and the events of a qlog file, each a record of RFC 7464.
fn records(path: &Path) -> (Value, Vec<Value>) {
    let text = std::fs::read_to_string(path).unwrap();
    let mut records = text.split('\u{1e}');
    assert_eq!(records.next(), Some(""));
    let mut records = records.map(|it| serde_json::from_str(it).unwrap());
    (records.next().unwrap(), records.collect())
}

fn of<'a>(events: &'a [Value], name: &'a str) -> impl Iterator<Item = &'a Value> {
    let named = events.iter().filter(move |event| event["name"] == name);
    named.map(|event| &event["data"])
}

fn numbers(events: &[Value], name: &str) -> BTreeSet<u64> {
    of(events, name)
        .map(|data| data["header"]["packet_number"].as_u64().unwrap())
        .collect()
}

#[test]
fn an_end_that_keeps_a_capture_file_shows_its_window_and_its_losses() {
    let folder = tempfile::tempdir().unwrap();
    let captures = folder.path().join("captures");
    let [sender, receiver] = exchange(&captures);
    let capture: Vec<PathBuf> = std::fs::read_dir(&captures)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    let [capture] = &capture[..] else {
        panic!("{capture:?}")
    };
    let drawn = folder.path().join("drawn");
    let arguments = ["--qlog", drawn.to_str().unwrap()];
    let told = text(&dump(&arguments, capture));
    assert_eq!(told, format!("2 files in {}\n", drawn.display()));

    let (header, events) = records(&drawn.join(format!("{sender}-{receiver}.sqlog")));
    assert_eq!(header["qlog_version"], "0.3");
    assert_eq!(header["qlog_format"], "JSON-SEQ");
    assert_eq!(header["trace"]["vantage_point"]["type"], "client");
    let times: Vec<f64> = events
        .iter()
        .map(|it| it["time"].as_f64().unwrap())
        .collect();
    assert!(times.is_sorted() && times[0] == 0.0);

    // Each octet of each message left, and the last segment of each is acknowledged.
    let sent = numbers(&events, "transport:packet_sent");
    let frames = |name| {
        of(&events, name)
            .flat_map(|data| data["frames"].as_array().unwrap())
            .collect::<Vec<_>>()
    };
    let ends: BTreeSet<(u64, u64)> = frames("transport:packet_sent")
        .into_iter()
        .filter(|frame| frame["frame_type"] == "stream" && frame["fin"] == true)
        .map(|frame| {
            let [stream, offset, length] =
                ["stream_id", "offset", "length"].map(|it| frame[it].as_u64().unwrap());
            (stream, offset + length)
        })
        .collect();
    assert_eq!(ends.len(), MESSAGES, "{ends:?}");
    assert!(
        ends.iter().all(|(_, end)| *end >= LENGTH as u64),
        "{ends:?}"
    );
    for ack in frames("transport:packet_received") {
        for range in ack["acked_ranges"].as_array().into_iter().flatten() {
            let numbers = range[0].as_u64().unwrap()..=range[1].as_u64().unwrap();
            assert!(numbers.clone().count() > 0, "{ack}");
            assert!(sent.contains(numbers.start()) && sent.contains(numbers.end()));
        }
    }
    // Losses were made at the peer's and at this end's door.
    let lost = numbers(&events, "recovery:packet_lost");
    assert!(!lost.is_empty() && lost.is_subset(&sent), "{lost:?}");
    let dropped: Vec<_> = of(&events, "transport:packet_dropped").collect();
    assert!(!dropped.is_empty() && dropped.iter().all(|it| it["details"] == "fault"));

    let metrics: Vec<_> = of(&events, "recovery:metrics_updated").collect();
    let windows: BTreeSet<_> = metrics
        .iter()
        .filter_map(|it| it["congestion_window"].as_u64())
        .collect();
    assert!(windows.len() > 1, "{windows:?}");
    let least = |name| {
        let times = metrics.iter().filter_map(|it| it[name].as_f64());
        times.fold(f64::MAX, f64::min)
    };
    for name in ["latest_rtt", "smoothed_rtt", "min_rtt"] {
        assert!(
            (1.0..1000.0).contains(&least(name)),
            "{name} {}",
            least(name)
        );
    }
    assert_eq!(metrics.last().unwrap()["bytes_in_flight"], 0);

    // The other end's view has what the sender's file shows of it.
    let (header, events) = records(&drawn.join(format!("{receiver}-{sender}.sqlog")));
    assert_eq!(header["trace"]["vantage_point"]["type"], "server");
    assert_eq!(numbers(&events, "transport:packet_received"), sent);

    let port = sender.rsplit('-').next().unwrap();
    let one = folder.path().join("one");
    let arguments = ["--port", port, "--qlog", one.to_str().unwrap()];
    let told = text(&dump(&arguments, capture));
    assert!(told.starts_with("1 files in "), "{told}");
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let capture = super::capture("rping-crc.pcap");
    let output = dump(&["--qlog", file.to_str().unwrap()], &capture);
    assert_eq!(output.status.code(), Some(3));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains(file.to_str().unwrap()), "{message}");
    // No reliable datagrams, no files.
    let empty = folder.path().join("empty");
    let told = text(&dump(&["--qlog", empty.to_str().unwrap()], &capture));
    assert!(told.starts_with("0 files in "), "{told}");
}
