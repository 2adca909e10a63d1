//! Command lines of the dgiwarp programs. Help, manual pages and completions for shells come from one definition: clap's of the
//! program, and a [`Program`] with what clap has no place for.
//!
//! [`parse`] gives every program an option more, `--generate FOLDER`: the program writes its own manual pages and completions
//! to the places below `FOLDER/share` where manual readers and shells look. So nobody needs the source of a program, or a
//! program that knows all others, to have them; `cargo xtask dist` runs the programs that it has built.
//!
//! ```no_run
//! use dgiwarp_cli::{Example, Program, parse};
//!
//! /// Greets
//! #[derive(clap::Parser)]
//! #[command(name = "greet", version)]
//! struct Cli {
//!     /// Whom to greet
//!     name: Option<String>,
//! }
//!
//! const PROGRAM: Program = Program {
//!     examples: &[Example { line: "greet world", about: "Say hello to the world." }],
//!     ..Program::EMPTY
//! };
//!
//! let cli: Cli = parse(&PROGRAM);
//! println!("hello {}", cli.name.unwrap_or_default());
//! ```

#![forbid(unsafe_code)]

mod generate;
mod page;

use std::env;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process;

use clap::{Arg, Command, Parser, ValueHint, value_parser};

pub use generate::generate;
pub use page::{Page, Part, environment};

/// The option that [`parse`] adds, and its id.
const GENERATE: &str = "generate";

/// A command line that does something useful.
#[derive(Clone, Copy, Debug)]
pub struct Example {
    /// Command line; more than one line is for more than one terminal.
    pub line: &'static str,
    /// Effect in a sentence.
    pub about: &'static str,
}

/// A variable of the environment that a program heeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Default; may be empty.
    pub default: String,
    /// Effect, unit and range.
    pub about: String,
}

/// Contents of help and manual page of a program besides its options.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Under `Examples:`.
    pub examples: &'static [Example],
    /// The examples of its subcommands, by their names.
    pub of_subcommands: &'static [(&'static str, &'static [Example])],
    /// Sections: a heading, and a paragraph for each line. They follow the examples in help and page alike.
    pub sections: &'static [(&'static str, &'static str)],
    /// Variables, under `Environment`.
    pub environment: fn() -> Vec<Variable>,
    /// Other manual pages to read, such as `dgiwarp(7)`.
    pub see_also: &'static [&'static str],
    /// Manual pages that come with this program beside its own.
    pub pages: fn() -> Vec<Page>,
}

impl Program {
    /// Nothing besides the options.
    pub const EMPTY: Self = Self {
        examples: &[],
        of_subcommands: &[],
        sections: &[],
        environment: Vec::new,
        see_also: &[],
        pages: Vec::new,
    };

    fn examples_of(&self, subcommand: &str) -> &'static [Example] {
        self.of_subcommands
            .iter()
            .find(|(name, _)| *name == subcommand)
            .map_or(&[], |(_, examples)| examples)
    }
}

/// The command line of this process. Help, the version, `--generate` and usage errors end the process, these with status 2.
#[must_use]
pub fn parse<C: Parser>(program: &Program) -> C {
    let mut command = command::<C>(program);
    // A program that needs a subcommand does not need one for this.
    let generates = env::args_os().nth(1).is_some_and(|first| {
        first
            .to_str()
            .is_some_and(|it| it.starts_with("--generate"))
    });
    if generates {
        command = command
            .subcommand_required(false)
            .arg_required_else_help(false);
    }
    let matches = command.get_matches();
    if let Some(folder) = matches.get_one::<PathBuf>(GENERATE) {
        match generate(&self::command::<C>(program), program, folder) {
            Ok(()) => process::exit(0),
            Err(error) => {
                eprintln!(
                    "{}: cannot write below {}: {error}",
                    C::command().get_name(),
                    folder.display()
                );
                process::exit(1);
            }
        }
    }
    C::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// The definition that [`parse`] uses.
#[must_use]
pub fn command<C: Parser>(program: &Program) -> Command {
    let generate = Arg::new(GENERATE)
        .long(GENERATE)
        .value_name("FOLDER")
        .value_parser(value_parser!(PathBuf))
        .value_hint(ValueHint::DirPath)
        .exclusive(true)
        .hide_short_help(true)
        .long_help(
            "Write manual pages and completions for bash, zsh and fish below FOLDER/share, and end",
        );
    let mut command = C::command()
        .propagate_version(true)
        .arg(generate)
        .after_help(after_help(
            program.examples,
            program.sections,
            &(program.environment)(),
        ));
    for (name, examples) in program.of_subcommands {
        command =
            command.mut_subcommand(name, |sub| sub.after_help(after_help(examples, &[], &[])));
    }
    command
}

fn after_help(examples: &[Example], sections: &[(&str, &str)], environment: &[Variable]) -> String {
    let mut text = String::new();
    if !examples.is_empty() {
        text.push_str("Examples:\n");
    }
    // Writing to a String cannot fail.
    for example in examples {
        for line in example.line.lines() {
            let _ = writeln!(text, "  {line}");
        }
        let _ = writeln!(text, "      {}", example.about);
    }
    for (heading, paragraphs) in sections {
        let _ = writeln!(text, "\n{heading}:");
        for paragraph in paragraphs.lines() {
            let _ = writeln!(text, "  {paragraph}");
        }
    }
    if !environment.is_empty() {
        text.push_str("\nEnvironment, with what holds where a variable is not set:\n");
    }
    for variable in environment {
        let _ = writeln!(text, "  {}={}", variable.name, variable.default);
        let _ = writeln!(text, "      {}", variable.about);
    }
    text.truncate(text.trim_end().len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tries things
    #[derive(Debug, Parser)]
    #[command(name = "try", version = "1.2")]
    struct Cli {
        /// More words
        #[arg(long)]
        verbose: bool,
        #[command(subcommand)]
        task: Task,
    }

    #[derive(Debug, clap::Subcommand)]
    enum Task {
        /// Do it
        Run,
    }

    const PROGRAM: Program = Program {
        examples: &[Example {
            line: "try run",
            about: "Do it.",
        }],
        of_subcommands: &[(
            "run",
            &[Example {
                line: "one &\ntwo",
                about: "Both.",
            }],
        )],
        sections: &[("Exit status", "0 fine\n1 not")],
        ..Program::EMPTY
    };

    #[test]
    fn help_has_examples_and_sections() {
        let mut command = command::<Cli>(&PROGRAM);
        command.build();
        let help = command.render_help().to_string();
        assert!(
            help.ends_with(
                "Examples:\n  try run\n      Do it.\n\nExit status:\n  0 fine\n  1 not\n"
            ),
            "{help}"
        );
        let run = command.find_subcommand_mut("run").unwrap();
        let help = run.render_help().to_string();
        assert!(
            help.ends_with("Examples:\n  one &\n  two\n      Both.\n"),
            "{help}"
        );
        assert_eq!(run.get_version(), Some("1.2"));
    }

    #[test]
    fn generate_stands_alone_and_is_for_those_who_read_on() {
        let parse = |line: &str| {
            command::<Cli>(&PROGRAM)
                .subcommand_required(false)
                .try_get_matches_from(line.split(' '))
        };
        let matches = parse("try --generate a/b").unwrap();
        assert_eq!(
            matches.get_one::<PathBuf>(GENERATE),
            Some(&PathBuf::from("a/b"))
        );
        assert!(parse("try --verbose --generate a").is_err());
        let mut command = command::<Cli>(&PROGRAM);
        assert!(!command.render_help().to_string().contains(GENERATE));
        assert!(command.render_long_help().to_string().contains(GENERATE));
    }
}
