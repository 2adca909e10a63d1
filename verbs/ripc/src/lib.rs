//! `libripc.so.1`: the functions of LibRIPC, declared in `include/ripc.h`, on `dgiwarp-ripc`.
//!
//! Each function checks its arguments, finds the library's state and calls the safe methods of [`library`]. No panic leaves it.

#![allow(
    unsafe_code,
    reason = "the C interface of LibRIPC; each block states the fact it relies on"
)]

mod library;
mod memory;

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::slice;

use dgiwarp_ripc::{Block, Incoming, Item};

use library::Library;

/// A message was not sent.
const FAILED: u8 = 1;
/// A short message is too long, which LibRIPC reports as -1.
const TOO_LONG: u8 = u8::MAX;

/// Calls `body` with the library, or yields `failed` where it cannot be opened or panics.
fn with<T>(failed: T, body: impl FnOnce(&'static Library) -> T) -> T {
    let run = || Library::get().map(body);
    catch_unwind(AssertUnwindSafe(run))
        .ok()
        .flatten()
        .unwrap_or(failed)
}

/// The elements of a C array; none for a null pointer.
///
/// # Safety
/// `array` is null or has `count` elements that nobody changes during the call.
unsafe fn elements<'a, T>(array: *const T, count: u16) -> &'a [T] {
    if array.is_null() {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(array, count.into()) }
}

/// Opens the library.
#[unsafe(no_mangle)]
pub extern "C" fn ripc_init() -> u8 {
    with(0, |_| 1)
}

/// Takes a free number.
#[unsafe(no_mangle)]
pub extern "C" fn ripc_register_random_service_id() -> u16 {
    with(0, Library::register_random)
}

/// Takes this number.
#[unsafe(no_mangle)]
pub extern "C" fn ripc_register_service_id(service_id: c_int) -> u8 {
    let number = u16::try_from(service_id).ok();
    number.map_or(0, |number| {
        with(0, |library| library.register(number).into())
    })
}

/// Memory of the library.
#[unsafe(no_mangle)]
pub extern "C" fn ripc_buf_alloc(size: usize) -> *mut u8 {
    with(ptr::null_mut(), |library| {
        let address = library.alloc(size);
        address.map_or(ptr::null_mut(), ptr::with_exposed_provenance_mut)
    })
}

/// Gives memory up.
#[unsafe(no_mangle)]
pub extern "C" fn ripc_buf_free(buf: *mut u8) {
    with((), |library| library.memory.free(buf.expose_provenance()));
}

/// Registers memory of the program.
///
/// # Safety
/// `buf` has `size` octets, which stay until they are given up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ripc_buf_register(buf: *mut u8, size: usize) -> u8 {
    let Some(buf) = NonNull::new(buf).filter(|_| size > 0) else {
        return FAILED;
    };
    with(FAILED, |library| {
        // SAFETY: the caller's promise.
        let done = unsafe { library.memory.register(buf, size) };
        u8::from(!done)
    })
}

/// Gives memory for the next long item.
///
/// # Safety
/// `base` is null or has `size` octets, which stay until an item has come into them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ripc_reg_recv_window(base: *mut u8, size: usize) -> u8 {
    if size == 0 {
        return FAILED;
    }
    let Some(base) = NonNull::new(base) else {
        return 0;
    };
    with(FAILED, |library| {
        // SAFETY: the caller's promise.
        let block = unsafe { library.memory.in_place(base, size) };
        library.add_place(block);
        0
    })
}

/// Sends short items.
///
/// # Safety
/// The arrays have so many elements, and their pointers so many octets; return buffers stay until they are written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ripc_send_short(
    src: u16,
    dest: u16,
    buf: *const *mut u8,
    length: *const u32,
    num_items: u16,
    return_bufs: *const *mut u8,
    return_buf_lengths: *const u32,
    num_return_bufs: u16,
) -> u8 {
    // SAFETY: the caller's promise.
    let bufs = unsafe { elements(buf, num_items) };
    // SAFETY: as above.
    let lengths = unsafe { elements(length, num_items) };
    with(FAILED, |library| {
        let mut items = Vec::new();
        for (buf, length) in bufs.iter().zip(lengths) {
            let length = usize::try_from(*length).unwrap_or(usize::MAX);
            let octets = if buf.is_null() || length == 0 {
                Vec::new()
            } else {
                // SAFETY: the caller's promise.
                unsafe { slice::from_raw_parts(*buf, length) }.to_vec()
            };
            items.push(Item::Short(octets));
        }
        if !library::is_short(&items) {
            return TOO_LONG;
        }
        // SAFETY: the caller's promise.
        let windows = unsafe { windows(library, return_bufs, return_buf_lengths, num_return_bufs) };
        u8::from(!library.send(src, dest, items, windows))
    })
}

