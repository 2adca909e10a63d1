//! `dgiwarp-conform run`.

use std::io::{IsTerminal, Write as _};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::{
    EXIT_FINDINGS, EXIT_NO_DEVICE, Failed, Select, is_standard_output, quiet, usage, write,
};
use crate::agent::Agent;
use crate::bench::Settings;
use crate::clock;
use crate::peer::Patience;
use crate::profile::Profile;
use crate::report::{self, Subject, book};
use crate::run::{self, Done, Outcome, Plan, Progress};
use crate::selection::Selection;

/// Whether progress is shown on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Show {
    /// If it is a terminal.
    Auto,
    /// One line for each case.
    Always,
    /// No.
    Never,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("device_address").required(true).args(["target", "agent"])))]
pub(super) struct RunArgs {
    /// A port of the device that accepts RDMA connections; repeated, several devices or ports in turn
    #[arg(long, value_name = "HOST:PORT")]
    target: Vec<String>,
    /// The control port of the agent on the device; repeated, several devices in turn
    #[arg(long, value_name = "HOST:PORT", requires = "token")]
    agent: Vec<String>,
    /// The token that the agent printed; one for each agent
    #[arg(long, value_name = "HEX")]
    token: Vec<String>,
    /// The device's address for RDMA, if it is not the one that its agent has
    #[arg(long, value_name = "HOST", requires = "agent")]
    data: Option<String>,
    /// The tester's own address for RDMA [default: as its routes have it]
    #[arg(long, value_name = "ADDRESS", requires = "agent")]
    from: Option<IpAddr>,
    /// The device listens at this port, and at those behind it if it loses a listener [default: any]
    #[arg(long, value_name = "PORT", requires = "agent")]
    rdma_port: Option<u16>,
    /// The tester listens at this TCP port and sends datagrams from this UDP port, and up to 15 behind it [default: any]
    #[arg(long, value_name = "PORT", requires = "agent")]
    listen_port: Option<u16>,
    #[command(flatten)]
    select: Select,
    /// Expected failures: siw, or a file
    #[arg(long, value_name = "NAME|FILE")]
    profile: Option<String>,
    /// Run cases too that are known to crash devices, or the hosts they are in
    #[arg(long)]
    allow_crash: bool,
    /// Run cases too that take a minute or more
    #[arg(long)]
    slow: bool,
    /// The MPA revision of good Requests; a device of revision 1 has no enhanced startup
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    revision: u8,
    /// Ask for no CRCs where a case is not about them; a device that asks for none either has connections without
    #[arg(long)]
    no_crc: bool,
    /// How long an answer may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    patience: u64,
    /// How many connections cases make that make many
    #[arg(long, value_name = "N", default_value_t = 40)]
    many: u32,
    /// Seed of the patterns of loss; equal numbers make equal ones
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Description of the device, for the report; one for each device
    #[arg(long, value_name = "TEXT")]
    device: Vec<String>,
    /// Write the results as one JSON document (- = standard output, and nothing else there)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the results as JUnit's XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write the results as a page for browsers
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write a packet file of every case that found something into this folder
    #[arg(long, value_name = "FOLDER")]
    pcap: Option<PathBuf>,
    /// Show progress on standard error
    #[arg(long, value_enum, default_value = "auto")]
    progress: Show,
}

fn no_device(error: impl ToString) -> Failed {
    (EXIT_NO_DEVICE, error.to_string())
}

fn resolve(name: &str) -> Result<SocketAddr, Failed> {
    let mut found = name
        .to_socket_addrs()
        .map_err(|error| usage(format!("{name}: {error}")))?;
    found
        .next()
        .ok_or_else(|| usage(format!("{name} has no address")))
}

/// A device of the command line.
#[derive(Clone, Copy, Debug)]
enum Device<'a> {
    Port(&'a str),
    Agent(&'a str, &'a str),
}

