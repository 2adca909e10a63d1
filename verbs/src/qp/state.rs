//! QP states, and the required and optional attributes of each transition (`ibv_modify_qp(3)`; InfiniBand specification
//! volume 1, table 91).

use crate::abi::{
    IBV_QP_ACCESS_FLAGS, IBV_QP_ALT_PATH, IBV_QP_AV, IBV_QP_CUR_STATE, IBV_QP_DEST_QPN,
    IBV_QP_EN_SQD_ASYNC_NOTIFY, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC,
    IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MIG_STATE, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT,
    IBV_QP_QKEY, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE,
    IBV_QP_TIMEOUT, IBV_QPT_DRIVER, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV,
    IBV_QPT_XRC_SEND, ibv_ah_attr, ibv_qp_attr,
};
use crate::device::limits::MAX_RD_ATOMIC;
use nix::errno::Errno;
use std::ffi::{c_int, c_uint};
use std::time::Duration;

/// `enum ibv_qp_state`, without SQE: the send queue never fails alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QpState {
    Reset,
    Init,
    ReadyToReceive,
    ReadyToSend,
    SendQueueDrained,
    Error,
}

impl QpState {
    /// The value of `enum ibv_qp_state`.
    pub(crate) fn code(self) -> c_uint {
        match self {
            Self::Reset => 0,
            Self::Init => 1,
            Self::ReadyToReceive => 2,
            Self::ReadyToSend => 3,
            Self::SendQueueDrained => 4,
            Self::Error => 6,
        }
    }

    /// The state of a value.
    #[inline]
    pub(crate) fn from_code(code: c_uint) -> Result<Self, Errno> {
        Ok(match code {
            0 => Self::Reset,
            1 => Self::Init,
            2 => Self::ReadyToReceive,
            3 => Self::ReadyToSend,
            4 => Self::SendQueueDrained,
            6 => Self::Error,
            _ => return Err(Errno::EINVAL),
        })
    }

    /// Whether messages of peers are taken.
    pub(crate) fn receives(self) -> bool {
        matches!(
            self,
            Self::ReadyToReceive | Self::ReadyToSend | Self::SendQueueDrained
        )
    }

    /// Whether send work requests may be posted: in the error state they are flushed.
    pub(crate) fn takes_sends(self) -> bool {
        matches!(
            self,
            Self::ReadyToSend | Self::SendQueueDrained | Self::Error
        )
    }
}

/// Transport service, which selects the table of transitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    UnreliableDatagram,
    UnreliableConnected,
    /// `IBV_QPT_DRIVER`; only `dgiwarpdv_create_qp` makes it.
    ReliableDatagram,
    ReliableConnected,
    /// Initiator of XRC.
    XrcInitiator,
    /// Target of XRC.
    XrcTarget,
}

impl Service {
    /// The service of a `qp_type`; unsupported ones are `EOPNOTSUPP`.
    pub(crate) fn of(qp_type: c_uint) -> Result<Self, Errno> {
        match qp_type {
            IBV_QPT_UD => Ok(Self::UnreliableDatagram),
            IBV_QPT_UC => Ok(Self::UnreliableConnected),
            IBV_QPT_RC => Ok(Self::ReliableConnected),
            IBV_QPT_XRC_SEND => Ok(Self::XrcInitiator),
            IBV_QPT_XRC_RECV => Ok(Self::XrcTarget),
            IBV_QPT_DRIVER => Ok(Self::ReliableDatagram),
            _ => {
                // Programs often report that creation failed without the reason.
                tracing::debug!(qp_type, "refused: queue pairs are RC, UC, UD or XRC");
                Err(Errno::EOPNOTSUPP)
            }
        }
    }
}

impl Service {
    /// Whether work requests complete when they are carried out at the peer.
    pub(crate) fn is_reliable(self) -> bool {
        match self {
            Self::UnreliableDatagram | Self::UnreliableConnected => false,
            Self::ReliableDatagram
            | Self::ReliableConnected
            | Self::XrcInitiator
            | Self::XrcTarget => true,
        }
    }
}

/// Attributes of reliable queue pairs, in the units of `ibv_modify_qp(3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reliable {
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
}

impl Reliable {
    const NONE: Self = Self {
        timeout: 0,
        retry_cnt: 0,
        rnr_retry: 0,
        min_rnr_timer: 0,
        max_rd_atomic: 0,
        max_dest_rd_atomic: 0,
    };

