//! One stream on a connected queue pair: memory, work requests, completions.

use crate::ffi::errno;
use crate::rsocket::device::Device;
use crate::rsocket::edges::Edges;
use crate::rsocket::events::Mailbox;
use crate::rsocket::settings::Settings;
use crate::rsocket::stream::maps::Maps;
use crate::rsocket::stream::tcp::Tcp;
use crate::rsocket::wait::{Polling, Waiters, now, readable, sleep, waker};
use dgiwarp::{
    Access, Buffer, CompChannel, Cq, CqWatch, MAX_INLINE_DATA, Mr, QpAttr, RcOperation, RcOptions,
    RcQp, RcQpAttr, RcSendWr, RecvWr, Wc, WcStatus,
};
use dgiwarp_sockets::wire::{IoMap, Sge};
use dgiwarp_sockets::{Config, Credits, Local, Part, Place, Post, Sent, Shutdown, Stream};
use nix::errno::Errno;
use parking_lot::{Mutex, MutexGuard};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

/// Octets of a message.
const MESSAGE: usize = 4;
/// Work requests beside data: credits with their targets, control messages, keep-alives.
const CONTROL_ENTRIES: u16 = 16;
/// Completions taken at a time.
const BATCH: usize = 16;

/// A stream on a connected queue pair.
pub(in crate::rsocket) struct Connection {
    pub(in crate::rsocket) qp: RcQp,
    cq: Cq,
    channel: CompChannel,
    pub(in crate::rsocket) config: Config,
    local: Local,
    settings: Settings,
    mailbox: Arc<Mailbox>,
    /// Send buffer, and behind it the messages of posted receives.
    pub(in crate::rsocket) private: Buffer,
    private_mr: Mr,
    /// List of targets, I/O maps, and behind them the receive buffer.
    pub(in crate::rsocket) shared: Buffer,
    _shared_mr: Mr,
    /// Offset of the receive buffer.
    receive_at: usize,
    data: Mutex<Data>,
}

/// State of a stream.
pub(in crate::rsocket) struct Data {
    /// `None` until the peer has introduced itself.
    pub(in crate::rsocket) stream: Option<Stream>,
    /// Reason why the connection was lost.
    pub(in crate::rsocket) lost: Option<Errno>,
    pub(in crate::rsocket) waiters: Waiters,
    pub(in crate::rsocket) maps: Maps,
    pub(in crate::rsocket) edges: Edges,
    /// A call has found no room to send, and none has come since.
    pub(in crate::rsocket) starved: bool,
    /// Ends and errors as of TCP, where the program takes the socket for one.
    pub(in crate::rsocket) tcp: Option<Tcp>,
}

impl Data {
    /// Octets that have come and were not taken.
    pub(in crate::rsocket) fn buffered(&self) -> usize {
        self.stream.as_ref().map_or(0, Stream::buffered)
    }

    /// Whether there is something to read, the end included.
    pub(in crate::rsocket) fn can_read(&self) -> bool {
        let stream = self.stream.as_ref();
        self.lost.is_some() || stream.is_some_and(|it| it.buffered() > 0 || !it.is_readable())
    }

    /// Whether octets may come yet.
    pub(in crate::rsocket) fn is_readable(&self) -> bool {
        self.stream.as_ref().is_none_or(Stream::is_readable)
    }

    /// Directions that have not ended, and octets to read: what an edge changes.
    fn levels(&self) -> (usize, bool, bool) {
        let writable = self.stream.as_ref().is_none_or(Stream::is_writable);
        (self.buffered(), self.is_readable(), writable)
    }

    /// Counts the room that came since a call found none.
    fn note_room(&mut self) {
        if self.starved && self.can_send() {
            self.starved = false;
            self.edges.has_room();
        }
    }

    /// Whether a send would not wait.
    pub(in crate::rsocket) fn can_send(&self) -> bool {
        let stream = self.stream.as_ref();
        self.lost.is_some() || stream.is_some_and(|it| it.can_send() || !it.is_writable())
    }

    pub(in crate::rsocket) fn is_connected(&self) -> bool {
        self.stream.as_ref().is_none_or(Stream::is_connected)
    }
}