fn devices(args: &RunArgs) -> Result<Vec<Device<'_>>, Failed> {
    if !args.target.is_empty() && !args.agent.is_empty() {
        return Err(usage(
            "--target and --agent are two ways to one device: use one of them",
        ));
    }
    if args.agent.len() != args.token.len() && !args.agent.is_empty() {
        return Err(usage(format!(
            "{} agents and {} tokens: each agent has one",
            args.agent.len(),
            args.token.len()
        )));
    }
    let ports = args.target.iter().map(|target| Device::Port(target));
    let agents = args.agent.iter().zip(&args.token);
    let all: Vec<_> = ports
        .chain(agents.map(|(agent, token)| Device::Agent(agent, token)))
        .collect();
    if args.device.len() > all.len() {
        return Err(usage("more --device than devices"));
    }
    Ok(all)
}

pub(super) fn run(args: &RunArgs) -> Result<ExitCode, Failed> {
    let selection = args.select.selection()?;
    let profile = args.profile.as_deref().map(Profile::load);
    let profile = profile.transpose().map_err(usage)?;
    let devices = devices(args)?;
    let mut results = Vec::new();
    for (number, device) in devices.iter().enumerate() {
        let name = args.device.get(number).cloned().unwrap_or_default();
        match one(args, *device, name, &selection, profile.clone()) {
            Ok(result) => results.push(result),
            // Of several devices the others are tested.
            Err(failed) if devices.len() == 1 => return Err(failed),
            Err((_, why)) => {
                eprintln!("dgiwarp-conform: {why}");
                results.push(unreached(args, *device, &selection, why));
            }
        }
    }
    write_reports(args, &results)?;
    Ok(status(&results))
}

fn status(results: &[(Subject, Vec<Done>)]) -> ExitCode {
    let cases = || results.iter().flat_map(|(_, all)| all);
    let missed = |all: &[Done]| {
        !all.iter().any(|done| {
            !matches!(
                done.outcome,
                Outcome::Broken | Outcome::Dead | Outcome::Skipped
            )
        })
    };
    let findings = results
        .iter()
        .any(|(_, all)| !missed(all) && all.iter().any(|done| done.outcome.is_bad()));
    let unreached = results.iter().any(|(subject, all)| {
        subject.unreached || missed(all) && all.iter().any(|done| done.outcome.is_bad())
    });
    if findings {
        ExitCode::from(EXIT_FINDINGS)
    } else if unreached || !cases().any(|_| true) {
        ExitCode::from(EXIT_NO_DEVICE)
    } else {
        ExitCode::SUCCESS
    }
}

/// A device to which there is no way: all its cases are skipped.
fn unreached(
    args: &RunArgs,
    device: Device<'_>,
    selection: &Selection,
    why: String,
) -> (Subject, Vec<Done>) {
    let (Device::Port(name) | Device::Agent(name, _)) = device;
    let all = run::none(selection, &why);
    let subject = Subject {
        target: name.to_owned(),
        device: String::new(),
        control: None,
        options: options(args, selection),
        when: clock::wall(),
        hint: Some(why),
        unreached: true,
    };
    (subject, all)
}

fn one(
    args: &RunArgs,
    device: Device<'_>,
    name: String,
    selection: &Selection,
    profile: Option<Profile>,
) -> Result<(Subject, Vec<Done>), Failed> {
    let when = clock::wall();
    let (agent, control, target) = meet(args, device)?;
    let mut plan = Plan {
        settings: Settings {
            target,
            revision: args.revision,
            crc: !args.no_crc,
            patience: Patience {
                answer: Duration::from_secs(args.patience),
                ..Patience::default()
            },
            many: args.many,
            seed: args.seed,
            ports: args.listen_port,
        },
        selection: selection.clone(),
        allow_crash: args.allow_crash,
        slow: args.slow,
        profile,
    };
    let all = run::run(
        &mut plan,
        agent,
        &mut shown(args.progress, selection.cases().len()),
    );
    let reached = all.iter().any(|done| {
        !matches!(
            done.outcome,
            Outcome::Broken | Outcome::Dead | Outcome::Skipped
        )
    });
    let hint = if !reached && all.iter().any(|done| done.outcome.is_bad()) {
        run::hint(&plan.settings)
    } else {
        None
    };
    if let Some(hint) = &hint {
        eprintln!("dgiwarp-conform: {hint}");
    }
    let subject = Subject {
        target: target.to_string(),
        device: name,
        control: control.map(|control| control.to_string()),
        options: options(args, selection),
        when,
        hint,
        unreached: false,
    };
    Ok((subject, all))
}

