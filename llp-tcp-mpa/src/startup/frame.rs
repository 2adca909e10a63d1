//! The MPA Request and Reply Frame (RFC 5044 §7.1.1, RFC 6581 §6): layout, and a reader
//! that takes one from a TCP stream however that is cut.
#![deny(clippy::indexing_slicing)]

use super::enhanced::Enhanced;
use crate::error::FrameError;
use core::fmt;

const KEY_LEN: usize = 16;
const REQUEST_KEY: [u8; KEY_LEN] = *b"MPA ID Req Frame";
const REPLY_KEY: [u8; KEY_LEN] = *b"MPA ID Rep Frame";

/// Octets before the private data.
pub const HEADER_LEN: usize = KEY_LEN + 4;
/// Most octets of private data, enhanced data included.
pub const MAX_PRIVATE_DATA: usize = 512;
/// Octets of it that the enhanced data takes.
pub const ENHANCED_LEN: usize = Enhanced::LEN;

const FLAG_MARKERS: u8 = 0x80;
const FLAG_CRC: u8 = 0x40;
const FLAG_REJECT: u8 = 0x20;
const FLAG_ENHANCED: u8 = 0x10;
/// Reserved by RFC 5044 and RFC 6581: not checked by ends that do not know it.
const FLAG_DATAGRAMS: u8 = 0x08;

/// Kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// Sent by the Initiator.
    Request,
    /// Sent by the Responder.
    Reply,
}

impl FrameKind {
    const fn key(self) -> [u8; KEY_LEN] {
        match self {
            Self::Request => REQUEST_KEY,
            Self::Reply => REPLY_KEY,
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::Request => Self::Reply,
            Self::Reply => Self::Request,
        }
    }
}

/// Supported MPA revisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Revision {
    /// RFC 5044.
    One,
    /// RFC 6581.
    Two,
}

impl Revision {
    /// The octet on the wire.
    pub const fn get(self) -> u8 {
        match self {
            Self::One => 1,
            Self::Two => 2,
        }
    }
}

impl TryFrom<u8> for Revision {
    type Error = FrameError;

    fn try_from(rev: u8) -> Result<Self, FrameError> {
        match rev {
            1 => Ok(Self::One),
            2 => Ok(Self::Two),
            // RFC 5044 §7.1.1: a revision that one cannot interoperate with closes the
            // connection. 0 is the RDMA Consortium's protocol.
            _ => Err(FrameError::Revision(rev)),
        }
    }
}

/// One Request or Reply Frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartupFrame {
    /// Request or Reply.
    pub kind: FrameKind,
    /// M: the sender requires Markers in the FPDUs that it receives.
    pub markers: bool,
    /// C: the sender prefers CRCs.
    pub crc: bool,
    /// R: the connection is rejected; of no meaning in a Request.
    pub reject: bool,
    /// The revision.
    pub revision: Revision,
    /// The enhanced data, present where the S bit is set.
    pub enhanced: Option<Enhanced>,
    /// D, of revision 2: messages may go by reliable datagrams (`rfc-notes/reliable-datagrams.md` §9.2).
    pub datagrams: bool,
    /// The ULP's private data, without the enhanced data.
    pub private_data: Vec<u8>,
}

impl StartupFrame {
    /// The octets of the frame.
    ///
    /// The private data is at most [`MAX_PRIVATE_DATA`] octets, the enhanced data included;
    /// callers check this where the data enters.
    pub fn emit(&self) -> Vec<u8> {
        let enhanced_len = if self.enhanced.is_some() {
            ENHANCED_LEN
        } else {
            0
        };
        let pd_len = u16::try_from(enhanced_len + self.private_data.len())
            .expect("private data is bounded by 512 where it is set");
        let mut flags = 0;
        for (on, flag) in [
            (self.markers, FLAG_MARKERS),
            (self.crc, FLAG_CRC),
            (self.reject, FLAG_REJECT),
            (self.enhanced.is_some(), FLAG_ENHANCED),
            (self.datagrams, FLAG_DATAGRAMS),
        ] {
            if on {
                flags |= flag;
            }
        }
        let mut out = Vec::with_capacity(HEADER_LEN + usize::from(pd_len));
        out.extend_from_slice(&self.kind.key());
        out.extend_from_slice(&[flags, self.revision.get()]);
        out.extend_from_slice(&pd_len.to_be_bytes());
        if let Some(enhanced) = self.enhanced {
            out.extend_from_slice(&enhanced.emit());
        }
        out.extend_from_slice(&self.private_data);
        out
    }

