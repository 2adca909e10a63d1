//! Prints the device that verbs programs see, its limits, and the knobs with their present values.

use std::env;
use std::io::Write;
use std::process::ExitCode;

const USAGE: &str = "\
Usage: dgiwarp-info [--functions | --unsupported | --help | --version]

  --functions     list every function of libibverbs and librdmacm that works
  --unsupported   list those that are exported but fail with 'not supported'
";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let text = match arguments
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        [] => dgiwarp_verbs::describe::everything(),
        ["--functions"] => dgiwarp_verbs::describe::functions(dgiwarp_verbs::EXPORTS),
        ["--unsupported"] => dgiwarp_verbs::describe::functions(dgiwarp_verbs::UNSUPPORTED),
        ["-h" | "--help"] => USAGE.to_owned(),
        ["-V" | "--version"] => {
            concat!("dgiwarp-info ", env!("CARGO_PKG_VERSION"), "\n").to_owned()
        }
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    // A reader that went away is no failure.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}
