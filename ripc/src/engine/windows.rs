//! Windows that a peer granted, and those granted to it (`rfc-notes/ripc.md`, "Short and long messages").

use std::collections::BTreeMap;

use crate::wire::message::{Body, Window, WireItem};

/// Windows of one peer that are not used, at most [`MOST`](Self::MOST).
#[derive(Debug, Default)]
pub(crate) struct Granted(Vec<Window>);

impl Granted {
    /// Windows kept; beyond, the oldest is forgotten.
    const MOST: usize = 256;

    pub(crate) fn add(&mut self, windows: &[Window]) {
        self.0.extend(windows);
        let excess = self.0.len().saturating_sub(Self::MOST);
        self.0.drain(..excess);
    }

    /// Takes the shortest window that has room.
    pub(crate) fn take(&mut self, length: u64) -> Option<Window> {
        let fitting = self.0.iter().enumerate();
        let fitting = fitting.filter(|(_, window)| window.length >= length);
        let (at, _) = fitting.min_by_key(|(_, window)| window.length)?;
        Some(self.0.remove(at))
    }
}

/// An item names a window that the peer does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadWindow {
    #[error("window {0} was not granted to this peer, or is used")]
    Unknown(u32),
    #[error("{length} octets in window {number} of {of}")]
    TooLong { number: u32, length: u64, of: u64 },
}

/// Windows that were granted on one connection. `M` is their memory.
#[derive(Debug)]
pub(crate) struct Own<M> {
    next: u32,
    open: BTreeMap<u32, OwnWindow<M>>,
}

#[derive(Debug)]
struct OwnWindow<M> {
    length: u64,
    /// Call that it is for; `None` for a MESSAGE of the peer.
    call: Option<u64>,
    memory: M,
}

impl<M> Own<M> {
    pub(crate) fn new() -> Self {
        Self {
            next: 1,
            open: BTreeMap::new(),
        }
    }

    /// Grants a window; returns its number.
    pub(crate) fn grant(&mut self, length: u64, call: Option<u64>, memory: M) -> u32 {
        let number = self.next;
        // After four thousand million windows numbers come again, long after their use.
        self.next = self.next.wrapping_add(1);
        let window = OwnWindow {
            length,
            call,
            memory,
        };
        self.open.insert(number, window);
        number
    }

    /// Whether an item may name the window, in a REPLY to `call` or in a MESSAGE.
    pub(crate) fn check(
        &self,
        number: u32,
        length: u64,
        call: Option<u64>,
    ) -> Result<(), BadWindow> {
        let window = self.open.get(&number).filter(|it| it.call == call);
        let of = window.ok_or(BadWindow::Unknown(number))?.length;
        if length > of {
            return Err(BadWindow::TooLong { number, length, of });
        }
        Ok(())
    }

    /// Takes a window that was used.
    pub(crate) fn take(&mut self, number: u32) -> Option<M> {
        self.open.remove(&number).map(|window| window.memory)
    }

    /// Withdraws the windows of a call.
    pub(crate) fn withdraw(&mut self, call: u64) -> Vec<M> {
        let of = |window: &OwnWindow<M>| window.call == Some(call);
        let numbers = self.open.iter().filter(|(_, window)| of(window));
        let numbers: Vec<_> = numbers.map(|(number, _)| *number).collect();
        let windows = numbers.into_iter().filter_map(|number| self.take(number));
        windows.collect()
    }
}

/// Checks each written item with a function of its window and length, and that none is named twice.
pub(crate) fn check_windows(
    body: &Body,
    check: impl Fn(u32, u64) -> Result<(), BadWindow>,
) -> Result<(), BadWindow> {
    let mut seen = Vec::new();
    for item in &body.items {
        if let WireItem::Written { window, length } = item {
            check(*window, *length)?;
            if seen.contains(window) {
                return Err(BadWindow::Unknown(*window));
            }
            seen.push(*window);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(number: u32, length: u64) -> Window {
        Window {
            number,
            key: 1,
            address: 2,
            length,
        }
    }

    #[test]
    fn the_shortest_window_that_fits_is_used_once() {
        let mut granted = Granted::default();
        granted.add(&[window(1, 100), window(2, 50), window(3, 70)]);
        let mut take = |length| granted.take(length).map(|window| window.number);
        assert_eq!(
            [60, 60, 60, 10].map(&mut take),
            [Some(3), Some(1), None, Some(2)]
        );
        for number in 0..1000 {
            granted.add(&[window(number, 1)]);
        }
        assert_eq!(granted.0.len(), Granted::MOST);
    }

    #[test]
    fn an_item_names_a_window_of_its_call() {
        let mut own = Own::new();
        let of_call = own.grant(100, Some(5), 'a');
        let of_messages = own.grant(100, None, 'b');
        assert_eq!(own.check(of_call, 100, Some(5)), Ok(()));
        assert!(own.check(of_call, 101, Some(5)).is_err());
        for wrong in [Some(6), None] {
            assert_eq!(
                own.check(of_call, 1, wrong),
                Err(BadWindow::Unknown(of_call))
            );
        }
        assert_eq!(own.check(of_messages, 100, None), Ok(()));
        assert_eq!(own.withdraw(5), ['a']);
        assert!(own.check(of_call, 1, Some(5)).is_err());
        assert_eq!(own.take(of_messages), Some('b'));
        assert_eq!(own.take(of_messages), None);
    }
}
