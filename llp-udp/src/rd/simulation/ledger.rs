//! The oracle: what was posted, placed, delivered, completed, in terms of programs alone.

use std::collections::BTreeMap;

use super::Order;

/// Sender, receiver and stream.
type Ordered = ((usize, u16), (usize, u16), u16);

#[derive(Debug, Default, Clone)]
struct Entry {
    segments: Vec<u32>,
    delivered: u32,
    completed: u32,
    failed: u32,
}

/// State of all messages, by token: their position in the orders.
#[derive(Debug)]
pub(super) struct Ledger {
    orders: Vec<Order>,
    entries: Vec<Entry>,
    /// Of each pair of ends and stream, the latest delivered token.
    latest: BTreeMap<Ordered, u64>,
    undone: usize,
    /// Octets that were delivered from each end.
    delivered: BTreeMap<(usize, u16), u64>,
}

impl Ledger {
    pub(super) fn new(orders: &[Order]) -> Self {
        let entry = |order: &Order| Entry {
            segments: vec![0; usize::try_from(order.segments).unwrap()],
            ..Entry::default()
        };
        Self {
            entries: orders.iter().map(entry).collect(),
            orders: orders.to_vec(),
            latest: BTreeMap::new(),
            undone: orders.len(),
            delivered: BTreeMap::new(),
        }
    }

    fn at(token: u64) -> usize {
        usize::try_from(token).unwrap()
    }

    pub(super) fn order(&self, token: u64) -> Order {
        self.orders[Self::at(token)]
    }

    pub(super) fn placed(&mut self, token: u64, index: u32, length: usize, last: bool) {
        let order = self.orders[Self::at(token)];
        assert_eq!(last, index + 1 == order.segments, "last of {token}");
        let expected = if last {
            order.last_length
        } else {
            order.length
        };
        assert_eq!(length, usize::from(expected), "length in {token}");
        let count = &mut self.entries[Self::at(token)].segments[usize::try_from(index).unwrap()];
        *count += 1;
        assert_eq!(*count, 1, "segment {index} of {token} is placed once");
    }

    pub(super) fn delivered(&mut self, token: u64, stream: u16) {
        let order = self.orders[Self::at(token)];
        let entry = &mut self.entries[Self::at(token)];
        assert!(
            entry.segments.iter().all(|count| *count == 1),
            "{token} is delivered whole"
        );
        entry.delivered += 1;
        assert_eq!(entry.delivered, 1, "{token} is delivered once");
        if let Some(ordered) = order.stream {
            assert_eq!(ordered, stream);
            let before = self.latest.insert((order.from, order.to, stream), token);
            assert!(
                before < Some(token),
                "{token} behind {before:?} in {stream}"
            );
        }
        let octets =
            u64::from(order.segments - 1) * u64::from(order.length) + u64::from(order.last_length);
        *self.delivered.entry(order.from).or_default() += octets;
        if entry.completed == 1 {
            self.undone -= 1;
        }
    }

    pub(super) fn completed(&mut self, token: u64) {
        let entry = &mut self.entries[Self::at(token)];
        assert!(
            entry.segments.iter().all(|count| *count == 1),
            "{token} completes when it is placed"
        );
        entry.completed += 1;
        assert_eq!((entry.completed, entry.failed), (1, 0), "{token} ends once");
        if entry.delivered == 1 {
            self.undone -= 1;
        }
    }

    pub(super) fn failed(&mut self, token: u64) {
        let entry = &mut self.entries[Self::at(token)];
        entry.failed += 1;
        assert_eq!((entry.completed, entry.failed), (0, 1), "{token} ends once");
    }

    pub(super) fn is_done(&self) -> bool {
        self.undone == 0
    }

    /// Octets delivered from one end.
    pub(super) fn octets_from(&self, from: (usize, u16)) -> u64 {
        self.delivered.get(&from).copied().unwrap_or(0)
    }

    /// Tokens of messages that failed.
    pub(super) fn failures(&self) -> Vec<usize> {
        let failed = |(token, entry): (usize, &Entry)| (entry.failed == 1).then_some(token);
        self.entries.iter().enumerate().filter_map(failed).collect()
    }

    /// Text about the first messages that did not end.
    pub(super) fn missing(&self) -> String {
        let undone = self.entries.iter().enumerate();
        undone
            .filter(|(_, entry)| entry.delivered == 0 || entry.completed == 0)
            .take(3)
            .map(|(token, entry)| {
                let placed: u32 = entry.segments.iter().sum();
                let order = self.orders[token];
                let (delivered, completed) = (entry.delivered, entry.completed);
                format!("{token}: {placed} placed, {delivered} delivered, {completed} completed, {order:?}; ")
            })
            .collect()
    }
}