    fn take(&mut self, attr: &ibv_qp_attr, mask: c_int) -> Result<(), Errno> {
        for (flag, field, value, max) in [
            (IBV_QP_TIMEOUT, &mut self.timeout, attr.timeout, 31),
            (IBV_QP_RETRY_CNT, &mut self.retry_cnt, attr.retry_cnt, 7),
            (IBV_QP_RNR_RETRY, &mut self.rnr_retry, attr.rnr_retry, 7),
            (
                IBV_QP_MIN_RNR_TIMER,
                &mut self.min_rnr_timer,
                attr.min_rnr_timer,
                31,
            ),
            (
                IBV_QP_MAX_QP_RD_ATOMIC,
                &mut self.max_rd_atomic,
                attr.max_rd_atomic,
                MAX_RD_ATOMIC,
            ),
            (
                IBV_QP_MAX_DEST_RD_ATOMIC,
                &mut self.max_dest_rd_atomic,
                attr.max_dest_rd_atomic,
                MAX_RD_ATOMIC,
            ),
        ] {
            if mask & flag != 0 {
                *field = (value <= max).then_some(value).ok_or(Errno::EINVAL)?;
            }
        }
        Ok(())
    }

    /// RNR retries of own messages, if `rnr_retry` limits them; 7 does not.
    pub(crate) fn rnr_retries(&self) -> Option<u8> {
        (self.rnr_retry < 7).then_some(self.rnr_retry)
    }

    /// Time that `min_rnr_timer` stands for (InfiniBand specification volume 1, §9.7.5.2.8).
    pub(crate) fn rnr_timer(&self) -> Duration {
        const UNIT: Duration = Duration::from_micros(10);
        const UNITS: [u32; 32] = [
            65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768,
            1024, 1536, 2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
        ];
        UNIT * UNITS[usize::from(self.min_rnr_timer & 31)]
    }

    /// Longest wait of work requests for the peer: the time-out times the retry count, and at least the time to
    /// connect. `None` is no limit.
    pub(crate) fn retry_time(&self) -> Option<Duration> {
        const UNIT: Duration = Duration::from_nanos(4096);
        const LEAST: Duration = Duration::from_secs(3);
        (self.timeout > 0).then(|| {
            let once = UNIT.saturating_mul(1 << self.timeout.min(31));
            once.saturating_mul(self.retry_cnt.into()).max(LEAST)
        })
    }
}

/// Attributes of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) state: QpState,
    pub(crate) qkey: u32,
    pub(crate) sq_psn: u32,
    pub(crate) port: u8,
    pub(crate) pkey_index: u16,
    pub(crate) rq_psn: u32,
    pub(crate) dest_qpn: u32,
    pub(crate) path_mtu: c_uint,
    pub(crate) access_flags: c_uint,
    pub(crate) reliable: Reliable,
    /// Address of the peer.
    pub(crate) av: ibv_ah_attr,
}

/// Address of no peer.
// SAFETY: a struct of integers, for which zero is a valid value.
const NOWHERE: ibv_ah_attr = unsafe { std::mem::zeroed() };

impl Attributes {
    /// Attributes of a new or reset queue pair.
    pub(crate) const RESET: Self = Self {
        state: QpState::Reset,
        qkey: 0,
        sq_psn: 0,
        port: 0,
        pkey_index: 0,
        rq_psn: 0,
        dest_qpn: 0,
        path_mtu: 0,
        access_flags: 0,
        reliable: Reliable::NONE,
        av: NOWHERE,
    };

    /// The attributes after `ibv_modify_qp`, or `EINVAL` with nothing changed.
    pub(crate) fn modified(
        self,
        service: Service,
        attr: &ibv_qp_attr,
        mask: c_int,
    ) -> Result<Self, Errno> {
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
        let (required, optional) = transition(service, current, next).ok_or(Errno::EINVAL)?;
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
        after.take(attr, mask)?;
        if current == QpState::SendQueueDrained && !after.has_peer_of(&self) {
            return Err(Errno::EINVAL);
        }
        Ok(after)
    }

    /// Whether the peer has the address that it has in `other`: a connection stays where it is.
    fn has_peer_of(&self, other: &Self) -> bool {
        let address = |av: &ibv_ah_attr| (av.grh.dgid, av.is_global, av.dlid);
        self.state == QpState::Reset || address(&self.av) == address(&other.av)
    }

