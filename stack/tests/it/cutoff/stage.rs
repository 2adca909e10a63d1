//! The peer, and how it is cut off and brought back.

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use xtask::debian::find_program;
use xtask::lab::INTERFACE;

use super::peer::{Remote, Task, config};
use crate::common::node::Node;
use crate::common::{Process, now};

/// How a peer is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Its process is killed.
    Kill,
    /// Its process is stopped: its sockets go on taking what fits.
    Stop,
    /// The link to its network goes down.
    Link,
}

/// A peer that can be cut off.
pub(crate) struct Stage {
    cut: Cut,
    /// The test that plays the peer's part.
    test: &'static str,
    /// Over a link, somebody else started it.
    process: Option<Process>,
    pub(crate) remote: Remote,
}

impl Stage {
    pub(crate) fn new(test: &'static str, cut: Cut) -> Self {
        let (process, remote) = match cut {
            Cut::Kill | Cut::Stop => {
                let (process, remote) = start(test);
                (Some(process), remote)
            }
            Cut::Link => (None, Remote::from_environment()),
        };
        Self {
            cut,
            test,
            process,
            remote,
        }
    }

    /// A node that exchanged messages with the peer.
    pub(crate) fn acquaint(&self, node: &Node) {
        let room = node.memory.len() - 64..node.memory.len() - 32;
        let until = now() + Duration::from_secs(10);
        loop {
            assert!(now() < until, "the peer does not answer");
            node.post_recv(1, room.clone());
            // The rest of the message behind the order's octets is empty.
            self.remote.order(node, Task::Answer, 8);
            if node.cq.wait(Duration::from_millis(200)).unwrap().is_some() {
                return;
            }
            // A link that just came up may have lost the question or the answer.
            node.qp.flush();
            while node.cq.poll_one().unwrap().is_some() {}
        }
    }

    pub(crate) fn cut(&mut self) {
        match self.cut {
            Cut::Kill => self.process.as_mut().unwrap().kill(),
            Cut::Stop => self.signal(Signal::SIGSTOP),
            Cut::Link => set_link("down"),
        }
    }

    /// Brings the peer back, or another in its place, and sees that it answers.
    pub(crate) fn mend(&mut self) {
        match self.cut {
            Cut::Kill => {
                let (process, remote) = start(self.test);
                (self.process, self.remote) = (Some(process), remote);
            }
            Cut::Stop => self.signal(Signal::SIGCONT),
            Cut::Link => set_link("up"),
        }
        self.acquaint(&Node::with(4096, config(), |_| ()));
    }

    fn signal(&self, signal: Signal) {
        let process = self.process.as_ref().unwrap().id();
        kill(Pid::from_raw(i32::try_from(process).unwrap()), signal).unwrap();
    }
}

fn start(test: &str) -> (Process, Remote) {
    let mut process = Process::start(test, "peer", &[]);
    let remote = Remote::of(&mut process, IpAddr::from(Ipv4Addr::LOCALHOST));
    (process, remote)
}

fn set_link(state: &str) {
    let ip = find_program("ip").expect("the lab was made with it");
    let status = Command::new(ip)
        .args(["link", "set", INTERFACE, state])
        .status();
    assert!(status.unwrap().success(), "link {state}");
}
