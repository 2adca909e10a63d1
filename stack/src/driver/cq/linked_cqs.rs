//! Completion queues of sends whose queue pairs receive on behalf of another queue.
//!
//! A queue pair's sockets belong to the completion queue of its receives. Completions of its sends may go elsewhere, and yet come of what arrives: of
//! acknowledgements and responses. Whoever polls that other queue, or sleeps on it, therefore looks at the sockets of its *partners* too, else only
//! the background thread would, a wake-up later.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use nix::poll::{PollFd, PollFlags};
use parking_lot::RwLock;

use crate::Error;
use crate::api::cq::queue::ChannelShared;
use crate::driver::cq::{By, CqShared};

/// The completion queues whose sockets bring completions to one that is not theirs. Who became a partner stays one.
#[derive(Debug, Default)]
pub(crate) struct Partners {
    list: RwLock<Vec<Weak<CqShared>>>,
}

impl Partners {
    fn add(&self, partner: &Arc<CqShared>) {
        let mut list = self.list.write();
        let known = list
            .iter()
            .any(|it| std::ptr::eq(it.as_ptr(), Arc::as_ptr(partner)));
        if !known {
            list.retain(|it| it.strong_count() > 0);
            list.push(Arc::downgrade(partner));
        }
    }

    /// Makes progress at all of them.
    fn progress(&self) -> Option<bool> {
        let mut got = Some(false);
        for partner in self.list.read().iter().filter_map(Weak::upgrade) {
            got = both(got, partner.progress(By::Poller));
        }
        got
    }

    fn live(&self) -> Vec<Arc<CqShared>> {
        let list = self.list.read();
        list.iter().filter_map(Weak::upgrade).collect()
    }
}

/// What two looks found: something, nothing, or that another thread is at it.
fn both(one: Option<bool>, other: Option<bool>) -> Option<bool> {
    match (one, other) {
        (Some(true), _) | (_, Some(true)) => Some(true),
        (Some(false), Some(false)) => Some(false),
        (None, _) | (_, None) => None,
    }
}

impl CqShared {
    /// Completions come here of what `recv_cq` receives: whoever waits for them looks there too.
    pub(crate) fn is_fed_by(&self, recv_cq: &Arc<Self>) -> Result<(), Error> {
        if std::ptr::eq(self, Arc::as_ptr(recv_cq)) {
            return Ok(());
        }
        self.partners.get_or_init(Partners::default).add(recv_cq);
        if let Some(channel) = self.channel.get() {
            recv_cq.sleep_on_all();
            channel
                .watch(recv_cq)
                .map_err(Error::system("cannot watch a completion queue"))?;
        }
        Ok(())
    }

    /// Makes progress wherever completions of this queue may come from. As [`progress`](Self::progress) otherwise.
    #[inline]
    pub(crate) fn progress_all(&self) -> Option<bool> {
        match self.partners.get() {
            None => self.progress(By::Poller),
            Some(partners) => {
                let own = if self.receives.load(Ordering::Acquire) {
                    self.progress(By::Poller)
                } else {
                    Some(false)
                };
                both(own, partners.progress())
            }
        }
    }

    /// The same, without partners that `channel` looks after anyway.
    pub(crate) fn progress_on(&self, channel: &ChannelShared) -> Option<bool> {
        let mut got = if self.receives.load(Ordering::Acquire) {
            self.progress(By::Poller)
        } else {
            Some(false)
        };
        for partner in self.live_partners() {
            let on_channel = partner.channel.get();
            if !on_channel.is_some_and(|it| std::ptr::eq(Arc::as_ptr(it), channel)) {
                got = both(got, partner.progress(By::Poller));
            }
        }
        got
    }

    pub(crate) fn live_partners(&self) -> Vec<Arc<Self>> {
        self.partners.get().map_or_else(Vec::new, Partners::live)
    }

    /// From now on somebody may sleep on the sockets at any time, through a channel of another queue.
    fn sleep_on_all(&self) {
        self.slept_on.store(true, Ordering::SeqCst);
        self.unpark();
    }
}

/// What to poll to sleep on the sockets of these queues.
pub(crate) fn poll_fds(queues: &[Arc<CqShared>]) -> impl Iterator<Item = PollFd<'_>> {
    queues
        .iter()
        .map(|it| PollFd::new(it.sockets_fd(), PollFlags::POLLIN))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::thread;
    use std::time::Duration;

    use crate::driver::device::clock;
    use crate::{
        Access, Buffer, Config, MpaConfig, RcListener, RcOperation, RcQpAttr, RcSendWr, ReadDepths,
        Rnic, WcStatus,
    };

    const LONG: Duration = Duration::from_secs(30);
    const DEPTHS: ReadDepths = ReadDepths { ird: 4, ord: 4 };

    /// Only the queue of sends is polled, and responses come to the sockets of the other one.
    #[test]
    fn whoever_polls_the_queue_of_sends_is_a_poller_of_the_other_one() {
        let [here, there] = [(); 2].map(|()| Rnic::open(Config::default()).unwrap());
        let (pd, peer_pd) = (here.alloc_pd(), there.alloc_pd());
        let [send_cq, recv_cq] = [16; 2].map(|depth| here.create_cq(depth).unwrap());
        let peer_cq = there.create_cq(16).unwrap();
        let qp = pd.create_rc_qp(&RcQpAttr::new(&send_cq, &recv_cq)).unwrap();
        let peer = RcQpAttr::new(&peer_cq, &peer_cq);
        let peer = peer_pd.create_rc_qp(&peer).unwrap();
        let memory = [64; 2].map(|len| Buffer::zeroed(len).unwrap());
        let sink = pd
            .register(memory[0].region(), Access::LOCAL_WRITE)
            .unwrap();
        let source = peer_pd
            .register(memory[1].region(), Access::REMOTE_READ)
            .unwrap();
        let any = (Ipv4Addr::LOCALHOST, 0).into();
        let listener = RcListener::bind(any, MpaConfig::default()).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let request = listener.accept(LONG).unwrap().unwrap();
                request.accept(&peer, DEPTHS, b"").unwrap();
            });
            let address = listener.local_addr();
            qp.connect(address, &MpaConfig::default(), b"").unwrap();
        });
        let read = RcOperation::Read {
            rkey: source.rkey(),
            remote_addr: source.addr(),
        };
        let deadline = clock::now() + LONG;
        while recv_cq.shared.watch_state().is_on() {
            assert!(
                clock::now() < deadline,
                "the background thread watches for ever"
            );
            let sges = [sink.sge(..)];
            qp.post_send(&[RcSendWr::new(1, read, &sges)]).unwrap();
            let wc = loop {
                if let Some(wc) = send_cq.poll_one().unwrap() {
                    break wc;
                }
            };
            assert_eq!((wc.wr_id, wc.status), (1, WcStatus::Success));
        }
        assert!(
            !send_cq.shared.receives.load(super::Ordering::Relaxed),
            "no sockets of its own"
        );
    }
}