fn index(octets: u32) -> usize {
    octets.try_into().unwrap_or(usize::MAX)
}

impl Connection {
    /// Memory and a queue pair with posted receives, for a connection with the peer at an address. It is not connected.
    pub(in crate::rsocket) fn new(
        device: &Device,
        mailbox: &Arc<Mailbox>,
        peer: SocketAddr,
        asked: Config,
    ) -> Result<Self, Errno> {
        let most = u32::try_from(MAX_INLINE_DATA).unwrap_or(0);
        let config = Config {
            inline: asked.inline.min(most),
            ..asked.in_range()
        };
        let failed = |error| errno::of(error);
        let (sends, receives) = (
            usize::from(config.send_entries) + usize::from(CONTROL_ENTRIES),
            usize::from(config.receive_entries) + usize::from(CONTROL_ENTRIES),
        );
        let lists = index(Config::TARGETS) * Sge::LEN + usize::from(config.io_maps) * IoMap::LEN;
        let receive_at = lists.next_multiple_of(64);
        let buffer = |octets| Buffer::zeroed(octets).map_err(|error| errno::of_io(&error));
        let private = buffer(index(config.most_send_octets) + receives * MESSAGE)?;
        let shared = device
            .rnic
            .create_buffer_for(peer, receive_at + index(config.most_receive_octets))
            .map_err(|error| errno::of_io(&error))?;
        let register = |buffer: &Buffer, access| device.pd.register(buffer.region(), access);
        let private_mr = register(&private, Access::LOCAL_WRITE).map_err(failed)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let shared_mr = register(&shared, access).map_err(failed)?;
        let local = Local {
            targets: shared_mr.addr(),
            targets_key: shared_mr.rkey(),
            buffer: shared_mr
                .addr()
                .wrapping_add(u64::try_from(receive_at).unwrap_or(0)),
            buffer_key: shared_mr.rkey(),
        };
        let channel = device.rnic.create_comp_channel().map_err(failed)?;
        let cq = device
            .rnic
            .create_cq_on(sends + receives, &channel)
            .map_err(failed)?;
        let attr = QpAttr {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_sge: 2,
            ..QpAttr::new(&cq, &cq)
        };
        let attr = RcQpAttr {
            // A peer that is gone ends the stream, also one that only receives.
            options: Some(RcOptions {
                outlives_peer: false,
                ..device.rnic.config().rc
            }),
            ..RcQpAttr::from(attr)
        };
        let qp = device.pd.create_rc_qp(&attr).map_err(failed)?;
        let connection = Self {
            qp,
            cq,
            channel,
            config,
            local,
            settings: Settings::get(),
            mailbox: Arc::clone(mailbox),
            private,
            private_mr,
            shared,
            _shared_mr: shared_mr,
            receive_at,
            data: Mutex::new(Data {
                stream: None,
                lost: None,
                waiters: Waiters::default(),
                maps: Maps::default(),
                edges: Edges::default(),
                starved: false,
                tcp: None,
            }),
        };
        for n in 0..receives {
            connection.post_receive(n)?;
        }
        Ok(connection)
    }

    pub(in crate::rsocket) fn introduction(&self) -> [u8; 40] {
        Stream::introduction(&self.config, &self.local).emit()
    }

    /// Takes the peer's introduction.
    pub(in crate::rsocket) fn introduce(&self, peer: &[u8]) -> Result<(), Errno> {
        // raccept(3), rconnect(3): a version that is not ours.
        let stream = Stream::new(&self.config, &self.local, peer).map_err(|_| Errno::ENOTSUP)?;
        let mut data = self.data.lock();
        data.stream = Some(stream);
        data.waiters.wake();
        Ok(())
    }