    /// Reads a frame from its header and the whole of its private data.
    fn parse(kind: FrameKind, header: Header, private_data: &[u8]) -> Self {
        // RFC 5044 §7.1.1: reserved bits are not checked; in revision 1 the S bit is one of them.
        let enhanced_bit = header.revision == Revision::Two && header.flags & FLAG_ENHANCED != 0;
        let (enhanced, rest) = match private_data.split_first_chunk() {
            Some((data, rest)) if enhanced_bit => (Some(Enhanced::parse(*data)), rest),
            Some(_) | None => (None, private_data),
        };
        Self {
            kind,
            markers: header.flags & FLAG_MARKERS != 0,
            crc: header.flags & FLAG_CRC != 0,
            reject: kind == FrameKind::Reply && header.flags & FLAG_REJECT != 0,
            revision: header.revision,
            enhanced,
            datagrams: enhanced_bit && header.flags & FLAG_DATAGRAMS != 0,
            private_data: rest.to_vec(),
        }
    }
}

impl fmt::Display for StartupFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "MPA {:?} rev={} M={} C={} R={} private={}",
            self.kind,
            self.revision.get(),
            u8::from(self.markers),
            u8::from(self.crc),
            u8::from(self.reject),
            self.private_data.len()
        )?;
        match self.enhanced {
            Some(enhanced) => write!(f, " {enhanced}"),
            None => Ok(()),
        }
    }
}

/// The four octets after the key, checked.
#[derive(Debug, Clone, Copy)]
struct Header {
    flags: u8,
    revision: Revision,
    pd_len: u16,
}

impl Header {
    fn parse([flags, rev, len_hi, len_lo]: [u8; 4]) -> Result<Self, FrameError> {
        let revision = Revision::try_from(rev)?;
        let pd_len = u16::from_be_bytes([len_hi, len_lo]);
        // RFC 5044 §7.1.2 rule 9: PD_Length is validated before anything is received into
        // the buffer that it sizes.
        if usize::from(pd_len) > MAX_PRIVATE_DATA {
            return Err(FrameError::PrivateDataLength(pd_len));
        }
        if revision == Revision::Two
            && flags & FLAG_ENHANCED != 0
            && usize::from(pd_len) < ENHANCED_LEN
        {
            return Err(FrameError::EnhancedTooShort(pd_len));
        }
        Ok(Self {
            flags,
            revision,
            pd_len,
        })
    }
}

/// Takes one frame from a stream. Wrong octets are reported as soon as they arrive; at most
/// 532 octets are kept.
#[derive(Debug)]
pub struct StartupReader {
    kind: FrameKind,
    /// Octets of the frame so far; those within the key are checked.
    bytes: Vec<u8>,
}

impl StartupReader {
    /// A reader of one frame of this kind.
    pub const fn new(kind: FrameKind) -> Self {
        Self {
            kind,
            bytes: Vec::new(),
        }
    }

    /// Takes octets from the front of `input`, none beyond the frame's end. Gives the frame
    /// once it is complete.
    ///
    /// # Errors
    /// [`FrameError`] as soon as the octets cannot become a valid frame.
    pub fn read(&mut self, input: &mut &[u8]) -> Result<Option<StartupFrame>, FrameError> {
        let checked = self.bytes.len().min(KEY_LEN);
        self.fill(input, HEADER_LEN);
        self.check_key(checked)?;
        let Some((_, rest)) = self.bytes.split_first_chunk::<KEY_LEN>() else {
            return Ok(None);
        };
        let Some((fields, _)) = rest.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let header = Header::parse(*fields)?;
        self.fill(input, HEADER_LEN + usize::from(header.pd_len));
        match self.bytes.split_at_checked(HEADER_LEN) {
            Some((_, data)) if data.len() == usize::from(header.pd_len) => {
                Ok(Some(StartupFrame::parse(self.kind, header, data)))
            }
            Some(_) | None => Ok(None),
        }
    }

    /// Moves octets from `input` until `target` are here.
    fn fill(&mut self, input: &mut &[u8], target: usize) {
        let take = target.saturating_sub(self.bytes.len()).min(input.len());
        let (now, later) = input.split_at(take);
        self.bytes.extend_from_slice(now);
        *input = later;
    }

