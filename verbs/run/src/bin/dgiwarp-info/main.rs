//! Prints the device, its limits, and the settings with their present values.

#![forbid(unsafe_code)]

mod manual;
mod settings_page;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use dgiwarp_cli::{Example, Program};

/// Show the device that verbs programs see, its limits, and all settings with their present values
#[derive(Debug, Parser)]
#[command(name = "dgiwarp-info", version)]
struct Cli {
    /// List every function of libibverbs and librdmacm that works
    #[arg(long, conflicts_with = "unsupported")]
    functions: bool,
    /// Print all settings as the page docs/use/settings.md
    #[arg(long, hide_short_help = true, conflicts_with_all = ["functions", "unsupported"])]
    markdown: bool,
    /// List those that are exported but fail with 'not supported'
    #[arg(long)]
    unsupported: bool,
}

const PROGRAM: Program = Program {
    examples: &[
        Example {
            line: "dgiwarp-info",
            about: "The device, its addresses and limits, and every setting.",
        },
        Example {
            line: "DGIWARP_PORTS=20000-20009 dgiwarp-info",
            about: "The same with a setting changed; invalid settings are reported.",
        },
        Example {
            line: "dgiwarp-info --unsupported",
            about: "Functions that fail.",
        },
    ],
    environment: manual::variables,
    see_also: &["dgiwarp(7)", "dgiwarp-run(1)"],
    pages: manual::pages,
    ..Program::EMPTY
};

fn main() -> ExitCode {
    let cli: Cli = dgiwarp_cli::parse(&PROGRAM);
    let text = if cli.functions {
        dgiwarp_verbs::describe::functions(dgiwarp_verbs::EXPORTS)
    } else if cli.markdown {
        settings_page::page(&manual::variables())
    } else if cli.unsupported {
        dgiwarp_verbs::describe::functions(dgiwarp_verbs::UNSUPPORTED)
    } else {
        dgiwarp_verbs::describe::everything()
    };
    // A reader that went away is no failure.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_its_help_has_every_setting() {
        let mut command = dgiwarp_cli::command::<Cli>(&PROGRAM);
        command.clone().debug_assert();
        let help = command.render_help().to_string();
        for setting in dgiwarp_verbs::describe::settings() {
            let line = format!("\n  {}={}\n", setting.name, setting.default);
            assert!(help.contains(&line), "{line}");
        }
        assert!(PROGRAM.examples.len() >= 3);
        assert!(Cli::try_parse_from(["dgiwarp-info", "--functions", "--unsupported"]).is_err());
    }
}
