//! Options of `cargo xtask lab` that make the link a relay, named as those of `tc` where `tc` has them.

use std::time::Duration;

use clap::Args;

use super::Link;
use super::relay::{self, GilbertElliott, LinkConfig, Loss, Reordering};

/// How long a packet is held up at most, unless the option names a time.
const REORDER_BY: Duration = Duration::from_millis(1);
/// Delay of a queue whose length is not named.
const QUEUE_DELAY: Duration = Duration::from_millis(50);
/// Octets of such a queue at least.
const LEAST_QUEUE: u64 = 64 << 10;

/// One value for both directions, or one for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Each<T> {
    /// From the client to the server.
    pub to_server: T,
    /// From the server to the client.
    pub to_client: T,
}

/// Faults of the link. Each value may be two, `A,B`: from client to server, and back.
#[derive(Clone, Debug, Default, Args)]
#[command(
    next_help_heading = "Faults, each VALUE or VALUE,VALUE: from client to server, and back; any of them replaces the veth pair by a relay"
)]
pub struct RelayArgs {
    /// Delay, such as 25ms or 100us.
    #[arg(long, value_name = "TIME", value_parser = each(duration))]
    delay: Option<Each<Duration>>,
    /// Each packet's delay differs by up to this, evenly. Order is kept: packets close together take the longest delay among them.
    #[arg(long, value_name = "TIME", value_parser = each(duration), requires = "delay")]
    jitter: Option<Each<Duration>>,
    /// Part of the packets that is lost, such as 1%.
    #[arg(long, value_name = "PERCENT", value_parser = each(percentage))]
    loss: Option<Each<f64>>,
    /// Losses come in bursts of so many packets on average (Gilbert's model), instead of independently.
    #[arg(long, value_name = "PACKETS", value_parser = each(burst), requires = "loss")]
    burst: Option<Each<f64>>,
    /// Part of the packets that is held up, so that others overtake them.
    #[arg(long, value_name = "PERCENT", value_parser = each(percentage))]
    reorder: Option<Each<f64>>,
    /// They are held up for at most this long, evenly [default: 1ms].
    #[arg(long, value_name = "TIME", value_parser = each(duration), requires = "reorder")]
    reorder_by: Option<Each<Duration>>,
    /// Part of the packets that arrives twice.
    #[arg(long, value_name = "PERCENT", value_parser = each(percentage))]
    duplicate: Option<Each<f64>>,
    /// Part of the packets in which a bit behind the IP header is flipped.
    #[arg(long, value_name = "PERCENT", value_parser = each(percentage))]
    corrupt: Option<Each<f64>>,
    /// Rate, such as 1gbit, 100mbit or 64kbit.
    #[arg(long, value_name = "RATE", value_parser = each(rate))]
    rate: Option<Each<u64>>,
    /// Bytes that wait for the rate, such as 256k; further packets are dropped [default: 50 ms of the rate, at least 64k].
    #[arg(long, value_name = "SIZE", value_parser = each(size), requires = "rate")]
    queue: Option<Each<usize>>,
    /// Bytes that wait for the rate, above which packets of ECN-capable transports are marked.
    #[arg(long, value_name = "SIZE", value_parser = each(size), requires = "rate")]
    ecn: Option<Each<usize>>,
    /// Seed of all decisions, printed at the end [default: random].
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
}

impl RelayArgs {
    /// The link that these options ask for: a relay if there is any of them.
    ///
    /// # Errors
    /// Options that contradict each other, as a sentence.
    pub fn link(&self) -> Result<Link, String> {
        let asked = self.delay.is_some()
            || self.loss.is_some()
            || self.reorder.is_some()
            || self.duplicate.is_some()
            || self.corrupt.is_some()
            || self.rate.is_some()
            || self.seed.is_some();
        if !asked {
            return Ok(Link::Veth);
        }
        let side = |of: Direction| self.direction(of);
        Ok(Link::Relay(relay::Config {
            to_server: side(Direction::ToServer)?,
            to_client: side(Direction::ToClient)?,
            seed: self.seed.unwrap_or_else(relay::random_seed),
        }))
    }

