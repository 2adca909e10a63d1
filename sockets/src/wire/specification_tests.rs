//! The examples of `rfc-notes/rsockets.md`, octet by octet.

use super::{
    ByteOrder, ConnectionData, Control, DatagramHeader, IoMap, Message, Operation, RouteAnswer,
    RouteRequest, Sge, UdpHeader,
};

const SPECIFICATION: &str = include_str!("../../../rfc-notes/rsockets.md");

/// The octets of the example with this name.
fn example(name: &str) -> Vec<u8> {
    let heading = format!("```octets {name}\n");
    let (_, rest) = SPECIFICATION
        .split_once(&heading)
        .unwrap_or_else(|| panic!("no example {name}"));
    let (block, _) = rest.split_once("```").unwrap();
    let digits = block.split_whitespace().collect::<String>();
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
        .collect()
}

#[test]
fn every_example_is_checked() {
    let names: Vec<_> = SPECIFICATION
        .lines()
        .filter_map(|line| line.strip_prefix("```octets "))
        .collect();
    assert_eq!(
        names,
        [
            "connection",
            "target",
            "io-map",
            "datagram-udp",
            "datagram-ud-v6",
            "route-request",
            "route-answer"
        ]
    );
}

#[test]
fn connection_data() {
    let data = ConnectionData {
        order: ByteOrder::Little,
        credits: 384,
        io_maps: Some(128),
        targets: Sge {
            addr: 0x7f00_1234_5000,
            key: 0x1122_3344,
            length: 2,
        },
        buffer: Sge {
            addr: 0x7f00_1240_0000,
            key: 0x5566_7788,
            length: 65536,
        },
    };
    assert_eq!(data.emit()[..], example("connection"));
    assert_eq!(ConnectionData::parse(&example("connection")), Ok(data));
}

#[test]
fn routes() {
    let request = RouteRequest {
        to: "127.0.0.1:5060".parse().unwrap(),
        from: "127.0.0.1:5070".parse().unwrap(),
        qpn: 40_000,
    };
    assert_eq!(request.emit()[..], example("route-request"));
    let answer = RouteAnswer {
        qpn: Some(40_001),
        source: request.to,
    };
    assert_eq!(answer.emit()[..], example("route-answer"));
}

#[test]
fn targets_and_maps() {
    let target = Sge {
        addr: 0x7f00_1241_0000,
        key: 0x5566_7788,
        length: 65536,
    };
    assert_eq!(target.emit(ByteOrder::Little)[..], example("target"));
    let map = IoMap {
        offset: 4096,
        sge: target,
    };
    assert_eq!(map.emit(ByteOrder::Little)[..], example("io-map"));
    let octets = example("io-map");
    assert_eq!(
        IoMap::parse(octets.first_chunk().unwrap(), ByteOrder::Little),
        map
    );
    assert_eq!(map.emit(ByteOrder::Big)[..8], 4096_u64.to_be_bytes());
}

#[test]
fn messages_are_those_of_the_table() {
    let rows = [
        (Message::Data(1000), "1000 octets of data", "0x000003e8"),
        (Message::Credits(576), "credits up to 576", "0x80000240"),
        (Message::IoMap(3), "I/O map 3", "0xc0000003"),
        (
            Message::Control(Control::Disconnect),
            "disconnect",
            "0xe0000000",
        ),
        (
            Message::Control(Control::KeepAlive),
            "keep alive",
            "0xe0000001",
        ),
        (
            Message::Control(Control::Shutdown),
            "shutdown",
            "0xe0000002",
        ),
    ];
    for (message, text, number) in rows {
        let row = format!("| {text} | `{number}` |");
        assert!(SPECIFICATION.contains(&row), "{row}");
        let word = u32::from_str_radix(&number[2..], 16).unwrap();
        assert_eq!(message.emit(), word);
        assert_eq!(Message::parse(word), Ok(message));
        assert!(!message.to_string().is_empty());
    }
    let unknown = [1, 2, 3, 5].map(|kind: u32| kind << 29);
    for word in unknown.into_iter().chain([0xe000_0003]) {
        assert_eq!(Message::parse(word).map_err(|it| it.0), Err(word));
    }
}

#[test]
fn datagrams() {
    let header = UdpHeader {
        operation: Operation::Data,
        qpn: 40_000,
        address: "192.0.2.7".parse().unwrap(),
    };
    let octets = example("datagram-udp");
    assert_eq!(UdpHeader::parse(&octets), Ok((header, &b"ping"[..])));
    let mut again = [0; UdpHeader::MAX_LEN];
    let len = header.emit(&mut again);
    assert_eq!(again[..len], octets[..octets.len() - 4]);
    let header = DatagramHeader {
        source: "[2001:db8::7]:5000".parse().unwrap(),
    };
    let octets = example("datagram-ud-v6");
    assert_eq!(DatagramHeader::parse(&octets), Ok((header, &b"ping"[..])));
    assert!(header.to_string().contains("5000"));
}
