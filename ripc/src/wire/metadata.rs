//! Metadata of a message: names and values.

use super::{FormatError, check, message::MAX_METADATA, split};

/// Names and values that go with a request or a reply, 2,048 octets at most in all. Names may repeat.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Metadata {
    entries: Vec<(String, Vec<u8>)>,
}

impl Metadata {
    /// No entries.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an entry. Returns false, and adds nothing, where it does not fit: a name has 1 to 255 octets, and every entry takes three octets more than
    /// its name and value.
    #[must_use]
    pub fn insert(&mut self, name: &str, value: &[u8]) -> bool {
        let length = self.length() + 3 + name.len() + value.len();
        let fits = (1..=255).contains(&name.len()) && length <= MAX_METADATA;
        if fits {
            self.entries.push((name.to_owned(), value.to_vec()));
        }
        fits
    }

    /// The first value of a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let entry = self.entries.iter().find(|(of, _)| of == name);
        entry.map(|(_, value)| value.as_slice())
    }

    /// All entries, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let entries = self.entries.iter();
        entries.map(|(name, value)| (name.as_str(), value.as_slice()))
    }

    fn length(&self) -> usize {
        let entries = self.entries.iter();
        entries
            .map(|(name, value)| 3 + name.len() + value.len())
            .sum()
    }

    pub(crate) fn parse(mut rest: &[u8]) -> Result<Self, FormatError> {
        check("metadata", rest.len() as u64, MAX_METADATA as u64)?;
        let mut entries = Vec::new();
        while !rest.is_empty() {
            let (length, after) = split(rest, 1)?;
            let (name, after) = split(after, length[0].into())?;
            let (length, after) = split(after, 2)?;
            let (value, after) = split(after, u16::from_be_bytes([length[0], length[1]]).into())?;
            rest = after;
            let name = std::str::from_utf8(name).map_err(|_| FormatError::Utf8)?;
            if name.is_empty() {
                return Err(FormatError::Zero("length of a name"));
            }
            entries.push((name.to_owned(), value.to_vec()));
        }
        Ok(Self { entries })
    }

    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.length());
        for (name, value) in &self.entries {
            bytes.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
            bytes.extend(name.as_bytes());
            bytes.extend(u16::try_from(value.len()).unwrap_or(u16::MAX).to_be_bytes());
            bytes.extend(value);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_keep_their_order_and_their_limit() {
        let mut metadata = Metadata::new();
        assert!(
            metadata.insert("a", b"1") && metadata.insert("b", b"") && metadata.insert("a", b"2")
        );
        assert!(!metadata.insert("", b"") && !metadata.insert("c", &[0; 2040]));
        assert_eq!(metadata.get("a"), Some(&b"1"[..]));
        assert_eq!(Metadata::parse(&metadata.emit()).unwrap(), metadata);
        assert_eq!(metadata.iter().count(), 3);
        assert_eq!(Metadata::parse(&[1, 0xff, 0, 0]), Err(FormatError::Utf8));
        assert!(Metadata::parse(&[1, b'a', 0, 2, 0]).is_err());
        assert!(Metadata::parse(&[0, 0, 0]).is_err());
    }
}
