//! Contents of `/dev/infiniband` and `/sys/class` for programs that read them without the library. `dgiwarp-run` writes
//! them to a directory.
//!
//! The formats are those of Linux' `Documentation/ABI/stable/sysfs-class-infiniband`.

use crate::DEVICE_NAME;
use crate::device::device_attr;
use crate::device::gid::{GidTable, host_gids, to_gid};
use crate::device::persona::{self, Persona};
use std::fs;
use std::net::IpAddr;

/// A node of the tree.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub enum Node {
    /// A file with this text and a newline.
    File(String),
    /// A symbolic link to this path.
    Link(String),
}

/// Place of the EFA device on the PCI bus, which libfabric reads from the name of the folder. No machine has this address in use.
const EFA_BUS: &str = "sys/devices/pciffff:ff/ffff:ff:1f.7";
/// Driver of the EFA device, which libfabric names.
const EFA_DRIVER: &str = "sys/bus/pci/drivers/efa";

/// Paths below the root, without a leading slash, and their nodes, for the present addresses of the host.
pub fn tree() -> Vec<(String, Node)> {
    let mut gids = GidTable::new();
    gids.update(host_gids().unwrap_or_default());
    let mut tree = device_nodes();
    let mut add = |folder: &str, files: Vec<(String, String)>| {
        tree.extend(
            files
                .into_iter()
                .map(|(name, text)| (format!("{folder}/{name}"), Node::File(text))),
        );
    };
    let device = format!("sys/class/infiniband/{DEVICE_NAME}");
    add(&device, device_files());
    let is_efa = persona::present() == Persona::Efa;
    let bus = if is_efa {
        EFA_BUS.to_owned()
    } else {
        format!("{device}/device")
    };
    add(&bus, bus_files());
    add(&format!("{device}/ports/1"), port_files(&gids));
    if is_efa {
        add(EFA_DRIVER, efa_driver_files());
        // Relative: a program that resolves them stays below the root of this tree.
        let links = [
            (format!("{device}/device"), "../../../", EFA_BUS),
            (format!("{EFA_BUS}/driver"), "../../../", EFA_DRIVER),
        ];
        tree.extend(links.map(|(path, up, to)| {
            let below = to.trim_start_matches("sys/");
            (path, Node::Link(format!("{up}{below}")))
        }));
    }
    // The interface of the first address represents the port.
    if let Some(gid) = gids.primary() {
        let interface = &gid.interface;
        tree.push((
            format!("{bus}/net/{interface}"),
            Node::Link(format!("/sys/class/net/{interface}")),
        ));
    }
    tree
}

/// Device nodes are links to `/dev/null`, a character device that everybody may read and write and that refuses every
/// command.
fn device_nodes() -> Vec<(String, Node)> {
    let links = ["uverbs0", "rdma_cm"].map(|name| {
        (
            format!("dev/infiniband/{name}"),
            Node::Link("/dev/null".to_owned()),
        )
    });
    let files = [
        ("sys/class/infiniband_verbs/abi_version", "6"),
        ("sys/class/infiniband_verbs/uverbs0/ibdev", DEVICE_NAME),
        ("sys/class/infiniband_verbs/uverbs0/abi_version", "1"),
        // The kernel's number for the first node.
        ("sys/class/infiniband_verbs/uverbs0/dev", "231:192"),
        // Programs read this version although the device has no management datagrams.
        ("sys/class/infiniband_mad/abi_version", "5"),
    ];
    let files = files.map(|(path, text)| (path.to_owned(), Node::File(text.to_owned())));
    links.into_iter().chain(files).collect()
}

fn rows<const N: usize>(rows: [(&str, String); N]) -> Vec<(String, String)> {
    rows.map(|(name, text)| (name.to_owned(), text)).into()
}

fn device_files() -> Vec<(String, String)> {
    let guid = in_fours(&device_attr::node_guid().to_be_bytes());
    let node_type = match persona::present().node_type() {
        4 => "4: RNIC",
        7 => "7: unspecified",
        _ => "1: CA",
    };
    rows([
        ("node_type", node_type.to_owned()),
        ("node_guid", guid.clone()),
        ("sys_image_guid", guid),
        ("node_desc", DEVICE_NAME.to_owned()),
        ("fw_ver", env!("CARGO_PKG_VERSION").to_owned()),
        ("hca_type", "dgiwarp".to_owned()),
        ("hw_rev", "0".to_owned()),
    ])
}

