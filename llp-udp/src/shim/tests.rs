//! Laws that hold for every shim, and vectors of plain datagrams.

use std::time::Duration;

use super::*;
use dgiwarp_codec::crc;
use proptest::prelude::*;

#[expect(
    clippy::disallowed_methods,
    reason = "any instant serves as the origin"
)]
fn origin() -> Instant {
    Instant::now()
}

fn peer() -> Peer {
    Peer::ip("192.0.2.1:4000".parse().unwrap())
}

fn shims() -> [Shim; 2] {
    [ShimConfig::Plain, ShimConfig::Keyed(0x0123_4567_89ab_cdef)].map(Shim::new)
}

fn sealed(shim: &mut Shim, format: Format, segment: &[u8]) -> Vec<u8> {
    let Overhead { head, tail } = shim.overhead(PathKind::Network);
    let mut datagram = [&vec![0; head], segment, &vec![0; tail]].concat();
    shim.seal(peer(), format, &mut datagram);
    datagram
}

/// Format and octets of the segment in a datagram; `None` for a datagram of the shim's own.
fn opened(shim: &mut Shim, datagram: &[u8]) -> Result<Option<(Format, Vec<u8>)>, OpenError> {
    Ok(match shim.open(origin(), peer(), datagram.into())? {
        Opened::Segment(format, segment) | Opened::Decrypted(format, segment) => {
            Some((format, segment.octets().to_vec()))
        }
        Opened::Consumed => None,
    })
}

fn format() -> impl Strategy<Value = Format> {
    prop_oneof![
        Just(Format::Segment),
        Just(Format::Cookie),
        Just(Format::Exchange),
        Just(Format::Sidr),
    ]
}

proptest! {
    #[test]
    fn opening_restores_what_was_sealed(
        format in format(),
        mut segment in proptest::collection::vec(any::<u8>(), 2..200),
    ) {
        segment[0] &= 0b1100_0011;
        let mut expected = segment.clone();
        expected[0] = format.emit(expected[0]);
        for mut shim in shims() {
            let datagram = sealed(&mut shim, format, &segment);
            let overhead = shim.overhead(PathKind::Network).total();
            prop_assert_eq!(datagram.len(), segment.len() + overhead);
            prop_assert_eq!(opened(&mut shim, &datagram), Ok(Some((format, expected.clone()))));
        }
    }

    /// A CRC finds every error burst of up to 32 bits, so every changed octet.
    #[test]
    fn a_changed_octet_is_found(
        segment in proptest::collection::vec(any::<u8>(), 2..100),
        at: prop::sample::Index,
        change in 1u8..,
    ) {
        for mut shim in shims() {
            let mut datagram = sealed(&mut shim, Format::Segment, &segment);
            let position = at.index(datagram.len());
            datagram[position] ^= change;
            let found = matches!(opened(&mut shim, &datagram), Err(OpenError::Mismatch { .. }));
            prop_assert!(found);
        }
    }

    #[test]
    fn any_octets_are_opened_or_refused(octets: Vec<u8>) {
        for mut shim in shims() {
            let _ = opened(&mut shim, &octets);
        }
    }

    /// A payload that stays where it lies has the CRC of one that was copied.
    #[test]
    fn gathered_and_staged_datagrams_are_equal(
        format in format(),
        header in proptest::collection::vec(any::<u8>(), 1..50),
        payload: Vec<u8>,
    ) {
        let mut shim = Shim::new(ShimConfig::Plain);
        prop_assert!(shim.gathers());
        let mut header = header;
        header[0] &= 0b1100_0011;
        let staged = sealed(&mut shim, format, &[&header[..], &payload].concat());
        let mut trailer = [0; 4];
        shim.seal_gathered(format, &mut header, &payload, &mut trailer);
        prop_assert_eq!([&header[..], &payload, &trailer].concat(), staged);
    }
}

/// §1: the CRC32c of all octets before it, least significant octet first.
#[test]
fn a_plain_datagram_is_its_segment_and_a_crc() {
    let mut shim = Shim::new(ShimConfig::Plain);
    let overhead = shim.overhead(PathKind::Network);
    assert_eq!((overhead.head, overhead.tail, overhead.total()), (0, 4, 4));
    let datagram = sealed(&mut shim, Format::Segment, &[0; 32]);
    assert_eq!(datagram[..32], [0; 32]);
    assert_eq!(datagram[32..], [0xaa, 0x36, 0x91, 0x8a]);
    let datagram = sealed(&mut shim, Format::Cookie, &[0x41, 0x4c, 7]);
    assert_eq!(datagram[..3], [0x45, 0x4c, 7]);
    assert_eq!(datagram[3..], crc::to_wire(crc::crc32c(&[0x45, 0x4c, 7])));
}

#[test]
fn each_defect_has_its_error() {
    let mut shim = Shim::new(ShimConfig::Plain);
    let mut with_crc = |octets: &[u8]| {
        let datagram = [octets, &crc::to_wire(crc::crc32c(octets))].concat();
        opened(&mut shim, &datagram)
    };
    assert_eq!(with_crc(&[]), Err(OpenError::TooShort(4)));
    assert_eq!(with_crc(&[0x41]), Err(OpenError::TooShort(5)));
    assert_eq!(
        with_crc(&[0x41, 0x43]),
        Ok(Some((Format::Segment, vec![0x41, 0x43])))
    );
    assert_eq!(with_crc(&[0x51, 0]), Err(UnknownFormat(4).into()));
    for length in 0..4 {
        let short = opened(&mut shim, &vec![0; length]);
        assert_eq!(short, Err(OpenError::TooShort(length)));
    }
    let mismatch = OpenError::Mismatch {
        found: 1,
        computed: crc::crc32c(&[0x41, 0x43]),
    };
    assert_eq!(opened(&mut shim, &[0x41, 0x43, 1, 0, 0, 0]), Err(mismatch));
}

