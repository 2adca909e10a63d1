//! All peers, in a process of their own: queue pairs on one completion queue that send back what comes.

use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use dgiwarp::{
    Access, AddressHandle, Cq, MpaConfig, Pd, QpAttr, RcListener, RcQp, RecvWr, Rnic, Wc,
};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use serde::Serialize;

use crate::endpoint::ours::memory::Memory;
use crate::endpoint::ours::stack;
use crate::error::{IoContext, PerfError, Result};
use crate::machine::clock;
use crate::run::scale::raw::Sockets;
use crate::run::scale::side::{
    Calls, Cost, DatagramQp, by_number, find, is_message, post_rc, post_rc_receive,
    post_rc_receives, rc_qps,
};
use crate::run::scale::{HERE, Plan, SIZE, device, index, raise_descriptors};

/// Empty polls between two checks for a command.
const IDLE_TURNS: u32 = 4096;
/// How long the next connection may take.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(10);
/// Receives of each queue pair.
const RECEIVES: u64 = 8;
/// Sends of each that wait for the network.
const SENDS: usize = 16;

/// Plays all peers until standard input ends.
pub(crate) fn run() -> Result<()> {
    set_pdeathsig(Signal::SIGKILL).during("follow the parent process")?;
    let commands = commands();
    let plan = commands.recv().map_err(|_| PerfError::PeerGone)?;
    let plan: Plan =
        serde_json::from_str(&plan).map_err(|error| PerfError::Protocol(error.to_string()))?;
    raise_descriptors(u64::from(plan.count))?;
    if plan.transport.is_raw() {
        let sockets = Sockets::peers(plan.transport, plan.count, |ports| say(&ports))?;
        say(&Cost::default())?;
        return serve(&commands, |_| sockets.answer());
    }
    let rnic = Rnic::open(device()).map_err(stack("open the device"))?;
    let pd = rnic.alloc_pd();
    let cq = rnic
        .create_cq(4096)
        .map_err(stack("create a completion queue"))?;
    let memory = Memory::new(&pd, 2 * SIZE, Access::LOCAL_WRITE)?;
    let peers = match plan.transport.uses_datagrams() {
        true => Peers::datagrams(&pd, &cq, &memory, &plan)?,
        false => Peers::rc(&pd, &cq, &memory, plan.count)?,
    };
    say(&Cost::default())?;
    let mut batch = vec![Wc::default(); 16];
    serve(&commands, |calls| {
        let start = clock::now();
        let found = cq
            .poll(&mut batch)
            .map_err(stack("poll the completion queue"))?;
        let mut answered = 0;
        for wc in batch.iter().take(found) {
            if is_message(wc)? {
                peers.answer(wc, &memory)?;
                answered += 1;
            }
        }
        if answered > 0 {
            calls.found(clock::nanoseconds(start, clock::now()), answered);
        }
        Ok(crate::endpoint::pattern::widen(found))
    })
}

