//! `mz pipe`: standard input of one host to standard output of another. A stream moves as files of one block, numbered in order.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use dgiwarp_transfer::engine::{Begun, Failure, Next};
use dgiwarp_transfer::wire::{Entry, FileKind, Status};
use dgiwarp_transfer::{Control, Event, Sink, Source, Summary};
use dgiwarp_transfer_cli::{Carriage, Failed, Progress, Show};
use nix::fcntl::{FcntlArg, fcntl};

use crate::admission::admit;
use crate::code::Code;
use crate::place::listen;
use crate::receive::{Receive, announce};
use crate::send::{dial, refused};

/// Pieces behind the oldest unfinished one that a source offers.
const BEHIND: usize = 32;
/// Pieces that wait at the receiving end for one before them, which was corrupt, at most.
const AHEAD: usize = 64;

/// Order of the end that reads standard input.
#[derive(Debug, Clone)]
pub struct PipeIn {
    /// Addresses of the peer.
    pub to: Vec<SocketAddr>,
    /// The peer's code.
    pub code: Code,
    /// How data moves.
    pub carriage: Carriage,
    /// Output.
    pub show: Show,
}

/// Order of the end that writes standard output: that of an end that listens, whose folder does not matter.
pub type PipeOut = Receive;

/// Sends standard input.
///
/// # Errors
/// [`Failed`].
pub fn pipe_in(order: &PipeIn) -> Result<(), Failed> {
    let control = Control::new().map_err(|error| Failed::Session(error.to_string()))?;
    let (connection, mut options) = dial(&order.carriage, &order.to, &order.code, &control)?;
    options.token = order.code.stream();
    // While one waits for input, the other sends.
    options.threads = 2;
    // As much at a time as one piece holds, where the input is a pipe and the system permits it.
    let length = i32::try_from(options.block).unwrap_or(i32::MAX);
    let _ = fcntl(io::stdin(), FcntlArg::F_SETPIPE_SZ(length));
    let source = Arc::new(Pieces::new(io::stdin(), options.block as usize));
    let mut progress = Progress::new(order.show, true);
    let mut note = |event: &Event| progress.note(event);
    let done = dgiwarp_transfer::send(connection, source, &options, &control, &mut note);
    let done = done.map_err(|error| whole(refused(error, progress.events)));
    progress.end(&done.map(one), None)
}

/// Writes a peer's stream to standard output.
///
/// # Errors
/// [`Failed`].
pub fn pipe_out(order: &PipeOut) -> Result<(), Failed> {
    let (port, address) = listen(&order.carriage, order.bind, order.port)?;
    announce(order, address, "pipe", "");
    let token = order.code.stream();
    let admitted = admit(port, &order.code.secret(), &[token])?;
    let connection = admitted.connection;
    let control = Control::new().map_err(|error| Failed::Session(error.to_string()))?;
    let mut options = order.carriage.options_with(admitted.peer.ip());
    options.token = token;
    // One thread writes pieces in the order in which they come.
    options.threads = 1;
    let sink = Arc::new(Joined::new(io::stdout()));
    let mut progress = Progress::new(order.show, true);
    let mut note = |event: &Event| progress.note(event);
    let done = dgiwarp_transfer::receive(connection, sink, &options, &control, &mut note);
    let done = done.map_err(|error| whole(Failed::from(error)));
    progress.end(&done.map(one), None)
}

/// A stream that was interrupted cannot go on.
fn whole(failed: Failed) -> Failed {
    match failed {
        Failed::Session(text) => {
            let end = text.find("; the same command");
            Failed::Session(text[..end.unwrap_or(text.len())].to_owned())
        }
        other => other,
    }
}

/// A stream is one entry.
fn one(mut summary: Summary) -> Summary {
    summary.stored = summary.stored.min(1);
    summary
}

/// A stream in pieces, which are kept until they are finished.
#[derive(Debug)]
struct Pieces<R> {
    /// `None` once it failed.
    input: Mutex<Option<R>>,
    length: usize,
    pieces: Mutex<BTreeMap<u32, Arc<Vec<u8>>>>,
    closed: Condvar,
}

impl<R: Read> Pieces<R> {
    fn new(input: R, length: usize) -> Self {
        Self {
            input: Mutex::new(Some(input)),
            length,
            pieces: Mutex::default(),
            closed: Condvar::new(),
        }
    }
}

fn entry(file: u32, size: u64) -> Entry {
    Entry {
        kind: FileKind::File,
        mode: 0o600,
        modified: (0, 0),
        size,
        identity: [0; 16],
        name: file.to_string().into_bytes(),
        target: Vec::new(),
        attributes: None,
    }
}

