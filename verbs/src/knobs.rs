//! Settings from the environment.

use dgiwarp::Config;
use std::sync::Once;

/// Variables that this crate itself reads, and what they do.
pub(crate) const OWN: [(&str, &str); 1] = [(
    "DGIWARP_PERSONA",
    "what programs take the device for: roce (default) or iwarp",
)];

/// The environment's settings, and what is wrong with them.
pub(crate) fn read() -> (Config, Vec<String>) {
    // Variables that are not UTF-8 are none of ours.
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    Config::from_environment(variables, &OWN.map(|(name, _)| name))
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
