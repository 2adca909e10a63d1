//! Queries and answers of the group (`rfc-notes/ripc.md`, "Resolver").

use dgiwarp_codec::{split_header, u32_at, u64_at};

use super::{FormatError, VERSION, check, split, u16_at};

const QUERY: u32 = 0x5249_5051;
const ANSWER: u32 = 0x5249_5041;
const LEN: usize = 26;
/// Longest name of a service, in octets.
pub(crate) const MAX_NAME: usize = 64;
/// Longest query or answer, in octets.
pub(crate) const MAX_ANSWER: usize = 1400;
/// Octets of a known instance in a query.
const KNOWN: usize = 10;
/// Known instances of a query, at most.
pub(crate) const MAX_KNOWN: usize = (MAX_ANSWER - LEN) / KNOWN;

/// Query for the endpoints of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Query {
    pub(crate) number: u64,
    /// 0 for all services.
    pub(crate) service: u64,
    /// Instances that have answered, at most [`MAX_KNOWN`], and the services that each had.
    pub(crate) known: Vec<(u64, u16)>,
}

/// Services of one endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) number: u64,
    pub(crate) instance: u64,
    pub(crate) port: u16,
    /// IDs, with names that may be empty.
    pub(crate) services: Vec<(u64, String)>,
}

fn header(bytes: &[u8], mark: u32) -> Result<(&[u8; LEN], &[u8]), FormatError> {
    let (header, rest) = split_header::<LEN>(bytes)?;
    let found = u32_at::<0, LEN>(header);
    if found != mark {
        return Err(FormatError::Mark(found));
    }
    match u16_at::<4, LEN>(header) {
        VERSION => Ok((header, rest)),
        other => Err(FormatError::Version(other)),
    }
}

fn emit(mark: u32, count: usize, number: u64, subject: u64, port: u16) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(LEN);
    bytes.extend(mark.to_be_bytes());
    bytes.extend(VERSION.to_be_bytes());
    bytes.extend(u16::try_from(count).unwrap_or(u16::MAX).to_be_bytes());
    bytes.extend(number.to_be_bytes());
    bytes.extend(subject.to_be_bytes());
    bytes.extend(port.to_be_bytes());
    bytes
}

impl Query {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        check("query", bytes.len() as u64, MAX_ANSWER as u64)?;
        let (header, mut rest) = header(bytes, QUERY)?;
        let mut query = Self {
            number: u64_at::<8, LEN>(header),
            service: u64_at::<16, LEN>(header),
            known: Vec::new(),
        };
        for _ in 0..u16_at::<6, LEN>(header) {
            let (fields, after) = split_header::<KNOWN>(rest)?;
            let instance = u64_at::<0, KNOWN>(fields);
            query.known.push((instance, u16_at::<8, KNOWN>(fields)));
            rest = after;
        }
        if !rest.is_empty() {
            return Err(FormatError::Trailing(rest.len()));
        }
        Ok(query)
    }

    pub(crate) fn emit(&self) -> Vec<u8> {
        let known = self.known.get(..MAX_KNOWN).unwrap_or(&self.known);
        let mut bytes = emit(QUERY, known.len(), self.number, self.service, 0);
        for (instance, services) in known {
            bytes.extend(instance.to_be_bytes());
            bytes.extend(services.to_be_bytes());
        }
        bytes
    }
}

impl Answer {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        check("answer", bytes.len() as u64, MAX_ANSWER as u64)?;
        let (header, mut rest) = header(bytes, ANSWER)?;
        let mut answer = Self {
            number: u64_at::<8, LEN>(header),
            instance: u64_at::<16, LEN>(header),
            port: u16_at::<24, LEN>(header),
            services: Vec::new(),
        };
        for _ in 0..u16_at::<6, LEN>(header) {
            let (fields, after) = split_header::<9>(rest)?;
            check("length of a name", fields[8].into(), MAX_NAME as u64)?;
            let (name, after) = split(after, fields[8].into())?;
            let name = std::str::from_utf8(name).map_err(|_| FormatError::Utf8)?;
            let id = u64_at::<0, 9>(fields);
            answer.services.push((id, name.to_owned()));
            rest = after;
        }
        if !rest.is_empty() {
            return Err(FormatError::Trailing(rest.len()));
        }
        Ok(answer)
    }

    /// The answer in as many parts as it takes, at least one.
    pub(crate) fn emit(&self) -> Vec<Vec<u8>> {
        let mut parts = Vec::new();
        let mut left = self.services.as_slice();
        while parts.is_empty() || !left.is_empty() {
            let mut length = LEN;
            let fits = |(_, name): &&(u64, String)| {
                length += 9 + name.len();
                length <= MAX_ANSWER
            };
            let count = left.iter().take_while(fits).count();
            let (services, rest) = left.split_at(count);
            let (number, instance) = (self.number, self.instance);
            let mut bytes = emit(ANSWER, count, number, instance, self.port);
            for (id, name) in services {
                bytes.extend(id.to_be_bytes());
                bytes.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
                bytes.extend(name.as_bytes());
            }
            parts.push(bytes);
            left = rest;
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_as_many_parts_as_it_takes() {
        let services = (1..=100).map(|id| (id, "n".repeat(64))).collect();
        let answer = Answer {
            number: 1,
            instance: 2,
            port: 3,
            services,
        };
        let parts = answer.emit();
        assert_eq!(parts.len(), 100_usize.div_ceil((MAX_ANSWER - LEN) / 73));
        assert!(parts.iter().all(|it| it.len() <= MAX_ANSWER));
        let parsed = parts.iter().map(|it| Answer::parse(it).unwrap());
        let parsed: Vec<_> = parsed.flat_map(|it| it.services).collect();
        assert_eq!(parsed, answer.services);
        let bytes = &parts[0];
        for end in 0..bytes.len() {
            assert!(Answer::parse(&bytes[..end]).is_err());
        }
        assert!(Query::parse(bytes).is_err());
        let services = Vec::new();
        let none = Answer { services, ..answer };
        let parts = none.emit();
        assert_eq!(Answer::parse(&parts[0]), Ok(none));
        assert_eq!(parts.len(), 1);
    }

    #[test]
    fn a_query_has_at_most_so_many_known_instances() {
        let mut query = Query {
            number: 1,
            service: 0,
            known: (0..200).map(|it| (u64::from(it), it)).collect(),
        };
        let bytes = query.emit();
        assert!(bytes.len() <= MAX_ANSWER);
        query.known.truncate(MAX_KNOWN);
        assert_eq!(Query::parse(&bytes), Ok(query));
        for end in 0..bytes.len() {
            assert!(Query::parse(&bytes[..end]).is_err());
        }
        assert!(Query::parse(&[bytes, vec![0; 10]].concat()).is_err());
    }
}
