//! Loss of datagrams, independent and in bursts.

use rand::RngExt as _;

use crate::Rng;

/// How a link loses datagrams. Probabilities are 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Loss {
    /// Not at all.
    None,
    /// Each datagram with this probability, whatever happened to others.
    Independent(f64),
    /// In bursts.
    Bursts(GilbertElliott),
}

/// The Gilbert-Elliott model: a channel that is good or bad, changes with some probability before each datagram, and loses
/// with another probability in each state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GilbertElliott {
    /// From good to bad.
    pub worsen: f64,
    /// From bad to good; its inverse is the mean length of a burst.
    pub recover: f64,
    /// Loss while good.
    pub loss_in_good: f64,
    /// Loss while bad.
    pub loss_in_bad: f64,
}

impl GilbertElliott {
    /// A channel that loses nothing while good and everything while bad: `rate` of all datagrams, in bursts of `length` on average.
    ///
    /// # Panics
    /// If `rate` is not below 1 or `length` is below 1.
    #[must_use]
    pub fn bursts(rate: f64, length: f64) -> Self {
        assert!(
            (0.0..1.0).contains(&rate) && length >= 1.0,
            "a rate and a length"
        );
        let recover = 1.0 / length;
        // In balance as many datagrams find the channel turning bad as turning good.
        Self {
            worsen: (recover * rate / (1.0 - rate)).min(1.0),
            recover,
            loss_in_good: 0.0,
            loss_in_bad: 1.0,
        }
    }
}

/// A [`Loss`] with the state of its channel.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) loss: Loss,
    bad: bool,
}

impl Channel {
    pub(crate) fn new(loss: Loss) -> Self {
        Self { loss, bad: false }
    }

    /// Whether the next datagram is lost.
    pub(crate) fn loses(&mut self, rng: &mut Rng) -> bool {
        match self.loss {
            Loss::None => false,
            Loss::Independent(probability) => rng.random_bool(probability),
            Loss::Bursts(model) => {
                let change = if self.bad {
                    model.recover
                } else {
                    model.worsen
                };
                self.bad ^= rng.random_bool(change);
                let loss = if self.bad {
                    model.loss_in_bad
                } else {
                    model.loss_in_good
                };
                rng.random_bool(loss)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng as _;

    const DATAGRAMS: usize = 200_000;

    fn losses(loss: Loss) -> Vec<bool> {
        let mut rng = Rng::seed_from_u64(7);
        let mut channel = Channel::new(loss);
        (0..DATAGRAMS).map(|_| channel.loses(&mut rng)).collect()
    }

    fn rate(losses: &[bool]) -> f64 {
        let lost = losses.iter().filter(|lost| **lost).count();
        f64::from(u32::try_from(lost).unwrap()) / f64::from(u32::try_from(losses.len()).unwrap())
    }

    /// Mean length of runs of lost datagrams.
    fn burst(losses: &[bool]) -> f64 {
        let starts = losses.windows(2).filter(|pair| !pair[0] && pair[1]).count();
        rate(losses) * f64::from(u32::try_from(DATAGRAMS).unwrap())
            / f64::from(u32::try_from(starts).unwrap())
    }

    #[test]
    fn independent_loss_has_its_rate_and_short_runs() {
        let losses = losses(Loss::Independent(0.2));
        assert!((rate(&losses) - 0.2).abs() < 0.01, "{}", rate(&losses));
        assert!((burst(&losses) - 1.25).abs() < 0.05, "{}", burst(&losses));
    }

    #[test]
    fn bursts_have_their_rate_and_length() {
        let losses = losses(Loss::Bursts(GilbertElliott::bursts(0.2, 8.0)));
        assert!((rate(&losses) - 0.2).abs() < 0.02, "{}", rate(&losses));
        assert!((burst(&losses) - 8.0).abs() < 0.5, "{}", burst(&losses));
    }

    #[test]
    fn nothing_is_lost_where_nothing_is() {
        assert!(losses(Loss::None).iter().all(|lost| !lost));
    }
}
