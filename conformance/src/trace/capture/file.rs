//! Capture files: pcap in its four kinds (either order of octets, microseconds or nanoseconds) and pcapng. Packets are read one by one, so that a
//! file may be of any size, or a pipe that somebody still writes to.

use std::io::{self, Read};

use thiserror::Error;

/// The longest packet or block that is kept; longer packets do not exist, and longer blocks of pcapng hold no packets.
const MOST: u32 = 16 << 20;
/// Interfaces of one section. A file that has more is not one that anybody captured.
const MOST_INTERFACES: usize = 4096;

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const OLD_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

/// Why a file cannot be read on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileError {
    /// The system refuses.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It does not begin as a capture file does.
    #[error("this is not a capture file: it begins with {0:02x?}")]
    NotACapture([u8; 4]),
    /// A length in it that cannot be.
    #[error("behind packet {after}: a length of {length} octets cannot be")]
    Length {
        /// The number of the packet before.
        after: u64,
        /// The length.
        length: u32,
    },
    /// A packet of an interface that was not described.
    #[error("packet {packet} is of interface {interface}, which the file does not describe")]
    NoInterface {
        /// The packet.
        packet: u64,
        /// The interface.
        interface: u32,
    },
}

/// One packet of a file.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Its number, from 1.
    pub number: u64,
    /// When it was captured, in nanoseconds since 1970; 0 if the file does not say.
    pub at: u64,
    /// Kind of its first headers: a `LINKTYPE_` of the pcap registry.
    pub link: u32,
    /// Captured part of it.
    pub octets: &'a [u8],
    /// The comment that the file has on it.
    pub comment: Option<&'a str>,
}

#[derive(Clone, Copy, Debug)]
struct Interface {
    link: u32,
    snap: u32,
    /// Units of its time stamps per second.
    units: u64,
}

#[derive(Debug)]
enum Format {
    Pcap { link: u32, units: u64 },
    Pcapng { interfaces: Vec<Interface> },
}

