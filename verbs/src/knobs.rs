//! Settings from the environment.

use crate::persona::{self, Persona};
use dgiwarp::Config;
use std::sync::Once;

/// What the persona knob does.
const PERSONA_HELP: &str =
    "what programs take the device for: roce (transport InfiniBand) or iwarp (an RNIC)";

/// Variables that this crate itself reads: name, present value, and what it does.
pub(crate) fn own() -> [(&'static str, String, &'static str); 1] {
    [(
        persona::VARIABLE,
        persona::present().to_string(),
        PERSONA_HELP,
    )]
}

/// The environment's settings, and what is wrong with them.
pub(crate) fn read() -> (Config, Vec<String>) {
    // Variables that are not UTF-8 are none of ours.
    let variables: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let personas = variables
        .iter()
        .filter(|(name, _)| name == persona::VARIABLE);
    let wrong: Vec<String> = personas
        .filter(|(_, value)| value.parse::<Persona>().is_err())
        .map(|(name, value)| {
            format!("{name}={value} is not understood and ignored: {PERSONA_HELP}")
        })
        .collect();
    let (config, mut warnings) = Config::from_environment(variables, &[persona::VARIABLE]);
    warnings.extend(wrong);
    (config, warnings)
}

/// The environment's settings; says once per process what is wrong with them.
pub(crate) fn config() -> Config {
    static WARN: Once = Once::new();
    let (config, warnings) = read();
    WARN.call_once(|| {
        for warning in &warnings {
            eprintln!("dgiwarp: {warning}");
        }
    });
    config
}
