//! The machine a run happens on, and which CPUs the two sides may use.

use std::collections::BTreeSet;
use std::fs;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::cli::PinPair;
use crate::error::{IoContext, Result};

/// The machine, as reports describe it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Host {
    /// The CPU model as the kernel names it.
    pub(crate) cpu: String,
    /// CPUs this process may use.
    pub(crate) cores: usize,
    /// The kernel release.
    pub(crate) kernel: String,
    /// The one-minute load average when the run started.
    pub(crate) load: f64,
    /// The CPUs of client and server, when both are pinned.
    pub(crate) pinned: Option<(usize, usize)>,
}

impl Host {
    /// Reads the machine's description; what cannot be read is "unknown" or 0.
    pub(crate) fn read() -> Self {
        Self {
            cpu: cpu_model().unwrap_or_else(|| "unknown".to_owned()),
            cores: allowed_cpus().map_or(0, |cpus| cpus.len()),
            kernel: first_line("/proc/sys/kernel/osrelease")
                .unwrap_or_else(|| "unknown".to_owned()),
            load: first_line("/proc/loadavg")
                .and_then(|line| line.split(' ').next()?.parse().ok())
                .unwrap_or(0.0),
            pinned: None,
        }
    }

    /// Whether other programs wanted more than half of the CPUs during the last minute.
    pub(crate) fn is_busy(&self) -> bool {
        let cores = u32::try_from(self.cores).unwrap_or(u32::MAX);
        self.load > f64::from(cores) / 2.0
    }
}

/// How a side waits for data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Wait {
    /// Ask again and again without giving up the CPU.
    Spin,
    /// Sleep in the kernel until something arrives.
    Block,
}

/// Which CPU one side is to run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Pin {
    /// The first allowed CPU for the client, the second for the server; none with one CPU.
    #[default]
    Auto,
    /// This CPU.
    Cpu(usize),
    /// Wherever the scheduler puts it.
    None,
}

/// The two sides of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Starts each measurement, pings, sends.
    Client,
    /// Answers, echoes, receives.
    Server,
}

/// CPUs of one side, sent to the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Placement {
    /// Identifies the running kernel: equal on both sides if they share one machine.
    pub(crate) boot_id: String,
    /// CPUs the process may use, before pinning.
    pub(crate) allowed: Vec<usize>,
    /// The CPU it is pinned to.
    pub(crate) pinned: Option<usize>,
}

impl Placement {
    /// Pins the calling thread, and the threads it starts later, as asked for.
    ///
    /// `allowed` are the CPUs the process had at its start; a CPU outside of them is an error
    /// of the system call.
    pub(crate) fn pin(allowed: &[usize], pin: Pin, side: Side) -> Result<Self> {
        let wanted = match (pin, side, allowed) {
            (Pin::None, _, _) | (Pin::Auto, _, [] | [_]) => None,
            (Pin::Cpu(cpu), _, _) => Some(cpu),
            (Pin::Auto, Side::Client, [first, ..]) => Some(*first),
            (Pin::Auto, Side::Server, [_, second, ..]) => Some(*second),
        };
        match wanted {
            Some(cpu) => set_affinity(&[cpu])?,
            None => set_affinity(allowed)?,
        }
        Ok(Self {
            boot_id: first_line("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
            allowed: allowed.to_vec(),
            pinned: wanted,
        })
    }

    fn cpus(&self) -> Vec<usize> {
        self.pinned
            .map_or_else(|| self.allowed.clone(), |cpu| vec![cpu])
    }
}

/// CPUs of this process, and the wishes for both sides.
#[derive(Clone, Debug)]
pub(crate) struct Cpus {
    allowed: Vec<usize>,
    pins: PinPair,
}

impl Cpus {
    /// Reads the CPUs this process may use, before it is pinned.
    pub(crate) fn new(pins: PinPair) -> Result<Self> {
        let allowed = allowed_cpus()?;
        Ok(Self { allowed, pins })
    }

    /// Moves the calling thread, and the threads and processes it starts later, to the CPU of one side.
    pub(crate) fn place(&self, side: Side) -> Result<Placement> {
        let pin = match side {
            Side::Client => self.pins.client,
            Side::Server => self.pins.server,
        };
        Placement::pin(&self.allowed, pin, side)
    }

