//! Rules of a stream, one at a time.

use super::config::{Config, Local};
use super::machine::{Shutdown, Stream};
use super::post::{Part, Place, Sent};
use super::violation::{Refusal, Violation};
use crate::wire::{ByteOrder, ConnectionData, Control, IoMap, Message, Sge};

const LOCAL: Local = Local {
    targets: 0x1000,
    targets_key: 7,
    buffer: 0x10_000,
    buffer_key: 8,
};

fn config() -> Config {
    Config {
        send_octets: 4096,
        most_send_octets: 4096,
        receive_octets: 8192,
        most_receive_octets: 8192,
        send_entries: 16,
        receive_entries: 16,
        io_maps: 3,
        inline: 16,
        order: ByteOrder::Little,
    }
}

/// An end whose peer has these parameters too.
fn stream() -> Stream {
    let peer = Stream::introduction(&config(), &LOCAL);
    Stream::new(&config(), &LOCAL, &peer.emit()).unwrap()
}

fn message(message: Message) -> [u8; 4] {
    message.emit().to_le_bytes()
}

#[test]
fn an_introduction_has_half_the_buffer_and_the_credits() {
    let data = Stream::introduction(&config(), &LOCAL);
    assert_eq!(data.credits, 16);
    assert_eq!(data.io_maps, Some(3));
    assert_eq!((data.targets.length, data.buffer.length), (2, 4096));
    assert_eq!(data.to_string(), "credits 16, 4096 octets at 0x10000");
    let config = Config {
        receive_octets: 7,
        receive_entries: 1,
        io_maps: 300,
        ..config()
    };
    let data = Stream::introduction(&config, &LOCAL);
    assert_eq!(
        (data.credits, data.buffer.length, data.io_maps),
        (16, 3, Some(256))
    );
}

#[test]
fn a_list_of_no_targets_is_refused() {
    for (length, refused) in [
        (0, true),
        (1, false),
        (1 << 16, false),
        ((1 << 16) + 1, true),
    ] {
        let mut peer = Stream::introduction(&config(), &LOCAL);
        peer.targets.length = length;
        let made = Stream::new(&config(), &LOCAL, &peer.emit());
        assert_eq!(made.err(), refused.then_some(Refusal::Targets(length)));
    }
    let mut peer = Stream::introduction(&config(), &LOCAL).emit();
    peer[0] = 2;
    assert!(matches!(
        Stream::new(&config(), &LOCAL, &peer),
        Err(Refusal::Malformed(_))
    ));
}

#[test]
fn data_follow_the_target_and_the_send_buffer_wraps() {
    let mut stream = stream();
    let short = stream.send(16).unwrap();
    assert_eq!(short.part, Part::Inline);
    assert_eq!(
        short.to,
        Place {
            addr: 0x10_000,
            key: 8
        }
    );
    assert_eq!(short.message, Some(message(Message::Data(16))));
    let long = stream.send(1000).unwrap();
    assert_eq!(
        long.part,
        Part::Buffer {
            at: 0,
            first: 1000,
            rest: 0
        }
    );
    assert_eq!(long.to.addr, 0x10_010);
    // Less than the low-water mark is free then.
    let rest = stream.send(2048).unwrap();
    assert_eq!(rest.to.addr, 0x10_3f8);
    assert!(!stream.can_send());
    assert_eq!(stream.send(1), None);
    // A short message makes no completion while there is room, and is free with the next one.
    assert_eq!(short.id, None);
    stream.handle_sent(long.id.unwrap());
    // The target has 4,096 - 3,064 octets left.
    let end = stream.send(2000).unwrap();
    assert_eq!(end.octets, 1032);
    assert_eq!(
        end.part,
        Part::Buffer {
            at: 3048,
            first: 1032,
            rest: 0
        }
    );
    stream.handle_sent(rest.id.unwrap());
    assert_eq!(stream.send(1), None);
    assert_eq!(stream.wants_target(), Some(1));
    assert!(!stream.handle_target(&[0; Sge::LEN]));
    assert_eq!(stream.wants_target(), None);
    stream
        .handle_message(&message(Message::Credits(20)))
        .unwrap();
    assert_eq!(stream.wants_target(), Some(1));
    let target = Sge {
        addr: 0x11_000,
        key: 9,
        length: 4096,
    };
    assert!(stream.handle_target(&target.emit(ByteOrder::Little)));
    let wrapped = stream.send(100).unwrap();
    assert_eq!(
        wrapped.part,
        Part::Buffer {
            at: 4080,
            first: 16,
            rest: 84
        }
    );
    assert_eq!(
        wrapped.to,
        Place {
            addr: 0x11_000,
            key: 9
        }
    );
    assert!(!stream.is_quiet());
    stream.handle_sent(end.id.unwrap());
    assert!(stream.is_quiet());
    // A buffer that is all free is used from its beginning.
    let long = stream.send(2000).unwrap();
    assert_eq!(
        long.part,
        Part::Buffer {
            at: 84,
            first: 2000,
            rest: 0
        }
    );
    stream.handle_sent(long.id.unwrap());
    let again = stream.send(1000).unwrap();
    assert_eq!(
        again.part,
        Part::Buffer {
            at: 0,
            first: 1000,
            rest: 0
        }
    );
}