impl<R: Read + Send> Source for Pieces<R> {
    fn next(&self, file: u32) -> Next {
        let pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        let ahead = |pieces: &mut BTreeMap<u32, _>| {
            let first = pieces.keys().next().copied().unwrap_or(file);
            file.wrapping_sub(first) as usize >= BEHIND
        };
        drop(self.closed.wait_while(pieces, ahead));
        let mut guard = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(input) = guard.as_mut() else {
            return Next::End;
        };
        let mut octets = vec![0; self.length];
        let filled = loop {
            match input.read(&mut octets) {
                Ok(count) => break count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    *guard = None;
                    let name = "standard input".to_owned();
                    let text = format!("{name}: {error}");
                    return Next::Unreadable { name, text };
                }
            }
        };
        if filled == 0 {
            return Next::End;
        }
        octets.truncate(filled);
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        pieces.insert(file, Arc::new(octets));
        Next::Entry(entry(file, filled as u64))
    }

    fn read(&self, file: u32, offset: u64, octets: &mut [u8]) -> Result<(), Failure> {
        let pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        let piece = pieces.get(&file).map(Arc::clone);
        drop(pieces);
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let part = piece
            .as_ref()
            .and_then(|piece| piece.get(start..)?.get(..octets.len()));
        let part = part.ok_or_else(|| Failure::new(Status::Unreadable, "the piece is gone"))?;
        octets.copy_from_slice(part);
        Ok(())
    }

    fn check(&self, _file: u32) -> Result<(), Failure> {
        Ok(())
    }

    fn close(&self, file: u32) {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        pieces.remove(&file);
        self.closed.notify_all();
    }
}

/// A stream put together.
#[derive(Debug)]
struct Joined<W> {
    state: Mutex<State<W>>,
}

#[derive(Debug)]
struct State<W> {
    output: W,
    /// Number of the piece that is written next.
    next: u32,
    /// Pieces that come, and those that are whole and wait for others before them.
    coming: BTreeMap<u32, Vec<u8>>,
    whole: BTreeMap<u32, Vec<u8>>,
    failed: Option<Failure>,
}

impl<W: Write> Joined<W> {
    fn new(output: W) -> Self {
        let state = State {
            output,
            next: 0,
            coming: BTreeMap::new(),
            whole: BTreeMap::new(),
            failed: None,
        };
        let state = Mutex::new(state);
        Self { state }
    }
}

impl<W: Write + Send> Sink for Joined<W> {
    fn begin(&self, file: u32, entry: &Entry, block: u32) -> Result<Begun, Failure> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(failure) = &state.failed {
            return Err(failure.clone());
        }
        let fits = entry.kind == FileKind::File && entry.size <= u64::from(block);
        if !fits || state.whole.len() >= AHEAD {
            return Err(Failure::new(Status::Failed, "not a piece of a stream"));
        }
        let length = usize::try_from(entry.size).unwrap_or(0);
        state.coming.insert(file, vec![0; length]);
        Ok(Begun::Partial(BTreeMap::new()))
    }

    fn write(&self, file: u32, offset: u64, octets: &[u8]) -> Result<(), Failure> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let piece = state.coming.get_mut(&file);
        let part = piece.and_then(|piece| piece.get_mut(start..)?.get_mut(..octets.len()));
        let part = part.ok_or_else(|| Failure::new(Status::Failed, "the piece is gone"))?;
        part.copy_from_slice(octets);
        Ok(())
    }

    fn sync(&self, _file: u32, _blocks: &[(u64, [u8; 32])]) -> Result<(), Failure> {
        Ok(())
    }

    fn finish(&self, file: u32, _root: &[u8; 32]) -> Result<(), Failure> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        if let Some(failure) = &state.failed {
            return Err(failure.clone());
        }
        let Some(piece) = state.coming.remove(&file) else {
            return Err(Failure::new(Status::Failed, "the piece is gone"));
        };
        state.whole.insert(file, piece);
        while let Some(piece) = state.whole.remove(&state.next) {
            let written = state.output.write_all(&piece);
            if let Err(error) = written.and_then(|()| state.output.flush()) {
                let failure =
                    Failure::new(Status::Failed, format!("the other end's output: {error}"));
                state.failed = Some(failure.clone());
                return Err(failure);
            }
            state.next = state.next.wrapping_add(1);
        }
        Ok(())
    }

    fn abandon(&self, file: u32, _keep: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.coming.remove(&file);
        // Pieces behind one that failed are no stream.
        let gone = Failure::new(Status::Failed, "a piece before it failed");
        state.failed.get_or_insert(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_that_come_in_another_order_are_written_in_theirs() {
        let joined = Joined::new(Vec::new());
        for file in [0, 1, 2] {
            joined.begin(file, &entry(file, 2), 1024).unwrap();
        }
        for file in [2, 0, 1] {
            joined.write(file, 0, file.to_string().as_bytes()).unwrap();
            joined.write(file, 1, b".").unwrap();
            joined.finish(file, &[0; 32]).unwrap();
        }
        joined.begin(3, &entry(3, 2), 1024).unwrap();
        assert!(joined.write(3, 1, b"ab").is_err());
        joined.abandon(3, true);
        assert!(joined.begin(4, &entry(4, 2), 1024).is_err());
        assert_eq!(joined.state.into_inner().unwrap().output, b"0.1.2.");
    }

    #[test]
    fn pieces_beyond_the_bound_are_refused() {
        let joined = Joined::new(Vec::new());
        for file in 1..=64 {
            joined.begin(file, &entry(file, 1), 1024).unwrap();
            joined.finish(file, &[0; 32]).unwrap();
        }
        assert!(joined.begin(65, &entry(65, 1), 1024).is_err());
        assert!(joined.begin(66, &entry(66, 1025), 1024).is_err());
    }
}
