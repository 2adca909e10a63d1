//! The states of an unreliable datagram queue pair, and which attributes each transition needs and takes
//! (`ibv_modify_qp(3)`; the table is the InfiniBand specification's, volume 1, table 91).

use crate::abi::{
    IBV_QP_CUR_STATE, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY, IBV_QP_SQ_PSN, IBV_QP_STATE,
    ibv_qp_attr,
};
use nix::errno::Errno;
use std::ffi::{c_int, c_uint};

/// `enum ibv_qp_state`, as far as a queue pair here can be in it: the send queue is never drained on demand (SQD) and
/// never fails alone (SQE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QpState {
    Reset,
    Init,
    ReadyToReceive,
    ReadyToSend,
    Error,
}

/// `IBV_QPS_SQD`.
const SQD: c_uint = 4;

impl QpState {
    /// The value of `enum ibv_qp_state`.
    pub(crate) fn code(self) -> c_uint {
        match self {
            Self::Reset => 0,
            Self::Init => 1,
            Self::ReadyToReceive => 2,
            Self::ReadyToSend => 3,
            Self::Error => 6,
        }
    }

    /// The state that a program names; draining is known and not supported.
    pub(crate) fn from_code(code: c_uint) -> Result<Self, Errno> {
        const ALL: [QpState; 5] = [
            QpState::Reset,
            QpState::Init,
            QpState::ReadyToReceive,
            QpState::ReadyToSend,
            QpState::Error,
        ];
        if code == SQD {
            return Err(Errno::EOPNOTSUPP);
        }
        ALL.into_iter()
            .find(|state| state.code() == code)
            .ok_or(Errno::EINVAL)
    }
}

/// What a program can change and query of a datagram queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) state: QpState,
    pub(crate) qkey: u32,
    pub(crate) sq_psn: u32,
    pub(crate) port: u8,
    pub(crate) pkey_index: u16,
}

impl Attributes {
    /// A new or reset queue pair.
    pub(crate) const RESET: Self = Self {
        state: QpState::Reset,
        qkey: 0,
        sq_psn: 0,
        port: 0,
        pkey_index: 0,
    };

    /// The attributes after `ibv_modify_qp`, or `EINVAL` with nothing changed.
    pub(crate) fn modified(self, attr: &ibv_qp_attr, mask: c_int) -> Result<Self, Errno> {
        let has = |flag: c_int| mask & flag != 0;
        let current = if has(IBV_QP_CUR_STATE) {
            QpState::from_code(attr.cur_qp_state)?
        } else {
            self.state
        };
        let next = if has(IBV_QP_STATE) {
            QpState::from_code(attr.qp_state)?
        } else {
            self.state
        };
        let (required, optional) = transition(current, next).ok_or(Errno::EINVAL)?;
        let given = mask & !IBV_QP_STATE;
        if current != self.state
            || given & required != required
            || given & !(required | optional) != 0
        {
            return Err(Errno::EINVAL);
        }
        let mut after = if next == QpState::Reset {
            Self::RESET
        } else {
            self
        };
        after.state = next;
        if has(IBV_QP_PORT) {
            after.port = (attr.port_num == 1).then_some(1).ok_or(Errno::EINVAL)?;
        }
        if has(IBV_QP_PKEY_INDEX) {
            after.pkey_index = (attr.pkey_index == 0).then_some(0).ok_or(Errno::EINVAL)?;
        }
        if has(IBV_QP_QKEY) {
            after.qkey = attr.qkey;
        }
        if has(IBV_QP_SQ_PSN) {
            after.sq_psn = attr.sq_psn & 0x00ff_ffff;
        }
        Ok(after)
    }
}

