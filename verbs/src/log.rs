//! What the library says on standard error. Only this edge installs a subscriber: programs that use the Rust API have their own.

use std::io;
use std::sync::Once;

use tracing_subscriber::filter::LevelFilter;

/// The variable that chooses.
pub(crate) const VARIABLE: &str = "DGIWARP_LOG";

/// What it does.
pub(crate) const HELP: &str =
    "least severe messages that go to standard error: off, error, warn, info, debug or trace";

/// Warnings tell of what the environment asked for and the system refused.
pub(crate) const DEFAULT: LevelFilter = LevelFilter::WARN;

/// The level with this name.
pub(crate) fn level(text: &str) -> Option<LevelFilter> {
    // Numbers are levels too for its `FromStr`.
    let named = text.bytes().all(|octet| octet.is_ascii_alphabetic()) && !text.is_empty();
    named.then(|| text.parse().ok())?
}

/// The level asked for, or the default.
pub(crate) fn present() -> LevelFilter {
    let asked = std::env::var(VARIABLE).ok();
    asked.and_then(|text| level(&text)).unwrap_or(DEFAULT)
}

/// Lets messages go to standard error from now on.
pub(crate) fn install() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(present())
            .with_writer(io::stderr)
            .with_ansi(false)
            .finish();
        // Whoever was first may keep its own.
        let _ = tracing::subscriber::set_global_default(subscriber);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_names() {
        for (text, expected) in [
            ("off", Some(LevelFilter::OFF)),
            ("warn", Some(LevelFilter::WARN)),
            ("TRACE", Some(LevelFilter::TRACE)),
            ("", None),
            ("3", None),
            ("loud", None),
        ] {
            assert_eq!(level(text), expected, "{text}");
        }
    }
}