#[test]
fn credits_bound_messages_and_four_are_kept() {
    let mut stream = stream();
    let mut posts = 0;
    while let Some(post) = stream.send(1) {
        posts += 1;
        post.id.into_iter().for_each(|it| stream.handle_sent(it));
    }
    assert_eq!(posts, 12);
    stream
        .handle_message(&message(Message::Credits(17)))
        .unwrap();
    assert!(stream.send(1).is_some());
    assert!(stream.send(1).is_none());
}

#[test]
fn the_send_queue_bounds_messages() {
    let mut stream = stream();
    let posts: Vec<_> = std::iter::from_fn(|| stream.send(1)).collect();
    assert_eq!(posts.len(), 8);
    // Half of the queue is free with the fourth.
    let (unsignaled, signaled) = posts.split_at(4);
    assert!(unsignaled.iter().all(|post| post.id.is_none()));
    assert!(signaled.iter().all(|post| post.id.is_some()));
    let completion = |octets, entries| Some(Sent::Message { octets, entries });
    assert_eq!(signaled[0].id, completion(5, 10));
    assert_eq!(signaled[1].id, completion(1, 2));
    stream.handle_sent(signaled[0].id.unwrap());
    let more: Vec<_> = std::iter::from_fn(|| stream.send(1)).collect();
    // Four credits of the peer's are kept.
    assert_eq!(more.len(), 4);
}

#[test]
fn credits_are_due_with_half_the_buffer_or_half_the_messages() {
    let mut stream = stream();
    // Half of the buffer was never advertised.
    let credits = stream.poll_credits().unwrap();
    let (place, target) = credits.target.unwrap();
    assert_eq!(
        place,
        Place {
            addr: 0x1010,
            key: 7
        }
    );
    let second = Sge {
        addr: 0x11_000,
        key: 8,
        length: 4096,
    };
    assert_eq!(target, second.emit(ByteOrder::Little));
    assert_eq!(credits.message, message(Message::Credits(16)));
    assert_eq!(stream.poll_credits(), None);
    for _ in 0..8 {
        stream.handle_message(&message(Message::Data(10))).unwrap();
    }
    assert_eq!(stream.buffered(), 80);
    stream.take(79);
    assert_eq!(stream.poll_credits(), None);
    stream.take(1);
    let credits = stream.poll_credits().unwrap();
    assert_eq!(credits.target, None);
    assert_eq!(credits.message, message(Message::Credits(24)));
    stream
        .handle_message(&message(Message::Data(4096)))
        .unwrap();
    assert_eq!(stream.front(0), (80, 4096));
    stream.take(4096);
    let (place, target) = stream.poll_credits().unwrap().target.unwrap();
    assert_eq!(place.addr, 0x1000);
    assert_eq!(Sge::parse(&target, ByteOrder::Little).addr, 0x10_000);
    // Four are outstanding at most.
    stream
        .handle_message(&message(Message::Data(4016)))
        .unwrap();
    stream.take(4016);
    assert!(stream.poll_credits().is_some());
    stream
        .handle_message(&message(Message::Data(4096)))
        .unwrap();
    stream.take(4096);
    assert_eq!(stream.poll_credits(), None);
    stream.handle_sent(Sent::Control);
    assert!(stream.poll_credits().is_some());
}