#[test]
fn the_mulpdu_is_what_the_limit_leaves() {
    let limit = DatagramLimit::stored(1472).unwrap();
    let [plain, keyed] = shims().map(|shim| shim.mulpdu(PathKind::Network, limit));
    assert_eq!((plain, keyed), (1468, 1459));
    let tiny = DatagramLimit::stored(3).unwrap();
    assert_eq!(Shim::Plain.mulpdu(PathKind::Network, tiny), 0);
}

#[test]
fn a_plain_shim_sends_nothing_itself() {
    let mut shim = Shim::new(ShimConfig::default());
    shim.handle_timeout(origin());
    assert!(!shim.has_transmit());
    assert_eq!(shim.poll_transmit(&mut Vec::new()), None);
    assert_eq!(shim.poll_timeout(), None);
}

/// A datagram as the layout of the keyed shim has it, made without the shim.
fn keyed_datagram(key: u64, first: u8, sequence: u32, segment: &[u8]) -> Vec<u8> {
    let mut octets = vec![first];
    octets.extend(sequence.to_be_bytes());
    let pad = key.to_be_bytes().into_iter().cycle();
    let sequence = sequence.to_be_bytes().into_iter().cycle();
    octets.extend(
        segment
            .iter()
            .zip(pad.zip(sequence))
            .map(|(octet, (a, b))| octet ^ a ^ b),
    );
    let [high, low] = [key ^ 1, key].map(|key| {
        let covered = [&key.to_be_bytes()[..], &octets].concat();
        crc::crc32c(&covered).to_be_bytes()
    });
    [&octets[..], &high, &low].concat()
}

#[test]
fn a_keyed_datagram_has_its_layout() {
    let segment: Vec<u8> = [0x41, 0x43].into_iter().chain(0x70..0x80).collect();
    for key in [0x0123_4567_89ab_cdef, 0x0f1e_2d3c_4b5a_6978] {
        let mut shim = Shim::new(ShimConfig::Keyed(key));
        for sequence in 0..3 {
            let expected = keyed_datagram(key, 0x3d, sequence, &segment);
            assert_eq!(sealed(&mut shim, Format::Segment, &segment), expected);
        }
        // First octet 0xc5: format 1 is neither a segment nor an acknowledgement of this shim.
        let unknown = keyed_datagram(key, 0xc5, 0, &segment);
        let found = opened(&mut shim, &unknown);
        assert_eq!(found, Err(OpenError::Format(UnknownFormat(1))));
    }
}

/// Numbers, secrecy, acknowledgements: all that plain datagrams do without.
#[test]
fn a_keyed_shim_numbers_scrambles_and_acknowledges() {
    let [mut sender, mut receiver] =
        [0, 0].map(|_| Shim::new(ShimConfig::Keyed(0x1020_3040_5060_7080)));
    let mut stranger = Shim::new(ShimConfig::Keyed(2));
    assert!(!sender.gathers());
    let now = origin();
    let segment = [0x41, 0x43, 1, 2, 3, 4, 5, 6];
    let [first, second] = [0, 1].map(|_| sealed(&mut sender, Format::Segment, &segment));
    assert_ne!(first, second);
    assert!(
        !first
            .windows(4)
            .any(|window| segment.windows(4).any(|it| it == window))
    );
    let refused = stranger.open(now, peer(), PayloadSlice::new(&first[..]));
    assert!(matches!(refused, Err(OpenError::Mismatch { .. })));
    for datagram in [&second, &first] {
        let opened = receiver.open(now, peer(), PayloadSlice::new(&datagram[..]));
        assert!(
            matches!(opened, Ok(Opened::Decrypted(Format::Segment, it)) if it.octets() == segment)
        );
    }
    let due = receiver.poll_timeout().unwrap();
    assert!(due > now && due <= now + Duration::from_millis(5));
    receiver.handle_timeout(now);
    assert!(!receiver.has_transmit());
    receiver.handle_timeout(due);
    assert!(receiver.has_transmit());
    let mut ack = vec![1, 2, 3];
    assert_eq!(receiver.poll_transmit(&mut ack), Some(peer()));
    assert_eq!(
        (receiver.has_transmit(), receiver.poll_timeout()),
        (false, None)
    );
    assert_eq!(receiver.poll_transmit(&mut Vec::new()), None);
    assert_eq!(opened(&mut sender, &ack), Ok(None));
    let acknowledged = |shim: &Shim| match shim {
        Shim::Keyed(keyed) => keyed.acknowledged(peer()),
        Shim::Plain => panic!("it is keyed"),
    };
    assert_eq!(acknowledged(&sender), Some(1));
    assert_eq!(acknowledged(&receiver), None);
}

#[test]
fn only_a_shim_without_state_opens_without_it() {
    for mut shim in shims() {
        let is_plain = matches!(shim, Shim::Plain);
        let datagram = sealed(&mut shim, Format::Segment, &[2; 8]);
        let found = shim.open_stateless(PayloadSlice::new(&datagram[..]));
        let segment = found.map(|(format, segment)| (format, segment.octets().to_vec()));
        let expected = is_plain.then(|| (Format::Segment, vec![2; 8]));
        assert_eq!(segment, expected);
        assert!(shim.open_stateless(PayloadSlice::new(&[][..])).is_none());
    }
}
