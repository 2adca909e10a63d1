//! Datagrams of SIDR (`rfc-notes/datagram-mapping.md` §10).
//!
//! ```text
//!   0        1        2        4             12       14       16       20       24
//!  +--------+--------+--------+-------------+--------+--------+--------+--------+--------------+-----+--------+
//!  | 0x4D   | type   | status | transaction | port   | length | QPN    | Q_Key  | private data | 0.. | CRC32c |
//!  +--------+--------+--------+-------------+--------+--------+--------+--------+--------------+-----+--------+
//! ```

use std::num::NonZeroU16;

use arrayvec::ArrayVec;
use dgiwarp_codec::{PayloadSlice, split_header};
use dgiwarp_ddp::wire::control::{Control, DV};
use dgiwarp_llp_udp::{Format, plain};
use dgiwarp_rdmap::datagram::DropReason;

use super::{RejectStatus, ServiceQp};
use crate::datagram::drop_reason;

/// Most octets of private data in a lookup or an answer.
pub const MAX_PRIVATE_DATA: usize = 256;
/// Octets before the private data.
const HEADER: usize = 24;
/// Octets of every lookup, and of the longest answer.
pub const LOOKUP: usize = HEADER + MAX_PRIVATE_DATA + plain::OVERHEAD.tail;

const TYPE_LOOKUP: u8 = 1;
const TYPE_ANSWER: u8 = 2;
const TYPE_REJECT: u8 = 3;
const TYPE_WAITING: u8 = 4;
const TYPE_PORT_QUERY: u8 = 5;
const TYPE_PORT_ANSWER: u8 = 6;

/// Octets of a port query and of its answer.
pub const PORT_QUERY: usize = HEADER + plain::OVERHEAD.tail;

/// A whole datagram.
pub type Datagram = ArrayVec<u8, LOOKUP>;

/// Type of a datagram, with its fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Lookup of a QP; with the client's own, if it has one.
    Lookup(Option<ServiceQp>),
    /// The service's QP.
    Answer(ServiceQp),
    /// The lookup is rejected.
    Reject(RejectStatus),
    /// The program has not answered yet.
    Waiting,
    /// Query of the TCP port of a listener of connections.
    PortQuery,
    /// The listener's TCP port; `None` where the queried socket has no other one.
    PortAnswer(Option<NonZeroU16>),
}

/// A parsed datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// Type and fields.
    pub kind: Kind,
    /// Transaction number, drawn by the client.
    pub transaction: u64,
    /// Port number of the service.
    pub port: u16,
    /// At most [`MAX_PRIVATE_DATA`] octets.
    pub private_data: &'a [u8],
}

impl<'a> Message<'a> {
    /// Parses a received datagram.
    ///
    /// # Errors
    /// The reason to drop it.
    pub fn parse(datagram: &'a [u8]) -> Result<Self, DropReason> {
        let opened = plain::open(PayloadSlice::new(datagram));
        let (format, message) = opened.map_err(drop_reason)?;
        let (header, rest) =
            split_header::<HEADER>(message.octets()).map_err(|_| DropReason::Malformed)?;
        if format != Format::Sidr {
            return Err(DropReason::UnknownFormat);
        }
        let control = Control::parse(header[0]);
        if control.version != DV {
            return Err(DropReason::BadVersion);
        }
        if control.tagged || !control.last {
            return Err(DropReason::Malformed);
        }
        let [
            _,
            kind,
            s0,
            s1,
            transaction @ ..,
            p0,
            p1,
            l0,
            l1,
            q0,
            q1,
            q2,
            q3,
            k0,
            k1,
            k2,
            k3,
        ] = *header;
        let qp = ServiceQp {
            qpn: u32::from_be_bytes([q0, q1, q2, q3]),
            qkey: u32::from_be_bytes([k0, k1, k2, k3]),
        };
        let length = usize::from(u16::from_be_bytes([l0, l1]));
        // A lookup has the length of the longest answer, so that no answer is longer than its lookup.
        let has_its_length = match kind {
            TYPE_LOOKUP => datagram.len() == LOOKUP,
            TYPE_PORT_QUERY | TYPE_PORT_ANSWER => datagram.len() == PORT_QUERY,
            _ => true,
        };
        if length > MAX_PRIVATE_DATA || !has_its_length {
            return Err(DropReason::Malformed);
        }
        Ok(Self {
            kind: match kind {
                TYPE_LOOKUP => Kind::Lookup((qp.qpn != 0).then_some(qp)),
                TYPE_ANSWER => Kind::Answer(qp),
                TYPE_REJECT => Kind::Reject(RejectStatus(u16::from_be_bytes([s0, s1]))),
                TYPE_WAITING => Kind::Waiting,
                TYPE_PORT_QUERY => Kind::PortQuery,
                TYPE_PORT_ANSWER => {
                    let port = u16::try_from(qp.qpn).map_err(|_| DropReason::Malformed)?;
                    Kind::PortAnswer(NonZeroU16::new(port))
                }
                _ => return Err(DropReason::UnexpectedOpcode),
            },
            transaction: u64::from_be_bytes(transaction),
            port: u16::from_be_bytes([p0, p1]),
            private_data: rest.get(..length).ok_or(DropReason::Malformed)?,
        })
    }

