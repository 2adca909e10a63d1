//! Queries and answers of the group (`rfc-notes/ripc.md`, "Resolver").

use dgiwarp_codec::{split_header, u32_at, u64_at};

use super::{FormatError, VERSION, check, split, u16_at};

const QUERY: u32 = 0x5249_5051;
const ANSWER: u32 = 0x5249_5041;
const LEN: usize = 26;
/// Longest name of a service, in octets.
pub(crate) const MAX_NAME: usize = 64;
/// Longest answer, in octets.
pub(crate) const MAX_ANSWER: usize = 1400;

/// Query for the endpoints of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Query {
    pub(crate) number: u64,
    /// 0 for all services.
    pub(crate) service: u64,
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
        let (header, rest) = header(bytes, QUERY)?;
        if !rest.is_empty() {
            return Err(FormatError::Trailing(rest.len()));
        }
        Ok(Self {
            number: u64_at::<8, LEN>(header),
            service: u64_at::<16, LEN>(header),
        })
    }

    pub(crate) fn emit(&self) -> Vec<u8> {
        emit(QUERY, 0, self.number, self.service, 0)
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

    /// With as many services as fit.
    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut length = LEN;
        let fits = |(_, name): &&(u64, String)| {
            length += 9 + name.len();
            length <= MAX_ANSWER
        };
        let services: Vec<_> = self.services.iter().take_while(fits).collect();
        let mut bytes = emit(
            ANSWER,
            services.len(),
            self.number,
            self.instance,
            self.port,
        );
        for (id, name) in services {
            bytes.extend(id.to_be_bytes());
            bytes.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
            bytes.extend(name.as_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_as_many_services_as_fit() {
        let services = (1..=100).map(|id| (id, "n".repeat(64))).collect();
        let answer = Answer {
            number: 1,
            instance: 2,
            port: 3,
            services,
        };
        let bytes = answer.emit();
        assert!(bytes.len() <= MAX_ANSWER);
        let parsed = Answer::parse(&bytes).unwrap();
        assert_eq!(parsed.services, answer.services[..(MAX_ANSWER - LEN) / 73]);
        for end in 0..bytes.len() {
            assert!(Answer::parse(&bytes[..end]).is_err());
        }
        assert!(Query::parse(&bytes).is_err());
    }
}