#[test]
fn a_peer_that_oversteps_is_named() {
    let data = |stream: &mut Stream, octets| stream.handle_message(&message(Message::Data(octets)));
    let granted = |octets, granted| Err(Violation::Data { octets, granted });
    let mut it = stream();
    assert_eq!(data(&mut it, 0), granted(0, 4096));
    assert_eq!(data(&mut it, 4097), granted(4097, 4096));
    assert_eq!(data(&mut it, 4096), Ok(()));
    assert_eq!(data(&mut it, 1), granted(1, 0));
    let mut it = stream();
    for _ in 0..16 {
        assert_eq!(data(&mut it, 1), Ok(()));
    }
    assert_eq!(data(&mut it, 1), Err(Violation::Credit));
    assert_eq!(it.handle_message(&message(Message::IoMap(2))), Ok(()));
    let map = it.handle_message(&message(Message::IoMap(3)));
    assert_eq!(map, Err(Violation::IoMap(3)));
    assert_eq!(it.handle_message(&[0; 3]), Err(Violation::Length(3)));
    assert!(matches!(
        it.handle_message(&[0xff; 4]),
        Err(Violation::Unknown(_))
    ));
    assert_eq!(
        it.handle_word(Message::Control(Control::KeepAlive).emit()),
        Ok(())
    );
}

#[test]
fn each_direction_ends_by_itself() {
    let mut it = stream();
    it.shut_down(Shutdown::Write);
    assert!(!it.is_quiet());
    it.shut_down(Shutdown::Write);
    assert_eq!(it.send(1), None);
    assert_eq!(
        it.poll_control(),
        Some(message(Message::Control(Control::Shutdown)))
    );
    assert_eq!(it.poll_control(), None);
    assert!(it.is_readable() && it.is_connected());
    it.handle_message(&message(Message::Data(5))).unwrap();
    it.handle_message(&message(Message::Control(Control::Shutdown)))
        .unwrap();
    assert!(!it.is_connected() && it.is_quiet());
    assert_eq!(it.buffered(), 5);

    let mut it = stream();
    it.handle_message(&message(Message::Control(Control::Shutdown)))
        .unwrap();
    assert!(!it.is_readable() && it.can_send());
    it.shut_down(Shutdown::Write);
    assert_eq!(
        it.poll_control(),
        Some(message(Message::Control(Control::Disconnect)))
    );
    it.shut_down(Shutdown::Both);
    assert_eq!(it.poll_control(), None);

    let mut it = stream();
    it.shut_down(Shutdown::Read);
    assert_eq!(it.poll_control(), None);
    assert!(it.can_send());
    it.handle_message(&message(Message::Control(Control::Disconnect)))
        .unwrap();
    assert!(!it.is_writable());
    assert_eq!(it.handle_message(&[0xff; 4]), Ok(()));
}

#[test]
fn io_maps_are_announced_and_written_to() {
    let mut it = stream();
    assert_eq!(it.map_slots(), 3);
    let post = it.announce(2).unwrap();
    assert_eq!(
        post.to,
        Place {
            addr: 0x1000 + 32 + 48,
            key: 7
        }
    );
    assert_eq!(post.message, Some(message(Message::IoMap(2))));
    assert_eq!(it.announce(3), None);
    let map = IoMap {
        offset: 100,
        sge: Sge {
            addr: 0x9000,
            key: 5,
            length: 50,
        },
    };
    assert_eq!(it.write(&map, 99, 1), None);
    assert_eq!(it.write(&map, 150, 1), None);
    let post = it.write(&map, 120, 100).unwrap();
    assert_eq!((post.octets, post.message), (30, None));
    assert_eq!(
        post.to,
        Place {
            addr: 0x9014,
            key: 5
        }
    );
    assert_eq!(
        Sent::from_id(post.id.unwrap().to_id()),
        Some(Sent::Write(30))
    );
}

