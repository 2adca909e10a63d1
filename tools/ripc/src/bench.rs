//! Measures messages, calls and long items between two processes of this machine, beside TCP sockets.

use std::env;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use dgiwarp_ripc::{
    CallOptions, Client, Code, Config, Destination, Endpoint, MethodId, Payload, PrivateKey,
    PublicKey, Security, ServiceId, Status,
};
use hdrhistogram::Histogram;

use crate::Failure;
use crate::cli::{Bench, device};
use crate::sockets::{Exchange, Mode, serve as serve_sockets};

const SERVICE: &str = "bench";
const INBOX: &str = "4";
const ECHO: MethodId = MethodId::named("echo");
const BLOB: MethodId = MethodId::named("blob");
/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(20);
/// Turns of calls without and with a handshake, and sealed.
const TURNS: u32 = 100;
/// Long items of a row.
const LONG_ROUNDS: u32 = 10;

/// Time of now.
#[expect(clippy::disallowed_methods, reason = "a program reads the clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

pub(crate) fn run(task: &Bench) -> Result<(), Failure> {
    if task.server {
        server(task)
    } else {
        client(task)
    }
}

fn config() -> Config {
    let mut config = Config::default().without_group();
    config.device = device();
    config
}

/// Serves until its standard input ends.
fn server(task: &Bench) -> Result<(), Failure> {
    let mut config = config();
    config.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let endpoint = Endpoint::open(config.clone())?;
    let blob = endpoint.block(task.long.max(1))?;
    endpoint.serve(SERVICE, move |request| match request.method {
        ECHO => Ok(request.payload),
        BLOB => Ok(Payload::long(blob.clone())),
        _ => Err(Status::new(Code::Unimplemented, "methods: echo, blob")),
    })?;
    // Messages have an endpoint, and so a thread, of their own.
    let messages = Endpoint::open(config)?;
    let inbox = messages.open_inbox(INBOX)?;
    let addresses = [
        endpoint.local_addr(),
        messages.local_addr(),
        Some(serve_sockets()?),
    ];
    for address in addresses.into_iter().flatten() {
        println!("{address}");
    }
    let _secured = if task.handshake {
        Some(secured()?)
    } else {
        None
    };
    thread::spawn(move || {
        loop {
            if let Some(incoming) = messages.receive(inbox, None) {
                let to = incoming.from;
                let sent = messages.send(inbox, to, Destination::Learned, incoming.payload, vec![]);
                if let Err(status) = sent {
                    eprintln!("ripc: {status}");
                }
            }
        }
    });
    let mut rest = Vec::new();
    std::io::stdin().read_to_end(&mut rest)?;
    Ok(())
}

/// Serves calls with a handshake, and with sealed messages. Prints their addresses and the key.
fn secured() -> Result<[Endpoint; 2], Failure> {
    let key = PrivateKey::generate()?;
    let public = key.public();
    let serve = |security: Security| {
        let mut config = config().secured(security);
        config.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        let endpoint = Endpoint::open(config)?;
        endpoint.serve(SERVICE, |request| Ok(request.payload))?;
        if let Some(address) = endpoint.local_addr() {
            println!("{address}");
        }
        Ok::<_, Failure>(endpoint)
    };
    let endpoints = [
        serve(Security::new(key.clone()))?,
        serve(Security::new(key).sealed())?,
    ];
    println!("{public}");
    Ok(endpoints)
}