    fn take(&mut self, attr: &ibv_qp_attr, mask: c_int) -> Result<(), Errno> {
        let after = self;
        let has = |flag: c_int| mask & flag != 0;
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
        if has(IBV_QP_RQ_PSN) {
            after.rq_psn = attr.rq_psn & 0x00ff_ffff;
        }
        if has(IBV_QP_DEST_QPN) {
            after.dest_qpn = attr.dest_qp_num & 0x00ff_ffff;
        }
        if has(IBV_QP_PATH_MTU) {
            // enum ibv_mtu: 256 to 4096. Reported only: segments follow the path MTU.
            after.path_mtu = (1..=5)
                .contains(&attr.path_mtu)
                .then_some(attr.path_mtu)
                .ok_or(Errno::EINVAL)?;
        }
        if has(IBV_QP_AV) {
            after.av = attr.ah_attr;
        }
        after.reliable.take(attr, mask)?;
        if has(IBV_QP_ACCESS_FLAGS) {
            after.access_flags = attr.qp_access_flags;
        }
        Ok(())
    }
}

/// Required and optional attributes of a transition; `None` if it does not exist.
fn transition(service: Service, from: QpState, to: QpState) -> Option<(c_int, c_int)> {
    match (from, to) {
        (_, QpState::Reset | QpState::Error) => Some((0, IBV_QP_CUR_STATE)),
        (QpState::Reset, QpState::ReadyToReceive | QpState::ReadyToSend)
        | (QpState::Init, QpState::ReadyToSend)
        | (
            QpState::Reset | QpState::Init | QpState::ReadyToReceive | QpState::Error,
            QpState::SendQueueDrained,
        )
        | (QpState::SendQueueDrained, QpState::Init | QpState::ReadyToReceive)
        | (QpState::ReadyToReceive, QpState::Init | QpState::ReadyToReceive)
        | (QpState::ReadyToSend, QpState::Init | QpState::ReadyToReceive)
        | (QpState::Error, QpState::Init | QpState::ReadyToReceive | QpState::ReadyToSend) => None,
        (QpState::Reset | QpState::Init, QpState::Init)
        | (QpState::Init, QpState::ReadyToReceive)
        | (
            QpState::ReadyToReceive | QpState::ReadyToSend | QpState::SendQueueDrained,
            QpState::ReadyToSend,
        ) => Some(match service {
            Service::UnreliableDatagram => datagram_step(from, to),
            Service::ReliableDatagram => reliable_datagram_step(from, to),
            Service::UnreliableConnected => connected_step(from, to),
            Service::ReliableConnected => reliable_step(from, to),
            Service::XrcInitiator | Service::XrcTarget => xrc_step(from, to),
        }),
        (QpState::ReadyToSend, QpState::SendQueueDrained) => Some((0, IBV_QP_EN_SQD_ASYNC_NOTIFY)),
        (QpState::SendQueueDrained, QpState::SendQueueDrained) => {
            Some((0, changed_in_drain(service)))
        }
    }
}

/// Attributes that may change while the send queue is drained.
fn changed_in_drain(service: Service) -> c_int {
    const CONNECTED: c_int = IBV_QP_AV
        | IBV_QP_ALT_PATH
        | IBV_QP_ACCESS_FLAGS
        | IBV_QP_PKEY_INDEX
        | IBV_QP_PATH_MIG_STATE;
    const RELIABLE: c_int = CONNECTED
        | IBV_QP_PORT
        | IBV_QP_TIMEOUT
        | IBV_QP_RETRY_CNT
        | IBV_QP_RNR_RETRY
        | IBV_QP_MAX_QP_RD_ATOMIC
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER;
    match service {
        Service::UnreliableDatagram | Service::ReliableDatagram => IBV_QP_PKEY_INDEX | IBV_QP_QKEY,
        Service::UnreliableConnected => CONNECTED,
        Service::ReliableConnected | Service::XrcInitiator | Service::XrcTarget => RELIABLE,
    }
}

/// Attributes of datagram queue pairs.
fn datagram_step(from: QpState, to: QpState) -> (c_int, c_int) {
    const ADDRESSING: c_int = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    match (from, to) {
        (QpState::Reset, _) => (ADDRESSING, 0),
        (QpState::Init, QpState::ReadyToReceive) => (0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY),
        (QpState::Init, _) => (0, ADDRESSING),
        (QpState::ReadyToReceive, _) => (IBV_QP_SQ_PSN, IBV_QP_CUR_STATE | IBV_QP_QKEY),
        (QpState::ReadyToSend | QpState::SendQueueDrained | QpState::Error, _) => {
            (0, IBV_QP_CUR_STATE | IBV_QP_QKEY)
        }
    }
}

