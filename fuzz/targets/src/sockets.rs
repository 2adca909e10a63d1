//! Rsockets: formats, one end of a stream, and the table of a process's sockets.

use dgiwarp_socket_table::Snapshot;
use dgiwarp_sockets::wire::{ConnectionData, DatagramHeader, IoMap, Message, UdpHeader};
use dgiwarp_sockets::{Config, Credits, Destinations, Local, Part, Post, Sent, Shutdown, Stream};

const LOCAL: Local = Local {
    targets: 0x1000,
    targets_key: 1,
    buffer: 0x10_0000,
    buffer_key: 2,
};

/// Gives the octets to every parser, and to one end of a stream as private data and then as what its peer and its program do.
pub fn sockets(data: &[u8]) {
    headers(data);
    table(data);
    let Some((size, data)) = data.split_first_chunk::<4>() else {
        return;
    };
    let Some((peer, calls)) = data.split_first_chunk::<{ ConnectionData::LEN }>() else {
        return;
    };
    let config = Config {
        send_octets: 2048 + u32::from(size[0]) * 16,
        most_send_octets: u32::from(size[2]) * 64,
        receive_octets: 2 + u32::from(size[1]) * 16,
        most_receive_octets: u32::from(size[0]) * 64,
        send_entries: size[2].into(),
        receive_entries: size[3].into(),
        io_maps: (size[2] & 3).into(),
        inline: size[3].into(),
        ..Config::default()
    };
    if let Ok(stream) = Stream::new(&config, &LOCAL, peer) {
        End::new(stream, config.in_range()).run(calls);
    }
}

/// The table of any process, as `dgiwarp-ss` reads it.
fn table(data: &[u8]) {
    let (before, after) = data.split_at(data.len() / 2);
    for (before, octets, after) in [(data, data, data), (before, data, after)] {
        let Ok(snapshot) = Snapshot::parse(before, octets, after) else {
            continue;
        };
        assert!(snapshot.records.len() + snapshot.changing <= octets.len() / 128);
        for record in &snapshot.records {
            let reason = snapshot.reason_of(record).unwrap_or_default();
            assert!(reason.bytes().all(|it| (b' '..=b'~').contains(&it)));
        }
    }
}

fn headers(data: &[u8]) {
    if let Ok(parsed) = ConnectionData::parse(data) {
        assert_eq!(ConnectionData::parse(&parsed.emit()), Ok(parsed));
        assert!(!parsed.to_string().is_empty());
    }
    if let Ok((header, rest)) = DatagramHeader::parse(data) {
        let mut octets = [0; DatagramHeader::MAX_LEN];
        let len = header.emit(&mut octets);
        assert_eq!((&octets[..len], rest), data.split_at(len));
    }
    if let Ok((header, rest)) = UdpHeader::parse(data) {
        let mut octets = [0; UdpHeader::MAX_LEN];
        let len = header.emit(&mut octets);
        assert_eq!(rest, &data[len..]);
        assert_eq!(UdpHeader::parse(&octets[..len]), Ok((header, &[][..])));
    }
    let mut destinations = Destinations::default();
    let source = ([192, 0, 2, 1], 1).into();
    if destinations.handle_udp(source, data).is_err() {
        assert_eq!(destinations.route(source), dgiwarp_sockets::Route::Udp);
    }
    if let Some(octets) = data.first_chunk()
        && let Ok(message) = Message::parse(u32::from_le_bytes(*octets))
    {
        assert_eq!(message.emit().to_le_bytes(), *octets);
    }
}

struct End {
    stream: Stream,
    config: Config,
    sent: Vec<Sent>,
}

impl End {
    fn new(stream: Stream, config: Config) -> Self {
        Self {
            stream,
            config,
            sent: Vec::new(),
        }
    }

    fn run(&mut self, mut calls: &[u8]) {
        while let Some(([call, a, b, c, d], rest)) = calls.split_first_chunk() {
            calls = rest;
            let number = u32::from_le_bytes([*a, *b, *c, *d]);
            if !self.call(*call, number, rest) {
                return;
            }
            self.check();
        }
    }

    /// Makes one call. Returns whether the connection goes on.
    fn call(&mut self, call: u8, number: u32, rest: &[u8]) -> bool {
        let octets = number as usize;
        match call % 10 {
            0 => return self.stream.handle_word(number).is_ok(),
            1 => return self.stream.handle_word(number & 0x1fff).is_ok(),
            2 => {
                let post = self.stream.send(octets);
                self.posted(post);
            }
            3 => {
                if let (Some(_), Some(target)) = (self.stream.wants_target(), rest.first_chunk()) {
                    self.stream.handle_target(target);
                }
            }
            4 => self.stream.take(octets),
            5 => {
                while let Some(Credits { message, .. }) = self.stream.poll_credits() {
                    assert!(message.iter().any(|octet| *octet != 0));
                    self.sent.push(Sent::Control);
                }
                if self.stream.poll_control().is_some() {
                    self.sent.push(Sent::Control);
                }
            }
            6 => {
                let count = (octets % 9).min(self.sent.len());
                for sent in self.sent.drain(..count) {
                    self.stream.handle_sent(sent);
                }
            }
            7 => {
                let post = self
                    .stream
                    .announce(u16::try_from(number % 512).unwrap_or(0));
                self.posted(post);
            }
            8 => {
                let map = rest.first_chunk::<{ IoMap::LEN }>();
                if let Some(map) = map.map(|it| IoMap::parse(it, self.config.order)) {
                    let post = self
                        .stream
                        .write(&map, map.offset.wrapping_add(number.into()), 999);
                    self.posted(post);
                }
            }
            _ => self.stream.shut_down(match number % 3 {
                0 => Shutdown::Read,
                1 => Shutdown::Write,
                _ => Shutdown::Both,
            }),
        }
        true
    }

    /// The send buffer never takes more than it has.
    fn posted(&mut self, post: Option<Post>) {
        let Some(post) = post else {
            return;
        };
        match post.part {
            Part::Inline => assert!(post.octets <= self.config.inline),
            Part::Buffer { at, first, rest } => {
                assert!(at + first <= self.config.most_send_octets && rest <= at);
                assert_eq!(first + rest, post.octets);
            }
        }
        let Some(id) = post.id else {
            assert!(post.message.is_some());
            return;
        };
        assert_eq!(Sent::from_id(id.to_id()), Some(id));
        self.sent.push(id);
        let octets: u64 = self.sent.iter().map(|it| octets_of(*it)).sum();
        assert!(octets <= self.config.most_send_octets.into());
    }

    fn check(&self) {
        let size = self.config.most_receive_octets as usize;
        assert!(self.stream.buffered() <= size);
        let (at, octets) = self.stream.front(0);
        assert!(at + octets <= size);
        let (again, rest) = self.stream.front(octets);
        assert!(again + rest <= size && octets + rest <= self.stream.buffered());
    }
}

fn octets_of(sent: Sent) -> u64 {
    match sent {
        Sent::Message { octets, .. } | Sent::Write(octets) => octets.into(),
        Sent::Control => 0,
    }
}
