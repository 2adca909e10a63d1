//! Values that are items of their own.

use std::cell::RefCell;
use std::fmt;
use std::thread::LocalKey;

use dgiwarp_ripc::{Block, Item};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Octets, anywhere in arguments or results of a service, that are moved as an item of their own instead of being encoded: memory of a [`Block`] without a copy at either end, octets of a
/// vector in one copy. At most 63 of a call or a result. In other encodings it is an error.
///
/// A reply's is written into memory that the caller has given by [`CallOptions::and_room`](crate::CallOptions::and_room), or read by the caller.
#[derive(Clone)]
pub struct Blob(Item);

impl Blob {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The octets, or their memory.
    #[must_use]
    pub const fn item(&self) -> &Item {
        &self.0
    }

    /// The octets, or their memory.
    #[must_use]
    pub fn into_item(self) -> Item {
        self.0
    }

    /// All octets; those of a block are copied.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        self.0.into_vec()
    }
}

impl From<Block> for Blob {
    fn from(block: Block) -> Self {
        Self(Item::Long(block))
    }
}

impl From<Vec<u8>> for Blob {
    fn from(octets: Vec<u8>) -> Self {
        Self(Item::Short(octets))
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({} bytes)", self.len())
    }
}

thread_local! {
    /// Blobs of the value that is being encoded by this thread.
    static ENCODED: RefCell<Option<Vec<Item>>> = const { RefCell::new(None) };
    /// Blobs of the value that is being decoded by this thread, each until it is taken.
    static DECODED: RefCell<Option<Vec<Option<Item>>>> = const { RefCell::new(None) };
}

const ELSEWHERE: &str = "a blob outside of the arguments or the result of a service";

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let number = ENCODED.with_borrow_mut(|blobs| {
            let blobs = blobs.as_mut()?;
            blobs.push(self.0.clone());
            u32::try_from(blobs.len() - 1).ok()
        });
        let number = number.ok_or_else(|| S::Error::custom(ELSEWHERE))?;
        serializer.serialize_u32(number)
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = u32::deserialize(deserializer)?;
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        DECODED.with_borrow_mut(|blobs| {
            let blobs = blobs.as_mut().ok_or_else(|| D::Error::custom(ELSEWHERE))?;
            let blob = blobs.get_mut(number).and_then(Option::take);
            blob.map(Self)
                .ok_or_else(|| D::Error::custom("a blob that is not there"))
        })
    }
}

/// A value of this thread that is there while one is encoded or decoded; one that was there before comes back.
struct Scope<T: 'static> {
    place: &'static LocalKey<RefCell<Option<T>>>,
    before: Option<T>,
}

impl<T> Scope<T> {
    fn new(place: &'static LocalKey<RefCell<Option<T>>>, value: T) -> Self {
        let before = place.replace(Some(value));
        Self { place, before }
    }

    fn finish(self) -> Option<T> {
        self.place.take()
    }
}

impl<T> Drop for Scope<T> {
    fn drop(&mut self) {
        drop(self.place.replace(self.before.take()));
    }
}

/// Encodes a value with a function; returns its blobs too.
pub(crate) fn encoding<T>(encode: impl FnOnce() -> T) -> (T, Vec<Item>) {
    let scope = Scope::new(&ENCODED, Vec::new());
    let encoded = encode();
    (encoded, scope.finish().unwrap_or_default())
}

/// Decodes a value that has these blobs; returns how many were not taken.
pub(crate) fn decoding<T>(
    blobs: impl Iterator<Item = Item>,
    decode: impl FnOnce() -> T,
) -> (T, usize) {
    let scope = Scope::new(&DECODED, blobs.map(Some).collect());
    let decoded = decode();
    let left = scope.finish().unwrap_or_default();
    (decoded, left.iter().flatten().count())
}