#[test]
fn identifiers_of_work_requests_are_reversible() {
    for sent in [
        Sent::Message {
            octets: u32::MAX,
            entries: u16::MAX,
        },
        Sent::Message {
            octets: 0,
            entries: 2,
        },
        Sent::Write(0),
        Sent::Control,
    ] {
        assert_eq!(Sent::from_id(sent.to_id()), Some(sent));
    }
    assert_eq!(Sent::from_id(5), None);
}

#[test]
fn hosts_of_other_byte_order_are_written_to_in_theirs() {
    let peer = ConnectionData {
        order: ByteOrder::Big,
        ..Stream::introduction(&config(), &LOCAL)
    };
    let mut it = Stream::new(&config(), &LOCAL, &peer.emit()).unwrap();
    let (_, target) = it.poll_credits().unwrap().target.unwrap();
    assert_eq!(Sge::parse(&target, ByteOrder::Big).length, 4096);
    it.handle_message(&Message::Data(9).emit().to_be_bytes())
        .unwrap();
    assert_eq!(it.buffered(), 9);
    assert_eq!(it.send(3).unwrap().message, Some(message(Message::Data(3))));
}

/// Takes what has come, and sends the credits that are due.
fn drain(stream: &mut Stream) -> Vec<Sge> {
    stream.take(usize::MAX);
    std::iter::from_fn(|| {
        let credits = stream.poll_credits()?;
        stream.handle_sent(Sent::Control);
        Some(credits.target)
    })
    .flatten()
    .map(|(_, target)| Sge::parse(&target, ByteOrder::Little))
    .collect()
}

#[test]
fn the_receive_buffer_grows_as_the_peer_uses_all_of_it() {
    let growing = Config {
        most_receive_octets: 40_000,
        ..config()
    };
    let peer = Stream::introduction(&config(), &LOCAL);
    let target = |offset: u64, length| Sge {
        addr: 0x10_000 + offset,
        key: 8,
        length,
    };
    let mut it = Stream::new(&growing, &LOCAL, &peer.emit()).unwrap();
    assert_eq!(drain(&mut it), [target(4096, 4096)]);
    // A peer that leaves some of it: the halves take turns.
    for (octets, at) in [(4096, 0), (4096, 4096), (4096, 0)] {
        it.handle_message(&message(Message::Data(octets))).unwrap();
        assert_eq!(drain(&mut it), [target(at, 4096)]);
    }
    it.handle_message(&message(Message::Data(4096))).unwrap();
    it.handle_message(&message(Message::Data(4096))).unwrap();
    // The first half was used in between, so the second comes first.
    let targets = drain(&mut it);
    assert_eq!(targets, [target(4096, 4096), target(0, 4096)]);
    it.handle_message(&message(Message::Data(4096))).unwrap();
    assert_eq!(drain(&mut it), [target(4096, 4096)]);
    it.handle_message(&message(Message::Data(4096))).unwrap();
    it.handle_message(&message(Message::Data(4096))).unwrap();
    assert_eq!(it.front(0), (0, 8192));
    // Twice the buffer, its new part first.
    let targets = drain(&mut it);
    assert_eq!(targets, [target(8192, 8192), target(0, 8192)]);
    it.handle_message(&message(Message::Data(8192))).unwrap();
    assert_eq!(it.front(0), (8192, 8192));
    it.handle_message(&message(Message::Data(8000))).unwrap();
    assert_eq!(it.front(8192), (0, 8000));
    assert_eq!(drain(&mut it), [target(8192, 8192)]);
    it.handle_message(&message(Message::Data(192))).unwrap();
    it.handle_message(&message(Message::Data(8192))).unwrap();
    assert_eq!(drain(&mut it), [target(16_384, 16_384), target(0, 16_384)]);
    for length in [16_384, 16_384] {
        it.handle_message(&message(Message::Data(length))).unwrap();
    }
    // Not beyond its limit.
    assert_eq!(drain(&mut it), [target(16_384, 16_384), target(0, 16_384)]);
}