    fn direction(&self, direction: Direction) -> Result<LinkConfig, String> {
        let delay = direction.of(self.delay).unwrap_or_default();
        let jitter = direction.of(self.jitter).unwrap_or_default();
        if jitter > delay {
            return Err("--jitter must not be above --delay".to_owned());
        }
        let loss = match (direction.of(self.loss), direction.of(self.burst)) {
            (None, _) => Loss::None,
            (Some(rate), None) => Loss::Independent(rate),
            (Some(rate), Some(length)) => {
                // In balance, good packets between bursts are at least one each.
                if rate >= 1.0 || rate > length / (length + 1.0) {
                    return Err(format!(
                        "--loss {}% is too much for bursts of {length} packets",
                        rate * 100.0
                    ));
                }
                Loss::Bursts(GilbertElliott::bursts(rate, length))
            }
        };
        let rate = direction.of(self.rate);
        let default_queue = rate.map_or(u64::MAX, |rate| {
            let octets = u128::from(rate) * QUEUE_DELAY.as_millis() / 1000;
            u64::try_from(octets).unwrap_or(u64::MAX).max(LEAST_QUEUE)
        });
        Ok(LinkConfig {
            rate,
            queue: direction
                .of(self.queue)
                .unwrap_or_else(|| usize::try_from(default_queue).unwrap_or(usize::MAX)),
            delay,
            jitter,
            loss,
            duplication: direction.of(self.duplicate).unwrap_or_default(),
            reordering: Reordering {
                probability: direction.of(self.reorder).unwrap_or_default(),
                by: direction.of(self.reorder_by).unwrap_or(REORDER_BY),
            },
            corruption: direction.of(self.corrupt).unwrap_or_default(),
            mark: direction.of(self.ecn).unwrap_or(usize::MAX),
            ..LinkConfig::default()
        })
    }
}

#[derive(Clone, Copy, Debug)]
enum Direction {
    ToServer,
    ToClient,
}

impl Direction {
    fn of<T>(self, each: Option<Each<T>>) -> Option<T> {
        each.map(|each| match self {
            Self::ToServer => each.to_server,
            Self::ToClient => each.to_client,
        })
    }
}

/// A parser of one value or two.
fn each<T: Copy + Send + Sync + 'static>(
    one: fn(&str) -> Result<T, String>,
) -> impl Fn(&str) -> Result<Each<T>, String> + Clone + Send + Sync + 'static {
    move |word| {
        let (to_server, to_client) = word.split_once(',').unwrap_or((word, word));
        Ok(Each {
            to_server: one(to_server)?,
            to_client: one(to_client)?,
        })
    }
}

/// A number that is not negative, with a unit behind it.
fn number_and_unit(word: &str) -> Option<(f64, &str)> {
    let digits = word.len()
        - word
            .trim_start_matches(|c: char| c.is_ascii_digit() || c == '.')
            .len();
    let (number, unit) = word.split_at(digits);
    Some((number.parse().ok()?, unit))
}

fn with_unit(word: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (number, unit) = number_and_unit(word)?;
    let (_, factor) = units
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
    Some(number * factor)
}

