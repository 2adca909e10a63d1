//! Headers and trailers as an item (`rfc-notes/ripc.md`, "gRPC").

use http::{HeaderMap, HeaderName, HeaderValue};
use tonic::Status;

/// Most octets of the fields of a call or of its reply.
const MOST: usize = 16 << 10;
/// Field that names the method.
pub(crate) const PATH: &str = ":path";
/// Field of a message that is compressed.
pub(crate) const COMPRESSED: &str = ":compressed";

/// Fields, in their order.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    octets: Vec<u8>,
}

/// Fields as they came: those of the protocol, and headers.
#[derive(Debug, Default)]
pub(crate) struct Parsed {
    pub(crate) path: Option<String>,
    pub(crate) compressed: bool,
    pub(crate) headers: HeaderMap,
}

impl Fields {
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self, Status> {
        let mut fields = Self::default();
        for (name, value) in headers {
            fields.add(name.as_str(), value.as_bytes())?;
        }
        Ok(fields)
    }

    pub(crate) fn add(&mut self, name: &str, value: &[u8]) -> Result<(), Status> {
        let lengths = (u8::try_from(name.len()), u16::try_from(value.len()));
        let (Ok(name_length), Ok(value_length)) = lengths else {
            return Err(too_long());
        };
        self.octets.push(name_length);
        self.octets.extend(name.as_bytes());
        self.octets.extend(value_length.to_be_bytes());
        self.octets.extend(value);
        if self.octets.len() > MOST {
            return Err(too_long());
        }
        Ok(())
    }

    pub(crate) fn into_octets(self) -> Vec<u8> {
        self.octets
    }
}

/// Octets before the headers of a stream: their length.
const LENGTH: usize = 4;

impl Fields {
    /// The headers at the begin of a stream.
    pub(crate) fn into_head(self) -> Vec<u8> {
        let mut head = u32::try_from(self.octets.len())
            .unwrap_or(u32::MAX)
            .to_be_bytes()
            .to_vec();
        head.extend(self.octets);
        head
    }
}

impl Parsed {
    /// The headers at the begin of a stream, and the octets behind them, once they have come.
    pub(crate) fn head(octets: &[u8]) -> Result<Option<(Self, &[u8])>, Status> {
        let Some((length, rest)) = octets.split_first_chunk::<LENGTH>() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > MOST {
            return Err(too_long());
        }
        let Some((fields, rest)) = rest.split_at_checked(length) else {
            return Ok(None);
        };
        Ok(Some((Self::parse(fields)?, rest)))
    }

    pub(crate) fn parse(mut rest: &[u8]) -> Result<Self, Status> {
        if rest.len() > MOST {
            return Err(too_long());
        }
        let mut parsed = Self::default();
        while !rest.is_empty() {
            let (name, value);
            (name, value, rest) = split(rest).ok_or_else(malformed)?;
            if name == PATH.as_bytes() {
                let path = String::from_utf8(value.to_vec());
                parsed.path = Some(path.map_err(|_| malformed())?);
            } else if name == COMPRESSED.as_bytes() {
                parsed.compressed = true;
            } else {
                let name = HeaderName::from_bytes(name).map_err(|_| malformed())?;
                let value = HeaderValue::from_bytes(value).map_err(|_| malformed())?;
                parsed.headers.append(name, value);
            }
        }
        Ok(parsed)
    }
}

/// Name and value of the first field, and the rest.
fn split(octets: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (length, rest) = octets.split_first()?;
    let (name, rest) = rest.split_at_checked((*length).into())?;
    let (length, rest) = rest.split_first_chunk::<2>()?;
    let (value, rest) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
    Some((name, value, rest))
}

fn too_long() -> Status {
    Status::resource_exhausted(format!("the metadata has more than {MOST} octets"))
}

fn malformed() -> Status {
    Status::internal("the fields of the peer are malformed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_specification_is_parsed() {
        let document = include_str!("../../../rfc-notes/ripc.md");
        let (_, rest) = document.split_once("```grpc-fields\n").unwrap();
        let (example, _) = rest.split_once("```").unwrap();
        let digits: Vec<_> = example.bytes().filter(u8::is_ascii_hexdigit).collect();
        let octet = |pair: &[u8]| {
            let text = std::str::from_utf8(pair).unwrap();
            u8::from_str_radix(text, 16).unwrap()
        };
        let octets: Vec<_> = digits.chunks(2).map(octet).collect();
        let parsed = Parsed::parse(&octets).unwrap();
        assert_eq!(parsed.path.as_deref(), Some("/a.B/C"));
        assert_eq!(parsed.headers["te"], "trailers");
        let mut fields = Fields::default();
        fields.add(PATH, b"/a.B/C").unwrap();
        fields.add("te", b"trailers").unwrap();
        assert_eq!(fields.into_octets(), octets);
    }

    #[test]
    fn fields_that_are_cut_or_too_long_are_refused() {
        let mut fields = Fields::default();
        fields.add("name", b"value").unwrap();
        let octets = fields.into_octets();
        for end in 1..octets.len() {
            assert!(Parsed::parse(&octets[..end]).is_err(), "{end}");
        }
        assert!(Parsed::parse(b"\x01A\x00\x01\n").is_err());
        assert!(Parsed::parse(b"\x00\x00\x00").is_err());
        assert!(Fields::default().add("a", &[b'a'; MOST]).is_err());
        assert!(Fields::default().add(&"a".repeat(256), b"").is_err());
        assert!(Parsed::parse(&[0; MOST + 1]).is_err());
    }
}
