//! Text about the device for `dgiwarp-run` and `dgiwarp-info`.

use crate::DEVICE_NAME;
use crate::device::gid::{GidTable, host_gids};
use crate::device::{device_attr, env, persona};
use crate::export::Export;
use dgiwarp::{Config, KNOBS};
use std::fmt::Write;

/// The device and its addresses, a few lines.
pub fn device() -> String {
    let mut gids = GidTable::new();
    gids.update(host_gids().unwrap_or_default());
    let port = device_attr::port_attr(&gids);
    let mut text = format!(
        "{DEVICE_NAME}: dgiwarp {} software RNIC, persona {}, node GUID {:016x}\n",
        env!("CARGO_PKG_VERSION"),
        persona::present(),
        device_attr::node_guid(),
    );
    let state = if gids.primary().is_some() {
        "active"
    } else {
        "down: no interface with an address is up"
    };
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "port 1: {state}, active MTU {}, LID {:#06x}",
        128 << port.active_mtu,
        port.lid
    );
    for (index, gid) in gids.iter() {
        let _ = writeln!(text, "  GID {index}: {} ({})", gid.address, gid.interface);
    }
    text
}

/// The text of `dgiwarp-info` without options.
pub fn everything() -> String {
    let limits = device_attr::device_attr(true);
    let mut text = device();
    let rows = [
        ("queue pairs", limits.max_qp),
        ("work requests per queue", limits.max_qp_wr),
        ("scatter/gather entries per request", limits.max_sge),
        ("completion queues", limits.max_cq),
        ("entries per completion queue", limits.max_cqe),
        ("memory regions", limits.max_mr),
        ("protection domains", limits.max_pd),
        ("address handles", limits.max_ah),
    ];
    text.push_str("limits:\n");
    for (name, value) in rows {
        let _ = writeln!(text, "  {name}: {value}");
    }
    text.push_str("settings (environment variables):\n");
    let (config, warnings) = env::read();
    for knob in KNOBS {
        let _ = writeln!(
            text,
            "  {}={}  {}",
            knob.name,
            knob.show(&config),
            knob.help
        );
    }
    for own in env::own() {
        let _ = writeln!(text, "  {}={}  {}", own.name, own.present, own.help);
    }
    for warning in warnings {
        let _ = writeln!(text, "warning: {warning}");
    }
    text
}

/// A setting of the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Environment variable.
    pub name: &'static str,
    /// Value of an unset variable.
    pub default: String,
    /// Effect, unit and range.
    pub help: &'static str,
}

/// The settings of the device and of this library.
pub fn settings() -> Vec<Setting> {
    let config = Config::default();
    let of_device = KNOBS.iter().map(|knob| Setting {
        name: knob.name,
        default: knob.show(&config),
        help: knob.help,
    });
    let own = env::own().into_iter().map(|own| Setting {
        name: own.name,
        default: own.default,
        help: own.help,
    });
    of_device.chain(own).collect()
}

/// One line per function: version node, name, and implementation.
pub fn functions(exports: &[Export]) -> String {
    let mut text = String::new();
    for export in exports {
        let _ = writeln!(
            text,
            "{:20} {:34} {}",
            export.node, export.name, export.target
        );
    }
    text
}
