//! Numbers of DDP, each with its own arithmetic.

use std::fmt;

/// Steering Tag: names a tagged buffer (RFC 5041 §2.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct STag(u32);

/// Tagged Offset: octet of a tagged buffer (RFC 5041 §2.3). It must not wrap (RFC 5041 §7.2, code 0x03), so
/// its arithmetic is checked.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TaggedOffset(u64);

/// Queue Number: names an untagged queue (RFC 5041 §4.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct QueueNumber(u32);

/// Message Sequence Number: counts the messages of a queue from one, modulo 2^32 (RFC 5041 §4.3).
///
/// A number that wraps has no order; [`before`](Self::before) compares within half the range.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Msn(u32);

/// Message Offset: octets from the start of an untagged message (RFC 5041 §4.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageOffset(u32);

macro_rules! number {
    ($name:ident, $raw:ty, $format:literal) => {
        impl $name {
            /// Number with this value.
            #[must_use]
            pub const fn new(value: $raw) -> Self {
                Self(value)
            }

            /// Value of the number.
            #[must_use]
            pub const fn get(self) -> $raw {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "(", $format, ")"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    };
}

number!(STag, u32, "{:#010x}");
number!(TaggedOffset, u64, "{:#018x}");
number!(QueueNumber, u32, "{}");
number!(Msn, u32, "{:#010x}");
number!(MessageOffset, u32, "{:#x}");

impl TaggedOffset {
    /// The offset `octets` further, or `None` where it would wrap.
    #[must_use]
    pub fn checked_add(self, octets: u64) -> Option<Self> {
        self.0.checked_add(octets).map(Self)
    }

    /// The offset `octets` before, or `None` where it would wrap.
    #[must_use]
    pub fn checked_sub(self, octets: u64) -> Option<Self> {
        self.0.checked_sub(octets).map(Self)
    }
}

impl QueueNumber {
    /// Sends (RFC 5040 §5.3).
    pub const SEND: Self = Self(0);
    /// RDMA Read Requests (RFC 5040 §5.2.1).
    pub const READ_REQUEST: Self = Self(1);
    /// Terminate (RFC 5040 §5.4).
    pub const TERMINATE: Self = Self(2);
    /// Atomic Responses (RFC 7306 §5.2).
    pub const ATOMIC_RESPONSE: Self = Self(3);
}

impl Msn {
    /// The first number of a queue (RFC 5041 §4.3).
    pub const FIRST: Self = Self(1);

    /// The number after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// How many steps lead from `earlier` to this number, modulo 2^32.
    #[must_use]
    pub const fn distance(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Whether this number comes before `other`, within half the range.
    #[must_use]
    pub const fn before(self, other: Self) -> bool {
        let distance = other.distance(self);
        distance != 0 && distance < 1 << 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_print_in_the_form_people_search_for() {
        assert_eq!(format!("{:?}", STag::new(0x3c5a)), "STag(0x00003c5a)");
        assert_eq!(QueueNumber::TERMINATE.to_string(), "2");
    }

    #[test]
    fn a_tagged_offset_never_wraps() {
        let last = TaggedOffset::new(u64::MAX);
        assert_eq!(last.checked_add(1), None);
        assert_eq!(TaggedOffset::new(u64::MAX - 2).checked_add(2), Some(last));
        let first = TaggedOffset::new(0);
        assert_eq!(TaggedOffset::new(3).checked_sub(4), None);
        assert_eq!(TaggedOffset::new(3).checked_sub(3), Some(first));
    }

    #[test]
    fn msns_half_the_range_apart_have_no_order() {
        let (a, b) = (Msn::new(7), Msn::new(7 + (1 << 31)));
        assert!(!a.before(b) && !b.before(a));
        assert!(!a.before(a));
        assert!(a.before(Msn::new(6 + (1 << 31))));
    }

    proptest! {
        #[test]
        fn msn_order_survives_the_wrap(start: u32, step in 1u32..1 << 31) {
            let a = Msn::new(start);
            let b = Msn::new(start.wrapping_add(step));
            prop_assert!(a.before(b));
            prop_assert!(!b.before(a));
            prop_assert_eq!(b.distance(a), step);
        }
    }
}