    /// Starts a process on the CPU of one side. The calling thread may use all CPUs afterwards.
    pub(crate) fn start<T>(&self, side: Side, start: impl FnOnce() -> T) -> Result<T> {
        let _ = self.place(side)?;
        let started = start();
        set_affinity(&self.allowed)?;
        Ok(started)
    }

    /// The CPUs of client and server, when both are pinned.
    pub(crate) fn pinned(&self) -> Option<(usize, usize)> {
        match (self.pins.client, self.pins.server, self.allowed.as_slice()) {
            (Pin::Cpu(client), Pin::Cpu(server), _) => Some((client, server)),
            (Pin::Auto, _, [client, server, ..]) => Some((*client, *server)),
            _ => None,
        }
    }
}

/// How both sides should wait: spinning needs a CPU for each, and pinning keeps them apart.
///
/// Two spinning threads on one CPU cost a scheduler slice (milliseconds) per message, so with
/// one CPU both sides block. Unpinned spinners are packed onto one CPU by some schedulers:
/// they spin only if the machine has plenty.
pub(crate) fn choose_wait(client: &Placement, server: &Placement) -> Wait {
    const PLENTY_OF_CPUS: usize = 4;
    let same_host = client.boot_id == server.boot_id;
    let (mine, theirs) = (client.cpus(), server.cpus());
    if !same_host {
        let spare = client.allowed.len() > 1 && server.allowed.len() > 1;
        return if spare { Wait::Spin } else { Wait::Block };
    }
    let together: BTreeSet<usize> = mine.iter().chain(&theirs).copied().collect();
    let needed = if client.pinned.is_some() && server.pinned.is_some() {
        2
    } else {
        PLENTY_OF_CPUS
    };
    if together.len() >= needed {
        Wait::Spin
    } else {
        Wait::Block
    }
}

/// The CPUs this thread may run on, in ascending order.
pub(crate) fn allowed_cpus() -> Result<Vec<usize>> {
    let set = sched_getaffinity(Pid::from_raw(0)).during("read the CPU affinity")?;
    Ok((0..CpuSet::count())
        .filter(|&cpu| set.is_set(cpu).unwrap_or(false))
        .collect())
}

/// User and system time this process has used, in nanoseconds.
pub(crate) fn cpu_time() -> u64 {
    getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| {
        let microseconds =
            usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
        u64::try_from(microseconds).unwrap_or(0) * 1000
    })
}

fn set_affinity(cpus: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu).during("pin to a CPU of that number")?;
    }
    sched_setaffinity(Pid::from_raw(0), &set).during("pin to a CPU")
}

fn cpu_model() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn first_line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.lines().next()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(boot_id: &str, allowed: &[usize], pinned: Option<usize>) -> Placement {
        Placement {
            boot_id: boot_id.to_owned(),
            allowed: allowed.to_vec(),
            pinned,
        }
    }

    #[test]
    fn sides_spin_only_when_each_has_a_cpu() {
        let client = placement("a", &[0, 1], Some(0));
        assert_eq!(
            choose_wait(&client, &placement("a", &[0, 1], Some(1))),
            Wait::Spin
        );
        assert_eq!(
            choose_wait(&client, &placement("a", &[0, 1], Some(0))),
            Wait::Block
        );
        let one = placement("a", &[3], None);
        assert_eq!(choose_wait(&one, &one), Wait::Block);
    }

    #[test]
    fn unpinned_sides_of_a_small_machine_do_not_spin() {
        let small = placement("a", &[0, 1], None);
        assert_eq!(choose_wait(&small, &small), Wait::Block);
        let large = placement("a", &[0, 1, 2, 3, 4, 5], None);
        assert_eq!(choose_wait(&large, &large), Wait::Spin);
    }

    #[test]
    fn two_machines_with_spare_cpus_spin() {
        let here = placement("a", &[0, 1], None);
        assert_eq!(
            choose_wait(&here, &placement("b", &[0, 1], Some(0))),
            Wait::Spin
        );
        assert_eq!(choose_wait(&here, &placement("b", &[0], None)), Wait::Block);
    }

    #[test]
    fn the_host_is_described() {
        let host = Host::read();
        assert!(host.cores >= 1);
        assert!(!host.kernel.is_empty() && !host.cpu.is_empty());
        let (calm, busy) = (
            Host {
                load: 0.0,
                ..host.clone()
            },
            Host { load: 1e6, ..host },
        );
        assert!(busy.is_busy() && !calm.is_busy());
    }
}