/// Reads a capture file from its beginning.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    format: Format,
    /// Whether numbers have their most significant octet first.
    big: bool,
    number: u64,
    block: Vec<u8>,
    cut: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the header of a file.
    ///
    /// # Errors
    ///
    /// If it is not that of a capture file, or cannot be read.
    pub fn new(mut input: R) -> Result<Self, FileError> {
        let mut magic = [0; 4];
        if fill(&mut input, &mut magic)? < magic.len() {
            return Err(FileError::NotACapture(magic));
        }
        let (big, units) = match magic {
            [0xa1, 0xb2, 0xc3, 0xd4] => (true, 1_000_000),
            [0xd4, 0xc3, 0xb2, 0xa1] => (false, 1_000_000),
            [0xa1, 0xb2, 0x3c, 0x4d] => (true, 1_000_000_000),
            [0x4d, 0x3c, 0xb2, 0xa1] => (false, 1_000_000_000),
            [0x0a, 0x0d, 0x0d, 0x0a] => return Self::pcapng(input),
            other => return Err(FileError::NotACapture(other)),
        };
        let mut header = [0; 20];
        if fill(&mut input, &mut header)? < header.len() {
            return Err(FileError::NotACapture(magic));
        }
        // The upper half may tell of checksums at the ends of frames.
        let link = word(&header, 16, big).unwrap_or(0) & 0xffff;
        Ok(Self {
            input,
            format: Format::Pcap { link, units },
            big,
            number: 0,
            block: Vec::new(),
            cut: false,
        })
    }

    fn pcapng(input: R) -> Result<Self, FileError> {
        let mut reader = Self {
            input,
            format: Format::Pcapng {
                interfaces: Vec::new(),
            },
            big: false,
            number: 0,
            block: Vec::new(),
            cut: false,
        };
        reader.section()?;
        Ok(reader)
    }

    /// How many packets were read so far.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.number
    }

    /// Whether the file ended inside of a packet, as that of a capture that was interrupted does.
    #[must_use]
    pub fn was_cut(&self) -> bool {
        self.cut
    }

    /// The next packet, or `None` at the end.
    ///
    /// # Errors
    ///
    /// If what comes cannot be read.
    pub fn next_packet(&mut self) -> Result<Option<Packet<'_>>, FileError> {
        match self.format {
            Format::Pcap { link, units } => self.next_of_pcap(link, units),
            Format::Pcapng { .. } => self.next_of_pcapng(),
        }
    }

    fn next_of_pcap(&mut self, link: u32, units: u64) -> Result<Option<Packet<'_>>, FileError> {
        let mut header = [0; 16];
        if !self.exactly(&mut header)? {
            return Ok(None);
        }
        let field = |at| word(&header, at, self.big).unwrap_or(0);
        let (seconds, part, length) = (field(0), field(4), field(8));
        if !self.body(length)? {
            return Ok(None);
        }
        self.number += 1;
        let at = u64::from(seconds) * 1_000_000_000 + u64::from(part) * (1_000_000_000 / units);
        Ok(Some(Packet {
            number: self.number,
            at,
            link,
            octets: &self.block,
            comment: None,
        }))
    }

    fn next_of_pcapng(&mut self) -> Result<Option<Packet<'_>>, FileError> {
        loop {
            let mut header = [0; 4];
            if !self.exactly(&mut header)? {
                return Ok(None);
            }
            // The type reads alike in either order of octets; the section holds its order.
            if word(&header, 0, true) == Some(SECTION) {
                if !self.section()? {
                    return Ok(None);
                }
                continue;
            }
            let kind = word(&header, 0, self.big).unwrap_or(0);
            let Some(length) = self.block_length(12)? else {
                return Ok(None);
            };
            let packets = [OLD_PACKET, SIMPLE_PACKET, ENHANCED_PACKET].contains(&kind);
            if !packets && kind != INTERFACE {
                let skipped = u64::from(length) - 8;
                if io::copy(&mut (&mut self.input).take(skipped), &mut io::sink())? < skipped {
                    self.cut = true;
                    return Ok(None);
                }
                continue;
            }
            if !self.body(length - 8)? {
                return Ok(None);
            }
            self.block.truncate(self.block.len().saturating_sub(4));
            if kind == INTERFACE {
                self.describe();
                continue;
            }
            self.number += 1;
            let located = self.locate(kind)?;
            let octets = self.block.get(located.from..located.to).unwrap_or(&[]);
            let comment =
                (self.block.get(located.options..)).and_then(|all| comment(all, self.big));
            return Ok(Some(Packet {
                number: self.number,
                at: located.at,
                link: located.link,
                octets,
                comment,
            }));
        }
    }

    /// Takes the rest of a section header block; false at the end of the file.
    fn section(&mut self) -> Result<bool, FileError> {
        let mut header = [0; 8];
        if !self.exactly(&mut header)? {
            return Ok(false);
        }
        self.big = match word(&header, 4, true) {
            Some(0x1a2b_3c4d) => true,
            Some(0x4d3c_2b1a) => false,
            _ => return Err(FileError::NotACapture([0x0a, 0x0d, 0x0d, 0x0a])),
        };
        if let Format::Pcapng { interfaces } = &mut self.format {
            interfaces.clear();
        }
        let length = word(&header, 0, self.big).unwrap_or(0);
        if !(16..=MOST).contains(&length) {
            return Err(self.wrong(length));
        }
        self.body(length - 12)
    }

    fn block_length(&mut self, least: u32) -> Result<Option<u32>, FileError> {
        let mut field = [0; 4];
        if !self.exactly(&mut field)? {
            return Ok(None);
        }
        let length = word(&field, 0, self.big).unwrap_or(0);
        if length < least || !length.is_multiple_of(4) {
            return Err(self.wrong(length));
        }
        Ok(Some(length))
    }

    /// Keeps what an interface block says.
    fn describe(&mut self) {
        let field = |at| word(&self.block, at, self.big).unwrap_or(0);
        let link = if self.big {
            field(0) >> 16
        } else {
            field(0) & 0xffff
        };
        let mut interface = Interface {
            link,
            snap: field(4),
            units: 1_000_000,
        };
        let mut options = Options {
            octets: self.block.get(8..).unwrap_or(&[]),
            big: self.big,
        };
        const RESOLUTION: u16 = 9;
        if let Some((_, value)) = options.find(|(code, _)| *code == RESOLUTION) {
            interface.units = match value.first() {
                Some(power) if power & 0x80 != 0 => 1_u64.checked_shl(u32::from(power & 0x7f)),
                Some(power) => 10_u64.checked_pow(u32::from(*power)),
                None => None,
            }
            .unwrap_or(1_000_000);
        }
        if let Format::Pcapng { interfaces } = &mut self.format
            && interfaces.len() < MOST_INTERFACES
        {
            interfaces.push(interface);
        }
    }

    /// Where in the block the packet is.
    fn locate(&self, kind: u32) -> Result<Located, FileError> {
        let field = |at| word(&self.block, at, self.big).unwrap_or(0);
        let number = match kind {
            SIMPLE_PACKET => 0,
            OLD_PACKET if self.big => field(0) >> 16,
            OLD_PACKET => field(0) & 0xffff,
            _ => field(0),
        };
        let Format::Pcapng { interfaces } = &self.format else {
            return Err(self.wrong(0));
        };
        let found = usize::try_from(number)
            .ok()
            .and_then(|at| interfaces.get(at));
        let Some(interface) = found else {
            return Err(FileError::NoInterface {
                packet: self.number,
                interface: number,
            });
        };
        let (start, length, stamp) = if kind == SIMPLE_PACKET {
            let snap = if interface.snap == 0 {
                MOST
            } else {
                interface.snap
            };
            (4_usize, field(0).min(snap), 0)
        } else {
            (
                20,
                field(12),
                u64::from(field(4)) << 32 | u64::from(field(8)),
            )
        };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let to = start.saturating_add(length).min(self.block.len());
        let at = u128::from(stamp) * 1_000_000_000 / u128::from(interface.units.max(1));
        Ok(Located {
            at: u64::try_from(at).unwrap_or(0),
            link: interface.link,
            from: start.min(to),
            to,
            options: start.saturating_add(length).next_multiple_of(4),
        })
    }

    fn wrong(&self, length: u32) -> FileError {
        FileError::Length {
            after: self.number,
            length,
        }
    }

    /// Fills an array; false at the end of the file, which is a cut if something of it is there.
    fn exactly(&mut self, into: &mut [u8]) -> io::Result<bool> {
        let there = fill(&mut self.input, into)?;
        self.cut |= there != 0 && there < into.len();
        Ok(there == into.len())
    }

    /// Reads so many octets into the block; false if the file ends before.
    fn body(&mut self, length: u32) -> Result<bool, FileError> {
        if length > MOST {
            return Err(self.wrong(length));
        }
        self.block.clear();
        // Grows with what is there, not with what the file claims.
        let mut part = (&mut self.input).take(u64::from(length));
        let there = part.read_to_end(&mut self.block)?;
        let all = u64::try_from(there).is_ok_and(|there| there == u64::from(length));
        self.cut |= !all;
        Ok(all)
    }
}

