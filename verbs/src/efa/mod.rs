//! EFA direct verbs: the functions of rdma-core's `libefa.so.1` (`infiniband/efadv.h`).
//!
//! An SRD queue pair is a reliable datagram queue pair. It exists with every persona: a program that creates one has
//! asked for it. The other functions report `EOPNOTSUPP` unless the persona is `efa`, as rdma-core's do for a device
//! of another provider: programs such as libfabric take a device for EFA if they succeed.

mod adapter;
mod ah;
mod cq;
mod device;
mod qp;
mod sized;

use crate::export::export;

export! {
/// Functions of libefa: name, node, and implementation.
pub EFA_EXPORTS, bound by bind;
    "EFA_1.0" {
        "efadv_create_driver_qp" => qp::efadv_create_driver_qp;
    }
    "EFA_1.1" {
        "efadv_create_qp_ex" => qp::efadv_create_qp_ex;
        "efadv_query_ah" => ah::efadv_query_ah;
        "efadv_query_device" => device::efadv_query_device;
    }
    "EFA_1.2" {
        "efadv_cq_from_ibv_cq_ex" => cq::efadv_cq_from_ibv_cq_ex;
        "efadv_create_cq" => cq::efadv_create_cq;
    }
}
