//! Personas: the type of adapter that the device reports. The wire is iWARP with both.

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

/// Environment variable of the persona.
pub(crate) const VARIABLE: &str = "DGIWARP_PERSONA";

impl FromStr for Persona {
    type Err = UnknownPersona;

    fn from_str(text: &str) -> Result<Self, UnknownPersona> {
        match text {
            "" | "roce" => Ok(Self::Roce),
            "iwarp" => Ok(Self::Iwarp),
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
        for persona in [Persona::Roce, Persona::Iwarp] {
            assert_eq!(persona.to_string().parse(), Ok(persona));
        }
        assert_eq!("".parse(), Ok(Persona::default()));
        assert_eq!("ib".parse::<Persona>(), Err(UnknownPersona));
    }
}
