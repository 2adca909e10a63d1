//! The device list: the one device and its names.

use crate::abi::ibv_device;
use crate::device::{device_attr, persona};
use crate::ffi::errno::of_io;
use crate::ffi::{entry, live, minus_one, pointer};
use nix::errno::Errno;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;

/// Name of the device, as `ibv_devices` prints it.
pub const DEVICE_NAME: &str = "dgiwarp0";

/// The device.
///
/// libmlx5 and libefa take every device for the larger `struct verbs_device` and read the provider operations behind
/// the public part, which therefore are zero.
#[repr(C)]
struct Device {
    public: ibv_device,
    provider: [u8; 128],
}

/// A leaked device: pointers stay valid after the list is freed.
struct DevicePointer(*mut ibv_device);

// SAFETY: a leaked `Device` that is not written after `device()` has published it.
unsafe impl Send for DevicePointer {}
// SAFETY: as above; shared reads of immutable data.
unsafe impl Sync for DevicePointer {}

static DEVICE: OnceLock<DevicePointer> = OnceLock::new();

/// The device, created at first use: its persona comes from the environment.
pub(crate) fn device() -> *mut ibv_device {
    DEVICE
        .get_or_init(|| {
            let persona = persona::present();
            let public = ibv_device {
                _ops: [ptr::null_mut(); 2],
                node_type: persona.node_type(),
                transport_type: persona.transport_type(),
                name: c_chars(DEVICE_NAME),
                dev_name: c_chars("uverbs0"),
                dev_path: c_chars("/sys/class/infiniband_verbs/uverbs0"),
                ibdev_path: c_chars(&format!("/sys/class/infiniband/{DEVICE_NAME}")),
            };
            DevicePointer(
                Box::into_raw(Box::new(Device {
                    public,
                    provider: [0; 128],
                }))
                .cast(),
            )
        })
        .0
}

/// A NUL-terminated array of text, cut to fit.
fn c_chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut chars = [0; N];
    for (to, from) in chars.iter_mut().take(N.saturating_sub(1)).zip(text.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    chars
}

/// Checks that a pointer of the program is the device.
pub(crate) fn expect_device(pointer: *const ibv_device) -> Result<(), Errno> {
    if ptr::eq(pointer, device()) {
        Ok(())
    } else {
        Err(Errno::ENODEV)
    }
}

/// Tag of lists that the program has.
const LIST: u32 = 0x6464_6c73;

pub(crate) unsafe extern "C" fn ibv_get_device_list(number: *mut c_int) -> *mut *mut ibv_device {
    pointer(|| {
        if !number.is_null() {
            // SAFETY: not NULL, so the program passes an int to write.
            unsafe { number.write(1) };
        }
        let list: Box<[*mut ibv_device; 2]> = Box::new([device(), ptr::null_mut()]);
        let list = Box::into_raw(list).cast();
        live::enter(list, LIST);
        Ok(list)
    })
}

pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    entry((), || {
        if live::leave(list, LIST) {
            // SAFETY: a list of `ibv_get_device_list`, freed once.
            drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_device; 2]>()) });
        } else if !list.is_null() {
            Errno::EINVAL.set();
        }
    });
}

pub(crate) unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    entry(ptr::null(), || match expect_device(device) {
        // SAFETY: our device, which is never freed.
        Ok(()) => unsafe { (*device).name.as_ptr() },
        Err(errno) => {
            errno.set();
            ptr::null()
        }
    })
}

/// The man page's -1: no index, because no kernel device exists.
pub(crate) extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    minus_one(|| expect_device(device).and(Err(Errno::EOPNOTSUPP)))
}

pub(crate) extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    entry(0, || {
        expect_device(device).map_or(0, |()| device_attr::node_guid().to_be())
    })
}

pub(crate) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads a file as rdma-core does: at most `size` bytes, without one trailing newline.
pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes a C string.
        let directory = unsafe { path(directory) }?;
        // SAFETY: and another one.
        let file = unsafe { path(file) }?;
        let mut bytes = Vec::new();
        let opened = std::fs::File::open(directory.join(file)).map_err(|error| of_io(&error))?;
        let limit = u64::try_from(size).unwrap_or(u64::MAX);
        opened
            .take(limit)
            .read_to_end(&mut bytes)
            .map_err(|error| of_io(&error))?;
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
        }
        let length = c_int::try_from(bytes.len()).map_err(|_| Errno::EOVERFLOW)?;
        if bytes.len() < size {
            bytes.push(0);
        }
        // SAFETY: the program provides `size` bytes, and `bytes` has no more than that.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr().cast(), buffer, bytes.len()) };
        Ok(length)
    })
}

/// # Safety
/// `text` is NULL or a C string that outlives `'a`.
unsafe fn path<'a>(text: *const c_char) -> Result<&'a Path, Errno> {
    if text.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: not NULL, so a C string by the caller's contract.
    let text = unsafe { CStr::from_ptr(text) };
    Ok(Path::new(OsStr::from_bytes(text.to_bytes())))
}

/// Fork needs no preparation: memory is not pinned, and no page is shared with hardware.
pub(crate) extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `IBV_FORK_UNNEEDED`.
pub(crate) extern "C" fn ibv_is_fork_initialized() -> c_int {
    2
}

pub(crate) extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

pub(crate) extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