fn efa_driver_files() -> Vec<(String, String)> {
    rows([("module/version", env!("CARGO_PKG_VERSION").to_owned())])
}

/// Bus and NUMA node: the device is on none, so every processor is local.
fn bus_files() -> Vec<(String, String)> {
    let (vendor, part) = persona::present().vendor_and_part();
    let mut files = rows([
        ("numa_node", "-1".to_owned()),
        ("vendor", format!("{:#06x}", vendor)),
        ("device", format!("{:#06x}", part)),
    ]);
    if let Ok(list) = fs::read_to_string("/sys/devices/system/cpu/possible") {
        let list = list.trim();
        if let Some(mask) = cpu_mask(list) {
            files.extend(rows([
                ("local_cpus", mask),
                ("local_cpulist", list.to_owned()),
            ]));
        }
    }
    files
}

/// The mask of a CPU list, `3ff` for `0-9`: comma-separated words of 32 processors, the highest first. `None` unless
/// the list is one range from 0 on.
fn cpu_mask(list: &str) -> Option<String> {
    let (first, last) = list.split_once('-').unwrap_or(("0", list));
    let last: u32 = last.parse().ok()?;
    if first != "0" || last >= 1 << 16 {
        return None;
    }
    let highest = u32::MAX >> (31 - last % 32);
    let lower = (0..last / 32).map(|_| "ffffffff".to_owned());
    let words: Vec<_> = std::iter::once(format!("{highest:x}"))
        .chain(lower)
        .collect();
    Some(words.join(","))
}

fn port_files(gids: &GidTable) -> Vec<(String, String)> {
    let port = device_attr::port_attr(gids);
    let up = gids.primary().is_some();
    let mut files = rows([
        ("state", if up { "4: ACTIVE" } else { "1: DOWN" }.to_owned()),
        (
            "phys_state",
            if up { "5: LinkUp" } else { "3: Disabled" }.to_owned(),
        ),
        ("rate", "10 Gb/sec (4X SDR)".to_owned()),
        ("link_layer", "Ethernet".to_owned()),
        ("lid", format!("{:#x}", port.lid)),
        ("lid_mask_count", "0".to_owned()),
        ("sm_lid", "0x0".to_owned()),
        ("sm_sl", "0".to_owned()),
        ("cap_mask", format!("{:#010x}", port.port_cap_flags)),
        ("pkeys/0", "0xffff".to_owned()),
    ]);
    for (index, gid) in gids.iter() {
        files.extend([
            (format!("gids/{index}"), gid_text(gid.address)),
            (format!("gid_attrs/types/{index}"), "RoCE v2".to_owned()),
            (format!("gid_attrs/ndevs/{index}"), gid.interface.clone()),
        ]);
    }
    files
}

fn gid_text(address: IpAddr) -> String {
    in_fours(&to_gid(address).raw)
}

/// Hexadecimal bytes with a colon after every two.
fn in_fours(bytes: &[u8]) -> String {
    let words: Vec<String> = bytes
        .chunks(2)
        .map(|pair| pair.iter().map(|byte| format!("{byte:02x}")).collect())
        .collect();
    words.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn identifiers_and_masks_are_written_as_the_kernel_does() {
        assert_eq!(
            in_fours(&[0, 0xfc, 0, 0xff, 0xfe, 0, 0, 1]),
            "00fc:00ff:fe00:0001"
        );
        assert_eq!(
            gid_text("10.1.2.3".parse().unwrap()),
            "0000:0000:0000:0000:0000:ffff:0a01:0203"
        );
        assert_eq!(cpu_mask("0-1").unwrap(), "3");
        assert_eq!(cpu_mask("0").unwrap(), "1");
        assert_eq!(cpu_mask("0-31").unwrap(), "ffffffff");
        assert_eq!(cpu_mask("0-32").unwrap(), "1,ffffffff");
        assert_eq!(cpu_mask("0-1,3"), None);
        assert_eq!(cpu_mask("1-3"), None);
    }

    #[test]
    fn every_path_is_there_once_and_stays_below_the_root() {
        let tree = tree();
        let paths: HashSet<_> = tree.iter().map(|(path, _)| path).collect();
        assert_eq!(paths.len(), tree.len());
        assert!(
            paths
                .iter()
                .all(|path| !path.starts_with('/') && !path.contains(".."))
        );
        let gids = host_gids().unwrap().len();
        let shown = paths.iter().filter(|path| path.contains("/gids/")).count();
        assert_eq!(shown, gids);
    }
}
