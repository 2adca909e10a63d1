//! Read depths as rdma_cm names them.

use crate::abi::{RDMA_MAX_DEPTH, rdma_conn_param};
use crate::cm::conn_param::ConnParam;
use crate::cm::event::types::{NO_CONNECTION, Param};
use crate::device::limits::MAX_RD_ATOMIC;
use dgiwarp::ReadDepths;
use nix::errno::Errno;

/// Reads and atomics that may be outstanding, at most [`MAX_RD_ATOMIC`] each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Depths {
    /// From the peer: IRD.
    pub(super) responder_resources: u8,
    /// To the peer: ORD.
    pub(super) initiator_depth: u8,
}

impl Depths {
    pub(super) const MAX: Self = Self {
        responder_resources: MAX_RD_ATOMIC,
        initiator_depth: MAX_RD_ATOMIC,
    };

    /// The depths of a call's parameters, or `default` without parameters.
    pub(super) fn of(param: &ConnParam, default: Self) -> Result<Self, Errno> {
        let Some(c) = &param.c else {
            return Ok(default);
        };
        let depth = |depth: u8| match depth {
            RDMA_MAX_DEPTH => Ok(MAX_RD_ATOMIC),
            0..=MAX_RD_ATOMIC => Ok(depth),
            _ => Err(Errno::EINVAL),
        };
        Ok(Self {
            responder_resources: depth(c.responder_resources)?,
            initiator_depth: depth(c.initiator_depth)?,
        })
    }

    pub(super) fn of_mpa(depths: ReadDepths) -> Self {
        let depth = |n: u16| u8::try_from(n).unwrap_or(u8::MAX).min(MAX_RD_ATOMIC);
        Self {
            responder_resources: depth(depths.ird),
            initiator_depth: depth(depths.ord),
        }
    }

    pub(super) fn to_mpa(self) -> ReadDepths {
        ReadDepths {
            ird: self.responder_resources.into(),
            ord: self.initiator_depth.into(),
        }
    }

    pub(super) fn to_c(self) -> Param {
        Param::Connection(rdma_conn_param {
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 1,
            ..NO_CONNECTION
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths_beyond_the_device_are_refused_and_all_ones_is_the_most() {
        let of = |responder_resources, initiator_depth| {
            let c = rdma_conn_param {
                responder_resources,
                initiator_depth,
                ..NO_CONNECTION
            };
            let param = ConnParam {
                c: Some(c),
                private_data: Vec::new(),
            };
            Depths::of(&param, Depths::default())
        };
        assert_eq!(of(255, 255), Ok(Depths::MAX));
        assert_eq!(of(129, 1), Err(Errno::EINVAL));
        let few = of(1, 3).unwrap();
        assert_eq!(few.to_mpa(), ReadDepths { ird: 1, ord: 3 });
        assert_eq!(Depths::of_mpa(few.to_mpa()), few);
    }
}