struct Located {
    at: u64,
    link: u32,
    from: usize,
    to: usize,
    options: usize,
}

/// The options of a block: code and value.
struct Options<'a> {
    octets: &'a [u8],
    big: bool,
}

impl<'a> Iterator for Options<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (header, rest) = self.octets.split_first_chunk::<4>()?;
        let [a, b, c, d] = *header;
        let half = |two| {
            if self.big {
                u16::from_be_bytes(two)
            } else {
                u16::from_le_bytes(two)
            }
        };
        let (code, length) = (half([a, b]), usize::from(half([c, d])));
        if code == 0 {
            return None;
        }
        let value = rest.get(..length)?;
        self.octets = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((code, value))
    }
}

fn comment(octets: &[u8], big: bool) -> Option<&str> {
    const COMMENT: u16 = 1;
    let (_, value) = Options { octets, big }.find(|(code, _)| *code == COMMENT)?;
    std::str::from_utf8(value).ok()
}

fn word(octets: &[u8], at: usize, big: bool) -> Option<u32> {
    let four = *octets.get(at..)?.first_chunk()?;
    Some(if big {
        u32::from_be_bytes(four)
    } else {
        u32::from_le_bytes(four)
    })
}

/// Reads until the array is full or the file ends.
fn fill(input: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    let mut there = 0;
    while there < into.len() {
        match input.read(&mut into[there..]) {
            Ok(0) => break,
            Ok(more) => there += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(there)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(big: bool, words: &[u32]) -> Vec<u8> {
        let octets = |word: &u32| {
            if big {
                word.to_be_bytes()
            } else {
                word.to_le_bytes()
            }
        };
        words.iter().flat_map(octets).collect()
    }

    type Kept = (u64, u32, Vec<u8>, Option<String>);

    fn all(file: &[u8]) -> Result<Vec<Kept>, FileError> {
        let mut reader = Reader::new(file)?;
        let mut packets = Vec::new();
        while let Some(packet) = reader.next_packet()? {
            let comment = packet.comment.map(ToOwned::to_owned);
            packets.push((packet.at, packet.link, packet.octets.to_vec(), comment));
        }
        Ok(packets)
    }

    fn pcapng(big: bool) -> Vec<u8> {
        let half = |a: u16, b: u16| {
            let (a, b) = (u32::from(a), u32::from(b));
            if big { a << 16 | b } else { b << 16 | a }
        };
        let octets = |four: [u8; 4]| {
            if big {
                u32::from_be_bytes(four)
            } else {
                u32::from_le_bytes(four)
            }
        };
        let mut file = vec![0x0a, 0x0d, 0x0d, 0x0a];
        file.extend(words(
            big,
            &[28, 0x1a2b_3c4d, half(1, 0), u32::MAX, u32::MAX, 28],
        ));
        // Interface 0 has nanoseconds, interface 1 microseconds; a block of another kind lies between.
        let resolution = octets([9, 0, 0, 0]);
        file.extend(words(
            big,
            &[1, 32, half(1, 0), 0, half(9, 1), resolution, 0, 32],
        ));
        file.extend(words(big, &[0xbad, 16, 7, 16]));
        file.extend(words(big, &[1, 20, half(101, 0), 0, 20]));
        let comment = [half(1, 2), octets(*b"hi\0\0"), 0];
        let mut packet = vec![6, 48, 0, 0, 5, 3, 3, octets([1, 2, 3, 0])];
        packet.extend(comment);
        packet.push(48);
        file.extend(words(big, &packet));
        file.extend(words(
            big,
            &[6, 36, 1, 0, 5, 4, 4, octets([1, 2, 3, 4]), 36],
        ));
        file.extend(words(big, &[3, 20, 4, octets([9, 8, 7, 6]), 20]));
        file
    }

    #[test]
    fn pcap_of_either_order_and_resolution() {
        for big in [false, true] {
            for (magic, at) in [(0xa1b2_c3d4, 2_000_003_000), (0xa1b2_3c4d, 2_000_000_003)] {
                let mut file = words(big, &[magic, 4 << 16 | 2, 0, 0, 65_535, 1]);
                file.extend(words(big, &[2, 3, 2, 9]));
                file.extend([7, 8]);
                assert_eq!(all(&file).unwrap(), [(at, 1, vec![7, 8], None)]);
            }
        }
    }

    #[test]
    fn pcapng_of_either_order() {
        for big in [false, true] {
            let hi = Some("hi".to_owned());
            let expected = [
                (5, 1, vec![1, 2, 3], hi),
                (5000, 101, vec![1, 2, 3, 4], None),
                (0, 1, vec![9, 8, 7, 6], None),
            ];
            assert_eq!(all(&pcapng(big)).unwrap(), expected);
            // A second section has interfaces of its own, and perhaps another order of octets.
            let mut two = pcapng(!big);
            two.extend(pcapng(big));
            assert_eq!(all(&two).unwrap().len(), 6);
        }
    }

    #[test]
    fn any_cut_and_any_octet_changed_is_an_end_or_an_error() {
        let whole = pcapng(false);
        for length in 4..whole.len() {
            let Ok(mut reader) = Reader::new(&whole[..length]) else {
                continue;
            };
            while let Ok(Some(_)) = reader.next_packet() {}
            for octet in [0, 1, 0x7f, 0x80, 0xff] {
                let mut changed = whole.clone();
                changed[length] = octet;
                let _ = all(&changed);
            }
        }
        let mut reader = Reader::new(&whole[..whole.len() - 1]).unwrap();
        while reader.next_packet().unwrap().is_some() {}
        assert!(reader.was_cut());
        assert!(matches!(all(b"GIF8..."), Err(FileError::NotACapture(_))));
        assert!(matches!(all(b"GI"), Err(FileError::NotACapture(_))));
    }
}