/// Lines of standard input, read by a thread: whoever answers peers cannot wait for them.
fn commands() -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in std::io::stdin()
            .lock()
            .lines()
            .map_while(std::io::Result::ok)
        {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

fn say<T: Serialize>(what: &T) -> Result<()> {
    let mut line =
        serde_json::to_vec(what).map_err(|error| PerfError::Protocol(error.to_string()))?;
    line.push(b'\n');
    let mut stdout = std::io::stdout();
    stdout
        .write_all(&line)
        .and_then(|()| stdout.flush())
        .during("write to standard output")
}

enum Peers {
    Datagram {
        qps: Vec<DatagramQp>,
        /// Queue pairs by number, which is a port.
        by_port: Vec<u32>,
        ah: AddressHandle,
    },
    Rc {
        qps: Vec<RcQp>,
        first: u32,
        by_number: Vec<u32>,
    },
}

impl Peers {
    fn datagrams(pd: &Pd, cq: &Cq, memory: &Memory, plan: &Plan) -> Result<Self> {
        let mut by_port = vec![u32::MAX; 1 << 16];
        let mut qps = Vec::with_capacity(index(plan.count));
        for number in 0..plan.count {
            let attributes = QpAttr {
                max_send_wr: SENDS,
                max_recv_wr: crate::endpoint::pattern::narrow(RECEIVES),
                max_sge: 1,
                ..QpAttr::new(cq, cq)
            };
            let qp = DatagramQp::open(pd, plan.transport, attributes)?;
            for _ in 0..RECEIVES {
                post_receive(&qp, memory)?;
            }
            if let Some(entry) = by_port.get_mut(usize::from(qp.qpn())) {
                *entry = number;
            }
            qps.push(qp);
        }
        let ah = pd
            .create_ah(HERE)
            .map_err(stack("create an address handle"))?;
        let ports: Vec<u16> = qps.iter().map(|qp| qp.qpn()).collect();
        say(&ports)?;
        Ok(Self::Datagram { qps, by_port, ah })
    }

    fn rc(pd: &Pd, cq: &Cq, memory: &Memory, peers: u32) -> Result<Self> {
        let qps = rc_qps(pd, cq, peers)?;
        post_rc_receives(&qps, memory)?;
        let listener = RcListener::bind((HERE, 0).into(), MpaConfig::default());
        let listener = listener.map_err(stack("listen"))?;
        say(&[listener.local_addr().port()])?;
        let depths = MpaConfig::default().depths;
        for qp in &qps {
            let request = listener
                .accept(ACCEPT_TIMEOUT)
                .map_err(stack("accept a connection"))?
                .ok_or(PerfError::NoData {
                    transport: "rc",
                    waited: ACCEPT_TIMEOUT,
                })?;
            request
                .accept(qp, depths, b"")
                .map_err(stack("accept a connection"))?;
        }
        let (first, by_number) = by_number(&qps);
        Ok(Self::Rc {
            qps,
            first,
            by_number,
        })
    }

    /// Sends back what came, and posts its receive again.
    fn answer(&self, wc: &Wc, memory: &Memory) -> Result<()> {
        let sges = [memory.region.sge(..SIZE)];
        match self {
            Self::Datagram { qps, by_port, ah } => {
                let place = by_port.get(index(wc.qpn)).copied().unwrap_or(u32::MAX);
                let (Some(qp), Some(source)) = (qps.get(index(place)), wc.source) else {
                    return Err(PerfError::Protocol(format!("no queue pair {}", wc.qpn)));
                };
                qp.post_send(ah, source.port(), &sges)?;
                post_receive(qp, memory)
            }
            Self::Rc {
                qps,
                first,
                by_number,
            } => {
                let qp = find(qps, *first, by_number, wc.qpn)?;
                post_rc(qp, &sges)?;
                post_rc_receive(qp, memory)
            }
        }
    }
}

fn post_receive(qp: &DatagramQp, memory: &Memory) -> Result<()> {
    let sges = [memory.region.sge(SIZE..2 * SIZE)];
    qp.post_recv(RecvWr {
        wr_id: 0,
        sges: &sges,
    })
}

/// Answers, while a round goes on; `answer` returns how much it found.
fn serve(
    commands: &Receiver<String>,
    mut answer: impl FnMut(&mut Calls) -> Result<u64>,
) -> Result<()> {
    let mut calls = Calls::default();
    let mut active = false;
    let mut idle = 0;
    loop {
        if !active || idle >= IDLE_TURNS {
            idle = 0;
            // Between rounds nobody needs an answer.
            let command = match active {
                true => commands.try_recv(),
                false => commands.recv().map_err(|_| TryRecvError::Disconnected),
            };
            match command.as_deref() {
                Ok(_) => {
                    active = !active;
                    say(&calls.cost())?;
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return Ok(()),
            }
            continue;
        }
        idle = match answer(&mut calls)? {
            0 => idle + 1,
            _ => 0,
        };
    }
}
