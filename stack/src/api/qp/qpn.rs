//! QPNs of connected queue pairs: 24 bits, unique in the process.
//!
//! QPNs that programs may exchange name a TCP port (`rfc-notes/rc-oob-connect.md`) and are chosen with it; all others are drawn here, from numbers
//! of ports that no system gives out by itself.

use std::collections::BTreeSet;
use std::ops::Range;

use parking_lot::Mutex;

/// QPNs below are UDP ports, and from 1024 × 256 on they may name TCP ports that the system chooses.
const DRAWN: Range<u32> = 1 << 16..1024 << 8;

/// QPNs in use in the process.
static TAKEN: Mutex<Taken> = Mutex::new(Taken {
    numbers: BTreeSet::new(),
    next: DRAWN.start,
});

#[derive(Debug)]
struct Taken {
    numbers: BTreeSet<u32>,
    /// Start of the search for a free one: a number is used again as late as possible.
    next: u32,
}

impl Taken {
    fn draw(&mut self) -> Option<u32> {
        for _ in DRAWN {
            let number = self.next;
            self.next = if number + 1 < DRAWN.end {
                number + 1
            } else {
                DRAWN.start
            };
            if self.numbers.insert(number) {
                return Some(number);
            }
        }
        None
    }
}

/// A QPN. Dropping it gives it back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Qpn(u32);

impl Qpn {
    /// Any that is free.
    pub(crate) fn draw() -> Option<Self> {
        let number = TAKEN.lock().draw();
        number.map(Self)
    }

    /// This one, if it is free.
    pub(crate) fn take(number: u32) -> Option<Self> {
        // Made only if it is taken: dropping one gives the number back.
        let free = TAKEN.lock().numbers.insert(number);
        free.then(|| Self(number))
    }

    pub(crate) fn get(&self) -> u32 {
        self.0
    }
}

impl Drop for Qpn {
    fn drop(&mut self) {
        TAKEN.lock().numbers.remove(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique_and_used_again_late() {
        let (first, second) = (Qpn::draw().unwrap(), Qpn::draw().unwrap());
        assert_ne!(first, second);
        assert!(DRAWN.contains(&first.get()) && DRAWN.contains(&second.get()));
        assert_eq!(Qpn::take(first.get()), None);
        let number = first.get();
        drop(first);
        assert_ne!(Qpn::draw().unwrap().get(), number);
        assert_eq!(Qpn::take(number).map(|it| it.get()), Some(number));
    }

    #[test]
    fn when_all_are_taken_there_is_none() {
        let mut taken = Taken {
            numbers: DRAWN.collect(),
            next: DRAWN.end - 1,
        };
        assert_eq!(taken.draw(), None);
        taken.numbers.remove(&DRAWN.start);
        assert_eq!(taken.draw(), Some(DRAWN.start));
    }
}
