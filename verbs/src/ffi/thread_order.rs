//! The order of threads, and memory of the device, for race detectors.
//!
//! ThreadSanitizer follows only code that it was compiled into, Helgrind and DRD only locks of pthreads. So none of them sees that a work request was posted before its
//! completion was polled, and a program whose threads pass memory on with `wr_id` appears to have a race. Where one of them is present, the calls that verbs order raise that
//! order, and no others: races of the program stay visible. Helgrind and DRD see accesses of this library to registered memory, for which the same holds; that memory is
//! not checked by them.

use dgiwarp_memory::Region;
use std::ffi::c_void;
use std::sync::OnceLock;

/// `__tsan_acquire` and `__tsan_release`.
type Annotation = unsafe extern "C" fn(*mut c_void);

/// The race detector of the process.
enum Detector {
    ThreadSanitizer {
        release: Annotation,
        acquire: Annotation,
    },
    Valgrind,
}

fn detector() -> Option<&'static Detector> {
    static DETECTOR: OnceLock<Option<Detector>> = OnceLock::new();
    let find =
        || thread_sanitizer().or_else(|| valgrind::is_present().then_some(Detector::Valgrind));
    DETECTOR.get_or_init(find).as_ref()
}

/// ThreadSanitizer's functions, if its runtime is in the process.
fn thread_sanitizer() -> Option<Detector> {
    let find = |name: &std::ffi::CStr| {
        // SAFETY: a terminated string.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        if found.is_null() {
            return None;
        }
        // SAFETY: `sanitizer/tsan_interface.h` declares both functions so.
        Some(unsafe { std::mem::transmute::<*mut c_void, Annotation>(found) })
    };
    Some(Detector::ThreadSanitizer {
        release: find(c"__tsan_release")?,
        acquire: find(c"__tsan_acquire")?,
    })
}

/// Whether the process has a race detector.
pub(crate) fn is_checked() -> bool {
    detector().is_some()
}

/// All of this thread so far comes before [`after`] of the object.
pub(crate) fn before<T>(object: *const T) {
    match detector() {
        None => {}
        Some(Detector::ThreadSanitizer { release, .. }) => {
            // SAFETY: the function takes any address as a name.
            unsafe { release(object.cast_mut().cast()) }
        }
        Some(Detector::Valgrind) => {
            valgrind::request(valgrind::HAPPENS_BEFORE, object.addr(), 0);
        }
    }
}

/// All of this thread from now on comes after each [`before`] of the object so far.
pub(crate) fn after<T>(object: *const T) {
    match detector() {
        None => {}
        Some(Detector::ThreadSanitizer { acquire, .. }) => {
            // SAFETY: as above.
            unsafe { acquire(object.cast_mut().cast()) }
        }
        Some(Detector::Valgrind) => {
            valgrind::request(valgrind::HAPPENS_AFTER, object.addr(), 0);
        }
    }
}

/// Memory that the device accesses begins or ceases to be registered.
pub(crate) fn registered(region: &Region, is_registered: bool) {
    if let Some(Detector::Valgrind) = detector()
        // Pages on demand are accessed by the kernel.
        && !region.is_on_demand()
        && let Ok(address) = usize::try_from(region.address())
    {
        let requests = if is_registered {
            valgrind::IGNORE
        } else {
            valgrind::CHECK
        };
        for request in requests {
            valgrind::request(request, address, region.len());
        }
    }
}

/// Client requests of valgrind: instructions without effect, which its translator recognizes.
mod valgrind {
    const HELGRIND: usize = 0x4847_0000;
    const DRD: usize = 0x4452_0000;
    /// `RUNNING_ON_VALGRIND` of `valgrind.h`.
    const IS_PRESENT: usize = 0x1001;
    /// `ANNOTATE_HAPPENS_BEFORE`, one number in `helgrind.h` and `drd.h`.
    pub(super) const HAPPENS_BEFORE: usize = HELGRIND + 256 + 33;
    /// `ANNOTATE_HAPPENS_AFTER`.
    pub(super) const HAPPENS_AFTER: usize = HELGRIND + 256 + 34;
    /// `VALGRIND_HG_DISABLE_CHECKING` and `DRD_IGNORE_VAR`.
    pub(super) const IGNORE: [usize; 2] = [HELGRIND + 256 + 39, DRD + 2];
    /// `VALGRIND_HG_ENABLE_CHECKING` and `DRD_STOP_IGNORING_VAR`.
    pub(super) const CHECK: [usize; 2] = [HELGRIND + 256 + 40, DRD + 3];

    pub(super) fn is_present() -> bool {
        request(IS_PRESENT, 0, 0) != 0
    }

    /// Valgrind's answer, or 0 without it.
    pub(super) fn request(number: usize, first: usize, second: usize) -> usize {
        let arguments = [number, first, second, 0, 0, 0];
        let mut answer = 0_usize;
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `valgrind.h`: the rotations of `rdi` add up to none; valgrind reads the array and writes the answer.
        unsafe {
            std::arch::asm!(
                "rol rdi, 3",
                "rol rdi, 13",
                "rol rdi, 61",
                "rol rdi, 51",
                "xchg rbx, rbx",
                in("rax") arguments.as_ptr(),
                inout("rdx") answer,
            );
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above, with `x12`.
        unsafe {
            std::arch::asm!(
                "ror x12, x12, #3",
                "ror x12, x12, #13",
                "ror x12, x12, #51",
                "ror x12, x12, #61",
                "orr x10, x10, x10",
                in("x4") arguments.as_ptr(),
                inout("x3") answer,
            );
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_detector_nothing_is_raised() {
        assert!(!is_checked());
        assert_eq!(valgrind::request(valgrind::HAPPENS_BEFORE, 1, 0), 0);
        let object = 0;
        before(&raw const object);
        after(&raw const object);
    }
}
