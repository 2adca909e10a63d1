//! XRC: shared receive queues of a domain, which the peer of a connected queue pair names by number (rfc-notes/rc-extensions.md).
//!
//! An *initiator* queue pair only sends, and names a shared receive queue with each work request. A *target* queue pair only receives: the
//! named queue of its domain has the receives, the protection domain of all memory, and the completion queue.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::RwLock;

use crate::recv_queue::RecvQueue;

/// A domain: its shared receive queues by number.
#[derive(Debug, Default)]
pub struct XrcDomain {
    queues: RwLock<HashMap<u32, Weak<RecvQueue>>>,
}

impl XrcDomain {
    /// Adds a queue, which the domain does not keep alive.
    pub fn enter(&self, number: u32, queue: &Arc<RecvQueue>) {
        self.queues.write().insert(number, Arc::downgrade(queue));
    }

    /// Removes a queue.
    pub fn leave(&self, number: u32) {
        self.queues.write().remove(&number);
    }

    fn find(&self, number: u32) -> Option<Arc<RecvQueue>> {
        self.queues.read().get(&number)?.upgrade()
    }
}

/// Role of a connected queue pair.
#[derive(Debug, Clone, Default)]
pub enum XrcRole {
    /// Any but the others: it sends and receives.
    #[default]
    None,
    /// XRC initiator.
    Initiator,
    /// XRC target, of this domain.
    Target(Arc<XrcDomain>),
}

/// State of a connection in this respect.
#[derive(Debug, Default)]
pub(crate) enum Xrc {
    #[default]
    None,
    Initiator {
        /// Number in the last notice.
        named: Option<u32>,
    },
    Target {
        domain: Arc<XrcDomain>,
        /// The queue that the last notice named.
        selected: Weak<RecvQueue>,
    },
}

impl From<XrcRole> for Xrc {
    fn from(role: XrcRole) -> Self {
        match role {
            XrcRole::None => Self::None,
            XrcRole::Initiator => Self::Initiator { named: None },
            XrcRole::Target(domain) => Self::Target {
                domain,
                selected: Weak::new(),
            },
        }
    }
}

impl Xrc {
    pub(crate) const fn is_initiator(&self) -> bool {
        matches!(self, Self::Initiator { .. })
    }

    /// Whether a request for this queue needs a notice before it.
    #[inline]
    pub(crate) fn needs_notice(&self, number: u32) -> bool {
        match self {
            Self::Initiator { named } => *named != Some(number),
            Self::None | Self::Target { .. } => false,
        }
    }

    /// The notice has left.
    pub(crate) fn name(&mut self, number: u32) {
        if let Self::Initiator { named } = self {
            *named = Some(number);
        }
    }

    /// A notice has come. Returns the queue that it names; `None` if there is none.
    pub(crate) fn select(&mut self, number: u32) -> Option<Arc<RecvQueue>> {
        let Self::Target { domain, selected } = self else {
            return None;
        };
        let queue = domain.find(number)?;
        *selected = Arc::downgrade(&queue);
        Some(queue)
    }

    /// The queue of a target's messages.
    #[inline]
    pub(crate) fn selected(&self) -> Option<Arc<RecvQueue>> {
        match self {
            Self::None | Self::Initiator { .. } => None,
            Self::Target { selected, .. } => selected.upgrade(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mr::PdId;

    #[test]
    fn a_target_finds_the_queues_of_its_domain_while_they_exist() {
        let domain = Arc::new(XrcDomain::default());
        let queue = Arc::new(RecvQueue::shared(4, 1, 7, PdId(1)));
        domain.enter(7, &queue);
        let mut target = Xrc::from(XrcRole::Target(Arc::clone(&domain)));
        assert!(target.selected().is_none());
        assert!(target.select(8).is_none() && target.selected().is_none());
        assert!(target.select(7).is_some_and(|it| Arc::ptr_eq(&it, &queue)));
        assert!(target.selected().is_some());
        domain.leave(7);
        assert!(target.select(7).is_none());
        assert!(target.selected().is_some(), "messages on their way");
        drop(queue);
        assert!(target.selected().is_none());
        let mut other = Xrc::from(XrcRole::Initiator);
        assert!(other.select(7).is_none() && other.selected().is_none());
    }

    #[test]
    fn an_initiator_names_a_queue_once() {
        let mut initiator = Xrc::from(XrcRole::Initiator);
        assert!(initiator.needs_notice(0));
        initiator.name(0);
        assert!(!initiator.needs_notice(0) && initiator.needs_notice(1));
        assert!(!Xrc::from(XrcRole::None).needs_notice(1));
    }
}
