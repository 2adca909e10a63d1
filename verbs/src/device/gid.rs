//! The GID table of the port, and the LID.
//!
//! Every IPv4 and IPv6 address of an interface that is up is one GID, IPv4 in mapped form, as in RoCE version 2. Order:
//! other interfaces before loopback, global before link-local, IPv4 before IPv6, then interface index. So index 0 is
//! the host's first IPv4 address, or 127.0.0.1 on a host with `lo` only. While a process runs, an index keeps its
//! address: an address that disappears leaves a zero GID, and a new one takes the first such gap or a new index.

use crate::abi::ibv_gid;
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// `sgid_index` in an address handle has eight bits.
pub const MAX_GIDS: usize = 256;
/// Highest unicast LID of InfiniBand; multicast LIDs follow.
pub const MAX_UNICAST_LID: u16 = 0xBFFF;

/// One address of one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// The address.
    pub address: IpAddr,
    /// Index of its interface.
    pub ifindex: u32,
    /// Name of its interface.
    pub interface: String,
    /// The interface is the loopback interface.
    pub loopback: bool,
}

impl Gid {
    fn rank(&self) -> (bool, bool, bool, u32, IpAddr) {
        let link_local = match self.address {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        (
            self.loopback,
            link_local,
            self.address.is_ipv6(),
            self.ifindex,
            self.address,
        )
    }

    /// The sixteen bytes of the GID.
    pub fn raw(&self) -> ibv_gid {
        to_gid(self.address)
    }
}

/// The GID of an address: IPv4 addresses in their mapped form, `::ffff:a.b.c.d`.
pub fn to_gid(address: IpAddr) -> ibv_gid {
    let v6 = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    ibv_gid { raw: v6.octets() }
}

/// The address that a GID stands for.
pub fn from_gid(gid: ibv_gid) -> IpAddr {
    Ipv6Addr::from(gid.raw).to_canonical()
}

/// The present addresses of this host, in table order.
pub fn host_gids() -> Result<Vec<Gid>, Errno> {
    let mut gids = Vec::new();
    for entry in getifaddrs()? {
        let Some(address) = entry.address.as_ref() else {
            continue;
        };
        let address = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
            (Some(v4), _) => IpAddr::V4(v4.ip()),
            (None, Some(v6)) => IpAddr::V6(v6.ip()),
            (None, None) => continue,
        };
        let Ok(ifindex) = if_nametoindex(entry.interface_name.as_str()) else {
            continue;
        };
        if entry.flags.contains(InterfaceFlags::IFF_UP) {
            let loopback = entry.flags.contains(InterfaceFlags::IFF_LOOPBACK);
            gids.push(Gid {
                address,
                ifindex,
                interface: entry.interface_name,
                loopback,
            });
        }
    }
    gids.sort_by_key(Gid::rank);
    gids.dedup();
    Ok(gids)
}

/// The port's table; an empty slot is a zero GID.
#[derive(Clone, Debug, Default)]
pub struct GidTable {
    slots: Vec<Option<Gid>>,
}

impl GidTable {
    /// A table without addresses.
    pub const fn new() -> Self {
        Self { slots: Vec::new() }
    }

    /// Updates the table with the present addresses. An address that stays keeps its index.
    pub fn update(&mut self, present: Vec<Gid>) {
        for slot in &mut self.slots {
            if slot.as_ref().is_some_and(|gid| !present.contains(gid)) {
                *slot = None;
            }
        }
        for gid in present {
            if self.slots.iter().flatten().any(|known| *known == gid) {
                continue;
            }
            match self.slots.iter().position(Option::is_none) {
                Some(gap) => self.slots[gap] = Some(gid),
                None if self.slots.len() < MAX_GIDS => self.slots.push(Some(gid)),
                None => break,
            }
        }
    }

    /// Number of indices, with empty slots.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether the table has no index.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The address at an index; `None` for an empty slot and behind the end.
    pub fn get(&self, index: usize) -> Option<&Gid> {
        self.slots.get(index)?.as_ref()
    }

