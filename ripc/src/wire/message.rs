//! Messages (`rfc-notes/ripc.md`, "Messages").

use dgiwarp_codec::{split_header, u32_at, u64_at};

use super::{FormatError, check, split, u16_at};
use crate::engine::urgency::Urgency;

const HEADER: usize = 24;
const CALL: usize = 24;
const ADDRESSED: usize = 16;
const DONE: usize = 8;
const STREAM: usize = 8;
const GRANT: usize = 16;
const TOKEN: usize = 8;
/// Flags of a CALL.
const TAKES_STREAM: u8 = 1;
const HAS_STREAM: u8 = 2;
/// Lowest of the three bits for the urgency of a CALL or MESSAGE, among the flags.
const URGENCY: u32 = 2;
/// Flag of a REPLY.
const REFUSED: u8 = 1;
/// First octet of a sealed message.
const SEALED: u8 = 12;
const ELEMENT: usize = 24;

/// Most items of a message.
pub(crate) const MAX_ITEMS: usize = 64;
/// Most windows of a message.
pub(crate) const MAX_WINDOWS: usize = 16;
/// Most octets of the token of a TOKEN.
pub(crate) const MAX_TOKEN: usize = 512;
/// Most octets of metadata.
pub(crate) const MAX_METADATA: usize = 2048;

/// Memory that the receiver may write once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) number: u32,
    pub(crate) key: u32,
    pub(crate) address: u64,
    /// Not 0.
    pub(crate) length: u64,
}

/// Item as its message has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WireItem {
    /// The octets.
    Inline(Vec<u8>),
    /// Already in a window of the receiver.
    Written { window: u32, length: u64 },
    /// To be read from the sender's memory.
    Offered { key: u32, address: u64, length: u64 },
}

/// Windows, items and metadata of a message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Body {
    pub(crate) windows: Vec<Window>,
    pub(crate) items: Vec<WireItem>,
    pub(crate) metadata: Vec<u8>,
}

/// Streams of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Streams {
    /// The caller takes one of the server.
    pub(crate) down: bool,
    /// One of the caller follows.
    pub(crate) up: bool,
}

/// Direction of a stream of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Direction {
    /// From the caller.
    Up,
    /// To the caller.
    Down,
}

impl Direction {
    pub(crate) const fn opposite(self) -> Self {
        match self {
            Self::Up => Self::Down,
            Self::Down => Self::Up,
        }
    }
}

/// Kind of a message, and its own fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    Call {
        streams: Streams,
        urgency: Urgency,
        service: u64,
        method: u32,
        /// Microseconds, 0 for none.
        timeout: u32,
        floor: u64,
        body: Body,
    },
    Reply {
        status: u16,
        /// The call was not executed and never will be.
        refused: bool,
        body: Body,
    },
    Message {
        urgency: Urgency,
        to: u64,
        from: u64,
        body: Body,
    },
    Credit,
    Cancel,
    Done {
        status: u16,
        /// Else of a MESSAGE.
        of_reply: bool,
    },
    Ping,
    Pong,
    GoAway,
    /// A part of a stream.
    Stream {
        direction: Direction,
        /// Nothing follows.
        end: bool,
        /// At least one, but at the end.
        octets: Vec<u8>,
    },
    /// Credit of a stream, to its sender.
    Grant {
        direction: Direction,
        /// Nothing more is taken.
        stop: bool,
        /// Octets since the stream began.
        granted: u64,
    },
    /// The Initiator has its keys.
    Confirm,
    /// A token, not read yet.
    Token(Vec<u8>),
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) number: u64,
    pub(crate) credit: u64,
    pub(crate) kind: Kind,
}

/// Octets of a message with such a body, beside those of its kind and of its inline items.
const fn elements(windows: usize, items: usize) -> usize {
    HEADER + ELEMENT * (windows + items)
}

/// Octets of a CALL, the longest of the kinds, without the octets of its inline items.
pub(crate) const fn overhead(windows: usize, items: usize, metadata: usize) -> usize {
    elements(windows, items) + CALL + metadata
}

/// Octets of a STREAM without those that it carries.
pub(crate) const STREAM_OVERHEAD: usize = HEADER + STREAM;

impl Direction {
    fn parse(octet: u8) -> Result<Self, FormatError> {
        check("direction", octet.into(), 1)?;
        Ok(if octet == 0 { Self::Up } else { Self::Down })
    }

