//! Segments of tests as octets: the format stands in the first one, where the lower layer puts it and finds it.

use super::read::segment::{Layout, Short};
use super::segment::{self, Parsed};
use super::{CookieExchange, DropReason};

/// Content of a datagram without the lower layer's overhead.
#[derive(Debug, PartialEq)]
pub(super) enum Arrived<'a> {
    Segment(Parsed<'a, [u8]>),
    Exchange(CookieExchange),
}

/// Position of the format in the first octet.
const SHIFT: u32 = 2;

pub(super) fn parse(octets: &[u8]) -> Result<Arrived<'_>, DropReason> {
    let [first, _, ..] = *octets else {
        return Err(DropReason::Malformed);
    };
    match first >> SHIFT & 0xf {
        0 => segment::parse(octets, false).map(Arrived::Segment),
        1 => segment::parse(octets, true).map(Arrived::Segment),
        2 => CookieExchange::parse(octets).map(Arrived::Exchange),
        _ => Err(DropReason::UnknownFormat),
    }
}

pub(super) fn mark(layout: Layout, octets: &mut [u8]) {
    octets[0] |= match layout {
        Layout::Plain => 0,
        Layout::WithCookie => 1,
        Layout::Exchange => 2,
    } << SHIFT;
}

pub(super) fn emit(short: &Short) -> Vec<u8> {
    let mut octets = short.octets.to_vec();
    mark(short.layout, &mut octets);
    octets
}