/// Shows progress: on a terminal the case that runs too.
fn shown(show: Show, of: usize) -> impl FnMut(Progress<'_>) {
    let terminal = std::io::stderr().is_terminal();
    let mut number = 0;
    move |progress| {
        let text = match progress {
            Progress::Begins(case) => {
                number += 1;
                if !terminal || show == Show::Never {
                    return;
                }
                format!("[{number}/{of}] {:<9}{:<4} {}", "…", case.id, case.about)
            }
            Progress::Done(done) => {
                if show == Show::Never || show == Show::Auto && !terminal {
                    return;
                }
                format!("[{number}/{of}] {}\n", report::line(done))
            }
        };
        // The line of the case that runs gives way to its result.
        let clear = if terminal { "\r\x1b[K" } else { "" };
        eprint!("{clear}{text}");
    }
}

/// Options that a result depends on, for the report.
fn options(args: &RunArgs, selection: &Selection) -> Value {
    json!({
        "revision": args.revision,
        "crc": !args.no_crc,
        "patience_s": args.patience,
        "many": args.many,
        "seed": args.seed,
        "allow_crash": args.allow_crash,
        "slow": args.slow,
        "profile": args.profile,
        "families": selection.families.iter().map(|family| book::word(*family)).collect::<Vec<_>>(),
        "cases": selection.cases,
        "role": selection.role.map(book::word),
        "level": selection.level.map(book::word),
        "clauses": selection.clauses,
        "without": selection.without,
    })
}

/// The agent with its control address, if one is given, and the port to test.
fn meet(
    args: &RunArgs,
    device: Device<'_>,
) -> Result<(Option<Agent>, Option<SocketAddr>, SocketAddr), Failed> {
    let (name, token) = match device {
        Device::Port(name) => return Ok((None, None, resolve(name)?)),
        Device::Agent(name, token) => (name, token),
    };
    let control = resolve(name)?;
    let mut agent = Agent::connect(control, token).map_err(no_device)?;
    let (address, port) = agent.listen(args.rdma_port).map_err(no_device)?;
    let data = match &args.data {
        Some(host) => resolve(&format!("{}:0", bracketed(host)))?.ip(),
        None => address.unwrap_or_else(|| control.ip()),
    };
    let target = SocketAddr::new(data, port);
    agent.data_path(args.from, target).map_err(no_device)?;
    Ok((Some(agent), Some(control), target))
}

/// A host's name, or its address in the form that a port may follow.
fn bracketed(host: &str) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]")
    } else {
        host.to_owned()
    }
}

fn write_reports(args: &RunArgs, results: &[(Subject, Vec<Done>)]) -> Result<(), Failed> {
    let alone = is_standard_output(args.json.as_ref());
    if let Some(path) = &args.json {
        let json = report::json(results);
        if alone {
            quiet(writeln!(std::io::stdout(), "{json:#}"))?;
        } else {
            write(path, format!("{json:#}\n"))?;
        }
    }
    if !alone {
        for (subject, all) in results {
            quiet(write!(std::io::stdout(), "{}", report::text(subject, all)))?;
        }
    }
    if let Some(path) = &args.junit {
        write(path, report::junit(results))?;
    }
    if let Some(path) = &args.html {
        write(path, report::html(results))?;
    }
    let Some(folder) = &args.pcap else {
        return Ok(());
    };
    for (number, (_, all)) in (1..).zip(results) {
        // Of several devices each has a folder.
        let folder = if results.len() > 1 {
            folder.join(number.to_string())
        } else {
            folder.clone()
        };
        std::fs::create_dir_all(&folder).map_err(|error| (EXIT_FINDINGS, error.to_string()))?;
        for done in all
            .iter()
            .filter(|done| done.outcome >= Outcome::Inconclusive)
        {
            let name = format!("{}.pcapng", done.case.id);
            write(&folder.join(name), report::pcapng(done))?;
        }
    }
    Ok(())
}
