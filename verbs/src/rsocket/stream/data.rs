//! Sending and receiving.

use crate::rsocket::cancellation::is_again;
use crate::rsocket::iovec::Vectors;
use crate::rsocket::stream::connection::{Connection, Data};
use crate::rsocket::stream::tcp::Sending;
use crate::rsocket::wait::{Waiting, now};
use dgiwarp::MAX_INLINE_DATA;
use dgiwarp_sockets::{Part, Post};
use libc::c_int;
use nix::errno::Errno;

/// Octets of the first message of a call; each one is twice as long, up to [`LONGEST`], so that sending overlaps with copying. Where messages of earlier calls are
/// on their way, that overlaps with them.
const FIRST: usize = 2048;
const LONGEST: usize = 1 << 16;

impl Waiting {
    /// Waits until `ready`, or fails with `EAGAIN`.
    pub(in crate::rsocket) fn wait(
        self,
        connection: &Connection,
        ready: impl Fn(&Data) -> bool + Copy,
    ) -> Result<(), Errno> {
        if !self.blocks {
            return Err(Errno::EAGAIN);
        }
        connection.wait(ready, self.deadline)?;
        let data = connection.lock();
        // Another thread may have taken what came; the caller looks again.
        let timed_out = self.deadline.is_some_and(|it| now() >= it);
        if timed_out && !ready(&data) {
            return Err(Errno::EAGAIN);
        }
        Ok(())
    }
}

/// Outcome of a call that failed after some octets.
pub(super) fn partial(done: usize, errno: Errno) -> Result<usize, Errno> {
    if done > 0 && !is_again(errno) {
        Ok(done)
    } else {
        Err(errno)
    }
}

impl Connection {
    /// Sends octets: all of them where the call waits, else those that there is room for.
    pub(in crate::rsocket) fn send(
        &self,
        from: &mut Vectors<'_>,
        waiting: Waiting,
    ) -> Result<usize, Errno> {
        let all = from.all();
        let mut longest = FIRST;
        self.announce_maps(waiting)?;
        // With TCP a call without octets reports an error.
        while from.left() > 0 || all == 0 {
            let done = from.done();
            let mut data = self.lock();
            if !data.stream.as_ref().is_some_and(|it| it.can_send()) {
                self.advance(&mut data);
            }
            match data.sending(done > 0) {
                Sending::Fails(errno) => return partial(done, errno),
                Sending::Goes | Sending::Lost if all == 0 => break,
                Sending::Lost => {
                    data.lose_octets();
                    return Ok(all);
                }
                Sending::Goes => {}
            }
            if data.stream.as_ref().is_some_and(|it| !it.is_quiet()) {
                longest = LONGEST;
            }
            let most = from.left().min(longest);
            let post = data.stream.as_mut().and_then(|stream| {
                self.read_target(stream);
                stream.send(most)
            });
            let Some(post) = post else {
                data.starved = true;
                drop(data);
                if let Err(errno) = waiting.wait(self, Data::can_send) {
                    return partial(done, errno);
                }
                continue;
            };
            longest = (2 * longest).min(LONGEST);
            if let Err(errno) = self.post_from(&post, from) {
                self.lose(&mut data, Errno::ECONNRESET);
                return partial(done, errno);
            }
        }
        Ok(all)
    }

    /// Copies the octets of a post to where they go, if the peer is on this host and shares its memory, and a message follows them. Returns whether it did.
    fn write_mapped(&self, post: &Post, from: &mut Vectors<'_>) -> bool {
        // Else the peer is on another host, and has none either.
        self.shared.is_in_memory_file()
            && post.message.is_some()
            && self
                .qp
                .write_mapped(post.to.key, post.to.addr, post.octets, |memory| {
                    from.place(memory);
                })
    }

    /// Copies the octets of a post and posts it.
    pub(in crate::rsocket) fn post_from(
        &self,
        post: &Post,
        from: &mut Vectors<'_>,
    ) -> Result<(), Errno> {
        let octets = usize::try_from(post.octets).unwrap_or(0);
        let mut inline = [0; MAX_INLINE_DATA];
        match post.part {
            Part::Inline => {
                let inline = &mut inline[..octets];
                from.copy_to(inline);
                self.post(post, inline)
            }
            Part::Buffer { .. } if self.write_mapped(post, from) => self.post_message(post),
            Part::Buffer { at, first, rest } => {
                let [at, first, rest] = [at, first, rest].map(|n| usize::try_from(n).unwrap_or(0));
                from.copy_into(&self.private, at, first);
                from.copy_into(&self.private, 0, rest);
                self.post(post, &[])
            }
        }
    }

    /// Receives octets: at least one where the call waits, and all with `MSG_WAITALL`. None are the end. `MSG_TRUNC` drops them, as with TCP.
    pub(in crate::rsocket) fn receive(
        &self,
        to: &mut Vectors<'_>,
        flags: c_int,
        waiting: Waiting,
    ) -> Result<usize, Errno> {
        let all = to.all();
        let peeks = flags & libc::MSG_PEEK != 0;
        let mut skip = 0;
        loop {
            let mut data = self.lock();
            if data.stream.as_ref().is_none_or(|it| it.buffered() <= skip) {
                self.advance(&mut data);
            }
            if let Some(stream) = &mut data.stream {
                while to.left() > 0 {
                    let (at, octets) = stream.front(skip);
                    let octets = octets.min(to.left());
                    if octets == 0 {
                        break;
                    }
                    if flags & libc::MSG_TRUNC == 0 {
                        let (buffer, at) = self.received_at(at);
                        to.fill_from(buffer, at, octets);
                    } else {
                        to.skip(octets);
                    }
                    if peeks {
                        skip += octets;
                    } else {
                        stream.take(octets);
                    }
                }
                self.post_due(&mut data);
            }
            let done = to.done();
            let enough = done > 0 && (flags & libc::MSG_WAITALL == 0 || peeks);
            // With TCP a call without room waits for octets too.
            let none = all == 0 && (data.buffered() > 0 || data.tcp.is_none());
            if enough || none || all > 0 && to.left() == 0 {
                return Ok(done);
            }
            if data.stream.as_ref().is_some_and(|it| !it.is_readable()) || data.lost.is_some() {
                // An error after some octets is that of the next call.
                let error = if done > 0 {
                    None
                } else {
                    data.end_of_receive()
                };
                return error.map_or(Ok(done), Err);
            }
            drop(data);
            if let Err(errno) = waiting.wait(self, Data::can_read) {
                if all == 0 && waiting.blocks && !is_again(errno) {
                    return Ok(0);
                }
                return partial(done, errno);
            }
        }
    }
}