/// Attributes of reliable datagram queue pairs: those of datagram ones, and the RNR retries with RTS, as devices with SRD have it.
fn reliable_datagram_step(from: QpState, to: QpState) -> (c_int, c_int) {
    let (required, optional) = datagram_step(from, to);
    match from {
        QpState::ReadyToReceive => (required, optional | IBV_QP_RNR_RETRY),
        QpState::Reset
        | QpState::Init
        | QpState::ReadyToSend
        | QpState::SendQueueDrained
        | QpState::Error => (required, optional),
    }
}

/// Attributes of unreliable connected queue pairs. Alternate paths are accepted without effect: the device has one
/// port.
fn connected_step(from: QpState, to: QpState) -> (c_int, c_int) {
    const START: c_int = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    const PEER: c_int = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    const RUNNING: c_int =
        IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE;
    match (from, to) {
        (QpState::Reset, _) => (START, 0),
        (QpState::Init, QpState::ReadyToReceive) => (
            PEER,
            IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX,
        ),
        (QpState::Init, _) => (0, START),
        (QpState::ReadyToReceive, _) => (IBV_QP_SQ_PSN, RUNNING),
        (QpState::ReadyToSend | QpState::SendQueueDrained | QpState::Error, _) => (0, RUNNING),
    }
}

/// Attributes of reliable connected queue pairs.
fn reliable_step(from: QpState, to: QpState) -> (c_int, c_int) {
    let (required, optional) = connected_step(from, to);
    match (from, to) {
        (QpState::Init, QpState::ReadyToReceive) => (
            required | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
            optional,
        ),
        (QpState::ReadyToReceive, _) => (
            required
                | IBV_QP_TIMEOUT
                | IBV_QP_RETRY_CNT
                | IBV_QP_RNR_RETRY
                | IBV_QP_MAX_QP_RD_ATOMIC,
            optional | IBV_QP_MIN_RNR_TIMER,
        ),
        (QpState::ReadyToSend | QpState::SendQueueDrained, _) => {
            (required, optional | IBV_QP_MIN_RNR_TIMER)
        }
        (QpState::Reset | QpState::Init | QpState::Error, _) => (required, optional),
    }
}

