//! `dgiwarpdv_wait_cq`: waiting for completions without a channel.

use crate::abi::{Milliseconds, ibv_cq, ibv_wc};
use crate::cq::queue::{Cq, completed, poll_cq};
use crate::ffi::{Object, minus_one, poll};
use nix::errno::Errno;
use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest sleep between two checks for cancellation.
const NAP: Duration = Duration::from_millis(100);

/// Sleeps until a completion is possible, at most `time`; `EINTR` if a signal handler ran.
///
/// # Safety
/// `cq` is NULL or a live completion queue.
unsafe fn nap(cq: *mut ibv_cq, time: Duration) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's contract.
        let state: &Arc<Cq> = unsafe { Object::<Arc<Cq>>::state(cq.cast()) }?;
        if state.cq.sleep(time) {
            Ok(0)
        } else {
            Err(Errno::EINTR)
        }
    })
}

pub(super) unsafe extern "C-unwind" fn dgiwarpdv_wait_cq(
    cq: *mut ibv_cq,
    timeout: Milliseconds,
    entries: c_int,
    out: *mut ibv_wc,
) -> c_int {
    if entries < 1 || out.is_null() {
        Errno::EINVAL.set();
        return -1;
    }
    let limit = u64::try_from(timeout).map(Duration::from_millis).ok();
    let began = now();
    loop {
        // SAFETY: the program passes a live completion queue, and room for the completions.
        let found = unsafe { poll_cq(cq, entries, out) };
        if found > 0 {
            // SAFETY: the completions are those of a live completion queue.
            unsafe { completed(cq) };
        }
        if found != 0 {
            return found;
        }
        let left = limit.map_or(NAP, |limit| limit.saturating_sub(began.elapsed()));
        if left.is_zero() {
            return 0;
        }
        // A cancellation unwinds from here: the caller has no destructors.
        poll(&mut [], 0);
        // SAFETY: a live completion queue.
        if unsafe { nap(cq, left.min(NAP)) } < 0 {
            return -1;
        }
    }
}

/// The only use of the clock in this module.
fn now() -> Instant {
    #[expect(
        clippy::disallowed_methods,
        reason = "a wait for the program's thread ends by the real clock"
    )]
    Instant::now()
}