    fn check_key(&self, from: usize) -> Result<(), FrameError> {
        let key = self.kind.key();
        let wrong = self
            .bytes
            .iter()
            .zip(key)
            .enumerate()
            .skip(from)
            .find(|(_, (found, expected))| *found != expected);
        let Some((at, (&found, _))) = wrong else {
            return Ok(());
        };
        // RFC 5044 §7.1.2 rule 8: the key of the other frame means that both ends started
        // in the same role. The keys are equal up to the octet where they differ.
        let other = self.kind.other().key();
        if other.get(at) == Some(&found) {
            return Err(match self.kind {
                FrameKind::Reply => FrameError::BothInitiators,
                FrameKind::Request => FrameError::BothResponders,
            });
        }
        Err(FrameError::Key { at, found })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::startup::{ReadDepth, RtrSet};
    use proptest::prelude::*;

    fn read_all(kind: FrameKind, bytes: &[u8]) -> Result<Option<StartupFrame>, FrameError> {
        StartupReader::new(kind).read(&mut &*bytes)
    }

    /// RFC 5044 §7.1.1 figure 8, as octets.
    #[test]
    fn figure_8() {
        let frame = StartupFrame {
            kind: FrameKind::Request,
            markers: true,
            crc: true,
            reject: false,
            revision: Revision::One,
            enhanced: None,
            datagrams: false,
            private_data: b"hello".to_vec(),
        };
        let mut expected = vec![
            0x4d, 0x50, 0x41, 0x20, 0x49, 0x44, 0x20, 0x52, 0x65, 0x71, 0x20, 0x46, 0x72, 0x61,
            0x6d, 0x65, 0xc0, 0x01, 0x00, 0x05,
        ];
        expected.extend_from_slice(b"hello");
        assert_eq!(frame.emit(), expected);
        assert_eq!(read_all(FrameKind::Request, &expected), Ok(Some(frame)));
    }

    #[test]
    fn wrong_keys_are_named_at_the_first_wrong_octet() {
        for at in 0..KEY_LEN {
            let mut bytes = REQUEST_KEY;
            bytes[at] ^= 0x80;
            let error = read_all(FrameKind::Request, &bytes[..=at]);
            assert_eq!(
                error,
                Err(FrameError::Key {
                    at,
                    found: bytes[at]
                })
            );
        }
        let both = read_all(FrameKind::Reply, &REQUEST_KEY[..10]);
        assert_eq!(both, Err(FrameError::BothInitiators));
        assert_eq!(
            read_all(FrameKind::Request, &REPLY_KEY),
            Err(FrameError::BothResponders)
        );
    }

    #[test]
    fn bad_header_fields() {
        let with =
            |fields: [u8; 4]| read_all(FrameKind::Request, &[&REQUEST_KEY[..], &fields].concat());
        for rev in [0, 3, 255] {
            assert_eq!(with([0, rev, 0, 0]), Err(FrameError::Revision(rev)));
        }
        assert_eq!(with([0, 1, 2, 1]), Err(FrameError::PrivateDataLength(513)));
        assert_eq!(
            with([0, 1, 0xff, 0xff]),
            Err(FrameError::PrivateDataLength(0xffff))
        );
        assert_eq!(with([0x10, 2, 0, 3]), Err(FrameError::EnhancedTooShort(3)));
        assert_eq!(with([0x10, 2, 0, 4]), Ok(None), "the data is still to come");
        let most = [&REQUEST_KEY[..], &[0, 1, 2, 0], &[9; 512]].concat();
        let frame = read_all(FrameKind::Request, &most).unwrap().unwrap();
        assert_eq!(frame.private_data, [9; 512]);
        assert_eq!(
            frame.to_string(),
            "MPA Request rev=1 M=0 C=0 R=0 private=512"
        );
        // In revision 1 the S bit is reserved, and reserved bits are not checked.
        let plain = with([0x1f, 1, 0, 0]).unwrap().unwrap();
        assert_eq!(plain.enhanced, None);
    }

    fn any_frame() -> impl Strategy<Value = StartupFrame> {
        let depth = || (0..=ReadDepth::MAX).prop_map(ReadDepth::Limit);
        let rtr = any::<(bool, bool, bool)>().prop_map(|(send, write, read)| RtrSet {
            send,
            write,
            read,
        });
        let enhanced =
            (depth(), depth(), proptest::option::of(rtr)).prop_map(|(ird, ord, peer_to_peer)| {
                Enhanced {
                    ird,
                    ord,
                    peer_to_peer,
                }
            });
        (
            any::<(bool, bool, bool, bool)>(),
            proptest::option::of(enhanced),
            proptest::collection::vec(any::<u8>(), 0..=508),
        )
            .prop_map(
                |((markers, crc, reject, datagrams), enhanced, private_data)| StartupFrame {
                    kind: FrameKind::Reply,
                    markers,
                    crc,
                    reject,
                    revision: Revision::Two,
                    datagrams: datagrams && enhanced.is_some(),
                    enhanced,
                    private_data,
                },
            )
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_frame(frame in any_frame(), cuts in proptest::collection::vec(1usize..40, 0..60)) {
            let mut bytes = frame.emit();
            bytes.extend_from_slice(b"next");
            let mut reader = StartupReader::new(FrameKind::Reply);
            let mut rest = &bytes[..];
            let mut got = None;
            for cut in cuts.into_iter().chain([usize::MAX]) {
                let (mut now, later) = rest.split_at(cut.min(rest.len()));
                if let Some(frame) = reader.read(&mut now).unwrap() {
                    got = Some((frame, [now, later].concat()));
                    break;
                }
                prop_assert!(now.is_empty());
                rest = later;
            }
            prop_assert_eq!(got, Some((frame, b"next".to_vec())));
        }

        #[test]
        fn any_bytes_return(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = read_all(FrameKind::Request, &bytes);
            let _ = read_all(FrameKind::Request, &[&REQUEST_KEY[..], &bytes].concat());
        }
    }
}
