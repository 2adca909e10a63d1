//! Log messages on standard error. Only this crate installs a subscriber: users of the Rust API have their own.

use std::io;
use std::sync::Once;

use dgiwarp_memory::socket::NoCancellation;
use tracing_subscriber::filter::LevelFilter;

/// Environment variable of the level.
pub(crate) const VARIABLE: &str = "DGIWARP_LOG";

/// Help text.
pub(crate) const HELP: &str =
    "least severe messages that go to standard error: off, error, warn, info, debug or trace";

/// Warnings report settings that the system refused.
pub(crate) const DEFAULT: LevelFilter = LevelFilter::WARN;

/// The level with this name.
pub(crate) fn level(text: &str) -> Option<LevelFilter> {
    // `FromStr` also accepts numbers.
    let named = text.bytes().all(|octet| octet.is_ascii_alphabetic()) && !text.is_empty();
    named.then(|| text.parse().ok())?
}

/// The level of the environment, or the default.
pub(crate) fn present() -> LevelFilter {
    let asked = std::env::var(VARIABLE).ok();
    asked.and_then(|text| level(&text)).unwrap_or(DEFAULT)
}

/// The program's standard error. Writing to it cancels no thread: calls of the data path log too.
struct Stderr;

impl io::Write for Stderr {
    fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
        let _guard = NoCancellation::begin();
        io::stderr().write(octets)
    }

    fn flush(&mut self) -> io::Result<()> {
        let _guard = NoCancellation::begin();
        io::stderr().flush()
    }
}

/// Installs the subscriber.
pub(crate) fn install() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(present())
            .with_writer(|| Stderr)
            .with_ansi(false)
            .finish();
        // An earlier subscriber of the program stays.
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
