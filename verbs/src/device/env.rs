//! Settings from the environment.

use crate::device::persona::{self, Persona};
use crate::log;
use crate::qp::rc_transport::{self, RcTransport};
use dgiwarp::{Completion, Config, NoReceive, RcOptions};
use std::sync::Once;

/// Help text of the persona.
const PERSONA_HELP: &str = "what programs take the device for: roce (transport InfiniBand), iwarp (an RNIC, which behaves as the RFCs have it: \
     DGIWARP_HELLO=0, DGIWARP_COMPLETION=local, DGIWARP_NO_RECEIVE=terminate unless they are set) or efa (an Elastic Fabric Adapter with SRD queue pairs)";

/// Rules of the preload library of `dgiwarp-run --sockets`, which reads them itself.
const SOCKETS_RULES: &str = "DGIWARP_SOCKETS_RULES";
/// Help text of the rules.
const SOCKETS_RULES_HELP: &str = "which TCP and UDP sockets become rsockets under dgiwarp-run --sockets: rules such as off:program=sshd:port=22:direction=listen, separated by commas, \
     of which the first that applies decides; empty for all";

/// An environment variable of this crate.
pub(crate) struct Variable {
    pub(crate) name: &'static str,
    pub(crate) present: String,
    pub(crate) default: String,
    /// Effect and values.
    pub(crate) help: &'static str,
}

/// The environment variables of this crate.
pub(crate) fn own() -> [Variable; 4] {
    [
        Variable {
            name: persona::VARIABLE,
            present: persona::present().to_string(),
            default: Persona::default().to_string(),
            help: PERSONA_HELP,
        },
        Variable {
            name: log::VARIABLE,
            present: log::present().to_string(),
            default: log::DEFAULT.to_string(),
            help: log::HELP,
        },
        Variable {
            name: rc_transport::VARIABLE,
            present: rc_transport::present().to_string(),
            default: RcTransport::default().to_string(),
            help: rc_transport::HELP,
        },
        Variable {
            name: SOCKETS_RULES,
            present: std::env::var(SOCKETS_RULES).unwrap_or_default(),
            default: String::new(),
            help: SOCKETS_RULES_HELP,
        },
    ]
}

/// Whether a variable of this crate has a valid value; `None` for other variables.
fn is_understood(name: &str, value: &str) -> Option<bool> {
    match name {
        persona::VARIABLE => Some(value.parse::<Persona>().is_ok()),
        log::VARIABLE => Some(log::level(value).is_some()),
        rc_transport::VARIABLE => Some(value.parse::<RcTransport>().is_ok()),
        _ => None,
    }
}

/// The environment's settings, and warnings about invalid ones.
pub(crate) fn read() -> (Config, Vec<String>) {
    // Variables that are not UTF-8 belong to others.
    let variables: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let own = own();
    let mut wrong = Vec::new();
    for (name, value) in &variables {
        if is_understood(name, value) == Some(false) {
            let help = own
                .iter()
                .find(|it| it.name == name)
                .map_or("", |it| it.help);
            wrong.push(format!(
                "{name}={value} is not understood and ignored: {help}"
            ));
        }
    }
    let named: Vec<String> = variables.iter().map(|(name, _)| name.clone()).collect();
    let (mut config, mut warnings) = Config::from_environment(variables, &own.map(|it| it.name));
    behave_as(persona::present(), &mut config.rc, |name| {
        named.iter().any(|it| it == name)
    });
    warnings.extend(wrong);
    (config, warnings)
}

/// Persona `iwarp` follows the RFCs unless a variable is set: local completion, Terminate for a Send without a receive,
/// and no hello.
fn behave_as(persona: Persona, options: &mut RcOptions, is_set: impl Fn(&str) -> bool) {
    options.outlives_peer = persona != Persona::Iwarp;
    if persona != Persona::Iwarp {
        return;
    }
    if !is_set("DGIWARP_HELLO") {
        options.hello = false;
    }
    if !is_set("DGIWARP_COMPLETION") {
        options.completion = Completion::Local;
    }
    if !is_set("DGIWARP_NO_RECEIVE") {
        options.no_receive = NoReceive::Terminate;
    }
}

/// The environment's settings. The first call of the process prints the warnings.
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

#[cfg(test)]
mod tests {
    use super::*;
    use dgiwarp::KNOBS;

    #[test]
    fn an_rnic_behaves_as_the_rfcs_have_it_unless_told_otherwise() {
        let default = RcOptions::default();
        let rnic = RcOptions {
            hello: false,
            completion: Completion::Local,
            no_receive: NoReceive::Terminate,
            ..default
        };
        let behaves = |persona, set: &[&str]| {
            let mut options = default;
            behave_as(persona, &mut options, |name| set.contains(&name));
            options
        };
        let outliving = RcOptions {
            outlives_peer: true,
            ..default
        };
        assert_eq!(behaves(Persona::Roce, &[]), outliving);
        assert_eq!(behaves(Persona::Iwarp, &[]), rnic);
        let hello = RcOptions {
            hello: true,
            ..rnic
        };
        assert_eq!(behaves(Persona::Iwarp, &["DGIWARP_HELLO"]), hello);
        let all = ["DGIWARP_HELLO", "DGIWARP_COMPLETION", "DGIWARP_NO_RECEIVE"];
        for name in all {
            assert_eq!(
                KNOBS.iter().filter(|it| it.name == name).count(),
                1,
                "{name}"
            );
        }
        assert_eq!(behaves(Persona::Iwarp, &all), default);
    }
}