    /// The datagram. Private data beyond [`MAX_PRIVATE_DATA`] octets, which the caller refused, would be cut off.
    pub fn emit(&self) -> Datagram {
        let none = ServiceQp { qpn: 0, qkey: 0 };
        let (kind, status, qp) = match self.kind {
            Kind::Lookup(qp) => (TYPE_LOOKUP, 0, qp.unwrap_or(none)),
            Kind::Answer(qp) => (TYPE_ANSWER, 0, qp),
            Kind::Reject(RejectStatus(status)) => (TYPE_REJECT, status, none),
            Kind::Waiting => (TYPE_WAITING, 0, none),
            Kind::PortQuery => (TYPE_PORT_QUERY, 0, none),
            Kind::PortAnswer(port) => {
                let qpn = port.map_or(0, NonZeroU16::get).into();
                (TYPE_PORT_ANSWER, 0, ServiceQp { qpn, qkey: 0 })
            }
        };
        let control = Control::new(false, true);
        let fits = self.private_data.len().min(MAX_PRIVATE_DATA);
        let private_data = &self.private_data[..fits];
        let length = u16::try_from(fits).unwrap_or_default();
        let mut datagram = Datagram::new();
        datagram.extend([control.emit(), kind]);
        datagram.extend(status.to_be_bytes());
        datagram.extend(self.transaction.to_be_bytes());
        datagram.extend(self.port.to_be_bytes());
        datagram.extend(length.to_be_bytes());
        datagram.extend(qp.qpn.to_be_bytes());
        datagram.extend(qp.qkey.to_be_bytes());
        datagram.extend(private_data.iter().copied());
        if kind == TYPE_LOOKUP {
            let padding = LOOKUP - plain::OVERHEAD.tail - datagram.len();
            datagram.extend(std::iter::repeat_n(0, padding));
        }
        datagram.extend([0; plain::OVERHEAD.tail]);
        plain::seal(Format::Sidr, &mut datagram);
        datagram
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dgiwarp_codec::crc;
    use proptest::prelude::*;

    fn kind() -> impl Strategy<Value = Kind> {
        let qp = || (1u32.., any::<u32>()).prop_map(|(qpn, qkey)| ServiceQp { qpn, qkey });
        prop_oneof![
            proptest::option::of(qp()).prop_map(Kind::Lookup),
            qp().prop_map(Kind::Answer),
            any::<u16>().prop_map(|status| Kind::Reject(RejectStatus(status))),
            Just(Kind::Waiting),
            Just(Kind::PortQuery),
            any::<u16>().prop_map(|port| Kind::PortAnswer(NonZeroU16::new(port))),
        ]
    }

    proptest! {
        #[test]
        fn emitted_messages_parse(
            kind in kind(),
            transaction: u64,
            port: u16,
            private_data in proptest::collection::vec(any::<u8>(), 0..=MAX_PRIVATE_DATA),
        ) {
            let has_data = !matches!(kind, Kind::PortQuery | Kind::PortAnswer(_));
            let private_data: &[u8] = if has_data { &private_data } else { &[] };
            let message = Message { kind, transaction, port, private_data };
            let datagram = message.emit();
            prop_assert_eq!(Message::parse(&datagram), Ok(message));
            prop_assert!(datagram.len() <= LOOKUP);
            let is_lookup = matches!(kind, Kind::Lookup(_));
            prop_assert!(!is_lookup || datagram.len() == LOOKUP);
        }

        /// Octets, also with a good CRC, are parsed or dropped.
        #[test]
        fn any_octets_are_parsed_or_dropped(
            mut octets in proptest::collection::vec(any::<u8>(), 0..600),
            start in proptest::option::of(1u8..8),
        ) {
            if let (Some(kind), [first, second, ..]) = (start, &mut octets[..]) {
                (*first, *second) = (0x4d, kind);
            }
            let crc = crc::to_wire(crc::crc32c(&octets));
            octets.extend(crc);
            if let Ok(message) = Message::parse(&octets) {
                prop_assert!(message.private_data.len() <= MAX_PRIVATE_DATA);
            }
        }
    }

    const QUESTION: Message<'_> = Message {
        kind: Kind::Lookup(None),
        transaction: 1,
        port: 7174,
        private_data: b"x",
    };

