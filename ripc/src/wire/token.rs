//! Tokens (`rfc-notes/ripc.md`, "Tokens").

use dgiwarp_codec::{split_header, u64_at};

use super::{FormatError, check, split, u16_at};

const HEADER: usize = 20;
const VERSION: u8 = 1;
/// Flag of a token that is bound to a client.
const BOUND: u8 = 1;
/// Octets of a public key.
const KEY: usize = 32;
const METHOD: usize = 4;
/// Octets of the keyed hash.
const HASH: usize = 32;
/// Most methods of a token.
pub(crate) const MAX_METHODS: usize = 64;

/// Right that a token gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claims {
    pub(crate) service: u64,
    /// Seconds since 1970-01-01 UTC; 0: without an end.
    pub(crate) end: u64,
    /// Public key of the one client that it is for.
    pub(crate) client: Option<[u8; KEY]>,
    /// Empty for all methods.
    pub(crate) methods: Vec<u32>,
}

impl Claims {
    /// The claims, the octets that the hash covers, and the hash.
    pub(crate) fn parse(bytes: &[u8]) -> Result<(Self, &[u8], [u8; HASH]), FormatError> {
        let (header, rest) = split_header::<HEADER>(bytes)?;
        if header[0] != VERSION {
            return Err(FormatError::Version(header[0].into()));
        }
        let count = u16_at::<2, HEADER>(header);
        check("number of methods", count.into(), MAX_METHODS as u64)?;
        let (client, rest) = if header[1] & BOUND == 0 {
            (None, rest)
        } else {
            let (key, rest) = split_header::<KEY>(rest)?;
            (Some(*key), rest)
        };
        let (methods, rest) = split(rest, usize::from(count) * METHOD)?;
        let covered = &bytes[..bytes.len() - rest.len()];
        let (hash, rest) = split_header::<HASH>(rest)?;
        if !rest.is_empty() {
            return Err(FormatError::Trailing(rest.len()));
        }
        let (methods, _) = methods.as_chunks::<METHOD>();
        let claims = Self {
            service: u64_at::<4, HEADER>(header),
            end: u64_at::<12, HEADER>(header),
            client,
            methods: methods.iter().map(|it| u32::from_be_bytes(*it)).collect(),
        };
        Ok((claims, covered, *hash))
    }

    /// The octets that the hash covers. It follows them.
    pub(crate) fn emit(&self) -> Vec<u8> {
        let methods = &self.methods[..self.methods.len().min(MAX_METHODS)];
        let count = u16::try_from(methods.len()).unwrap_or(0);
        let mut bytes = vec![VERSION, u8::from(self.client.is_some()) * BOUND];
        bytes.extend(count.to_be_bytes());
        bytes.extend(self.service.to_be_bytes());
        bytes.extend(self.end.to_be_bytes());
        bytes.extend(self.client.iter().flatten());
        bytes.extend(methods.iter().flat_map(|method| method.to_be_bytes()));
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn emitted_tokens_are_parsed(
            service in any::<u64>(),
            end in any::<u64>(),
            client in any::<Option<[u8; KEY]>>(),
            methods in vec(any::<u32>(), 0..=MAX_METHODS),
            hash in any::<[u8; HASH]>(),
        ) {
            let claims = Claims { service, end, client, methods };
            let mut bytes = claims.emit();
            let covered = bytes.clone();
            bytes.extend(hash);
            prop_assert_eq!(Claims::parse(&bytes), Ok((claims, &covered[..], hash)));
            for end in 0..bytes.len() {
                prop_assert!(Claims::parse(&bytes[..end]).is_err());
            }
            bytes.push(0);
            prop_assert_eq!(Claims::parse(&bytes), Err(FormatError::Trailing(1)));
        }

        #[test]
        fn any_octets_are_parsed(mut bytes in vec(any::<u8>(), 0..400), count in 0..70_u8) {
            let _ = Claims::parse(&bytes);
            if let [version, _, high, low, ..] = &mut bytes[..] {
                (*version, *high, *low) = (VERSION, 0, count);
            }
            let parsed = Claims::parse(&bytes);
            prop_assert!(parsed.is_err() || usize::from(count) <= MAX_METHODS);
        }
    }
}
