//! Further streams of a session: dialled by the end that dialled the first one, brought by the listener of the other one.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread;

use super::connection::is_equal;
use super::{Connection, Control, Error};
use crate::carrier::Waker;
use crate::protection::Secret;

/// Connections that wait for a session to take them.
const WAITING: usize = 4;

/// Dials a further connection to the peer.
pub type Dial = Arc<dyn Fn() -> Result<Connection, Error> + Send + Sync>;

/// A session that further connections may join.
#[derive(Debug, Clone)]
pub struct Join {
    key: [u8; 16],
    give: SyncSender<Connection>,
    waker: Waker,
}

impl Join {
    /// Whether a connection that came belongs to the session.
    #[must_use]
    pub fn is_of(&self, connection: &Connection) -> bool {
        let hello = connection.hello.filter(|it| it.joins);
        hello.is_some_and(|hello| is_equal(&hello.token, &self.key))
    }

    /// Secret of the connections that join a session whose frames are protected, for [`Arriving::greet_protected`](crate::Arriving::greet_protected).
    #[must_use]
    pub fn secret(&self) -> Secret {
        Secret::Preshared(self.key)
    }

    /// Whether both are of one session.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        is_equal(&self.key, &other.key)
    }

    /// Hands a connection to the session; one too many is closed.
    pub fn give(&self, connection: Connection) {
        // The session may be at its end.
        let _ = self.give.try_send(connection);
        self.waker.wake();
    }
}

/// How a session gets further connections.
pub(super) enum Joins {
    None,
    /// The peer dials them.
    Taken {
        key: [u8; 16],
        come: Receiver<Connection>,
    },
    /// This end dials them.
    Dialled {
        dial: Dial,
        /// How many streams there are to be; by what they bring without it.
        wanted: Option<u16>,
        come: Receiver<Result<Connection, Error>>,
        give: SyncSender<Result<Connection, Error>>,
        /// Whether one is being dialled.
        dialling: bool,
    },
}

impl fmt::Debug for Joins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Taken { .. } => "Taken",
            Self::Dialled { .. } => "Dialled",
        })
    }
}

impl Joins {
    pub(super) fn taken(key: [u8; 16], control: &Control) -> (Self, Join) {
        let (give, come) = sync_channel(WAITING);
        let waker = control.wake.waker();
        (Self::Taken { key, come }, Join { key, give, waker })
    }

    pub(super) fn dialled(dial: Dial, wanted: Option<u16>) -> Self {
        let (give, come) = sync_channel(1);
        let dialling = false;
        Self::Dialled {
            dial,
            wanted,
            come,
            give,
            dialling,
        }
    }

    /// A connection that came.
    pub(super) fn next(&mut self) -> Option<Result<Connection, Error>> {
        match self {
            Self::None => None,
            Self::Taken { come, .. } => come.try_recv().ok().map(Ok),
            Self::Dialled { come, dialling, .. } => match come.try_recv() {
                Ok(done) => {
                    *dialling = false;
                    Some(done)
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
            },
        }
    }

    /// Dials a further connection in a thread of its own, unless one is being dialled, and protects it where there is a secret for that.
    /// Returns whether it is.
    pub(super) fn dial(&mut self, secret: Option<Secret>, control: &Control) -> bool {
        let Self::Dialled {
            dial,
            give,
            dialling,
            ..
        } = self
        else {
            return false;
        };
        if std::mem::replace(dialling, true) {
            return false;
        }
        let (dial, give, waker) = (Arc::clone(dial), give.clone(), control.wake.waker());
        let body = move || {
            let protected = |connection: Connection| match &secret {
                Some(secret) => connection.protected(secret, &Control::new()?),
                None => Ok(connection),
            };
            // The session may be at its end.
            let _ = give.send(dial().and_then(protected));
            waker.wake();
        };
        // Without threads the session goes on with the streams that it has.
        let thread = thread::Builder::new().name("transfer-dial".into());
        let _ = thread.spawn(body);
        true
    }
}
