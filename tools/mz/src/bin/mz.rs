//! The command line of `mz`.

#![forbid(unsafe_code)]

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use dgiwarp_cli::{Example, Program};
use dgiwarp_mz::{
    Code, Get, PORT, PipeIn, Put, Receive, Send, Server, Top, get, listen_address, peer_addresses,
    pipe_in, pipe_out, put, receive, send, serve, top,
};
use dgiwarp_transfer::disk::TreeSinkOptions;
use dgiwarp_transfer::{Options, Request};
use dgiwarp_transfer_cli::{
    Carriage, EncryptArg, Failed, Output, Show, Sizes, StreamsArg, Writing, XattrsArg,
};

const PROGRAM: Program = Program {
    examples: &[
        Example {
            line: "mz recv incoming",
            about: "Waits for one transfer into a directory; prints a code and the command for the other end.",
        },
        Example {
            line: "mz send --code CODE results notes.txt host",
            about: "Sends a tree and a file. The same commands after an interruption go on where that was.",
        },
        Example {
            line: "mz serve --code CODE /srv/incoming",
            about: "Takes any number of transfers, side by side.",
        },
        Example {
            line: "mz serve --read --code CODE /srv/data\nmz get --code CODE host day-1 notes.txt here",
            about: "Fetches a tree and a file from a host that serves them.",
        },
        Example {
            line: "mz serve --delete --code CODE /srv/copy\nmz sync --delete --exclude '*.o' --code CODE work host",
            about: "Makes a directory of the other host like one of this host.",
        },
        Example {
            line: "mz pipe --listen > copy.img\nmz pipe --code CODE host < disk.img",
            about: "A stream: standard input of one host to standard output of the other.",
        },
        Example {
            line: "mz top",
            about: "The transfers of this host that run: octets, rates, and what limits them.",
        },
    ],
    sections: &[
        (
            "Code",
            "A code admits a peer. Each wrong one costs the peer's address a delay that doubles, from 0.25 to 8 seconds. \
             It is never sent: both ends prove that they have it, and agree on keys (SPAKE2), by which all but the contents of files \
             is encrypted, and all is authenticated. Contents are encrypted, too, unless both ends are on one host (--encrypt).",
        ),
        (
            "Exit status",
            "0 everything is there; 1 something is not, with the reason on standard error; 2 usage.",
        ),
    ],
    see_also: &["rftp(1)", "dgiwarp(7)"],
    ..Program::EMPTY
};

/// Sends files, trees and streams to another host, over RDMA or TCP.
#[derive(Debug, Parser)]
#[command(name = "mz", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Send files and trees to a host that waits for them
    ///
    /// Files of the same size and time as the peer's are not sent again. One that was interrupted goes on where it was, as long as it is unchanged.
    Send(SendArgs),
    /// Wait for one transfer into a directory
    ///
    /// A file is under its name when all of it is there.
    Recv(ReceiveArgs),
    /// Take any number of transfers into a directory, side by side
    Serve(ServeArgs),
    /// Fetch files and trees from a host that serves them
    ///
    /// The other end is `mz serve --read`.
    Get(GetArgs),
    /// Make a directory of one host like that of another
    ///
    /// The other end is `mz serve`, with --delete if entries are to be removed there, and --read if it is the source.
    Sync(SyncArgs),
    /// Move a stream: standard input of one host to standard output of the other
    Pipe(PipeArgs),
    /// Show the transfers of this host that run
    ///
    /// Transfers of all `mz` and `rftp cp` of this user are shown, for root those of all users.
    Top(TopArgs),
}