    /// The octets with a CRC that fits them.
    fn sealed(octets: &[u8]) -> Vec<u8> {
        let crc = crc::to_wire(crc::crc32c(octets));
        [octets, &crc].concat()
    }

    #[test]
    fn each_check_has_its_reason() {
        let good = QUESTION.emit();
        let body = &good[..good.len() - crc::LEN];
        let with = |at: usize, octet: u8| {
            let mut octets = body.to_vec();
            octets[at] = octet;
            sealed(&octets)
        };
        let reason = |datagram: &[u8]| Message::parse(datagram).err();
        assert_eq!(reason(&good), None);
        assert_eq!(reason(&good[..3]), Some(DropReason::Malformed));
        assert_eq!(reason(&good[..100]), Some(DropReason::BadCrc));
        assert_eq!(reason(&sealed(&body[..20])), Some(DropReason::Malformed));
        assert_eq!(reason(&sealed(&body[..100])), Some(DropReason::Malformed));
        assert_eq!(reason(&with(0, 0x49)), Some(DropReason::UnknownFormat));
        assert_eq!(reason(&with(0, 0x4e)), Some(DropReason::BadVersion));
        assert_eq!(reason(&with(0, 0x0d)), Some(DropReason::Malformed));
        assert_eq!(reason(&with(0, 0xcd)), Some(DropReason::Malformed));
        assert_eq!(reason(&with(1, 7)), Some(DropReason::UnexpectedOpcode));
        assert_eq!(reason(&with(1, 5)), Some(DropReason::Malformed), "too long");
        assert_eq!(reason(&with(14, 2)), Some(DropReason::Malformed));
        let answer = Message {
            kind: Kind::Waiting,
            ..QUESTION
        };
        let mut short = answer.emit().to_vec();
        short.truncate(short.len() - crc::LEN - 1);
        assert_eq!(reason(&sealed(&short)), Some(DropReason::Malformed));
        let answer = Message {
            kind: Kind::PortAnswer(NonZeroU16::new(1)),
            private_data: &[],
            ..QUESTION
        };
        let mut beyond = answer.emit().to_vec();
        beyond.truncate(beyond.len() - crc::LEN);
        assert_eq!(reason(&sealed(&beyond)), None);
        beyond[17] = 1;
        assert_eq!(reason(&sealed(&beyond)), Some(DropReason::Malformed));
    }

    /// The examples of the specification are what this code emits and understands.
    #[test]
    fn the_examples_of_the_specification_hold() {
        let specification = include_str!("../../../../../rfc-notes/datagram-mapping.md");
        let mut seen = 0;
        for block in specification.split("```example service-").skip(1) {
            let (block, _) = block.split_once("```").unwrap();
            let mut lines = block.lines().skip(1);
            let fields = lines.next().unwrap();
            let field = |name: &str| {
                let found = fields.split(' ').find_map(|field| {
                    let (key, value) = field.split_once('=')?;
                    (key == name).then_some(value)
                });
                found.unwrap_or_else(|| panic!("{name} in {fields}"))
            };
            let number = |name: &str| {
                let text = field(name);
                match text.strip_prefix("0x") {
                    Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
                    None => text.parse().unwrap(),
                }
            };
            let octets = |text: &str| -> Vec<u8> {
                let digits: Vec<char> = text.chars().filter(|it| !it.is_whitespace()).collect();
                let pairs = digits.chunks(2).map(|pair| pair.iter().collect::<String>());
                pairs
                    .map(|pair| u8::from_str_radix(&pair, 16).unwrap())
                    .collect()
            };
            let qp = ServiceQp {
                qpn: number("qpn").try_into().unwrap(),
                qkey: number("qkey").try_into().unwrap(),
            };
            let private_data = octets(field("payload"));
            let message = Message {
                kind: match field("type") {
                    "1" => Kind::Lookup((qp.qpn != 0).then_some(qp)),
                    "2" => Kind::Answer(qp),
                    "3" => Kind::Reject(RejectStatus(number("status").try_into().unwrap())),
                    "4" => Kind::Waiting,
                    "5" => Kind::PortQuery,
                    "6" => Kind::PortAnswer(u16::try_from(qp.qpn).ok().and_then(NonZeroU16::new)),
                    other => panic!("type {other}"),
                },
                transaction: number("transaction"),
                port: number("port").try_into().unwrap(),
                private_data: &private_data,
            };
            let datagram = octets(&lines.collect::<String>());
            assert_eq!(message.emit()[..], datagram[..], "{fields}");
            assert_eq!(Message::parse(&datagram), Ok(message), "{fields}");
            seen += 1;
        }
        assert!(seen >= 6, "the specification lost its examples");
    }
}
