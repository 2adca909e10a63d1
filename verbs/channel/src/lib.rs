//! `libdgiwarpchannel.so.1`: the functions declared in `include/dgiwarp_channel.h`, on `dgiwarp-channel`.
//!
//! Slots and blocks that a program has are kept by their addresses. No panic leaves a function.

#![allow(
    unsafe_code,
    reason = "a C interface; each block states the fact it relies on"
)]

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::{SocketAddr, ToSocketAddrs};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::time::Duration;

use dgiwarp_channel::{Block, Channel, Config, Error, Listener, Slot};
use parking_lot::Mutex;

/// A channel, and what of it the program has.
#[derive(Debug)]
pub struct Handle {
    channel: Channel,
    slots: Mutex<HashMap<usize, Slot>>,
    blocks: Mutex<HashMap<usize, Block>>,
}

/// `struct dgiwarp_channel_config`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CConfig {
    slots: u16,
    slot_size: u32,
    largest_ring: u64,
}

/// The errno of an error.
fn errno_of(error: &Error) -> c_int {
    match error {
        Error::TimedOut => libc::ETIMEDOUT,
        Error::Closed => libc::EPIPE,
        Error::Lost(_) | Error::Post(_) | Error::Cq(_) => libc::ECONNRESET,
        Error::Violation(_) => libc::EPROTO,
        Error::Connect(_) => libc::ECONNREFUSED,
        Error::Device(_) => libc::EADDRINUSE,
        Error::TooLong { .. } => libc::EMSGSIZE,
        Error::LargeRing { .. } => libc::EFBIG,
        Error::Memory { .. } => libc::ENOMEM,
        Error::Config(_) | Error::OtherChannel | _ => libc::EINVAL,
    }
}

fn set_errno(errno: c_int) {
    // SAFETY: the function has no conditions.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: it is that of this thread's errno.
    unsafe { *place = errno };
}

/// Runs `body`; an error, or a panic, is `failed` and an errno.
fn run<T>(failed: T, body: impl FnOnce() -> Result<T, c_int>) -> T {
    match catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(libc::EINVAL)) {
        Ok(value) => value,
        Err(errno) => {
            set_errno(errno);
            failed
        }
    }
}

fn errno(error: Error) -> c_int {
    errno_of(&error)
}

/// A time limit in milliseconds; negative for none.
fn limit(timeout: c_int) -> Duration {
    u64::try_from(timeout).map_or(Duration::MAX, Duration::from_millis)
}

/// The object that a pointer of the program's is.
///
/// # Safety
/// The pointer is null or came from this library and was not given up.
unsafe fn object<'a, T>(pointer: *const T) -> Result<&'a T, c_int> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or(libc::EINVAL)
}

/// The configuration of an end.
///
/// # Safety
/// The pointer is null or has a configuration.
unsafe fn config(pointer: *const CConfig) -> Config {
    let mut config = Config::default();
    let (device, warnings) = dgiwarp::Config::from_environment(std::env::vars(), &[]);
    for warning in warnings {
        eprintln!("libdgiwarpchannel: {warning}");
    }
    config.device = device;
    // SAFETY: the caller's promise.
    if let Some(asked) = unsafe { pointer.as_ref() } {
        if asked.slots != 0 {
            config.slots = asked.slots;
        }
        if asked.slot_size != 0 {
            config.slot_size = asked.slot_size;
        }
        if asked.largest_ring != 0 {
            config.largest_ring = asked.largest_ring;
        }
    }
    config
}

/// The addresses of a host, with a port.
///
/// # Safety
/// The pointer is null or has a string.
unsafe fn addresses(
    host: *const c_char,
    port: u16,
) -> Result<impl Iterator<Item = SocketAddr>, c_int> {
    if host.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    let host = unsafe { CStr::from_ptr(host) };
    let host = host.to_str().map_err(|_| libc::EINVAL)?;
    (host, port).to_socket_addrs().map_err(|_| libc::EINVAL)
}

fn handle(channel: Channel) -> *mut Handle {
    Box::into_raw(Box::new(Handle {
        channel,
        slots: Mutex::default(),
        blocks: Mutex::default(),
    }))
}

/// Address of memory of a ring.
fn place(region: &dgiwarp::Region) -> usize {
    usize::try_from(region.address()).unwrap_or(usize::MAX)
}

/// Listens.
///
/// # Safety
/// `host` is a string; `asked` is null or has a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dgiwarp_channel_listen(
    host: *const c_char,
    port: u16,
    asked: *const CConfig,
) -> *mut Listener {
    run(ptr::null_mut(), || {
        // SAFETY: the caller's promise.
        let address = unsafe { addresses(host, port) }?.next();
        let address = address.ok_or(libc::EINVAL)?;
        // SAFETY: as above.
        let config = unsafe { config(asked) };
        let listener = Listener::bind(address, config).map_err(errno)?;
        Ok(Box::into_raw(Box::new(listener)))
    })
}

/// The port of a listener.
///
/// # Safety
/// `listener` came from [`dgiwarp_channel_listen`] and was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dgiwarp_channel_listener_port(listener: *const Listener) -> u16 {
    // SAFETY: the caller's promise.
    run(0, || Ok(unsafe { object(listener) }?.local_addr().port()))
}

