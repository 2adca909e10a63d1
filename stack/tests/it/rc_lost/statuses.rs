//! The statuses in which the work requests of one queue pair ended.

use dgiwarp::{Wc, WcOpcode, WcStatus};

#[derive(Debug, Default)]
pub(crate) struct Statuses {
    /// Of work requests of the send queue, in the order of their completions.
    pub(crate) sends: Vec<(u64, WcStatus)>,
    pub(crate) receives: Vec<(u64, WcStatus)>,
}

impl Statuses {
    pub(crate) fn push(&mut self, wc: Wc) {
        let queue = match wc.opcode {
            WcOpcode::Recv | WcOpcode::RecvRdmaWithImmediate => &mut self.receives,
            _ => &mut self.sends,
        };
        queue.push((wc.wr_id, wc.status));
    }

    /// First those that succeeded, then at most one that the connection was lost under, then those that were flushed; all in the order in which
    /// they were posted.
    #[track_caller]
    pub(crate) fn check_order(&self) {
        for queue in [&self.sends, &self.receives] {
            assert!(queue.is_sorted_by_key(|(wr_id, _)| *wr_id), "{self:?}");
            let rank = |status: WcStatus| match status {
                WcStatus::Success => 0,
                WcStatus::RetryExceeded => 1,
                WcStatus::Flushed => 2,
                other => panic!("{other}: {self:?}"),
            };
            assert!(
                queue.is_sorted_by_key(|(_, status)| rank(*status)),
                "{self:?}"
            );
        }
        let lost = |(_, status): &&(u64, WcStatus)| *status == WcStatus::RetryExceeded;
        assert!(self.sends.iter().filter(lost).count() <= 1, "{self:?}");
        assert_eq!(self.receives.iter().filter(lost).count(), 0, "{self:?}");
    }

    /// [`check_order`](Self::check_order), and the connection was lost under one of them.
    #[track_caller]
    pub(crate) fn check_lost(&self) {
        self.check_order();
        let first = self
            .sends
            .iter()
            .find(|(_, status)| *status != WcStatus::Success);
        let first = first.map(|(_, status)| *status);
        assert_eq!(first, Some(WcStatus::RetryExceeded), "{self:?}");
    }

    #[track_caller]
    pub(crate) fn check_all_flushed(&self) {
        let mut all = self.sends.iter().chain(&self.receives);
        assert!(
            all.all(|(_, status)| *status == WcStatus::Flushed),
            "{self:?}"
        );
    }

    #[track_caller]
    pub(crate) fn check_all_succeeded(&self) {
        let mut all = self.sends.iter().chain(&self.receives);
        assert!(
            all.all(|(_, status)| *status == WcStatus::Success),
            "{self:?}"
        );
    }
}
