//! Numbers and names of services and methods.

use std::fmt;

use crate::wire::resolve::MAX_NAME;

/// Names of services have this bit in their hash.
const NAMED: u64 = 1 << 63;

/// Number of a service. Two programs that use one name, or one number, mean one service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(u64);

impl ServiceId {
    /// The service of this number; `None` for 0, which is no service.
    #[must_use]
    pub const fn numbered(number: u16) -> Option<Self> {
        match number {
            0 => None,
            number => Some(Self(number as u64)),
        }
    }

    /// The service of this name: its FNV-1a hash with the highest bit set.
    #[must_use]
    pub const fn named(name: &str) -> Self {
        let bytes = name.as_bytes();
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut at = 0;
        while at < bytes.len() {
            hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
            at += 1;
        }
        Self(hash | NAMED)
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// As it came from a peer: any number.
    pub(crate) const fn of_wire(number: u64) -> Self {
        Self(number)
    }
}

/// The number in decimal if it was given by hand, else in hexadecimal.
impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 & NAMED == 0 {
            write!(f, "{}", self.0)
        } else {
            write!(f, "{:#018x}", self.0)
        }
    }
}

/// Service with the name or number that it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceName {
    /// Its number.
    pub id: ServiceId,
    /// Its name; empty if it has a number only.
    pub name: String,
}

/// Why a text names no service.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no service: a number from 1 to 65535, or a name of 1 to 64 bytes")]
pub struct NameError(String);

impl std::str::FromStr for ServiceName {
    type Err = NameError;

    /// A number from 1 to 65,535, or a name.
    fn from_str(text: &str) -> Result<Self, NameError> {
        let error = || NameError(text.to_owned());
        if text.is_empty() || text.len() > MAX_NAME || text.chars().any(char::is_whitespace) {
            return Err(error());
        }
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            let number = text.parse().map_err(|_| error())?;
            let id = ServiceId::numbered(number).ok_or_else(error)?;
            let name = String::new();
            return Ok(Self { id, name });
        }
        Ok(Self {
            id: ServiceId::named(text),
            name: text.to_owned(),
        })
    }
}

/// The name, or else the number.
impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.is_empty() {
            self.id.fmt(f)
        } else {
            f.write_str(&self.name)
        }
    }
}

/// Number of a method within its service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MethodId(u32);

impl MethodId {
    /// The method of this number.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The method of this name: its FNV-1a hash of 32 bits. A constant, to be compared with that of a request.
    #[must_use]
    pub const fn named(name: &str) -> Self {
        let bytes = name.as_bytes();
        let mut hash = 0x811c_9dc5_u32;
        let mut at = 0;
        while at < bytes.len() {
            hash = (hash ^ bytes[at] as u32).wrapping_mul(0x0100_0193);
            at += 1;
        }
        Self(hash)
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        let kv: ServiceName = "kv".parse().unwrap();
        assert_eq!(kv.id, ServiceId::named("kv"));
        assert_eq!(kv.to_string(), "kv");
        let seventeen: ServiceName = "17".parse().unwrap();
        assert_eq!(Some(seventeen.id), ServiceId::numbered(17));
        assert_eq!(seventeen.to_string(), "17");
        for wrong in ["", "0", "65536", "a b", &"n".repeat(65)] {
            assert!(wrong.parse::<ServiceName>().is_err(), "{wrong}");
        }
        assert!(ServiceId::numbered(0).is_none());
        // The test vectors of the hash's authors, but for the highest bit.
        assert_eq!(ServiceId::named("foobar").number(), 0x8594_4171_f739_67e8);
        assert_eq!(MethodId::named("foobar").number(), 0xbf9c_f968);
    }
}