    /// Index and address of each used slot.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Gid)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(index, slot)| Some((index, slot.as_ref()?)))
    }

    /// The first address, which represents the port.
    pub fn primary(&self) -> Option<&Gid> {
        self.slots.iter().flatten().next()
    }

    /// The port's first IPv4 address, from which LIDs are made.
    fn primary_ipv4(&self) -> Option<Ipv4Addr> {
        self.slots
            .iter()
            .flatten()
            .find_map(|gid| match gid.address {
                IpAddr::V4(v4) => Some(v4),
                IpAddr::V6(_) => None,
            })
    }

    /// The IPv4 address of the port's LID.
    pub(crate) fn lid_address(&self) -> Option<Ipv4Addr> {
        self.primary_ipv4()
    }

    /// The port's LID: the lower half of its first IPv4 address if that is a unicast LID (1 to 0xBFFF), else 0.
    pub fn lid(&self) -> u16 {
        let Some(v4) = self.primary_ipv4() else {
            return 0;
        };
        let [_, _, high, low] = v4.octets();
        match u16::from_be_bytes([high, low]) {
            lid @ 1..=MAX_UNICAST_LID => lid,
            _ => 0,
        }
    }

    /// The address of a LID: that of the port's own /16 with the LID as its lower half.
    pub fn resolve_lid(&self, lid: u16) -> Option<IpAddr> {
        let [first, second, _, _] = self.primary_ipv4()?.octets();
        let [third, fourth] = lid.to_be_bytes();
        (1..=MAX_UNICAST_LID)
            .contains(&lid)
            .then(|| Ipv4Addr::new(first, second, third, fourth).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(address: &str, ifindex: u32) -> Gid {
        let address: IpAddr = address.parse().unwrap();
        Gid {
            address,
            ifindex,
            interface: format!("if{ifindex}"),
            loopback: address.is_loopback(),
        }
    }

    fn sorted(mut gids: Vec<Gid>) -> Vec<Gid> {
        gids.sort_by_key(Gid::rank);
        gids
    }

    fn table(addresses: &[(&str, u32)]) -> GidTable {
        let mut table = GidTable::default();
        table.update(sorted(
            addresses
                .iter()
                .map(|(address, index)| gid(address, *index))
                .collect(),
        ));
        table
    }

    #[test]
    fn order_is_ipv4_then_ipv6_then_link_local_then_loopback() {
        let table = table(&[
            ("::1", 1),
            ("fe80::1", 2),
            ("127.0.0.1", 1),
            ("fd00::2", 2),
            ("192.0.2.2", 2),
            ("10.0.0.1", 3),
        ]);
        let order: Vec<String> = table
            .iter()
            .map(|(_, gid)| gid.address.to_string())
            .collect();
        assert_eq!(
            order,
            [
                "192.0.2.2",
                "10.0.0.1",
                "fd00::2",
                "fe80::1",
                "127.0.0.1",
                "::1"
            ]
        );
    }

    #[test]
    fn an_index_keeps_its_address_while_others_come_and_go() {
        let mut table = table(&[("192.0.2.2", 2), ("10.0.0.1", 3), ("127.0.0.1", 1)]);
        table.update(vec![gid("10.0.0.1", 3), gid("127.0.0.1", 1)]);
        assert_eq!(table.get(0), None);
        assert_eq!(table.get(1).unwrap().address.to_string(), "10.0.0.1");
        table.update(sorted(vec![
            gid("10.0.0.1", 3),
            gid("127.0.0.1", 1),
            gid("fd00::2", 2),
            gid("fd00::3", 2),
        ]));
        assert_eq!(table.get(0).unwrap().address.to_string(), "fd00::2");
        assert_eq!(table.get(1).unwrap().address.to_string(), "10.0.0.1");
        assert_eq!(table.get(2).unwrap().address.to_string(), "127.0.0.1");
        assert_eq!(table.get(3).unwrap().address.to_string(), "fd00::3");
    }

    #[test]
    fn gids_and_addresses_convert_both_ways() {
        for text in ["192.0.2.2", "127.0.0.1", "fd00::2", "::1"] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(from_gid(to_gid(address)), address);
        }
        assert_eq!(
            to_gid("1.2.3.4".parse().unwrap()).raw,
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 1, 2, 3, 4]
        );
    }

    #[test]
    fn a_lid_is_the_lower_half_of_the_first_ipv4_address_and_leads_back_to_it() {
        let table = table(&[("fd00::2", 2), ("172.17.3.9", 2), ("127.0.0.1", 1)]);
        assert_eq!(table.lid(), 0x0309);
        assert_eq!(
            table.resolve_lid(table.lid()),
            Some("172.17.3.9".parse().unwrap())
        );
        assert_eq!(
            table.resolve_lid(0x0400),
            Some("172.17.4.0".parse().unwrap())
        );
        assert_eq!(table.resolve_lid(0), None);
        assert_eq!(table.resolve_lid(0xC000), None);
    }

    #[test]
    fn addresses_outside_the_unicast_range_have_no_lid() {
        assert_eq!(table(&[("10.0.200.1", 2)]).lid(), 0);
        assert_eq!(table(&[("10.0.0.0", 2)]).lid(), 0);
        assert_eq!(table(&[("10.0.191.255", 2)]).lid(), MAX_UNICAST_LID);
        assert_eq!(table(&[("fd00::1", 2)]).lid(), 0);
        assert_eq!(table(&[("127.0.0.1", 1), ("::1", 1)]).lid(), 1);
    }

    #[test]
    fn the_host_has_its_addresses_in_order() {
        let gids = host_gids().unwrap();
        assert_eq!(gids, sorted(gids.clone()));
    }
}
