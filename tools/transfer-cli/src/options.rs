//! Options of a transfer on a command line.

use clap::{Args, ValueEnum};
use dgiwarp_transfer::Options;
use dgiwarp_transfer::disk::TreeSinkOptions;

use crate::Show;

/// Memory and threads of a session.
#[derive(Debug, Clone, Args)]
pub struct Sizes {
    /// Octets of a block: a power of two from 1024 to 67108864; the smaller of both ends' holds
    #[arg(long, value_name = "OCTETS", default_value_t = 1 << 20, value_parser = block)]
    pub block: u32,
    /// Blocks of memory of a session, 2 to 4096
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(2..=4096))]
    pub slots: u16,
    /// Threads of a session that read or write files, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub threads: u8,
}

impl Sizes {
    /// Options of the engine.
    #[must_use]
    pub fn options(&self) -> Options {
        Options {
            block: self.block,
            slots: self.slots,
            threads: usize::from(self.threads),
            ..Options::default()
        }
    }
}

fn block(text: &str) -> Result<u32, String> {
    let fits = |it: &u32| it.is_power_of_two() && (1024..=64 << 20).contains(it);
    let block = text.parse().ok().filter(fits);
    block.ok_or_else(|| format!("{text} octets are no length of a block"))
}

/// How many connections a session has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streams {
    /// So many.
    Fixed(u16),
    /// By what they bring.
    Auto,
}

fn streams(text: &str) -> Result<Streams, String> {
    if text == "auto" {
        return Ok(Streams::Auto);
    }
    let count = text.parse().ok().filter(|it| (1..=16).contains(it));
    let count = count.ok_or_else(|| format!("{text} is neither 1 to 16 nor auto"))?;
    Ok(Streams::Fixed(count))
}

/// Connections of a session.
#[derive(Debug, Clone, Args)]
pub struct StreamsArg {
    /// Connections at a time, 1 to 16, where the other end takes them; `auto`: as many as bring more than fewer do
    #[arg(long, value_name = "N", default_value = "1", value_parser = streams)]
    pub streams: Streams,
}

/// When the contents of files are encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Encryption {
    /// Unless the other end is on this host
    #[default]
    Auto,
    /// Always
    Always,
    /// Unless the other end wants it
    Never,
}

/// Encryption of a session.
#[derive(Debug, Clone, Args)]
pub struct EncryptArg {
    /// Encrypt the contents of files; names, times and commands always are, and contents are authenticated
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub encrypt: Encryption,
}

/// Handling of files that come.
#[derive(Debug, Clone, Args)]
pub struct Writing {
    /// Write files of the same size and time again
    #[arg(long)]
    pub rewrite: bool,
    /// Do not synchronize files to the disk
    #[arg(long)]
    pub no_sync: bool,
}

impl Writing {
    /// Options of a sink.
    #[must_use]
    pub fn options(&self) -> TreeSinkOptions {
        TreeSinkOptions {
            durable: !self.no_sync,
            rewrite: self.rewrite,
        }
    }
}

/// Extended attributes of a session.
#[derive(Debug, Clone, Args)]
pub struct XattrsArg {
    /// Do not keep extended attributes; those whose names begin with `user.` are kept where the other end keeps them, too
    #[arg(long)]
    pub no_xattrs: bool,
}

/// Output of a program.
#[derive(Debug, Clone, Args)]
pub struct Output {
    /// No progress and no summary
    #[arg(short, long)]
    pub quiet: bool,
    /// A line on standard error for each entry
    #[arg(short, long)]
    pub verbose: bool,
    /// One JSON object a line on standard output for each event
    #[arg(long)]
    pub json: bool,
}

impl Output {
    /// Output of a program of this name.
    #[must_use]
    pub fn show(&self, program: &'static str) -> Show {
        Show {
            program,
            verb: "",
            quiet: self.quiet,
            verbose: self.verbose,
            json: self.json,
        }
    }
}
