//! The command line of `rftpd`.

#![forbid(unsafe_code)]

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use clap::Parser;
use dgiwarp_cli::{Example, Program};
use dgiwarp_rftp::server::{Config, Server, Tls, Users};
use dgiwarp_transfer::Options;
use dgiwarp_transfer_cli::Sizes;

const PROGRAM: Program = Program {
    examples: &[
        Example {
            line: "rftpd --root /srv/files",
            about: "Anonymous users read the files below /srv/files, at port 2121 of all addresses.",
        },
        Example {
            line: "rftpd --root /srv/files --users /etc/rftpd.users --listen 127.0.0.1:2122 -v",
            about: "Users of a file, no anonymous ones, one address, commands in the log.",
        },
        Example {
            line: "rftpd --users /etc/rftpd.users --tls-cert cert.pem --tls-key key.pem --tls-required",
            about: "Passwords and FTP's data under TLS.",
        },
    ],
    sections: &[
        (
            "Users",
            "A line of the file is NAME:HASH, or NAME:HASH:ro for one who only reads. HASH is printed by: openssl passwd -6\n\
             Passwords and data are encrypted with --tls-cert alone, and for clients that ask for it; --tls-required admits no others.",
        ),
        (
            "Exit status",
            "1 it cannot begin; 2 usage. It does not end by itself.",
        ),
    ],
    see_also: &["rftp(1)", "dgiwarp(7)"],
    ..Program::EMPTY
};

/// Serves files over RDMA, TCP and FTP.
#[derive(Debug, Parser)]
#[command(name = "rftpd", version)]
struct Cli {
    /// Directory that is served; no name leaves it
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    root: PathBuf,
    /// Address and port; may be repeated; without it port 2121 of all addresses
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Vec<SocketAddr>,
    /// Anonymous users may change files
    #[arg(long)]
    write: bool,
    /// File of users; without it, and with --anonymous, there are anonymous ones
    #[arg(long, value_name = "FILE")]
    users: Option<PathBuf>,
    /// Anonymous users beside those of the file
    #[arg(long)]
    anonymous: bool,
    /// TLS for FTP (RFC 4217): a certificate in PEM form, with those that signed it behind it
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Nobody logs in without TLS, and no data connection of FTP is plain
    #[arg(long, requires = "tls_cert")]
    tls_required: bool,
    /// Data connections resume the TLS session of their control connection; not all clients do
    #[arg(long, requires = "tls_cert")]
    tls_reuse: bool,
    /// Ports for data connections
    #[arg(long, value_name = "FIRST-LAST", value_parser = ports)]
    passive_ports: Option<RangeInclusive<u16>>,
    /// Clients at a time; a session takes up to --slots times --block octets of memory
    #[arg(long, value_name = "N", default_value_t = 32)]
    max_clients: usize,
    #[command(flatten)]
    sizes: Sizes,
    /// Do not synchronize files to the disk
    #[arg(long)]
    no_sync: bool,
    /// Commands and failures on standard error
    #[arg(short, long)]
    verbose: bool,
}

fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let parse = || {
        let (first, last) = text.split_once('-')?;
        let range = first.parse().ok()?..=last.parse().ok()?;
        (!range.is_empty() && *range.start() > 0).then_some(range)
    };
    parse().ok_or_else(|| "not FIRST-LAST".to_owned())
}

fn main() -> ExitCode {
    let cli: Cli = dgiwarp_cli::parse(&PROGRAM);
    match serve(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("rftpd: {text}");
            ExitCode::FAILURE
        }
    }
}

fn serve(cli: Cli) -> Result<(), String> {
    let mut users = Users::default();
    if let Some(path) = &cli.users {
        let read = users.read(path);
        read.map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if cli.users.is_none() || cli.anonymous {
        users.anonymous = Some(cli.write);
    }
    let tls = cli.tls_cert.as_ref().zip(cli.tls_key.as_ref());
    let tls = tls.map(|(certificate, key)| Tls::new(certificate, key));
    let mut tls = tls.transpose()?;
    if let Some(tls) = &mut tls {
        tls.required = cli.tls_required;
        tls.reuse = cli.tls_reuse;
    }
    let config = Config {
        users,
        tls,
        passive_ports: cli.passive_ports,
        max_clients: cli.max_clients,
        // All users may read.
        options: Options {
            deltas: true,
            ..cli.sizes.options()
        },
        durable: !cli.no_sync,
        verbose: cli.verbose,
    };
    let server = Server::new(&cli.root, config);
    let server = server.map_err(|error| format!("{}: {error}", cli.root.display()))?;
    let addresses = if cli.listen.is_empty() {
        vec![SocketAddr::from(([0; 16], 2121))]
    } else {
        cli.listen
    };
    let mut threads = Vec::new();
    for address in addresses {
        let at = |error: io::Error| format!("{address}: {error}");
        let listener = TcpListener::bind(address).map_err(at)?;
        let local = listener.local_addr().map_err(at)?;
        eprintln!("rftpd: listening at {local}");
        let server = Arc::clone(&server);
        threads.push(thread::spawn(move || server.serve(&listener)));
    }
    for thread in threads {
        if let Ok(Err(error)) = thread.join() {
            return Err(error.to_string());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        assert_eq!(ports("5-9"), Ok(5..=9));
        for bad in ["5", "9-5", "0-4", "a-b", "1-70000"] {
            assert!(ports(bad).is_err(), "{bad}");
        }
    }
}
