//! Bounds of values that are decoded: how deep they nest, and how many of their elements have no octets.

use std::cell::Cell;
use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess, VariantAccess, Visitor,
};

/// Values within values: options, sequences, maps, tuples, structures and enumerations count, each once.
pub(crate) const DEPTH: usize = 128;
/// Elements of sequences and entries of maps that have no octets of their own.
pub(crate) const EMPTY: usize = 65_536;

/// Depth and elements that a value may still have.
#[derive(Debug)]
pub(crate) struct Bounds {
    depth: Cell<usize>,
    elements: Cell<usize>,
    exceeded: Cell<Option<&'static str>>,
}

impl Bounds {
    /// Bounds of a value whose encoding has this many octets. An element of a sequence that has octets has a first one, which is that of no other element: the
    /// length of a sequence stands before its elements.
    pub(crate) fn new(octets: usize) -> Self {
        Self {
            depth: Cell::new(DEPTH),
            elements: Cell::new(octets.saturating_add(EMPTY)),
            exceeded: Cell::new(None),
        }
    }

    /// The bound that a value exceeded.
    pub(crate) fn exceeded(&self) -> Option<&'static str> {
        self.exceeded.get()
    }

    /// The deserializer within the bounds.
    pub(crate) fn of<D>(&self, inner: D) -> Bounded<'_, D> {
        Bounded {
            inner,
            bounds: self,
            counts: false,
        }
    }

    fn take<E: serde::de::Error>(
        &self,
        left: &Cell<usize>,
        exceeded: &'static str,
    ) -> Result<(), E> {
        let Some(less) = left.get().checked_sub(1) else {
            self.exceeded.set(Some(exceeded));
            return Err(E::custom(exceeded));
        };
        left.set(less);
        Ok(())
    }

    /// Decodes a value that has others in it.
    fn nested<T, E: serde::de::Error>(
        &self,
        decode: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        self.take(&self.depth, "values nest too deeply")?;
        let decoded = decode();
        self.depth.set(self.depth.get() + 1);
        decoded
    }

    fn element<E: serde::de::Error>(&self) -> Result<(), E> {
        self.take(&self.elements, "too many elements without octets")
    }
}

/// A part of serde's decoding within bounds.
#[derive(Debug)]
pub(crate) struct Bounded<'b, T> {
    inner: T,
    bounds: &'b Bounds,
    /// Elements that the visitor gets are those of a sequence or map, whose number the encoding has.
    counts: bool,
}

impl<'b, T> Bounded<'b, T> {
    fn with<U>(&self, inner: U) -> Bounded<'b, U> {
        Bounded {
            inner,
            bounds: self.bounds,
            counts: self.counts,
        }
    }
}

macro_rules! forward_deserialize {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$method(visitor)
        })*
    };
}

macro_rules! nest_deserialize {
    ($($method:ident($($name:ident: $type:ty),*) $counts:literal)*) => {
        $(fn $method<V: Visitor<'de>>(self, $($name: $type,)* visitor: V) -> Result<V::Value, D::Error> {
            let visitor = Bounded { inner: visitor, bounds: self.bounds, counts: $counts };
            self.bounds.nested(|| self.inner.$method($($name,)* visitor))
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Bounded<'_, D> {
    type Error = D::Error;

    forward_deserialize! {
        deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
        deserialize_f32 deserialize_f64 deserialize_char deserialize_str deserialize_string
        deserialize_bytes deserialize_byte_buf deserialize_unit deserialize_identifier
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_unit_struct(name, visitor)
    }

    nest_deserialize! {
        deserialize_any() true
        deserialize_ignored_any() true
        deserialize_option() false
        deserialize_newtype_struct(name: &'static str) false
        deserialize_seq() true
        deserialize_tuple(length: usize) false
        deserialize_tuple_struct(name: &'static str, length: usize) false
        deserialize_map() true
        deserialize_struct(name: &'static str, fields: &'static [&'static str]) false
        deserialize_enum(name: &'static str, variants: &'static [&'static str]) false
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

macro_rules! forward_visit {
    ($($method:ident: $type:ty)*) => {
        $(fn $method<E: serde::de::Error>(self, value: $type) -> Result<V::Value, E> {
            self.inner.$method(value)
        })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Bounded<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    forward_visit! {
        visit_bool: bool
        visit_i8: i8 visit_i16: i16 visit_i32: i32 visit_i64: i64 visit_i128: i128
        visit_u8: u8 visit_u16: u16 visit_u32: u32 visit_u64: u64 visit_u128: u128
        visit_f32: f32 visit_f64: f64 visit_char: char
        visit_str: &str visit_borrowed_str: &'de str visit_string: String
        visit_bytes: &[u8] visit_borrowed_bytes: &'de [u8] visit_byte_buf: Vec<u8>
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        let inner = self.with(inner);
        self.inner.visit_some(inner)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        let inner = self.with(inner);
        self.inner.visit_newtype_struct(inner)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        let inner = self.with(inner);
        self.inner.visit_seq(inner)
    }

    fn visit_map<A: MapAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        let inner = self.with(inner);
        self.inner.visit_map(inner)
    }

    fn visit_enum<A: EnumAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        let inner = self.with(inner);
        self.inner.visit_enum(inner)
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Bounded<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        let inner = self.with(inner);
        self.inner.deserialize(inner)
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Bounded<'_, A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let seed = self.with(seed);
        let next = self.inner.next_element_seed(seed)?;
        if self.counts && next.is_some() {
            self.bounds.element()?;
        }
        Ok(next)
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Bounded<'_, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let seed = self.with(seed);
        let next = self.inner.next_key_seed(seed)?;
        if self.counts && next.is_some() {
            self.bounds.element()?;
        }
        Ok(next)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        let seed = self.with(seed);
        self.inner.next_value_seed(seed)
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'b, 'de, A: EnumAccess<'de>> EnumAccess<'de> for Bounded<'b, A> {
    type Error = A::Error;
    type Variant = Bounded<'b, A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), A::Error> {
        let bounds = self.bounds;
        let seed = self.with(seed);
        let (value, variant) = self.inner.variant_seed(seed)?;
        Ok((value, bounds.of(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Bounded<'_, A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        let seed = self.with(seed);
        self.inner.newtype_variant_seed(seed)
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        let visitor = self.with(visitor);
        self.inner.tuple_variant(length, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        let visitor = self.with(visitor);
        self.inner.struct_variant(fields, visitor)
    }
}