#[derive(Debug, Args)]
struct SendArgs {
    /// Files or directories
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// HOST or HOST:PORT of the receiving end
    #[arg(value_name = "HOST")]
    host: String,
    /// Code that the receiving end shows
    #[arg(long, value_parser = Code::given)]
    code: Code,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct GetArgs {
    /// HOST or HOST:PORT that serves
    #[arg(value_name = "HOST")]
    host: String,
    /// Files or directories beneath the one that it serves
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Directory that they go to; it is made if it is missing
    #[arg(value_name = "DIRECTORY")]
    folder: PathBuf,
    #[command(flatten)]
    names: Names,
    /// Code that the other end shows
    #[arg(long, value_parser = Code::given)]
    code: Code,
    #[command(flatten)]
    writing: Writing,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct SyncArgs {
    /// SOURCE, a directory of this host, and HOST or HOST:PORT; with --from the DIRECTORY of this host that becomes like the other one
    #[arg(required = true, num_args = 1..=2, value_name = "SOURCE HOST | DIRECTORY")]
    places: Vec<PathBuf>,
    /// HOST or HOST:PORT that has the source
    #[arg(long, value_name = "HOST")]
    from: Option<String>,
    /// Directory beneath the one that the other end serves
    #[arg(long, value_name = "PATH")]
    path: Option<PathBuf>,
    /// Remove what the source has not, and what is in the way of its entries
    #[arg(long)]
    delete: bool,
    /// Change nothing; list what would be done
    #[arg(short = 'n', long)]
    dry_run: bool,
    #[command(flatten)]
    names: Names,
    /// Code that the other end shows
    #[arg(long, value_parser = Code::given)]
    code: Code,
    #[command(flatten)]
    writing: Writing,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct Names {
    /// Leave out, and do not remove, names of this pattern: without / of any depth, else of the whole name; with / at its end of directories
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// But not those of this pattern
    #[arg(long, value_name = "PATTERN")]
    include: Vec<String>,
}

#[derive(Debug, Args)]
struct ReceiveArgs {
    /// Directory that the files go to; it is made if it is missing
    #[arg(value_name = "DIRECTORY")]
    folder: PathBuf,
    #[command(flatten)]
    listen: Listen,
    #[command(flatten)]
    writing: Writing,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct ServeArgs {
    #[command(flatten)]
    receive: ReceiveArgs,
    /// Peers may fetch files from the directory
    #[arg(long)]
    read: bool,
    /// Peers may have files removed from the directory
    #[arg(long)]
    delete: bool,
    /// Transfers at a time; one takes up to --slots times --block octets of memory
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    max_sessions: u16,
}

#[derive(Debug, Args)]
struct PipeArgs {
    /// HOST or HOST:PORT of the end that writes; without it, and with --listen, this end writes to standard output
    #[arg(value_name = "HOST", required_unless_present = "listen", conflicts_with_all = ["listen", "bind", "port"], requires = "code")]
    host: Option<String>,
    /// Wait for a peer and write its stream to standard output
    #[arg(short, long)]
    listen: bool,
    #[command(flatten)]
    at: Listen,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct TopArgs {
    /// Show them once; else again and again where standard output is a terminal, until interrupted
    #[arg(long)]
    once: bool,
    /// Seconds between, over which rates are taken
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    interval: f64,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number")?;
    if !(0.1..=3600.0).contains(&seconds) {
        return Err("0.1 to 3600 seconds".into());
    }
    Ok(seconds)
}

#[derive(Debug, Args)]
struct Listen {
    /// Address, or ADDRESS:PORT, to listen at; without it all addresses of this host
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<String>,
    /// Port to listen at; 0 for any
    #[arg(long, default_value_t = PORT)]
    port: u16,
    /// Code that admits a peer; without it a random one is shown
    #[arg(long, value_parser = Code::given)]
    code: Option<Code>,
}

#[derive(Debug, Args)]
struct Common {
    /// A TCP connection instead of a queue pair; both ends need it
    #[arg(long)]
    tcp: bool,
    /// Of files that changed, send what the receiving end's old copies have not, where both ends say so; `mz serve --read` says so by itself
    #[arg(long)]
    delta: bool,
    #[command(flatten)]
    xattrs: XattrsArg,
    #[command(flatten)]
    encrypt: EncryptArg,
    #[command(flatten)]
    streams: StreamsArg,
    #[command(flatten)]
    sizes: Sizes,
    #[command(flatten)]
    output: Output,
}

fn main() -> ExitCode {
    let cli: Cli = dgiwarp_cli::parse(&PROGRAM);
    let done = match cli.command {
        Command::Send(args) => send_order(args).and_then(|order| send(&order)),
        Command::Recv(args) => receive_order(args, "recv").and_then(|order| receive(&order)),
        Command::Serve(args) => serve_order(args).and_then(|order| serve(&order)),
        Command::Get(args) => get_order(args).and_then(|order| get(&order)),
        Command::Sync(args) => sync(args),
        Command::Pipe(args) => pipe(args),
        Command::Top(args) => top(&Top {
            once: args.once || !std::io::stdout().is_terminal(),
            interval: Duration::from_secs_f64(args.interval),
            json: args.json,
        }),
    };
    Failed::exit("mz", done)
}

fn send_order(args: SendArgs) -> Result<Send, Failed> {
    Ok(Send {
        paths: args.paths,
        to: peer_addresses(&args.host).map_err(Failed::Session)?,
        code: args.code,
        carriage: carriage(&args.common),
        show: show(&args.common, "send"),
    })
}

fn server(host: &str, code: Code, common: &Common, verb: &'static str) -> Result<Server, Failed> {
    Ok(Server {
        at: peer_addresses(host).map_err(Failed::Session)?,
        code,
        carriage: carriage(common),
        show: show(common, verb),
    })
}

fn get_order(args: GetArgs) -> Result<Get, Failed> {
    Ok(Get {
        from: server(&args.host, args.code, &args.common, "get")?,
        request: Request {
            paths: args.paths.iter().map(|it| beneath(it)).collect(),
            exclude: args.names.exclude,
            include: args.names.include,
            ..Request::default()
        },
        folder: args.folder,
        sink: args.writing.options(),
    })
}

fn sync(args: SyncArgs) -> Result<(), Failed> {
    let request = Request {
        paths: vec![args.path.as_deref().map(beneath).unwrap_or_default()],
        prune: args.delete,
        dry_run: args.dry_run,
        contents: true,
        exclude: args.names.exclude,
        include: args.names.include,
    };
    let named = |host: &Path| host.to_str().map(str::to_owned);
    let (host, folder) = match (&args.places[..], args.from) {
        ([folder], Some(host)) => (Some(host), folder),
        ([folder, host], None) => (named(host), folder),
        _ => {
            let text = "either SOURCE and HOST, or --from HOST and a DIRECTORY of this host";
            return Err(Failed::Usage(text.into()));
        }
    };
    let is_put = args.places.len() == 2;
    let host = host.ok_or_else(|| Failed::Usage("not HOST or HOST:PORT".into()))?;
    let mut server = server(&host, args.code, &args.common, "sync")?;
    // Names are all that it is for.
    server.show.verbose |= args.dry_run;
    let folder = folder.clone();
    if is_put {
        let to = server;
        return put(&Put {
            folder,
            to,
            request,
        });
    }
    get(&Get {
        from: server,
        request,
        folder,
        sink: args.writing.options(),
    })
}

/// A path beneath the directory of a server, as users write it.
fn beneath(path: &Path) -> PathBuf {
    let plain = |it: &Component<'_>| !matches!(it, Component::RootDir | Component::CurDir);
    path.components().filter(plain).collect()
}

fn serve_order(mut args: ServeArgs) -> Result<Receive, Failed> {
    // Hashes of pieces tell about files, which peers may read then.
    args.receive.common.delta |= args.read;
    Ok(Receive {
        read: args.read,
        delete: args.delete,
        sessions: usize::from(args.max_sessions),
        ..receive_order(args.receive, "serve")?
    })
}

fn receive_order(args: ReceiveArgs, verb: &'static str) -> Result<Receive, Failed> {
    let (bind, code) = listen(&args.listen)?;
    Ok(Receive {
        folder: args.folder,
        bind,
        port: args.listen.port,
        code,
        sink: args.writing.options(),
        carriage: carriage(&args.common),
        read: false,
        delete: false,
        sessions: 1,
        show: show(&args.common, verb),
    })
}

fn pipe(args: PipeArgs) -> Result<(), Failed> {
    let (carriage, mut show) = (carriage(&args.common), show(&args.common, "pipe"));
    if let (Some(host), Some(code)) = (&args.host, &args.at.code) {
        let to = peer_addresses(host).map_err(Failed::Session)?;
        let code = code.clone();
        // Pieces of a stream are no entries.
        show.verbose = false;
        return pipe_in(&PipeIn {
            to,
            code,
            carriage,
            show,
        });
    }
    if show.json {
        let text = "--json is not for the end whose standard output is the stream";
        return Err(Failed::Usage(text.into()));
    }
    show.verbose = false;
    let (bind, code) = listen(&args.at)?;
    pipe_out(&Receive {
        folder: PathBuf::new(),
        bind,
        port: args.at.port,
        code,
        sink: TreeSinkOptions::default(),
        carriage,
        read: false,
        delete: false,
        sessions: 1,
        show,
    })
}

fn listen(args: &Listen) -> Result<(Option<SocketAddr>, Code), Failed> {
    let bind = args.bind.as_ref();
    let bind = bind.map(|text| listen_address(text, args.port));
    let code = args.code.clone().map_or_else(Code::random, Ok);
    Ok((
        bind.transpose().map_err(Failed::Usage)?,
        code.map_err(Failed::Session)?,
    ))
}

fn carriage(common: &Common) -> Carriage {
    Carriage {
        tcp: common.tcp,
        options: Options {
            deltas: common.delta,
            attributes: !common.xattrs.no_xattrs,
            ..common.sizes.options()
        },
        streams: common.streams.streams,
        encryption: common.encrypt.encrypt,
    }
}

fn show(common: &Common, verb: &'static str) -> Show {
    Show {
        verb,
        ..common.output.show("mz")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        let parse = |line: &str| Cli::try_parse_from(line.split(' '));
        let Command::Send(args) = parse("mz send --code x a b host:9").unwrap().command else {
            panic!("not send")
        };
        assert_eq!((args.paths.len(), args.host.as_str()), (2, "host:9"));
        for good in ["mz pipe -l", "mz pipe --code x host", "mz recv d --port 0"] {
            assert!(parse(good).is_ok(), "{good}");
        }
        for bad in [
            "mz send a host",
            "mz send --code x host",
            "mz pipe",
            "mz pipe host",
            "mz pipe -l host --code x",
            "mz recv",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
