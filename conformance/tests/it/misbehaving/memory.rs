//! Registered memory of a device, and what its agent does with it.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde_json::{Value, json};

use super::control::number;

/// Registered memory, or what was.
pub(super) struct Memory {
    pub(super) stag: u32,
    pub(super) to: u64,
    pub(super) margin: u64,
    pub(super) length: u64,
    pub(super) octets: Vec<u8>,
    pub(super) access: u64,
    pub(super) domain: u64,
    pub(super) valid: bool,
    /// The window over it: STag and connection.
    pub(super) window: Option<(u32, u64)>,
    /// The one peer of datagrams that may use it.
    pub(super) only: Option<SocketAddr>,
    /// Whether datagrams need a cookie.
    pub(super) cookie: bool,
    /// Whether it is memory of a group.
    pub(super) well_known: bool,
}

/// All memory of a device, by number.
pub(super) type Memories = BTreeMap<u64, Memory>;

/// A number that looks random and is not.
pub(super) fn mixed(number: u64) -> u64 {
    let mixed = number.wrapping_add(11).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 32
}

/// The lower half.
pub(super) fn low(number: u64) -> u32 {
    u32::try_from(number & 0xffff_ffff).unwrap()
}

/// Registers so many octets as the agent's `reg_mr` has it, under this number.
pub(super) fn register<'a>(
    memories: &'a mut Memories,
    id: u64,
    length: u64,
    with: &Value,
) -> &'a Memory {
    let margin = number(with, "margin", 0);
    let all = usize::try_from(length + 2 * margin).unwrap();
    let fill = u8::try_from(number(with, "fill", 0)).unwrap();
    let well_known = number(with, "well_known", 0);
    let only = with["only_address"].as_str().and_then(|address| {
        let port = u16::try_from(number(with, "only_qpn", 0)).ok()?;
        Some(SocketAddr::new(address.parse().ok()?, port))
    });
    let memory = Memory {
        // Neighbours in number are far from one another.
        stag: if well_known == 0 {
            low(mixed(id)) | 0x10
        } else {
            low(well_known)
        },
        to: 0x5000_0000_0000 + (id << 28),
        margin,
        length,
        octets: vec![fill; all],
        access: number(with, "access", 0),
        domain: number(with, "pd", 0),
        valid: true,
        window: None,
        only,
        cookie: number(with, "cookie", 0) == 1,
        well_known: well_known != 0,
    };
    memories.entry(id).or_insert(memory)
}

/// The agent's operations on memory; a new one gets this number.
pub(super) fn obey(memories: &mut Memories, id: u64, asked: &Value) -> Option<Value> {
    let mr = number(asked, "mr", 0);
    match asked["op"].as_str()? {
        "reg_mr" => {
            let memory = register(memories, id, number(asked, "length", 0), asked);
            Some(json!({ "ok": 1, "mr": id, "rkey": memory.stag, "addr": memory.to }))
        }
        "dereg_mr" => {
            memories.get_mut(&mr)?.valid = false;
            Some(json!({ "ok": 1 }))
        }
        "peek" => {
            let memory = memories.get(&mr)?;
            let from = usize::try_from(number(asked, "offset", 0)).ok()?;
            let length = usize::try_from(number(asked, "length", 0)).ok()?;
            let octets = memory.octets.get(from..from + length)?;
            let hex = dgiwarp_conform::wire::hex(octets, octets.len());
            Some(json!({ "ok": 1, "hex": hex }))
        }
        _ => None,
    }
}
