//! Faults that a device makes on purpose in datagrams that its queue pairs receive, to try programs on a bad network.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

/// Longest delay that may be asked for.
const MAX_DELAY: Duration = Duration::from_secs(10);

/// Faults made in received datagrams, each datagram of a train for itself, before anything reads it.
///
/// Equal seeds and equal arrivals give equal faults; each queue pair draws from a generator of its own, which depends on the seed
/// and on how many were made before it. [`QpCounters`](crate::QpCounters) counts the faults.
///
/// As text, for `DGIWARP_FAULT`: `drop=0.01,dup=0.001,reorder=0.05,corrupt=0.001,delay=5ms,seed=7`, all of them optional.
///
/// Probabilities are 0 to 1; a value outside counts as the nearer end.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Fault {
    /// Probability that a datagram is lost.
    pub drop: f64,
    /// Probability that it arrives twice.
    pub dup: f64,
    /// Probability that it is overtaken by the next 1 to 8 datagrams. It waits for them at most 10 ms.
    pub reorder: f64,
    /// Probability that one of its bits is flipped; the CRC finds that.
    pub corrupt: f64,
    /// How much later all datagrams arrive, at most 10 s. Waiting datagrams are bounded by 16,384 and 16 MiB per queue pair; more
    /// are lost, as in a full router.
    pub delay: Duration,
    /// Seed of the decisions.
    pub seed: u64,
}

/// Why a text is no [`Fault`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FaultError {
    /// No such fault.
    #[error("expected drop, dup, reorder, corrupt, delay or seed, each with = and a value")]
    Unknown,
    /// Not a number, or outside 0 to 1.
    #[error("probabilities are 0 to 1")]
    Probability,
    /// Not a number of us, ms or s, or more than 10 s.
    #[error("a delay is a number with us, ms or s, at most 10 s")]
    Delay,
    /// Not a number.
    #[error("a seed is a number from 0 to 2^64 - 1")]
    Seed,
}

impl Fault {
    /// The delay within its range.
    pub(crate) fn delay(&self) -> Duration {
        self.delay.min(MAX_DELAY)
    }
}

impl FromStr for Fault {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let mut fault = Self::default();
        for part in text.split(',').map(str::trim) {
            let (name, value) = part.split_once('=').ok_or(FaultError::Unknown)?;
            match name {
                "drop" => fault.drop = probability(value)?,
                "dup" => fault.dup = probability(value)?,
                "reorder" => fault.reorder = probability(value)?,
                "corrupt" => fault.corrupt = probability(value)?,
                "delay" => fault.delay = delay(value).ok_or(FaultError::Delay)?,
                "seed" => fault.seed = value.parse().map_err(|_| FaultError::Seed)?,
                _ => return Err(FaultError::Unknown),
            }
        }
        Ok(fault)
    }
}

/// As [`FromStr`] reads it, without settings at their defaults.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, probability) in [
            ("drop", self.drop),
            ("dup", self.dup),
            ("reorder", self.reorder),
            ("corrupt", self.corrupt),
        ] {
            if probability > 0.0 {
                write!(f, "{name}={probability},")?;
            }
        }
        if !self.delay.is_zero() {
            write!(f, "delay={}us,", self.delay.as_micros())?;
        }
        write!(f, "seed={}", self.seed)
    }
}

fn probability(text: &str) -> Result<f64, FaultError> {
    let value: f64 = text.parse().map_err(|_| FaultError::Probability)?;
    if (0.0..=1.0).contains(&value) {
        Ok(value)
    } else {
        Err(FaultError::Probability)
    }
}

fn delay(text: &str) -> Option<Duration> {
    let unit = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit);
    let number: u64 = number.parse().ok()?;
    let delay = match unit {
        "us" => Duration::from_micros(number),
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        _ => return None,
    };
    (delay <= MAX_DELAY).then_some(delay)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_read_and_shown() {
        let text = "drop=0.01,dup=0.5,reorder=1,corrupt=0.001,delay=5ms,seed=7";
        let fault: Fault = text.parse().unwrap();
        assert_eq!((fault.drop, fault.dup, fault.reorder), (0.01, 0.5, 1.0));
        assert_eq!((fault.corrupt, fault.seed), (0.001, 7));
        assert_eq!(fault.delay, Duration::from_millis(5));
        assert_eq!(fault.to_string().parse(), Ok(fault));
        assert_eq!(
            "delay=20us".parse::<Fault>().unwrap().delay,
            Duration::from_micros(20)
        );
    }

    #[test]
    fn mistakes_are_told() {
        for (text, error) in [
            ("", FaultError::Unknown),
            ("drop", FaultError::Unknown),
            ("lose=0.1", FaultError::Unknown),
            ("drop=1.1", FaultError::Probability),
            ("dup=-0.1", FaultError::Probability),
            ("corrupt=NaN", FaultError::Probability),
            ("reorder=much", FaultError::Probability),
            ("delay=5", FaultError::Delay),
            ("delay=11s", FaultError::Delay),
            ("delay=ms", FaultError::Delay),
            ("seed=-1", FaultError::Seed),
        ] {
            assert_eq!(text.parse::<Fault>(), Err(error), "{text}");
        }
    }
}
