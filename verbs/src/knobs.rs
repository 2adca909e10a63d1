//! Settings from the environment.

use crate::log;
use crate::persona::{self, Persona};
use dgiwarp::Config;
use std::sync::Once;

/// What the persona knob does.
const PERSONA_HELP: &str =
    "what programs take the device for: roce (transport InfiniBand) or iwarp (an RNIC)";

/// Variables that this crate itself reads: name, present value, and what it does.
pub(crate) fn own() -> [(&'static str, String, &'static str); 2] {
    [
        (
            persona::VARIABLE,
            persona::present().to_string(),
            PERSONA_HELP,
        ),
        (log::VARIABLE, log::present().to_string(), log::HELP),
    ]
}

/// Whether a variable of this crate has a value that it understands; `None` for all others.
fn is_understood(name: &str, value: &str) -> Option<bool> {
    match name {
        persona::VARIABLE => Some(value.parse::<Persona>().is_ok()),
        log::VARIABLE => Some(log::level(value).is_some()),
        _ => None,
    }
}

/// The environment's settings, and what is wrong with them.
pub(crate) fn read() -> (Config, Vec<String>) {
    // Variables that are not UTF-8 are none of ours.
    let variables: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let own = own();
    let mut wrong = Vec::new();
    for (name, value) in &variables {
        if is_understood(name, value) == Some(false) {
            let help = own.iter().find(|(of, ..)| of == name).map_or("", |it| it.2);
            wrong.push(format!(
                "{name}={value} is not understood and ignored: {help}"
            ));
        }
    }
    let (config, mut warnings) = Config::from_environment(variables, &own.map(|(name, ..)| name));
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