/// The next channel.
///
/// # Safety
/// As for [`dgiwarp_channel_listener_port`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dgiwarp_channel_accept(
    listener: *const Listener,
    timeout: c_int,
) -> *mut Handle {
    run(ptr::null_mut(), || {
        // SAFETY: the caller's promise.
        let listener = unsafe { object(listener) }?;
        listener.accept(limit(timeout)).map(handle).map_err(errno)
    })
}

/// Frees a listener.
///
/// # Safety
/// As for [`dgiwarp_channel_listener_port`]; or it is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dgiwarp_channel_listener_close(listener: *mut Listener) {
    if !listener.is_null() {
        run((), || {
            // SAFETY: the caller's promise.
            drop(unsafe { Box::from_raw(listener) });
            Ok(())
        });
    }
}

/// Connects.
///
/// # Safety
/// As for [`dgiwarp_channel_listen`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dgiwarp_channel_connect(
    host: *const c_char,
    port: u16,
    asked: *const CConfig,
) -> *mut Handle {
    run(ptr::null_mut(), || {
        // SAFETY: the caller's promise.
        let addresses = unsafe { addresses(host, port) }?;
        // SAFETY: as above.
        let config = unsafe { config(asked) };
        let channel = Channel::connect_to_first(addresses, &config);
        channel.map(handle).map_err(errno)
    })
}

/// A free slot.
///
/// # Safety
/// `channel` came from this library and was not freed; `room` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dgiwarp_channel_acquire(
    channel: *const Handle,
    timeout: c_int,
    room: *mut usize,
) -> *mut c_void {
    run(ptr::null_mut(), || {
        // SAFETY: the caller's promise.
        let handle = unsafe { object(channel) }?;
        let slot = handle.channel.acquire(limit(timeout)).map_err(errno)?;
        // SAFETY: the caller's promise.
        if let Some(room) = unsafe { room.as_mut() } {
            *room = slot.room();
        }
        let address = place(&slot.region());
        handle.slots.lock().insert(address, slot);
        Ok(ptr::with_exposed_provenance_mut(address))
    })
}

/// The slot at an address that the program gives back.
fn taken(handle: &Handle, slot: *mut c_void) -> Result<Slot, c_int> {
    let slot = handle.slots.lock().remove(&slot.addr());
    slot.ok_or(libc::EINVAL)
}

/// Sends a slot.
///
/// # Safety
/// `channel` came from this library and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dgiwarp_channel_publish(
    channel: *const Handle,
    slot: *mut c_void,
    length: usize,
) -> c_int {
    run(-1, || {
        // SAFETY: the caller's promise.
        let handle = unsafe { object(channel) }?;
        let slot = taken(handle, slot)?;
        handle.channel.publish(slot, length).map_err(errno)?;
        Ok(0)
    })
}

/// Gives a slot back.
///
/// # Safety
/// `channel` came from this library and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dgiwarp_channel_abandon(
    channel: *const Handle,
    slot: *mut c_void,
) -> c_int {
    run(-1, || {
        // SAFETY: the caller's promise.
        let handle = unsafe { object(channel) }?;
        drop(taken(handle, slot)?);
        Ok(0)
    })
}

/// The next block.
///
/// # Safety
/// `channel` came from this library and was not freed; `length` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dgiwarp_channel_next(
    channel: *const Handle,
    timeout: c_int,
    length: *mut usize,
) -> *const c_void {
    run(ptr::null(), || {
        // SAFETY: the caller's promise.
        let handle = unsafe { object(channel) }?;
        // SAFETY: as above.
        let length = unsafe { length.as_mut() }.ok_or(libc::EINVAL)?;
        let block = handle.channel.next(limit(timeout)).map_err(errno)?;
        let block = block.ok_or(libc::EPIPE)?;
        *length = block.len();
        let address = place(&block.region());
        handle.blocks.lock().insert(address, block);
        Ok(ptr::with_exposed_provenance(address))
    })
}

/// Gives the slot of a block back.
///
/// # Safety
/// `channel` came from this library and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dgiwarp_channel_release(
    channel: *const Handle,
    block: *const c_void,
) -> c_int {
    run(-1, || {
        // SAFETY: the caller's promise.
        let handle = unsafe { object(channel) }?;
        let block = handle.blocks.lock().remove(&block.addr());
        drop(block.ok_or(libc::EINVAL)?);
        Ok(0)
    })
}

/// Closes and frees a channel.
///
/// # Safety
/// `channel` came from this library, was not freed, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dgiwarp_channel_close(channel: *mut Handle, timeout: c_int) -> c_int {
    if channel.is_null() {
        set_errno(libc::EINVAL);
        return -1;
    }
    run(-1, || {
        // SAFETY: the caller's promise.
        let handle = unsafe { Box::from_raw(channel) };
        // The channel goes before what of it the program had.
        let Handle {
            channel,
            slots,
            blocks,
        } = *handle;
        let closed = channel.close(limit(timeout)).map_err(errno);
        drop((slots, blocks));
        closed.map(|()| 0)
    })
}

/// Frees a channel.
///
/// # Safety
/// As for [`dgiwarp_channel_close`]; or it is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dgiwarp_channel_drop(channel: *mut Handle) {
    if !channel.is_null() {
        run((), || {
            // SAFETY: the caller's promise.
            drop(unsafe { Box::from_raw(channel) });
            Ok(())
        });
    }
}