/// The server process; it ends with this one.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn start(task: &Bench) -> Result<(Server, [SocketAddr; 3], Option<Secured>), Failure> {
    let mut child = Command::new(env::current_exe()?)
        .args(["bench", "--server", "--long", &task.long.to_string()])
        .args(task.handshake.then_some("--handshake"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let out = child.stdout.take();
    let server = Server(child);
    let mut lines = out.into_iter().flat_map(|out| BufReader::new(out).lines());
    let failed = || Failure::Text("the server did not start".to_owned());
    let addresses: Vec<_> = lines
        .by_ref()
        .take(3)
        .filter_map(|line| line.ok()?.parse().ok())
        .collect();
    let addresses = addresses.try_into().map_err(|_| failed())?;
    if !task.handshake {
        return Ok((server, addresses, None));
    }
    let mut line = || lines.next().and_then(Result::ok).ok_or_else(failed);
    let secured = Secured {
        addresses: [line()?.parse()?, line()?.parse()?],
        key: line()?.parse()?,
    };
    Ok((server, addresses, Some(secured)))
}

/// Addresses of the servers of calls with a handshake and sealed ones, and their key.
struct Secured {
    addresses: [SocketAddr; 2],
    key: PublicKey,
}

/// Calls without and with a handshake, and sealed, by turns.
fn handshakes(task: &Bench, plain: Client, secured: &Secured) -> Result<(), Failure> {
    let mut clients = vec![plain];
    for address in secured.addresses {
        let security = Security::anonymous()?.with_peer(secured.key);
        let endpoint = Endpoint::open(config().secured(security))?;
        clients.push(endpoint.client(SERVICE.parse()?, vec![address]));
    }
    println!(
        "\ncalls by turns: round trip in µs, median of {} (99 %)",
        task.rounds
    );
    println!(
        "{:>7} {:>17} {:>17} {:>17}   handshake / plain, sealed / plain",
        "bytes", "plain", "handshake", "sealed"
    );
    for length in &task.size {
        let mut histograms = [(); 3].map(|()| Histogram::<u64>::new(3));
        for _ in 0..TURNS {
            for (client, histogram) in clients.iter().zip(&mut histograms) {
                let histogram = histogram
                    .as_mut()
                    .map_err(|error| Failure::Text(error.to_string()))?;
                measure(histogram, task.rounds.div_ceil(TURNS), || {
                    echo(client, *length)
                })?;
            }
        }
        let [plain, handshake, sealed] =
            histograms.map(|it| it.as_ref().map_or((0.0, 0.0), micros));
        let cell = |(median, tail): (f64, f64)| format!("{median:>8.2} ({tail:>6.1})");
        println!(
            "{length:>7} {} {} {}   {:.2}, {:.2}",
            cell(plain),
            cell(handshake),
            cell(sealed),
            handshake.0 / plain.0,
            sealed.0 / plain.0
        );
    }
    Ok(())
}

/// Median of so many rounds, in µs.
fn median(
    rounds: u32,
    mut round: impl FnMut() -> Result<(), Failure>,
) -> Result<(f64, f64), Failure> {
    let mut histogram = Histogram::<u64>::new(3)?;
    measure(&mut histogram, rounds, &mut round)?;
    Ok(micros(&histogram))
}

/// Adds so many rounds, after a tenth of them.
fn measure(
    histogram: &mut Histogram<u64>,
    rounds: u32,
    mut round: impl FnMut() -> Result<(), Failure>,
) -> Result<(), Failure> {
    for _ in 0..rounds / 10 {
        round()?;
    }
    for _ in 0..rounds {
        let begun = now();
        round()?;
        let nanos = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        histogram.record(nanos.max(1))?;
    }
    Ok(())
}

/// Median, and the quantile of 99 %, in µs.
fn micros(histogram: &Histogram<u64>) -> (f64, f64) {
    let micros =
        |quantile| Duration::from_nanos(histogram.value_at_quantile(quantile)).as_secs_f64() * 1e6;
    (micros(0.5), micros(0.99))
}

fn client(task: &Bench) -> Result<(), Failure> {
    let (_server, [calls, messages, sockets], secured) = start(task)?;
    let endpoint = Endpoint::open(config())?;
    let service = endpoint.client(SERVICE.parse()?, vec![calls]);
    let own = endpoint.open_inbox("17")?;
    let inbox: dgiwarp_ripc::ServiceName = INBOX.parse()?;
    println!("round trip in µs, median of {} (99 %)", task.rounds);
    println!(
        "{:>7} {:>17} {:>17} {:>17} {:>17}   message / blocking, / spinning",
        "bytes", "TCP blocking", "TCP spinning", "message", "call"
    );
    for length in &task.size {
        let mut row = Vec::new();
        for mode in [Mode::Blocking, Mode::Spinning] {
            let mut exchange = Exchange::new(sockets, mode, *length)?;
            row.push(median(task.rounds, || Ok(exchange.round()?))?);
        }
        row.push(median(task.rounds, || {
            exchange_message(&endpoint, own, inbox.id, messages, *length)
        })?);
        row.push(median(task.rounds, || echo(&service, *length))?);
        let cells: Vec<_> = row
            .iter()
            .map(|(median, tail)| format!("{median:>8.2} ({tail:>6.1})"))
            .collect();
        let [blocking, spinning, message, ..] = row.as_slice() else {
            continue;
        };
        println!(
            "{length:>7} {}   {:.2}, {:.2}",
            cells.join(" "),
            message.0 / blocking.0,
            message.0 / spinning.0
        );
    }
    if task.long > 0 {
        long(task, &service, sockets)?;
    }
    if let Some(secured) = secured {
        handshakes(task, service, &secured)?;
    }
    Ok(())
}

fn exchange_message(
    endpoint: &Endpoint,
    own: ServiceId,
    to: ServiceId,
    address: SocketAddr,
    length: usize,
) -> Result<(), Failure> {
    let payload = Payload::short(vec![0; length]);
    let sent = endpoint.send(own, to, Destination::Address(address), payload, vec![]);
    sent.map_err(Failure::Status)?;
    let answer = endpoint.receive(own, Some(PATIENCE));
    match answer {
        Some(answer) if answer.payload.items.len() == 1 => Ok(()),
        Some(_) | None => Err(Failure::Text("no answer to a message".to_owned())),
    }
}

fn echo(service: &Client, length: usize) -> Result<(), Failure> {
    let payload = Payload::short(vec![0; length]);
    let options = CallOptions::timeout(PATIENCE);
    let reply = service.call(ECHO, payload, &options);
    reply.map(drop).map_err(Failure::Status)
}

/// A long item of the server's, as TCP sends it, written into memory of the caller's, and read.
fn long(task: &Bench, service: &Client, sockets: SocketAddr) -> Result<(), Failure> {
    let mut exchange = Exchange::new(sockets, Mode::Long, task.long)?;
    let tcp = median(LONG_ROUNDS, || Ok(exchange.round()?))?;
    let call = |options: &CallOptions| {
        let reply = service.call(BLOB, Payload::new(), options);
        let reply = reply.map_err(Failure::Status)?;
        match reply.items.as_slice() {
            [item] if item.len() == task.long => Ok(()),
            _ => Err(Failure::Text("another item came".to_owned())),
        }
    };
    let plain = CallOptions::timeout(PATIENCE);
    let roomy = plain.clone().and_room(task.long);
    let written = median(LONG_ROUNDS, || call(&roomy))?;
    let read = median(LONG_ROUNDS, || call(&plain))?;
    println!("\n{} bytes, median of {LONG_ROUNDS}", task.long);
    for (name, (micros, _)) in [("TCP", tcp), ("written", written), ("read", read)] {
        let seconds = micros / 1e6;
        let rate = length(task.long) / seconds;
        println!(
            "{name:>8} {:>9.2} ms {:>6.2} GB/s   {:.2} of TCP's time",
            micros / 1e3,
            rate / 1e9,
            micros / tcp.0
        );
    }
    Ok(())
}

fn length(bytes: usize) -> f64 {
    f64::from(u32::try_from(bytes).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_of_the_rounds() {
        let mut rounds = 0;
        let (median, tail) = median(100, || {
            rounds += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(rounds, 110);
        assert!(median > 0.0 && tail >= median);
    }
}
