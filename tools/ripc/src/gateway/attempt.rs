//! Values that many calls share, and that one of them makes.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;
use tonic::Status;

/// A value that is made when a call needs it. Calls that come while one makes it wait, and have its result, or its failure.
#[derive(Debug)]
pub(crate) struct Attempt<T> {
    result: Mutex<Result<T, Status>>,
    /// Attempts that have ended.
    ended: AtomicU64,
}

impl<T> Default for Attempt<T> {
    fn default() -> Self {
        Self {
            result: Mutex::new(Err(Status::unavailable("there was no attempt"))),
            ended: AtomicU64::new(0),
        }
    }
}

impl<T: Clone> Attempt<T> {
    /// With a value that is made.
    pub(crate) fn made(value: T) -> Self {
        Self {
            result: Mutex::new(Ok(value)),
            ..Self::default()
        }
    }

    /// The value, which is made where there is none that is `good`.
    pub(crate) async fn get(
        &self,
        good: impl Fn(&T) -> bool,
        make: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let ended = self.ended.load(Ordering::Acquire);
        let mut result = self.result.lock().await;
        match &*result {
            Ok(value) if good(value) => return Ok(value.clone()),
            Err(status) if self.ended.load(Ordering::Acquire) > ended => {
                return Err(status.clone());
            }
            Ok(_) | Err(_) => {}
        }
        *result = make.await;
        self.ended.fetch_add(1, Ordering::AcqRel);
        result.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn calls_that_wait_share_a_failure() {
        let attempt = Attempt::<u8>::default();
        let made = AtomicU64::new(0);
        let get = |result: Result<u8, Status>| {
            attempt.get(|_| true, async {
                made.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                result
            })
        };
        let failed = || Err(Status::unavailable("not there"));
        let (one, two) = tokio::join!(get(failed()), get(failed()));
        assert!(one.is_err() && two.is_err());
        assert_eq!(made.load(Ordering::SeqCst), 1);
        // A later one tries again, and its value stays.
        assert_eq!(get(Ok(7)).await.unwrap(), 7);
        assert_eq!(get(failed()).await.unwrap(), 7);
        assert_eq!(made.load(Ordering::SeqCst), 2);
        let other = attempt.get(|it| *it != 7, async { Ok(8) }).await;
        assert_eq!(other.unwrap(), 8);
    }
}
