//! What kind of adapter programs take us for. The wire is iWARP either way.

use std::ffi::c_int;
use std::fmt;

/// The two kinds of adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Persona {
    /// A RoCE adapter: transport InfiniBand, link layer Ethernet. The default, because most programs refuse or do not
    /// fully use an iWARP adapter.
    #[default]
    Roce,
    /// An RNIC: transport iWARP.
    Iwarp,
}

impl Persona {
    /// `enum ibv_node_type`.
    pub fn node_type(self) -> c_int {
        match self {
            Self::Roce => 1,
            Self::Iwarp => 4,
        }
    }

    /// `enum ibv_transport_type`.
    pub fn transport_type(self) -> c_int {
        match self {
            Self::Roce => 0,
            Self::Iwarp => 1,
        }
    }
}

impl fmt::Display for Persona {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Roce => "roce",
            Self::Iwarp => "iwarp",
        })
    }
}

/// The persona that `DGIWARP_PERSONA` asks for (`roce` or `iwarp`); anything else is the default.
pub fn present() -> Persona {
    match std::env::var("DGIWARP_PERSONA").as_deref() {
        Ok("iwarp") => Persona::Iwarp,
        Ok(_) | Err(_) => Persona::Roce,
    }
}
