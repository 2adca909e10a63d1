//! Service ID resolution (SIDR), services and lookups: sockets and time for [`dgiwarp_engine::cm::sidr`].
//!
//! Each listener, and each lookup while it lasts, has a UDP socket. A lookup's socket is connected, so that it takes answers only from the
//! address that was asked, and ICMP errors of that host.

mod entry;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::Instant;

use nix::sys::epoll::EpollFlags;
use parking_lot::Mutex;

use self::entry::{Entry, News, Role, Watch};
use crate::api::device::statistics::Counts;
use crate::driver::debug::instruments::Instruments;
use crate::driver::debug::tap::Tap;
use crate::driver::device::clock;
use crate::driver::reactor::event_queue::EventQueue;
use crate::driver::reactor::io_set::{Cause, IoId, IoSet, Locked};
use crate::driver::reactor::waker::Task;
use crate::driver::udp::socket::{ReceiveBuffer, UdpSocket};
use crate::{
    Error, LookupError, QpCounters, Rnic, ServiceEvent, ServiceRequest, ServiceSink, WeakRnic,
};
use dgiwarp_engine::cm::sidr::listener::{Listener, Question, Verdict};
use dgiwarp_engine::cm::sidr::lookup::{Lookup, Outcome};
use dgiwarp_engine::datagram::Arrival;

/// Datagrams that one socket receives before the others get their turn.
const RECEIVES: usize = 64;

/// Names a listener or lookup among [`SidrSessions`]. Never used again.
pub(crate) type ServiceId = IoId;

/// Listeners, lookups and their events.
#[derive(Debug)]
pub(crate) struct SidrSessions {
    this: Weak<Self>,
    sockets: IoSet<Entry>,
    /// Locked after `sockets`.
    worker: Mutex<Worker>,
    events: EventQueue<ServiceEvent>,
    sink: Option<Arc<dyn ServiceSink>>,
    rnic: WeakRnic,
}

/// The parts of the thread that makes progress.
#[derive(Debug)]
struct Worker {
    buffer: ReceiveBuffer,
    watch: Watch,
}

/// Parameters of a new listener or lookup.
#[derive(Debug)]
pub(crate) struct Begin {
    pub(crate) socket: UdpSocket,
    pub(crate) context: u64,
    pub(crate) instruments: Option<Box<Instruments>>,
}

impl SidrSessions {
    pub(crate) fn new(rnic: &Rnic, sink: Option<Arc<dyn ServiceSink>>) -> Result<Arc<Self>, Error> {
        let sockets = IoSet::new()?;
        let events = EventQueue::new()?;
        let tap = rnic.shared.config.pcap.as_ref();
        let tap = tap.and_then(|directory| Tap::open_services(directory));
        Ok(Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            sockets,
            worker: Mutex::new(Worker {
                buffer: ReceiveBuffer::new(),
                watch: Watch {
                    counters: QpCounters::default(),
                    tap: tap.map(Box::new),
                    ports: Arc::clone(&rnic.shared.ports),
                },
            }),
            events,
            sink,
            rnic: rnic.downgrade(),
        }))
    }

    /// Readable while an event is queued.
    pub(crate) fn event_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    pub(crate) fn listen(&self, begin: Begin, listener: Listener) -> Result<ServiceId, Error> {
        let port = begin.socket.local_addr().map(|local| local.port());
        let id = self
            .begin(begin, Role::Listener(Box::new(listener)))
            .map_err(Error::system("cannot watch a socket"))?;
        if let Some(rnic) = self.rnic.upgrade() {
            let mut ports = rnic.shared.ports.lock();
            ports.services.extend(port);
        }
        Ok(id)
    }

    /// Begins a lookup; the socket is connected to `to`.
    pub(crate) fn look_up(
        &self,
        begin: Begin,
        lookup: Lookup,
        to: SocketAddr,
    ) -> Result<ServiceId, Error> {
        let role = Role::Lookup(Box::new(lookup), to);
        let id = self.begin(begin, role);
        id.map_err(Error::system("cannot watch a socket"))
    }

    fn begin(&self, begin: Begin, role: Role) -> io::Result<ServiceId> {
        let Begin {
            socket,
            context,
            instruments,
        } = begin;
        let entry = Entry {
            socket,
            context,
            role,
            instruments,
            failure: None,
        };
        let mut sockets = self.sockets.lock();
        let id = sockets.insert_watched(entry, EpollFlags::EPOLLIN)?;
        self.send(&mut sockets, id);
        Ok(id)
    }

    /// The program's answer to a question.
    pub(crate) fn answer(
        &self,
        id: ServiceId,
        question: Question,
        verdict: Verdict,
        private_data: &[u8],
    ) {
        let mut sockets = self.sockets.lock();
        if let Some(entry) = sockets.get_mut(id)
            && let Role::Listener(listener) = &mut entry.role
        {
            listener.answer(clock::now(), question, verdict, private_data);
            self.send(&mut sockets, id);
            self.remove_if_over(&mut sockets, id);
        }
    }

    /// Ends a listener, which takes no more questions, or a lookup.
    pub(crate) fn end(&self, id: ServiceId) {
        let mut sockets = self.sockets.lock();
        match sockets.get_mut(id).map(|entry| &mut entry.role) {
            Some(Role::Listener(listener)) => {
                listener.close();
                self.remove_if_over(&mut sockets, id);
            }
            Some(Role::Lookup(..)) => self.remove(&mut sockets, id),
            None => {}
        }
    }

    fn remove_if_over(&self, sockets: &mut Locked<'_, Entry>, id: ServiceId) {
        if let Some(Entry {
            role: Role::Listener(listener),
            ..
        }) = sockets.get_mut(id)
            && listener.is_over()
        {
            self.remove(sockets, id);
        }
    }

    fn remove(&self, sockets: &mut Locked<'_, Entry>, id: ServiceId) {
        if let Some(entry) = sockets.remove(id) {
            let watch = &mut self.worker.lock().watch;
            watch.counters.add(&entry.faults());
            watch.forget_service(&entry);
        }
    }

    fn report(&self, event: ServiceEvent) {
        match &self.sink {
            Some(sink) => sink.happened(event),
            None => self.events.push(event),
        }
    }

    /// Event for the program, made of an entry's news.
    fn event(&self, id: ServiceId, context: u64, news: News) -> ServiceEvent {
        match news {
            News::Asked(asked, local_port) => {
                let local = asked.to.map(|to| SocketAddr::new(to, local_port));
                let request = ServiceRequest::new(Weak::clone(&self.this), id, asked, local);
                ServiceEvent::Request { context, request }
            }
            News::Over(over, peer) => match *over {
                Ok(Outcome::Found(qp, private_data)) => ServiceEvent::Found {
                    context,
                    peer,
                    qp,
                    private_data: private_data.to_vec(),
                },
                Ok(Outcome::Rejected(status, private_data)) => ServiceEvent::Rejected {
                    context,
                    status,
                    private_data: private_data.to_vec(),
                },
                Ok(Outcome::NoService) => ServiceEvent::Failed {
                    context,
                    error: LookupError::NoService,
                },
                Ok(Outcome::TimedOut) => ServiceEvent::Failed {
                    context,
                    error: LookupError::TimedOut,
                },
                Err(error) => ServiceEvent::Failed { context, error },
            },
        }
    }

    /// Takes the oldest event; until `deadline` it waits for one and drives listeners and lookups.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> Option<ServiceEvent> {
        self.events.wait(self, deadline)
    }
}