fn duration(word: &str) -> Result<Duration, String> {
    let seconds = with_unit(
        word,
        &[("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)],
    );
    seconds
        .filter(|&seconds| seconds <= 3600.0)
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "a time with its unit (s, ms, us or ns), at most 3600s".to_owned())
}

fn percentage(word: &str) -> Result<f64, String> {
    with_unit(word, &[("%", 0.01)])
        .filter(|part| (0.0..=1.0).contains(part))
        .ok_or_else(|| "a percentage, 0% to 100%".to_owned())
}

fn burst(word: &str) -> Result<f64, String> {
    with_unit(word, &[("", 1.0)])
        .filter(|length| (1.0..=1e6).contains(length))
        .ok_or_else(|| "a number of packets, 1 to 1000000".to_owned())
}

/// Octets per second.
fn rate(word: &str) -> Result<u64, String> {
    let bits = with_unit(
        word,
        &[("bit", 1.0), ("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)],
    );
    bits.filter(|bits| (8.0..=1e12).contains(bits))
        .map(|bits| whole(bits / 8.0))
        .ok_or_else(|| {
            "a rate with its unit (bit, kbit, mbit or gbit), 8bit to 1000gbit".to_owned()
        })
}

fn size(word: &str) -> Result<usize, String> {
    let (k, m) = (1024.0, 1024.0 * 1024.0);
    let octets = with_unit(
        word,
        &[
            ("", 1.0),
            ("b", 1.0),
            ("k", k),
            ("kb", k),
            ("m", m),
            ("mb", m),
        ],
    );
    octets
        .filter(|&octets| octets <= 1e12)
        .and_then(|octets| usize::try_from(whole(octets)).ok())
        .ok_or_else(|| "a size in bytes, or with a unit (k or m, of 1024)".to_owned())
}

/// The integer next to a number that is between 0 and 10¹².
fn whole(number: f64) -> u64 {
    // Durations are the conversion of floats that is checked.
    Duration::from_secs_f64(number.round()).as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        relay: RelayArgs,
    }

    fn link(line: &str) -> Result<Link, String> {
        Cli::try_parse_from(std::iter::once("lab").chain(line.split_whitespace()))
            .map_err(|error| error.to_string())?
            .relay
            .link()
    }

    fn relay(line: &str) -> relay::Config {
        match link(line) {
            Ok(Link::Relay(config)) => config,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn every_option_has_its_place() {
        let config = relay(
            "--delay 25ms --jitter 1ms --loss 1% --reorder 20% --reorder-by 2ms --duplicate 3% --corrupt 4% \
             --rate 1gbit --queue 256k --ecn 64k --seed 7",
        );
        let expected = LinkConfig {
            rate: Some(125_000_000),
            queue: 262_144,
            delay: Duration::from_millis(25),
            jitter: Duration::from_millis(1),
            loss: Loss::Independent(0.01),
            duplication: 0.03,
            reordering: Reordering {
                probability: 0.2,
                by: Duration::from_millis(2),
            },
            corruption: 0.04,
            mark: 65_536,
            ..LinkConfig::default()
        };
        assert_eq!(config, relay::Config::both(expected, 7));
    }

    #[test]
    fn a_direction_may_have_a_value_of_its_own() {
        let config = relay("--delay 1ms,0s --rate 1mbit,64kbit --loss 0%,50% --burst 4");
        assert_eq!(config.to_server.delay, Duration::from_millis(1));
        assert_eq!(config.to_client.delay, Duration::ZERO);
        assert_eq!(config.to_server.rate, Some(125_000));
        assert_eq!(config.to_client.rate, Some(8_000));
        assert_eq!(
            config.to_server.loss,
            Loss::Bursts(GilbertElliott::bursts(0.0, 4.0))
        );
        assert_eq!(
            config.to_client.loss,
            Loss::Bursts(GilbertElliott::bursts(0.5, 4.0))
        );
        assert_eq!(config.to_client.queue, 65_536);
        assert_eq!(relay("--rate 1gbit").to_server.queue, 6_250_000);
        // A perfect link has no delay.
        assert_eq!(relay("--seed 1").to_server.delay, Duration::ZERO);
    }

    #[test]
    fn without_an_option_the_link_is_a_veth_pair() {
        assert_eq!(link(""), Ok(Link::Veth));
        assert_ne!(relay("--delay 1ms").seed, relay("--delay 1ms").seed);
    }

    #[test]
    fn wrong_and_contradictory_values_are_refused() {
        for (line, message) in [
            ("--delay 25", "a time with its unit"),
            ("--delay ms", "a time with its unit"),
            ("--delay=-1ms", "a time with its unit"),
            ("--delay 1ms,", "a time with its unit"),
            ("--delay 1ms,2ms,3ms", "a time with its unit"),
            ("--delay 2h", "a time with its unit"),
            ("--delay 1.2.3s", "a time with its unit"),
            ("--delay 99999999999s", "a time with its unit"),
            ("--loss 1", "a percentage"),
            ("--loss 101%", "a percentage"),
            ("--loss 1% --burst 0", "a number of packets"),
            ("--loss 100% --burst 9", "too much for bursts"),
            ("--loss 80% --burst 2", "too much for bursts"),
            ("--rate 1000", "a rate with its unit"),
            ("--rate 0gbit", "a rate with its unit"),
            ("--rate 1gbit --queue 1x", "a size in bytes"),
            (
                "--delay 1ms --jitter 2ms",
                "--jitter must not be above --delay",
            ),
            (
                "--delay 1ms,3ms --jitter 2ms",
                "--jitter must not be above --delay",
            ),
            ("--jitter 1ms", "--delay"),
            ("--burst 4", "--loss"),
            ("--reorder-by 1ms", "--reorder"),
            ("--queue 64k", "--rate"),
            ("--ecn 64k", "--rate"),
            ("--seed=-1", "--seed"),
        ] {
            let error = link(line).expect_err(line);
            assert!(error.contains(message), "{line}: {error}");
        }
    }

    #[test]
    fn units_are_those_of_tc() {
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("250ns"), Ok(Duration::from_nanos(250)));
        assert_eq!(rate("10Mbit"), Ok(1_250_000));
        assert_eq!(size("2m"), Ok(2 << 20));
        assert_eq!(size("1500"), Ok(1500));
        assert_eq!(percentage("0.1%"), Ok(0.001));
    }
}