/// Sends long items.
///
/// # Safety
/// As for [`ripc_send_short`]; memory that the library has is not changed until the receiver has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ripc_send_long(
    src: u16,
    dest: u16,
    buf: *const *mut u8,
    length: *const u32,
    num_items: u16,
    return_bufs: *const *mut u8,
    return_buf_lengths: *const u32,
    num_return_bufs: u16,
) -> u8 {
    // SAFETY: the caller's promise.
    let bufs = unsafe { elements(buf, num_items) };
    // SAFETY: as above.
    let lengths = unsafe { elements(length, num_items) };
    with(FAILED, |library| {
        let mut items = Vec::new();
        for (buf, length) in bufs.iter().zip(lengths) {
            let length = usize::try_from(*length).unwrap_or(usize::MAX);
            let Some(buf) = NonNull::new(*buf).filter(|_| length > 0) else {
                return FAILED;
            };
            // SAFETY: the caller's promise.
            let block = unsafe { library.block_of(buf, length) };
            let Some(block) = block else {
                return FAILED;
            };
            items.push(Item::Long(block));
        }
        // SAFETY: the caller's promise.
        let windows = unsafe { windows(library, return_bufs, return_buf_lengths, num_return_bufs) };
        u8::from(!library.send(src, dest, items, windows))
    })
}

/// Blocks of return buffers.
///
/// # Safety
/// As for [`ripc_send_short`].
unsafe fn windows(
    library: &Library,
    bufs: *const *mut u8,
    lengths: *const u32,
    count: u16,
) -> Vec<Block> {
    // SAFETY: the caller's promise.
    let bufs = unsafe { elements(bufs, count) };
    // SAFETY: as above.
    let lengths = unsafe { elements(lengths, count) };
    let mut windows = Vec::new();
    for (buf, length) in bufs.iter().zip(lengths) {
        let length = usize::try_from(*length).unwrap_or(usize::MAX);
        let block = match NonNull::new(*buf) {
            _ if length == 0 => None,
            None => library.window(length),
            // SAFETY: the caller's promise.
            Some(buf) => Some(unsafe { library.memory.in_place(buf, length) }),
        };
        windows.extend(block);
    }
    windows
}

/// Waits for a message.
///
/// # Safety
/// The pointers are null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ripc_receive(
    service_id: u16,
    from_service_id: *mut u16,
    short_items: *mut *mut *mut u8,
    short_item_sizes: *mut *mut u32,
    num_short_items: *mut u16,
    long_items: *mut *mut *mut u8,
    long_item_sizes: *mut *mut u32,
    num_long_items: *mut u16,
) -> u8 {
    with(FAILED, |library| {
        let Some(incoming) = library.receive(service_id) else {
            return FAILED;
        };
        let from = u16::try_from(incoming.from.number()).unwrap_or(0);
        let (shorts, longs) = kept(library, incoming);
        // SAFETY: the caller's promise.
        unsafe { set(from_service_id, from) };
        // SAFETY: as above.
        unsafe { set_items(&shorts, short_items, short_item_sizes, num_short_items) };
        // SAFETY: as above.
        unsafe { set_items(&longs, long_items, long_item_sizes, num_long_items) };
        0
    })
}

/// Addresses and lengths of items.
type Items = Vec<(usize, usize)>;

/// Keeps the items until the program gives them up: short ones in one piece of memory.
fn kept(library: &Library, incoming: Incoming) -> (Items, Items) {
    let (mut shorts, mut longs) = (Vec::new(), Vec::new());
    let octets = |item: &Item| match item {
        Item::Short(octets) => octets.len().max(1),
        Item::Long(_) => 0,
    };
    let all = incoming.payload.items.iter().map(octets).sum();
    let memory = library.alloc(all);
    let mut at = 0;
    for item in incoming.payload.items {
        match item {
            Item::Short(octets) => {
                if let Some(memory) = memory {
                    library.memory.write(memory + at, &octets);
                    shorts.push((memory + at, octets.len()));
                    at += octets.len().max(1);
                }
            }
            Item::Long(block) => {
                let length = block.len();
                longs.push((library.memory.keep(block), length));
            }
        }
    }
    (shorts, longs)
}

/// # Safety
/// `to` is null or may be written.
unsafe fn set<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: the caller's promise.
        unsafe { to.write(value) };
    }
}

/// Fills the program's three variables for items with arrays of malloc(3).
///
/// # Safety
/// The pointers are null or may be written.
unsafe fn set_items(
    found: &Items,
    items: *mut *mut *mut u8,
    sizes: *mut *mut u32,
    count: *mut u16,
) {
    let pointers = found
        .iter()
        .map(|(address, _)| ptr::with_exposed_provenance_mut(*address));
    let lengths = found
        .iter()
        .map(|(_, length)| u32::try_from(*length).unwrap_or(u32::MAX));
    if !items.is_null() {
        // SAFETY: it may be written.
        unsafe { items.write(array(pointers)) };
    }
    if !sizes.is_null() {
        // SAFETY: as above.
        unsafe { sizes.write(array(lengths)) };
    }
    // SAFETY: as above.
    unsafe { set(count, u16::try_from(found.len()).unwrap_or(u16::MAX)) };
}

/// An array of malloc(3), never null unless there is no memory.
fn array<T>(values: impl ExactSizeIterator<Item = T>) -> *mut T {
    let size = values.len().max(1).saturating_mul(size_of::<T>());
    // SAFETY: malloc takes any size.
    let array = unsafe { libc::malloc(size) }.cast::<T>();
    if !array.is_null() {
        for (at, value) in values.enumerate() {
            // SAFETY: the array has room for all values.
            let place = unsafe { array.add(at) };
            // SAFETY: as above; malloc aligns for any type.
            unsafe { place.write(value) };
        }
    }
    array
}
