//! The agent's control connection: one JSON object a line, and one back (README, "The agent's protocol").

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

/// A number in an object, or the one that it is otherwise.
pub(super) fn number(of: &Value, name: &str, otherwise: u64) -> u64 {
    of[name].as_u64().unwrap_or(otherwise)
}

/// How long an operation waits.
pub(super) fn time(of: &Value) -> Duration {
    Duration::from_millis(number(of, "timeout_ms", 0))
}

/// The answer to an operation that fails.
pub(super) fn refused(why: &str) -> Value {
    json!({ "ok": 0, "error": why })
}

/// Serves a tester until it goes. Operations without an answer of `obey` are refused.
pub(super) fn serve(mut stream: &TcpStream, mut obey: impl FnMut(&Value) -> Option<Value>) {
    let _ = stream.set_nodelay(true);
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let Ok(asked) = serde_json::from_str::<Value>(&line) else {
            return;
        };
        let answer = obey(&asked).unwrap_or_else(|| refused("not on this device"));
        if stream.write_all(format!("{answer}\n").as_bytes()).is_err() {
            return;
        }
    }
}
