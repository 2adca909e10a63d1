//! What kind of adapter programs take us for. The wire is iWARP either way.

use std::ffi::c_int;
use std::fmt;
use std::str::FromStr;

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

/// The variable that chooses.
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

/// A name that is no persona's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPersona;

/// The persona that the environment asks for; the default if it names none, or none that exists.
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
