//! Ping-pong: the client sends, the server echoes, half of the round trip is a sample.

use std::time::Duration;

use crate::error::Result;
use crate::machine::clock;
use crate::measure::{Idle, PingPong, Watch};

/// A ping without an answer for this long is counted as lost, and the next one is sent. On a busy
/// machine a peer can be without a CPU for some tens of milliseconds.
const PING_TIMEOUT: Duration = Duration::from_millis(250);

/// Results of the client of one round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PingOutcome {
    /// Half round trips, in nanoseconds, in the order taken.
    pub(crate) samples: Vec<u64>,
    /// Pings sent.
    pub(crate) sent: u64,
}

/// Which bits of a sequence a message of `size` bytes can carry: at most 32, since the other
/// half of a stamp is the offset within the message.
pub(crate) const fn sequence_mask(size: u64) -> u64 {
    match size {
        0..=3 => (1 << (8 * size)) - 1,
        4.. => 0xffff_ffff,
    }
}

/// The client's side: `messages` pings, numbered from `first`.
pub(crate) fn ping<P: PingPong>(
    endpoint: &mut P,
    first: u64,
    messages: u64,
    size: u64,
    blocking: bool,
    watch: &mut Watch<'_>,
) -> Result<PingOutcome> {
    let mask = sequence_mask(size);
    let mut outcome = PingOutcome::default();
    outcome
        .samples
        .reserve(usize::try_from(messages).unwrap_or(0));
    for sequence in first..first + messages {
        let start = clock::now();
        endpoint.send(sequence, watch)?;
        outcome.sent += 1;
        let answered = loop {
            match endpoint.try_receive()? {
                // An answer to an earlier ping, given up too soon, is dropped here.
                Some(answer) if (answer ^ sequence) & mask != 0 => {}
                Some(_) => break true,
                None => match watch.idle(blocking)? {
                    Idle::Checked(now) if P::LOSES && now - start > PING_TIMEOUT => break false,
                    Idle::Continue | Idle::Checked(_) => {}
                    Idle::Stop => break false,
                },
            }
        };
        if answered {
            let round_trip = clock::nanoseconds(start, clock::now());
            outcome.samples.push(round_trip / 2);
            watch.progress();
            watch.busy()?;
        }
    }
    Ok(outcome)
}

/// The server's side: echoes until the client ends the round.
pub(crate) fn pong<P: PingPong>(
    endpoint: &mut P,
    blocking: bool,
    watch: &mut Watch<'_>,
) -> Result<()> {
    loop {
        match endpoint.try_receive()? {
            Some(sequence) => {
                endpoint.send(sequence, watch)?;
                watch.progress();
            }
            None => {
                if watch.idle(blocking)? == Idle::Stop {
                    return Ok(());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::machine::host::Side;
    use crate::machine::interrupt::Interrupt;
    use crate::session::control::Control;

    /// Answers every ping but those in `dropped`, and first repeats the previous answer.
    struct Echo {
        answers: VecDeque<u64>,
        dropped: Vec<u64>,
        last: Option<u64>,
    }

    impl PingPong for Echo {
        const LOSES: bool = true;

        fn send(&mut self, sequence: u64, _watch: &mut Watch<'_>) -> Result<()> {
            self.answers.extend(self.last.replace(sequence));
            if !self.dropped.contains(&sequence) {
                self.answers.push_back(sequence);
            }
            Ok(())
        }

        fn try_receive(&mut self) -> Result<Option<u64>> {
            Ok(self.answers.pop_front())
        }
    }

    #[test]
    fn lost_and_late_answers_are_no_samples() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _far = listener.accept().unwrap();
        let mut control = Control::new(stream).unwrap();
        let interrupt = Interrupt::none();
        let mut watch = Watch::new(&mut control, &interrupt, Side::Client, "test");
        let mut echo = Echo {
            answers: VecDeque::new(),
            dropped: vec![3],
            last: None,
        };
        let outcome = ping(&mut echo, 0, 10, 64, false, &mut watch).unwrap();
        assert_eq!((outcome.sent, outcome.samples.len()), (10, 9));
    }

    #[test]
    fn short_messages_carry_the_low_bits_of_a_sequence() {
        assert_eq!(sequence_mask(1), 0xff);
        assert_eq!(sequence_mask(3), 0x00ff_ffff);
        assert_eq!(sequence_mask(4), 0xffff_ffff);
        assert_eq!(sequence_mask(1 << 20), 0xffff_ffff);
    }
}