impl Counts for SidrSessions {
    fn counters(&self) -> QpCounters {
        let sockets = self.sockets.lock();
        let mut counters = self.worker.lock().watch.counters.clone();
        for (_, entry) in sockets.entries() {
            counters.add(&entry.faults());
        }
        counters
    }
}

impl Drop for SidrSessions {
    fn drop(&mut self) {
        for (_, entry) in self.sockets.lock().entries() {
            self.worker.lock().watch.forget_service(entry);
        }
        if let Some(rnic) = self.rnic.upgrade() {
            rnic.shared.statistics.end_other(&self.counters());
        }
    }
}

impl Task for SidrSessions {
    fn work_fd(&self) -> BorrowedFd<'_> {
        self.sockets.as_fd()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.sockets.poll_timeout()
    }

    fn progress(&self) {
        let mut news = Vec::new();
        self.sockets.progress(|sockets, id, cause| {
            if let Some(entry) = sockets.get_mut(id) {
                let mut worker = self.worker.lock();
                match cause {
                    Cause::Ready => worker.receive(entry),
                    Cause::Deadline => worker.handle_timeout(clock::now(), entry),
                }
            }
            self.take_news(sockets, id, &mut news);
        });
        // With no lock held: the sink may call anything.
        for event in news {
            self.report(event);
        }
    }
}

impl SidrSessions {
    /// Sends an entry's datagrams, takes its news, and removes it if it is over.
    fn take_news(
        &self,
        sockets: &mut Locked<'_, Entry>,
        id: ServiceId,
        queue: &mut Vec<ServiceEvent>,
    ) {
        let Some(entry) = sockets.get_mut(id) else {
            return;
        };
        let context = entry.context;
        let mut over = false;
        entry.poll_events(|news| {
            over |= matches!(news, News::Over(..));
            queue.push(self.event(id, context, news));
        });
        if over {
            self.remove(sockets, id);
        } else {
            self.send(sockets, id);
        }
    }

    /// Sends an entry's datagrams, and sets its timer.
    fn send(&self, sockets: &mut Locked<'_, Entry>, id: ServiceId) {
        if let Some(entry) = sockets.get_mut(id) {
            entry.transmit(&mut self.worker.lock().watch);
            let deadline = entry.poll_timeout();
            sockets.set_deadline(id, deadline);
        }
    }
}

impl Worker {
    fn receive(&mut self, entry: &mut Entry) {
        let Self { buffer, watch } = self;
        for _ in 0..RECEIVES {
            let received = match entry.socket.receive(buffer) {
                Ok(received) => received,
                Err(error) => {
                    entry.fail(error);
                    return;
                }
            };
            let arrival = Arrival {
                by_memory: false,
                from: received.from,
                to: received.to,
                to_group: false,
                octets: buffer.octets(received.len),
                stride: received.stride,
            };
            let now = clock::now();
            let Entry {
                socket,
                role,
                instruments,
                ..
            } = entry;
            let mut handle = |one: Arrival<'_>| role.handle_input(now, one, socket, watch);
            match instruments {
                None => arrival.each().for_each(|one| {
                    handle(one);
                }),
                Some(instruments) => instruments.take(now, arrival, handle),
            }
        }
    }

    fn handle_timeout(&mut self, now: Instant, entry: &mut Entry) {
        let watch = &mut self.watch;
        let Entry {
            socket,
            role,
            instruments,
            ..
        } = entry;
        if let Some(instruments) = instruments {
            instruments.handle_timeout(now, |one| role.handle_input(now, one, socket, watch));
        }
        match role {
            Role::Listener(listener) => listener.handle_timeout(now),
            Role::Lookup(lookup, _) => lookup.handle_timeout(now),
        }
    }
}
