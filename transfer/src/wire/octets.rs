//! Reading and writing the fields of a body, in network byte order.

use super::Malformed;

/// The octets of a body that are not read yet.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    kind: u8,
}

impl<'a> Reader<'a> {
    pub(super) fn new(kind: u8, body: &'a [u8]) -> Self {
        Self { rest: body, kind }
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(Malformed::Short { kind: self.kind })?;
        self.rest = rest;
        Ok(*head)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    pub(super) fn octets(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let short = Malformed::Short { kind: self.kind };
        let (head, rest) = self.rest.split_at_checked(length).ok_or(short)?;
        self.rest = rest;
        Ok(head)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Octets that are left.
    pub(super) fn left(&self) -> usize {
        self.rest.len()
    }

    /// All that is left.
    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// A text for people: anything that is no UTF-8 or a control character is replaced.
    pub(super) fn text(&mut self) -> String {
        String::from_utf8_lossy(self.rest())
            .chars()
            .map(|c| if c.is_control() { '\u{fffd}' } else { c })
            .collect()
    }

    pub(super) fn value<T>(
        &self,
        field: &'static str,
        value: u8,
        known: Option<T>,
    ) -> Result<T, Malformed> {
        known.ok_or(Malformed::Value {
            kind: self.kind,
            field,
            value,
        })
    }

    /// Nothing may be left.
    pub(super) fn end(self) -> Result<(), Malformed> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(Malformed::Long {
            kind: self.kind,
            octets: self.rest.len(),
        })
    }
}

/// A text cut to what a frame holds, at a character.
pub(super) fn cut(text: &str) -> &[u8] {
    let mut end = text.len().min(super::TEXT_LIMIT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text.as_bytes()[..end]
}