/// Attributes that a transition requires and those that it also takes; `None` if there is no such transition.
fn transition(from: QpState, to: QpState) -> Option<(c_int, c_int)> {
    const ADDRESSING: c_int = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    match (from, to) {
        (_, QpState::Reset | QpState::Error) => Some((0, IBV_QP_CUR_STATE)),
        (QpState::Reset, QpState::Init) => Some((ADDRESSING, 0)),
        (QpState::Init, QpState::Init) => Some((0, ADDRESSING)),
        (QpState::Init, QpState::ReadyToReceive) => Some((0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY)),
        (QpState::ReadyToReceive, QpState::ReadyToSend) => {
            Some((IBV_QP_SQ_PSN, IBV_QP_CUR_STATE | IBV_QP_QKEY))
        }
        (QpState::ReadyToSend, QpState::ReadyToSend) => Some((0, IBV_QP_CUR_STATE | IBV_QP_QKEY)),
        (QpState::Reset, QpState::ReadyToReceive | QpState::ReadyToSend)
        | (QpState::Init, QpState::ReadyToSend)
        | (QpState::ReadyToReceive, QpState::Init | QpState::ReadyToReceive)
        | (QpState::ReadyToSend, QpState::Init | QpState::ReadyToReceive)
        | (QpState::Error, QpState::Init | QpState::ReadyToReceive | QpState::ReadyToSend) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(state: QpState) -> ibv_qp_attr {
        ibv_qp_attr {
            qp_state: state.code(),
            port_num: 1,
            qkey: 0x1111_1111,
            sq_psn: 7,
            ..ibv_qp_attr::default()
        }
    }

    const TO_INIT: c_int = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;

    fn ready() -> Attributes {
        let init = Attributes::RESET
            .modified(&attr(QpState::Init), TO_INIT)
            .unwrap();
        let rtr = init
            .modified(&attr(QpState::ReadyToReceive), IBV_QP_STATE)
            .unwrap();
        rtr.modified(&attr(QpState::ReadyToSend), IBV_QP_STATE | IBV_QP_SQ_PSN)
            .unwrap()
    }

    #[test]
    fn the_usual_way_up_keeps_what_was_set() {
        let expected = Attributes {
            state: QpState::ReadyToSend,
            qkey: 0x1111_1111,
            sq_psn: 7,
            port: 1,
            pkey_index: 0,
        };
        assert_eq!(ready(), expected);
        assert_eq!(
            ready()
                .modified(&attr(QpState::Reset), IBV_QP_STATE)
                .unwrap(),
            Attributes::RESET
        );
    }

    #[test]
    fn steps_cannot_be_left_out() {
        for state in [QpState::ReadyToReceive, QpState::ReadyToSend] {
            assert_eq!(
                Attributes::RESET.modified(&attr(state), IBV_QP_STATE),
                Err(Errno::EINVAL)
            );
        }
        let error = ready()
            .modified(&attr(QpState::Error), IBV_QP_STATE)
            .unwrap();
        assert_eq!(
            error.modified(&attr(QpState::ReadyToSend), IBV_QP_STATE | IBV_QP_SQ_PSN),
            Err(Errno::EINVAL)
        );
    }

    #[test]
    fn required_attributes_must_be_there_and_others_must_not() {
        for missing in [IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY] {
            assert_eq!(
                Attributes::RESET.modified(&attr(QpState::Init), TO_INIT & !missing),
                Err(Errno::EINVAL)
            );
        }
        let mask = TO_INIT | IBV_QP_SQ_PSN;
        assert_eq!(
            Attributes::RESET.modified(&attr(QpState::Init), mask),
            Err(Errno::EINVAL)
        );
    }

    #[test]
    fn a_wrong_current_state_or_port_changes_nothing() {
        let mut wrong = attr(QpState::ReadyToSend);
        wrong.cur_qp_state = QpState::Init.code();
        assert_eq!(
            ready().modified(&wrong, IBV_QP_STATE | IBV_QP_CUR_STATE),
            Err(Errno::EINVAL)
        );
        let mut wrong = attr(QpState::Init);
        wrong.port_num = 2;
        assert_eq!(
            Attributes::RESET.modified(&wrong, TO_INIT),
            Err(Errno::EINVAL)
        );
        assert_eq!(QpState::from_code(SQD), Err(Errno::EOPNOTSUPP));
    }
}