    fn number(self) -> u8 {
        match self {
            Self::Up => 0,
            Self::Down => 1,
        }
    }
}

impl Message {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let (header, rest) = split_header::<HEADER>(bytes)?;
        let status = u16_at::<4, HEADER>(header);
        let counts = Counts {
            items: header[2].into(),
            windows: header[3].into(),
            metadata: u16_at::<6, HEADER>(header).into(),
        };
        let urgency = Urgency::of_wire(header[1] >> URGENCY);
        let (kind, rest) = match header[0] {
            1 => {
                let (fields, rest) = split_header::<CALL>(rest)?;
                let (body, rest) = Body::parse(&counts, rest)?;
                let kind = Kind::Call {
                    streams: Streams {
                        down: header[1] & TAKES_STREAM != 0,
                        up: header[1] & HAS_STREAM != 0,
                    },
                    urgency,
                    service: u64_at::<0, CALL>(fields),
                    method: u32_at::<8, CALL>(fields),
                    timeout: u32_at::<12, CALL>(fields),
                    floor: u64_at::<16, CALL>(fields),
                    body,
                };
                (kind, rest)
            }
            2 => {
                let (body, rest) = Body::parse(&counts, rest)?;
                let refused = header[1] & REFUSED != 0;
                let kind = Kind::Reply {
                    status,
                    refused,
                    body,
                };
                (kind, rest)
            }
            3 => {
                let (fields, rest) = split_header::<ADDRESSED>(rest)?;
                let (body, rest) = Body::parse(&counts, rest)?;
                let kind = Kind::Message {
                    urgency,
                    to: u64_at::<0, ADDRESSED>(fields),
                    from: u64_at::<8, ADDRESSED>(fields),
                    body,
                };
                (kind, rest)
            }
            4 => (Kind::Credit, rest),
            5 => (Kind::Cancel, rest),
            6 => {
                let (fields, rest) = split_header::<DONE>(rest)?;
                check("subject", fields[0].into(), 1)?;
                let of_reply = fields[0] == 0;
                (Kind::Done { status, of_reply }, rest)
            }
            7 => (Kind::Ping, rest),
            8 => (Kind::Pong, rest),
            9 => (Kind::GoAway, rest),
            10 => {
                let (fields, rest) = split_header::<STREAM>(rest)?;
                let length = u32_at::<4, STREAM>(fields);
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                let (octets, rest) = split(rest, length)?;
                let end = fields[1] & 1 != 0;
                if octets.is_empty() && !end {
                    return Err(FormatError::Zero("length of a part"));
                }
                let kind = Kind::Stream {
                    direction: Direction::parse(fields[0])?,
                    end,
                    octets: octets.to_vec(),
                };
                (kind, rest)
            }
            11 => {
                let (fields, rest) = split_header::<GRANT>(rest)?;
                let kind = Kind::Grant {
                    direction: Direction::parse(fields[0])?,
                    stop: fields[1] & 1 != 0,
                    granted: u64_at::<8, GRANT>(fields),
                };
                (kind, rest)
            }
            13 => (Kind::Confirm, rest),
            14 => {
                let (fields, rest) = split_header::<TOKEN>(rest)?;
                let length = u16_at::<0, TOKEN>(fields);
                check("token", length.into(), MAX_TOKEN as u64)?;
                let (octets, rest) = split(rest, length.into())?;
                (Kind::Token(octets.to_vec()), rest)
            }
            kind => return Err(FormatError::Kind(kind)),
        };
        if !rest.is_empty() {
            return Err(FormatError::Trailing(rest.len()));
        }
        Ok(Self {
            number: u64_at::<8, HEADER>(header),
            credit: u64_at::<16, HEADER>(header),
            kind,
        })
    }

    /// Appends the message to `out`.
    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        let none = Body::default();
        let (code, status, body) = match &self.kind {
            Kind::Call { body, .. } => (1, 0, body),
            Kind::Reply { status, body, .. } => (2, *status, body),
            Kind::Message { body, .. } => (3, 0, body),
            Kind::Credit => (4, 0, &none),
            Kind::Cancel => (5, 0, &none),
            Kind::Done { status, .. } => (6, *status, &none),
            Kind::Ping => (7, 0, &none),
            Kind::Pong => (8, 0, &none),
            Kind::GoAway => (9, 0, &none),
            Kind::Stream { .. } => (10, 0, &none),
            Kind::Grant { .. } => (11, 0, &none),
            Kind::Confirm => (13, 0, &none),
            Kind::Token(_) => (14, 0, &none),
        };
        let flags = match &self.kind {
            Kind::Call {
                streams, urgency, ..
            } => {
                let streams =
                    (u8::from(streams.down) * TAKES_STREAM) | (u8::from(streams.up) * HAS_STREAM);
                streams | (urgency.to_wire() << URGENCY)
            }
            Kind::Message { urgency, .. } => urgency.to_wire() << URGENCY,
            Kind::Reply { refused, .. } => u8::from(*refused) * REFUSED,
            _ => 0,
        };
        let count = |count: usize| u8::try_from(count).unwrap_or(u8::MAX);
        let metadata = u16::try_from(body.metadata.len()).unwrap_or(u16::MAX);
        out.extend([
            code,
            flags,
            count(body.items.len()),
            count(body.windows.len()),
        ]);
        out.extend(status.to_be_bytes());
        out.extend(metadata.to_be_bytes());
        out.extend(self.number.to_be_bytes());
        out.extend(self.credit.to_be_bytes());
        match &self.kind {
            Kind::Call {
                service,
                method,
                timeout,
                floor,
                ..
            } => {
                out.extend(service.to_be_bytes());
                out.extend(method.to_be_bytes());
                out.extend(timeout.to_be_bytes());
                out.extend(floor.to_be_bytes());
            }
            Kind::Message { to, from, .. } => {
                out.extend(to.to_be_bytes());
                out.extend(from.to_be_bytes());
            }
            Kind::Done { of_reply, .. } => {
                out.push(u8::from(!of_reply));
                out.extend([0; DONE - 1]);
            }
            Kind::Stream {
                direction,
                end,
                octets,
            } => {
                let length = u32::try_from(octets.len()).unwrap_or(u32::MAX);
                out.extend([direction.number(), u8::from(*end), 0, 0]);
                out.extend(length.to_be_bytes());
                out.extend(octets);
            }
            Kind::Grant {
                direction,
                stop,
                granted,
            } => {
                out.extend([direction.number(), u8::from(*stop), 0, 0, 0, 0, 0, 0]);
                out.extend(granted.to_be_bytes());
            }
            Kind::Token(octets) => {
                let length = u16::try_from(octets.len()).unwrap_or(u16::MAX);
                out.extend(length.to_be_bytes());
                out.extend([0; TOKEN - 2]);
                out.extend(octets);
            }
            Kind::Reply { .. }
            | Kind::Credit
            | Kind::Cancel
            | Kind::Ping
            | Kind::Pong
            | Kind::GoAway
            | Kind::Confirm => {}
        }
        body.emit(out);
    }

    /// Whether it costs credit.
    pub(crate) fn is_charged(&self) -> bool {
        match self.kind {
            Kind::Call { .. } | Kind::Reply { .. } | Kind::Message { .. } => true,
            Kind::Credit
            | Kind::Cancel
            | Kind::Done { .. }
            | Kind::Ping
            | Kind::Pong
            | Kind::GoAway
            | Kind::Stream { .. }
            | Kind::Grant { .. }
            | Kind::Confirm
            | Kind::Token(_) => false,
        }
    }

    /// Whether it is sealed behind every handshake.
    pub(crate) fn is_secret(&self) -> bool {
        matches!(self.kind, Kind::Confirm | Kind::Token(_))
    }

    /// Whether all that it has is inside of it: no window, and inline items alone.
    pub(crate) fn is_whole(&self) -> bool {
        let (Kind::Call { body, .. } | Kind::Reply { body, .. } | Kind::Message { body, .. }) =
            &self.kind
        else {
            return true;
        };
        let is_inline = |item: &WireItem| matches!(item, WireItem::Inline(_));
        body.windows.is_empty() && body.items.iter().all(is_inline)
    }
}