    pub(in crate::rsocket) fn lock(&self) -> MutexGuard<'_, Data> {
        self.data.lock()
    }

    /// Ends the stream with an error for calls of the program, unless it has ended.
    pub(in crate::rsocket) fn lose(&self, data: &mut Data, errno: Errno) {
        let before = (data.levels(), data.is_connected());
        // A program that has ended both directions misses nothing.
        let is_used = |stream: &Stream| stream.is_readable() || stream.is_writable();
        let is_used = data.tcp.is_none() || data.stream.as_ref().is_none_or(is_used);
        if data.is_connected() && data.lost.is_none() && is_used {
            tracing::debug!(qpn = self.qp.qpn(), %errno, "the connection of a socket is lost");
            data.lost = Some(errno);
            if let Some(tcp) = &mut data.tcp {
                tcp.fail(errno);
            }
        }
        if let Some(stream) = &mut data.stream {
            stream.handle_end();
        }
        // Work requests that are flushed after the end are no edges.
        if before != (data.levels(), data.is_connected()) {
            data.edges.ended();
        }
        data.waiters.wake();
    }

    fn message_at(&self, n: usize) -> usize {
        index(self.config.most_send_octets) + n * MESSAGE
    }

    fn post_receive(&self, n: usize) -> Result<(), Errno> {
        let at = self.message_at(n);
        let wr = RecvWr {
            wr_id: RECEIVE | u64::try_from(n).unwrap_or(0),
            sges: &[self.private_mr.sge(at..at + MESSAGE)],
        };
        self.qp.post_recv(&[wr]).map_err(errno::of_post_failure)
    }

    /// Takes completions, and posts what is due after them. Wakes other threads where anything came.
    pub(in crate::rsocket) fn progress(&self, data: &mut Data) {
        let mut completions = [Wc::default(); BATCH];
        let mut came = false;
        loop {
            let count = self.cq.poll(&mut completions).unwrap_or(0);
            for wc in completions.iter().take(count) {
                self.completed(data, wc);
            }
            came |= count > 0;
            if count < BATCH {
                break;
            }
        }
        if self.mailbox.has_failed() {
            // An accepted connection that did not come up.
            self.lose(data, Errno::ECONNRESET);
        }
        self.post_due(data);
        if came {
            data.waiters.wake();
        }
    }

    fn completed(&self, data: &mut Data, wc: &Wc) {
        if wc.status != WcStatus::Success {
            tracing::debug!(?wc, "a work request of a socket has failed");
            return self.lose(data, Errno::ECONNRESET);
        }
        if wc.wr_id & RECEIVE == 0 {
            if let (Some(stream), Some(sent)) = (&mut data.stream, Sent::from_id(wc.wr_id)) {
                stream.handle_sent(sent);
            }
            return;
        }
        let n = usize::try_from(wc.wr_id & !RECEIVE).unwrap_or(0);
        let before = data.levels();
        let filled = data.stream.as_ref().is_some_and(Stream::fills_peer);
        if let Some(stream) = &mut data.stream {
            let taken = match wc.immediate {
                Some(word) => stream.handle_word(word),
                None if index(wc.byte_len) == MESSAGE => {
                    let mut octets = [0; MESSAGE];
                    self.private.read(self.message_at(n), &mut octets);
                    stream.handle_message(&octets)
                }
                None => stream.handle_message(&vec![0; index(wc.byte_len).min(MESSAGE + 1)]),
            };
            if let Err(violation) = taken {
                tracing::warn!(qpn = wc.qpn, %violation, "the peer of a socket does not follow rsockets");
                self.lose(data, Errno::ECONNRESET);
                self.qp.flush();
                return;
            }
        }
        if filled && !data.is_connected() {
            data.note_reset();
        }
        let after = data.levels();
        if (before.1, before.2) != (after.1, after.2) {
            data.edges.ended();
        } else if before.0 != after.0 {
            data.edges.came();
        }
        // Fails where the connection has ended, which a completion reports.
        let _ = self.post_receive(n);
    }

    /// Posts credits and control messages that are due.
    pub(in crate::rsocket) fn post_due(&self, data: &mut Data) {
        let Some(stream) = &mut data.stream else {
            return;
        };
        let mut failed = false;
        while let Some(Credits { target, message }) = stream.poll_credits() {
            failed |= self.post_control(target.as_ref(), &message).is_err();
        }
        if let Some(message) = stream.poll_control() {
            failed |= self.post_control(None, &message).is_err();
        }
        if failed {
            self.lose(data, Errno::ECONNRESET);
        }
    }

    fn post_control(
        &self,
        target: Option<&(Place, [u8; Sge::LEN])>,
        message: &[u8; MESSAGE],
    ) -> Result<(), Errno> {
        let send = RcSendWr {
            inline: message,
            ..RcSendWr::send(Sent::Control.to_id(), &[])
        };
        let posted = match target {
            Some((to, octets)) => {
                let write = RcSendWr {
                    inline: octets,
                    signaled: false,
                    ..RcSendWr::new(0, write_to(to), &[])
                };
                self.qp.post_send(&[write, send])
            }
            None => self.qp.post_send(&[send]),
        };
        posted.map_err(errno::of_post_failure)
    }

    /// A write of no octets, which TCP acknowledges (`SO_KEEPALIVE`).
    pub(in crate::rsocket) fn keep_alive(&self) {
        let nowhere = Place { addr: 0, key: 0 };
        let write = RcSendWr {
            signaled: false,
            ..RcSendWr::new(0, write_to(&nowhere), &[])
        };
        let _ = self.qp.post_send(&[write]);
    }

    /// Posts a write, whose octets are in the send buffer or `inline`, and its message.
    pub(in crate::rsocket) fn post(&self, post: &Post, inline: &[u8]) -> Result<(), Errno> {
        let id = post.id.map_or(0, Sent::to_id);
        let (mut sges, mut count) = ([self.private_mr.sge(0..0); 2], 0);
        if let Part::Buffer { at, first, rest } = post.part {
            let at = index(at);
            sges = [
                self.private_mr.sge(at..at + index(first)),
                self.private_mr.sge(0..index(rest)),
            ];
            count = if rest > 0 { 2 } else { 1 };
        }
        let write = RcSendWr {
            inline,
            signaled: post.message.is_none(),
            ..RcSendWr::new(id, write_to(&post.to), &sges[..count])
        };
        let posted = match &post.message {
            Some(message) => {
                let send = RcSendWr {
                    inline: message,
                    signaled: post.id.is_some(),
                    ..RcSendWr::send(id, &[])
                };
                self.qp.post_send(&[write, send])
            }
            None => self.qp.post_send(&[write]),
        };
        posted.map_err(errno::of_post_failure)
    }

    /// Posts the message of data whose octets are at the peer.
    pub(in crate::rsocket) fn post_message(&self, post: &Post) -> Result<(), Errno> {
        let Some(message) = &post.message else {
            return Ok(());
        };
        let send = RcSendWr {
            inline: message,
            signaled: post.id.is_some(),
            ..RcSendWr::send(post.id.map_or(0, Sent::to_id), &[])
        };
        self.qp.post_send(&[send]).map_err(errno::of_post_failure)
    }

    /// Takes the target that the peer has written, if the one in use has ended.
    pub(in crate::rsocket) fn read_target(&self, stream: &mut Stream) {
        if let Some(slot) = stream.wants_target() {
            let at = index(slot) * Sge::LEN;
            let mut octets = [0; Sge::LEN];
            self.shared.read(at, &mut octets);
            if stream.handle_target(&octets) {
                self.shared.write(at, &[0; Sge::LEN]);
            }
        }
    }

    /// The peer's I/O map of an offset.
    pub(in crate::rsocket) fn find_map(&self, offset: u64) -> Option<IoMap> {
        let first = index(Config::TARGETS) * Sge::LEN;
        (0..usize::from(self.config.io_maps)).find_map(|n| {
            let mut octets = [0; IoMap::LEN];
            self.shared.read(first + n * IoMap::LEN, &mut octets);
            let map = IoMap::parse(&octets, self.config.order);
            (map.left_at(offset) > 0).then_some(map)
        })
    }

    /// The receive buffer, and the offset of an octet of it.
    pub(in crate::rsocket) fn received_at(&self, at: usize) -> (&Buffer, usize) {
        (&self.shared, self.receive_at + at)
    }

    /// Waits until `ready`; at most until the deadline, which is no error.
    pub(in crate::rsocket) fn wait(
        &self,
        ready: impl Fn(&Data) -> bool,
        deadline: Option<Instant>,
    ) -> Result<(), Errno> {
        // Also while the thread polls: the background thread would take what comes, at the cost of a wake-up for each message.
        self.channel.begin_wait();
        let mut polling = Polling::until(now() + self.settings.polling_time);
        loop {
            let mut data = self.data.lock();
            self.advance(&mut data);
            if ready(&data) {
                return Ok(());
            }
            drop(data);
            if !polling.goes_on() {
                break;
            }
        }
        let waker = waker()?;
        loop {
            if self.arm(waker, &ready) {
                return Ok(());
            }
            let mut descriptors = [readable(self.wait_fd()), readable(waker)];
            let slept = sleep(&mut descriptors, deadline, &self.settings);
            self.disarm(waker);
            let mut data = self.data.lock();
            self.advance(&mut data);
            if ready(&data) || deadline.is_some_and(|it| now() >= it) {
                return Ok(());
            }
            slept?;
        }
    }

    /// A watch of the completions, for a poll set.
    pub(in crate::rsocket) fn watch(&self) -> Result<CqWatch, Errno> {
        self.cq.watch().map_err(errno::of)
    }

    /// Whether there are completions that no call has taken.
    pub(in crate::rsocket) fn has_completions(&self) -> bool {
        self.cq.has_completions()
    }

    /// Readable when the connection did not come up.
    pub(in crate::rsocket) fn mail(&self) -> BorrowedFd<'_> {
        self.mailbox.as_fd()
    }

    /// As [`progress`](Self::progress), and reads the next target.
    pub(in crate::rsocket) fn advance(&self, data: &mut Data) {
        self.progress(data);
        if let Some(stream) = &mut data.stream {
            self.read_target(stream);
        }
        data.note_room();
    }

    /// Prepares the calling thread to sleep, unless the stream is ready already.
    pub(in crate::rsocket) fn arm(&self, waker: RawFd, ready: impl Fn(&Data) -> bool) -> bool {
        let mut data = self.data.lock();
        self.cq.request_notification(false);
        self.advance(&mut data);
        if ready(&data) {
            if data.waiters.are_none() {
                self.cq.cancel_notification();
            }
            return true;
        }
        data.waiters.add(waker);
        false
    }

    pub(in crate::rsocket) fn disarm(&self, waker: RawFd) {
        let mut data = self.data.lock();
        data.waiters.remove(waker);
        if data.waiters.are_none() {
            self.cq.cancel_notification();
        }
        let mut came = false;
        while self.channel.next_event(false).is_some() {
            came = true;
        }
        if came {
            // Other threads that sleep at the channel do not wake for these events any more.
            self.progress(&mut data);
        }
    }

    /// Descriptor to sleep at.
    pub(in crate::rsocket) fn wait_fd(&self) -> RawFd {
        self.channel.begin_wait().as_fd().as_raw_fd()
    }

    /// Sends a disconnect, without waiting for anything.
    pub(in crate::rsocket) fn leave(&self) {
        if let Some(mut data) = self.data.try_lock() {
            if let Some(stream) = &mut data.stream {
                stream.shut_down(Shutdown::Both);
            }
            self.post_due(&mut data);
        }
    }

    /// Ends directions, and waits until everything has left, until the connection has ended, or until the deadline.
    pub(in crate::rsocket) fn shut_down(&self, how: Shutdown, deadline: Instant) {
        let mut data = self.data.lock();
        self.advance(&mut data);
        if let Some(stream) = &mut data.stream {
            stream.shut_down(how);
        }
        if let Some(tcp) = &mut data.tcp {
            tcp.shut_down(how);
        }
        data.edges.ended();
        self.post_due(&mut data);
        data.waiters.wake();
        drop(data);
        let quiet =
            |data: &Data| data.lost.is_some() || data.stream.as_ref().is_none_or(Stream::is_quiet);
        // A signal ends the wait, not the shutdown.
        while self.wait(quiet, Some(deadline)).is_err() && now() < deadline {}
    }
}

/// Mark of the work request identifiers of receives.
const RECEIVE: u64 = 1 << 63;

fn write_to(to: &Place) -> RcOperation {
    RcOperation::Write {
        rkey: to.key,
        remote_addr: to.addr,
        immediate: None,
    }
}
