//! Peers that come to a port, and the check of their code.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use dgiwarp_transfer::{Arriving, Cancel, Connection, Control, Join, Port, Secret};
use dgiwarp_transfer_cli::Failed;

use crate::guard::{Guard, Pending};

/// Time after which a listener checks whether it is still wanted.
const TURN: Duration = Duration::from_millis(200);
/// A moment for a lack of descriptors to pass.
const PAUSE: Duration = Duration::from_millis(20);

/// A secret of one use of the code.
pub(crate) type Token = [u8; 16];

/// Sessions that further streams may join.
pub(crate) type Joins = Arc<Mutex<Vec<Join>>>;

/// A session that may be joined as long as this lives.
#[derive(Debug)]
pub(crate) struct Joinable {
    join: Join,
    joins: Joins,
}

impl Joinable {
    /// Lets streams join the session of a connection, if that is possible.
    pub(crate) fn begin(admitted: &mut Admitted, control: &Control) -> Option<Self> {
        let join = admitted.connection.joinable(control).ok()?;
        let joins = Arc::clone(&admitted.joins);
        let mut all = joins.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(join.clone());
        drop(all);
        Some(Self { join, joins })
    }
}

impl Drop for Joinable {
    fn drop(&mut self) {
        let mut all = self.joins.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|it| !it.is(&self.join));
    }
}

/// A peer with one of the tokens.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) connection: Connection,
    pub(crate) peer: SocketAddr,
    pub(crate) token: Token,
    joins: Joins,
}

/// Waits for one peer that has the secret and a token.
pub(crate) fn admit(port: Port, secret: &Secret, tokens: &[Token]) -> Result<Admitted, Failed> {
    Admission::begin(port, secret, tokens)?.next()
}

/// Means of admission.
#[derive(Debug, Clone)]
struct Means {
    /// Secret of the keys.
    secret: Secret,
    /// Secrets of the uses of the code.
    tokens: Vec<Token>,
    joins: Joins,
}

/// Peers that come: each shows its code in a thread of its own, so that one that is silent or guesses holds nobody up.
#[derive(Debug)]
pub(crate) struct Admission {
    admitted: Receiver<Admitted>,
    cancel: Cancel,
}

impl Admission {
    pub(crate) fn begin(port: Port, secret: &Secret, tokens: &[Token]) -> Result<Self, Failed> {
        let control = Control::new().map_err(Failed::of)?;
        let means = Means {
            secret: secret.clone(),
            tokens: tokens.to_vec(),
            joins: Joins::default(),
        };
        let cancel = control.cancel();
        let (report, admitted) = sync_channel(0);
        let body = move || {
            let guard = Guard::default();
            while !control.is_cancelled() {
                match port.arrive(TURN, &control) {
                    Ok(Some(arriving)) => check(arriving, &means, &guard, &report),
                    Ok(None) => {}
                    // One peer that broke off, or a lack of descriptors.
                    Err(_) => delay(PAUSE),
                }
            }
        };
        let thread = thread::Builder::new().name("mz-listen".into());
        thread.spawn(body).map_err(Failed::of)?;
        Ok(Self { admitted, cancel })
    }

    pub(crate) fn next(&self) -> Result<Admitted, Failed> {
        let admitted = self.admitted.recv();
        admitted.map_err(|_| Failed::Session("nobody listens any more".into()))
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

fn check(arriving: Arriving, means: &Means, guard: &Guard, report: &SyncSender<Admitted>) {
    let peer = arriving.peer();
    let Some(pending) = guard.admit(peer.ip()) else {
        return;
    };
    let (report, means) = (report.clone(), means.clone());
    let body = move || {
        if let Some((connection, token)) = greet(arriving, &means, &pending) {
            let admitted = Admitted {
                connection,
                peer,
                token,
                joins: means.joins,
            };
            // The program may be at its end.
            let _ = report.send(admitted);
        }
    };
    // Without threads the peer is sent away.
    let _ = thread::Builder::new().name("mz-code".into()).spawn(body);
}

/// The connection of a peer that shows a token. Others get the delay first.
fn greet(arriving: Arriving, means: &Means, pending: &Pending) -> Option<(Connection, Token)> {
    let control = Control::new().ok()?;
    let joins = means.joins.lock().unwrap_or_else(PoisonError::into_inner);
    let joining = joins.iter().map(Join::secret);
    let secrets: Vec<_> = joining.chain([means.secret.clone()]).collect();
    drop(joins);
    let connection = match arriving.greet_protected(&secrets, &control) {
        Ok(connection) => connection,
        Err(stranger) => {
            delay(pending.wrong());
            drop(stranger);
            return None;
        }
    };
    if let Some(token) = means.tokens.iter().find(|it| connection.has_token(it)) {
        pending.right();
        return Some((connection, *token));
    }
    if connection.is_joining() {
        let joins = means.joins.lock().unwrap_or_else(PoisonError::into_inner);
        let join = joins.iter().find(|it| it.is_of(&connection)).cloned();
        drop(joins);
        if let Some(join) = join {
            join.give(connection);
            return None;
        }
    }
    delay(pending.wrong());
    None
}

#[expect(
    clippy::disallowed_methods,
    reason = "an edge: the wait is a guesser's punishment"
)]
fn delay(time: Duration) {
    thread::sleep(time);
}