/// Octets of a sealed message before its transport message.
pub(crate) const SEALED_HEADER: usize = 8;

/// The transport message of a sealed message; `None` of a message of another kind.
pub(crate) fn sealed(bytes: &[u8]) -> Option<Result<&[u8], FormatError>> {
    (bytes.first() == Some(&SEALED)).then(|| Ok(split(bytes, SEALED_HEADER)?.1))
}

/// Header of a sealed message.
pub(crate) const fn sealed_header() -> [u8; SEALED_HEADER] {
    [SEALED, 0, 0, 0, 0, 0, 0, 0]
}

struct Counts {
    items: usize,
    windows: usize,
    metadata: usize,
}

impl Body {
    fn parse<'a>(counts: &Counts, mut rest: &'a [u8]) -> Result<(Self, &'a [u8]), FormatError> {
        check("number of items", counts.items as u64, MAX_ITEMS as u64)?;
        check(
            "number of windows",
            counts.windows as u64,
            MAX_WINDOWS as u64,
        )?;
        check("metadata", counts.metadata as u64, MAX_METADATA as u64)?;
        let mut body = Self::default();
        for _ in 0..counts.windows {
            let (fields, after) = split_header::<ELEMENT>(rest)?;
            rest = after;
            let window = Window {
                number: u32_at::<0, ELEMENT>(fields),
                key: u32_at::<4, ELEMENT>(fields),
                address: u64_at::<8, ELEMENT>(fields),
                length: u64_at::<16, ELEMENT>(fields),
            };
            if window.length == 0 {
                return Err(FormatError::Zero("length of a window"));
            }
            body.windows.push(window);
        }
        let (elements, after) = split(rest, counts.items * ELEMENT)?;
        let (metadata, mut octets) = split(after, counts.metadata)?;
        body.metadata = metadata.to_vec();
        let (elements, _) = elements.as_chunks::<ELEMENT>();
        for fields in elements {
            let length = u64_at::<16, ELEMENT>(fields);
            let item = match fields[0] {
                1 => {
                    let length = usize::try_from(length).unwrap_or(usize::MAX);
                    let (inline, after) = split(octets, length)?;
                    octets = after;
                    WireItem::Inline(inline.to_vec())
                }
                2 | 3 if length == 0 => return Err(FormatError::Zero("length of a long item")),
                2 => WireItem::Written {
                    window: u32_at::<4, ELEMENT>(fields),
                    length,
                },
                3 => WireItem::Offered {
                    key: u32_at::<4, ELEMENT>(fields),
                    address: u64_at::<8, ELEMENT>(fields),
                    length,
                },
                kind => return Err(FormatError::Kind(kind)),
            };
            body.items.push(item);
        }
        Ok((body, octets))
    }

    fn emit(&self, out: &mut Vec<u8>) {
        for window in &self.windows {
            out.extend(window.number.to_be_bytes());
            out.extend(window.key.to_be_bytes());
            out.extend(window.address.to_be_bytes());
            out.extend(window.length.to_be_bytes());
        }
        for item in &self.items {
            let (kind, name, address, length) = match item {
                WireItem::Inline(octets) => (1, 0, 0, octets.len() as u64),
                WireItem::Written { window, length } => (2, *window, 0, *length),
                WireItem::Offered {
                    key,
                    address,
                    length,
                } => (3, *key, *address, *length),
            };
            out.extend([kind, 0, 0, 0]);
            out.extend(name.to_be_bytes());
            out.extend(address.to_be_bytes());
            out.extend(length.to_be_bytes());
        }
        out.extend(&self.metadata);
        for item in &self.items {
            if let WireItem::Inline(octets) = item {
                out.extend(octets);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn body() -> impl Strategy<Value = Body> {
        let window = (any::<u32>(), any::<u32>(), any::<u64>(), 1..u64::MAX).prop_map(
            |(number, key, address, length)| Window {
                number,
                key,
                address,
                length,
            },
        );
        let item = prop_oneof![
            vec(any::<u8>(), 0..40).prop_map(WireItem::Inline),
            (any::<u32>(), 1..u64::MAX)
                .prop_map(|(window, length)| WireItem::Written { window, length }),
            (any::<u32>(), any::<u64>(), 1..u64::MAX).prop_map(|(key, address, length)| {
                WireItem::Offered {
                    key,
                    address,
                    length,
                }
            }),
        ];
        let parts = (vec(window, 0..4), vec(item, 0..5), vec(any::<u8>(), 0..30));
        parts.prop_map(|(windows, items, metadata)| Body {
            windows,
            items,
            metadata,
        })
    }

    fn direction() -> impl Strategy<Value = Direction> {
        prop_oneof![Just(Direction::Up), Just(Direction::Down)]
    }

    fn kind() -> impl Strategy<Value = Kind> {
        prop_oneof![
            (
                (any::<bool>(), any::<bool>(), 0..8_u8),
                any::<u64>(),
                any::<u32>(),
                any::<u32>(),
                any::<u64>(),
                body()
            )
                .prop_map(
                    |((down, up, urgency), service, method, timeout, floor, body)| {
                        Kind::Call {
                            streams: Streams { down, up },
                            urgency: Urgency::of_wire(urgency),
                            service,
                            method,
                            timeout,
                            floor,
                            body,
                        }
                    }
                ),
            (any::<u16>(), any::<bool>(), body()).prop_map(|(status, refused, body)| Kind::Reply {
                status,
                refused,
                body
            }),
            (0..8_u8, any::<u64>(), any::<u64>(), body()).prop_map(|(urgency, to, from, body)| {
                Kind::Message {
                    urgency: Urgency::of_wire(urgency),
                    to,
                    from,
                    body,
                }
            }),
            Just(Kind::Credit),
            Just(Kind::Cancel),
            (any::<u16>(), any::<bool>())
                .prop_map(|(status, of_reply)| Kind::Done { status, of_reply }),
            Just(Kind::Ping),
            Just(Kind::Pong),
            Just(Kind::GoAway),
            (direction(), any::<bool>(), vec(any::<u8>(), 0..40)).prop_map(
                |(direction, end, octets)| Kind::Stream {
                    direction,
                    end: end || octets.is_empty(),
                    octets,
                }
            ),
            (direction(), any::<bool>(), any::<u64>()).prop_map(|(direction, stop, granted)| {
                Kind::Grant {
                    direction,
                    stop,
                    granted,
                }
            }),
            Just(Kind::Confirm),
            vec(any::<u8>(), 0..MAX_TOKEN).prop_map(Kind::Token),
        ]
    }

    proptest! {
        #[test]
        fn emitted_messages_are_parsed(number in any::<u64>(), credit in any::<u64>(), kind in kind()) {
            let message = Message { number, credit, kind };
            let mut bytes = Vec::new();
            message.emit(&mut bytes);
            prop_assert_eq!(Message::parse(&bytes), Ok(message));
            // Nothing shorter is a message.
            for end in 0..bytes.len() {
                prop_assert!(Message::parse(&bytes[..end]).is_err());
            }
            bytes.push(0);
            prop_assert_eq!(Message::parse(&bytes), Err(FormatError::Trailing(1)));
        }

        #[test]
        fn any_octets_are_parsed(mut bytes in vec(any::<u8>(), 0..400), kind in 0..17_u8) {
            let _ = Message::parse(&bytes);
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            if let Ok(message) = Message::parse(&bytes) {
                let mut again = Vec::new();
                message.emit(&mut again);
                prop_assert_eq!(again.len(), bytes.len());
            }
        }
    }

    #[test]
    fn counts_and_lengths_have_limits() {
        let mut bytes = vec![2, 0, 65, 0];
        bytes.resize(4000, 0);
        assert!(matches!(
            Message::parse(&bytes),
            Err(FormatError::Limit { value: 65, .. })
        ));
        bytes[2] = 0;
        bytes[3] = 17;
        assert!(matches!(
            Message::parse(&bytes),
            Err(FormatError::Limit { value: 17, .. })
        ));
        // A part without octets that is not the end.
        let mut part = vec![10];
        part.resize(32, 0);
        let zero = Err(FormatError::Zero("length of a part"));
        assert_eq!(Message::parse(&part), zero);
        part[25] = 1;
        assert!(Message::parse(&part).is_ok());
        part[24] = 2;
        assert!(Message::parse(&part).is_err());
        // A window without octets.
        bytes[3] = 1;
        assert_eq!(
            Message::parse(&bytes[..48]),
            Err(FormatError::Zero("length of a window"))
        );
        // An inline item longer than any memory.
        let mut bytes = vec![2, 0, 1, 0];
        bytes.resize(24, 0);
        bytes.extend([1; 24]);
        assert!(matches!(
            Message::parse(&bytes),
            Err(FormatError::Truncated(_))
        ));
    }
}
