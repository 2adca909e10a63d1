//! A call on its way over the instances of its service.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::client::{CallOptions, Client, Ended, PendingCall};
use crate::engine::balance::Instances;
use crate::engine::calls::Fate;
use crate::names::MethodId;
use crate::payload::Payload;
use crate::status::{Code, Status};
use crate::system::now;
use crate::wire::message::Streams;

/// A call that counts as one under way at its instance until it is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) instances: Arc<Mutex<Instances>>,
    /// Position of the instance.
    pub(super) at: usize,
}

impl Slot {
    pub(super) fn reached(&self) {
        self.instances.lock().reached(self.at);
    }

    pub(super) fn failed(&self, now: Duration) {
        self.instances.lock().failed(self.at, now);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.instances.lock().ended(self.at);
    }
}

/// A call, so that it can be made again.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) method: MethodId,
    pub(super) payload: Arc<Payload>,
    pub(super) options: CallOptions,
    pub(super) streams: Streams,
    pub(super) deadline: Option<Instant>,
    /// Instances that it was for, the latest one last.
    pub(super) tried: Vec<usize>,
}

/// A call on its way over the instances of its client.
pub(super) struct Attempts<'a> {
    pub(super) client: &'a Client,
    pub(super) plan: Plan,
    pub(super) result: Result<Payload, Status>,
}

impl Attempts<'_> {
    /// Begins the call at the next instance. `None` where none is left, or none may take it: the result has the reason.
    pub(super) fn begin(&mut self) -> Option<PendingCall> {
        // Another instance is of no use where the time is over.
        let plan = &mut self.plan;
        while plan.tried.is_empty() || plan.deadline.is_none_or(|at| now() < at) {
            let slot = self.client.choose(&plan.tried)?;
            plan.tried.push(slot.at);
            let payload = Arc::clone(&plan.payload);
            let (options, deadline) = (&plan.options, plan.deadline);
            let (method, streams) = (plan.method, plan.streams);
            let client = self.client;
            let begun = client.begin_at(slot, method, payload, options, streams, deadline);
            match begun {
                Ok(call) => return Some(call),
                Err(status) => {
                    let fate = if matches!(status.code, Code::Unavailable | Code::Unauthenticated) {
                        Fate::Unsent
                    } else {
                        Fate::Replied
                    };
                    self.result = Err(status);
                    if fate == Fate::Replied {
                        return None;
                    }
                }
            }
        }
        None
    }

    /// Takes the end of an attempt. Returns whether it is that of the call.
    pub(super) fn is_over(&mut self, (fate, result): Ended) -> bool {
        let code = result.as_ref().err().map(|status| status.code);
        self.result = result;
        match (fate, code) {
            // No connection can be made, or none to the holder of the key.
            (
                Fate::Unsent,
                Some(Code::Unavailable | Code::Unauthenticated | Code::PermissionDenied),
            ) => false,
            // The instance goes away, or has too many calls.
            (Fate::Refused, Some(Code::Unavailable | Code::ResourceExhausted)) => false,
            (Fate::Lost, Some(Code::Unavailable)) => !self.plan.options.idempotent,
            _ => true,
        }
    }
}
