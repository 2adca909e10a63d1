//! Blocks between two processes of this host, by a channel and by a Unix socket, in turns: goodput of 1 MiB, and the round trip of 64 octets.
//!
//! Each block is written by its producer and read by its consumer, which copies it out of the ring or the socket. A second figure of the channel is without these
//! copies: producer and consumer work in the ring.

use std::error::Error;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::time::{Duration, Instant};

use dgiwarp_channel::{Channel, Config, Listener};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const SOON: Duration = Duration::from_secs(30);
const BLOCK: usize = 1 << 20;
const BLOCKS: u32 = 2000;
const SHORT: usize = 64;
const ROUND_TRIPS: u32 = 20_000;
const TURNS: usize = 5;
/// Program argument of the process that answers.
const ANSWERS: &str = "--answers";

#[expect(clippy::disallowed_methods, reason = "this program measures time")]
fn now() -> Instant {
    Instant::now()
}

/// Seconds that `work` takes.
fn timed(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begin = now();
    work()?;
    Ok(begin.elapsed().as_secs_f64())
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// One end of both, and room for a block.
struct End {
    channel: Channel,
    socket: UnixStream,
    room: Vec<u8>,
}

impl End {
    fn send(&mut self, length: usize, copies: bool) -> Result<()> {
        let mut slot = self.channel.acquire(SOON)?;
        if copies {
            slot.write(0, &self.room[..length]);
        }
        Ok(self.channel.publish(slot, length)?)
    }

    fn receive(&mut self, copies: bool) -> Result<()> {
        let block = self.channel.next(SOON)?.ok_or("closed")?;
        if copies {
            block.read(0, &mut self.room[..block.len()]);
        }
        Ok(())
    }

    /// The work of one turn, of the process that begins or of the other one. Returns seconds.
    fn turn(&mut self, begins: bool) -> Result<[f64; 5]> {
        let mut figures = [0.0; 5];
        for (figure, copies) in figures.iter_mut().zip([true, false]) {
            *figure = timed(|| {
                for _ in 0..BLOCKS {
                    if begins {
                        self.send(BLOCK, copies)?;
                    } else {
                        self.receive(copies)?;
                    }
                }
                // The last block has come when the answer does.
                if begins {
                    self.receive(true)
                } else {
                    self.send(1, true)
                }
            })?;
        }
        figures[2] = timed(|| {
            let Self { socket, room, .. } = self;
            for _ in 0..BLOCKS {
                if begins {
                    socket.write_all(&room[..BLOCK])?;
                } else {
                    socket.read_exact(&mut room[..BLOCK])?;
                }
            }
            let answer = &mut room[..1];
            if begins {
                socket.read_exact(answer)?;
            } else {
                socket.write_all(answer)?;
            }
            Ok(())
        })?;
        figures[3] = timed(|| {
            for _ in 0..ROUND_TRIPS {
                if begins {
                    self.send(SHORT, true)?;
                }
                self.receive(true)?;
                if !begins {
                    self.send(SHORT, true)?;
                }
            }
            Ok(())
        })?;
        figures[4] = timed(|| {
            let Self { socket, room, .. } = self;
            for _ in 0..ROUND_TRIPS {
                if begins {
                    socket.write_all(&room[..SHORT])?;
                }
                socket.read_exact(&mut room[..SHORT])?;
                if !begins {
                    socket.write_all(&room[..SHORT])?;
                }
            }
            Ok(())
        })?;
        Ok(figures)
    }
}

fn answer(to: &str, socket: &str) -> Result<()> {
    let channel = Channel::connect(to.parse()?, Config::default())?;
    let mut end = End {
        channel,
        socket: UnixStream::connect(socket)?,
        room: vec![1; BLOCK],
    };
    for _ in 0..=TURNS {
        end.turn(false)?;
    }
    Ok(end.channel.close(SOON)?)
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [answers, to, socket] = &arguments[..]
        && answers == ANSWERS
    {
        return answer(to, socket);
    }
    let path = std::env::temp_dir().join(format!("dgiwarp-channel-{}", std::process::id()));
    let sockets = UnixListener::bind(&path)?;
    let listener = Listener::bind("127.0.0.1:0".parse()?, Config::default())?;
    let mut child = Command::new(std::env::current_exe()?)
        .args([ANSWERS, &listener.local_addr().to_string()])
        .arg(&path)
        .spawn()?;
    let mut end = End {
        channel: listener.accept(SOON)?,
        socket: sockets.accept()?.0,
        room: vec![1; BLOCK],
    };
    std::fs::remove_file(&path)?;
    // The first turn warms up.
    end.turn(true)?;
    let turns = (0..TURNS)
        .map(|_| end.turn(true))
        .collect::<Result<Vec<_>>>()?;
    child.wait()?;
    let of = |place: usize| median(turns.iter().map(|figures| figures[place]).collect());
    let gigabytes = |seconds: f64| f64::from(BLOCKS) * BLOCK as f64 / seconds / 1e9;
    let micros = |seconds: f64| seconds / f64::from(ROUND_TRIPS) * 1e6;
    println!(
        "1 MiB blocks, GB/s   channel {:.2}   without copies {:.2}   Unix socket {:.2}   ratios {:.2} {:.2}",
        gigabytes(of(0)),
        gigabytes(of(1)),
        gigabytes(of(2)),
        of(2) / of(0),
        of(2) / of(1)
    );
    println!(
        "64 octets, round trip in us   channel {:.2}   Unix socket {:.2}   ratio {:.2}",
        micros(of(3)),
        micros(of(4)),
        of(3) / of(4)
    );
    Ok(())
}
