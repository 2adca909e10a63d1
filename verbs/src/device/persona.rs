//! Personas: the type of adapter that the device reports. The wire is iWARP with all of them.

use crate::device::limits;
use std::ffi::c_int;
use std::fmt;
use std::str::FromStr;

/// Type of adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Persona {
    /// RoCE adapter: transport InfiniBand, link layer Ethernet. The default: many programs refuse an iWARP adapter or
    /// use less of it.
    #[default]
    Roce,
    /// iWARP adapter (RNIC).
    Iwarp,
    /// Elastic Fabric Adapter (EFA), for programs that look for its SRD queue pairs. Connected queue pairs are those of `Roce`.
    Efa,
}

impl Persona {
    /// `enum ibv_node_type`.
    pub fn node_type(self) -> c_int {
        match self {
            Self::Roce => 1,
            Self::Iwarp => 4,
            // Unspecified, as below.
            Self::Efa => 7,
        }
    }

    /// `enum ibv_transport_type`.
    pub fn transport_type(self) -> c_int {
        match self {
            Self::Roce => 0,
            Self::Iwarp => 1,
            Self::Efa => 4,
        }
    }

    /// PCI vendor and device: programs find EFA by them.
    pub fn vendor_and_part(self) -> (u32, u32) {
        match self {
            Self::Roce | Self::Iwarp => (limits::VENDOR_ID, limits::VENDOR_PART_ID),
            Self::Efa => (0x1d0f, 0xefa1),
        }
    }

    /// Longest message that the port reports, in bytes. Programs size buffers by that of EFA, which is a Send of one
    /// packet; queue pairs carry longer ones.
    pub fn max_message(self) -> u32 {
        match self {
            Self::Roce | Self::Iwarp => limits::MAX_MESSAGE,
            Self::Efa => 8928,
        }
    }
}

impl fmt::Display for Persona {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Roce => "roce",
            Self::Iwarp => "iwarp",
            Self::Efa => "efa",
        })
    }
}

/// Environment variable of the persona.
pub(crate) const VARIABLE: &str = "DGIWARP_PERSONA";

impl FromStr for Persona {
    type Err = UnknownPersona;

    fn from_str(text: &str) -> Result<Self, UnknownPersona> {
        match text {
            "" | "roce" => Ok(Self::Roce),
            "iwarp" => Ok(Self::Iwarp),
            "efa" => Ok(Self::Efa),
            _ => Err(UnknownPersona),
        }
    }
}

/// Error: no persona has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPersona;

/// The persona of the environment; the default if the variable is unset or invalid.
pub fn present() -> Persona {
    std::env::var(VARIABLE)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_personas_convert_both_ways() {
        for persona in [Persona::Roce, Persona::Iwarp, Persona::Efa] {
            assert_eq!(persona.to_string().parse(), Ok(persona));
        }
        assert_eq!("".parse(), Ok(Persona::default()));
        assert_eq!("ib".parse::<Persona>(), Err(UnknownPersona));
    }
}