/// Attributes of XRC queue pairs: those of the direction that one has not may be there all the same, since programs name all.
fn xrc_step(from: QpState, to: QpState) -> (c_int, c_int) {
    let (required, optional) = connected_step(from, to);
    let (reliable, also) = reliable_step(from, to);
    (required, optional | also | reliable)
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

    const UD: Service = Service::UnreliableDatagram;
    const TO_INIT: c_int = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;

    fn ready() -> Attributes {
        let init = Attributes::RESET
            .modified(UD, &attr(QpState::Init), TO_INIT)
            .unwrap();
        let rtr = init
            .modified(UD, &attr(QpState::ReadyToReceive), IBV_QP_STATE)
            .unwrap();
        rtr.modified(
            UD,
            &attr(QpState::ReadyToSend),
            IBV_QP_STATE | IBV_QP_SQ_PSN,
        )
        .unwrap()
    }

    #[test]
    fn the_usual_way_up_keeps_what_was_set() {
        let expected = Attributes {
            state: QpState::ReadyToSend,
            qkey: 0x1111_1111,
            sq_psn: 7,
            port: 1,
            ..Attributes::RESET
        };
        assert_eq!(ready(), expected);
        assert_eq!(
            ready()
                .modified(UD, &attr(QpState::Reset), IBV_QP_STATE)
                .unwrap(),
            Attributes::RESET
        );
    }

    #[test]
    fn steps_cannot_be_left_out() {
        for state in [QpState::ReadyToReceive, QpState::ReadyToSend] {
            assert_eq!(
                Attributes::RESET.modified(UD, &attr(state), IBV_QP_STATE),
                Err(Errno::EINVAL)
            );
        }
        let error = ready()
            .modified(UD, &attr(QpState::Error), IBV_QP_STATE)
            .unwrap();
        assert_eq!(
            error.modified(
                UD,
                &attr(QpState::ReadyToSend),
                IBV_QP_STATE | IBV_QP_SQ_PSN
            ),
            Err(Errno::EINVAL)
        );
    }

    #[test]
    fn required_attributes_must_be_there_and_others_must_not() {
        for missing in [IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY] {
            assert_eq!(
                Attributes::RESET.modified(UD, &attr(QpState::Init), TO_INIT & !missing),
                Err(Errno::EINVAL)
            );
        }
        let mask = TO_INIT | IBV_QP_SQ_PSN;
        assert_eq!(
            Attributes::RESET.modified(UD, &attr(QpState::Init), mask),
            Err(Errno::EINVAL)
        );
    }

    #[test]
    fn a_wrong_current_state_or_port_changes_nothing() {
        let mut wrong = attr(QpState::ReadyToSend);
        wrong.cur_qp_state = QpState::Init.code();
        assert_eq!(
            ready().modified(UD, &wrong, IBV_QP_STATE | IBV_QP_CUR_STATE),
            Err(Errno::EINVAL)
        );
        let mut wrong = attr(QpState::Init);
        wrong.port_num = 2;
        assert_eq!(
            Attributes::RESET.modified(UD, &wrong, TO_INIT),
            Err(Errno::EINVAL)
        );
        for state in [
            QpState::Reset,
            QpState::Init,
            QpState::ReadyToReceive,
            QpState::ReadyToSend,
            QpState::SendQueueDrained,
            QpState::Error,
        ] {
            assert_eq!(QpState::from_code(state.code()), Ok(state));
        }
        assert_eq!(QpState::from_code(5), Err(Errno::EINVAL));
    }

    #[test]
    fn a_connected_queue_pair_needs_its_peer_to_receive() {
        const UC: Service = Service::UnreliableConnected;
        const PEER: c_int =
            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        let attr = |state: QpState| ibv_qp_attr {
            dest_qp_num: 4711,
            rq_psn: 9,
            path_mtu: 3,
            ..attr(state)
        };
        let start = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        let init = Attributes::RESET
            .modified(UC, &attr(QpState::Init), start)
            .unwrap();
        let rtr = attr(QpState::ReadyToReceive);
        for missing in [IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_DEST_QPN, IBV_QP_RQ_PSN] {
            let refused = init.modified(UC, &rtr, PEER & !missing);
            assert_eq!(refused, Err(Errno::EINVAL));
        }
        let ready = init.modified(UC, &rtr, PEER).unwrap();
        assert_eq!((ready.dest_qpn, ready.rq_psn, ready.path_mtu), (4711, 9, 3));
        let with_qkey = Attributes::RESET.modified(UC, &attr(QpState::Init), TO_INIT);
        assert_eq!(with_qkey, Err(Errno::EINVAL));
    }

    #[test]
    fn a_reliable_queue_pair_needs_its_times_and_depths() {
        const RC: Service = Service::ReliableConnected;
        let attr = |state: QpState| ibv_qp_attr {
            dest_qp_num: 0x00ab_cd01,
            path_mtu: 3,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 1,
            ..attr(state)
        };
        let start = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        let peer = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        let times = IBV_QP_STATE
            | IBV_QP_SQ_PSN
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_MAX_QP_RD_ATOMIC;
        let init = Attributes::RESET
            .modified(RC, &attr(QpState::Init), start)
            .unwrap();
        let rtr = attr(QpState::ReadyToReceive);
        for missing in [IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_AV] {
            let refused = init.modified(RC, &rtr, peer & !missing);
            assert_eq!(refused, Err(Errno::EINVAL));
        }
        let ready = init.modified(RC, &rtr, peer).unwrap();
        let rts = attr(QpState::ReadyToSend);
        for missing in [IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY] {
            let refused = ready.modified(RC, &rts, times & !missing);
            assert_eq!(refused, Err(Errno::EINVAL));
        }
        let sends = ready.modified(RC, &rts, times).unwrap();
        assert_eq!(
            (
                sends.reliable.max_rd_atomic,
                sends.reliable.max_dest_rd_atomic
            ),
            (16, 1)
        );
        // 4.096 us * 2^14 * 7 is less than a connection may take.
        assert_eq!(sends.reliable.retry_time(), Some(Duration::from_secs(3)));
        let longer = Reliable {
            timeout: 20,
            ..sends.reliable
        };
        assert_eq!(
            longer.retry_time(),
            Some(Duration::from_nanos(4096 << 20) * 7)
        );
        let endless = Reliable {
            timeout: 0,
            ..sends.reliable
        };
        assert_eq!(endless.retry_time(), None);
        let too_many = ibv_qp_attr {
            max_rd_atomic: 129,
            ..rts
        };
        assert_eq!(ready.modified(RC, &too_many, times), Err(Errno::EINVAL));
    }
}
