//! `ibv_open_device(3)`: contexts, with the tables of functions that the inline calls of `verbs.h` use.

use crate::abi::{VERBS_ABI_IS_EXTENDED, ibv_context, ibv_context_ops, ibv_device, verbs_context};
use crate::cq::{cq_ex, queue};
use crate::device::async_queue::AsyncQueue;
use crate::device::context::{Context, outer, port_events, refresh_gids};
use crate::device::list::{device, expect_device};
use crate::device::{at_exit, env, query};
use crate::ffi::{Object, errno, errno_value, fork, is_fatal, pointer, thread_order};
use crate::log;
use crate::mem::{dm, mw, null_mr, rereg_mr, td};
use crate::post::{bind_mw, recv, send};
use crate::qp::{create, srq, xrc};
use dgiwarp::Rnic;
use nix::errno::Errno;
use std::ffi::c_int;
use std::os::fd::AsRawFd;

impl Context {
    fn open() -> Result<Self, Errno> {
        if is_fatal() {
            return Err(Errno::EIO);
        }
        refresh_gids()?;
        log::install();
        let rnic = Rnic::open(env::config()).map_err(errno::of)?;
        at_exit::add(&rnic);
        fork::handle_forks();
        let async_events = AsyncQueue::open(&rnic);
        let network = port_events::raise_in(&async_events, &rnic);
        Ok(Self {
            async_events,
            rnic,
            _network: network,
        })
    }
}

pub(crate) unsafe extern "C" fn ibv_open_device(wanted: *mut ibv_device) -> *mut ibv_context {
    pointer(|| {
        expect_device(wanted)?;
        let context = Context::open()?;
        let tables = tables(context.async_events.events.as_raw_fd());
        let outer = Object::create(tables, context);
        // SAFETY: just created; only the address of the field is taken.
        Ok(unsafe { &raw mut (*outer).context })
    })
}

pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes an open context.
        let outer = unsafe { outer(context) }?;
        // SAFETY: and does not use it any more.
        unsafe { Object::<Context>::release(outer) }.map(drop)
    })
}

/// Functions behind the inline calls of `verbs.h`. The header itself fails absent ones with `EOPNOTSUPP`.
fn tables(async_fd: c_int) -> verbs_context {
    // SAFETY: a struct of nullable function pointers, raw pointers and integers, for which zero is a valid value.
    let mut tables: verbs_context = unsafe { std::mem::zeroed() };
    tables.query_port = Some(query::query_port);
    tables.query_device_ex = Some(query::query_device_ex);
    tables.advise_mr = Some(rereg_mr::advise_mr);
    tables.alloc_null_mr = Some(null_mr::alloc_null_mr);
    tables.alloc_dm = Some(dm::alloc_dm);
    tables.free_dm = Some(dm::free_dm);
    tables.reg_dm_mr = Some(dm::reg_dm_mr);
    tables.alloc_parent_domain = Some(td::alloc_parent_domain);
    tables.alloc_td = Some(td::alloc_td);
    tables.dealloc_td = Some(td::dealloc_td);
    tables.create_srq_ex = Some(srq::create_srq_ex);
    tables.get_srq_num = Some(srq::get_srq_num);
    tables.create_cq_ex = Some(cq_ex::create_cq_ex);
    tables.query_rt_values = Some(query::query_rt_values);
    tables.create_qp_ex = Some(create::create_qp_ex);
    tables.open_qp = Some(create::open_qp);
    tables.open_xrcd = Some(xrc::open_xrcd);
    tables.close_xrcd = Some(xrc::close_xrcd);
    tables.sz = size_of::<verbs_context>();
    tables.context.device = device();
    tables.context.ops = operations();
    tables.context.cmd_fd = async_fd;
    tables.context.async_fd = async_fd;
    tables.context.num_comp_vectors = 1;
    tables.context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    tables.context.abi_compat = VERBS_ABI_IS_EXTENDED;
    tables
}

fn operations() -> ibv_context_ops {
    // SAFETY: a struct of nullable function pointers only.
    let mut operations: ibv_context_ops = unsafe { std::mem::zeroed() };
    operations.alloc_mw = Some(mw::alloc_mw);
    operations.bind_mw = Some(bind_mw::bind_mw);
    operations.dealloc_mw = Some(mw::dealloc_mw);
    operations.poll_cq = Some(queue::poll_cq);
    operations.req_notify_cq = Some(queue::req_notify_cq);
    operations.post_send = Some(send::post_send);
    operations.post_recv = Some(recv::post_recv);
    operations.post_srq_recv = Some(recv::post_srq_recv);
    if thread_order::is_checked() {
        operations.poll_cq = Some(queue::ordered_poll_cq);
        operations.req_notify_cq = Some(queue::ordered_req_notify_cq);
        operations.post_send = Some(send::ordered_post_send);
        operations.post_recv = Some(recv::ordered_post_recv);
        operations.post_srq_recv = Some(recv::ordered_post_srq_recv);
    }
    operations
}
