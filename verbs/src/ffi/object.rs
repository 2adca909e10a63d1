//! Objects behind C pointers: a C struct first, the state of this crate behind it.

use crate::ffi::fork::generation;
use nix::errno::Errno;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};

/// State of this crate that a C struct stands for.
pub(crate) trait Facade: Send + Sync {
    /// The C struct.
    type C;
    /// Number that no other type behind a C pointer has.
    const TAG: u32;
}

/// A pointer of the program. Its holder returns it to the program and may dereference it only in calls of the program.
#[derive(Debug)]
pub(crate) struct CPointer<T>(pub(crate) *mut T);

impl<T> Clone for CPointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for CPointer<T> {}
// SAFETY: a number to its holder; each dereference states why it is valid.
unsafe impl<T> Send for CPointer<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for CPointer<T> {}

/// A C struct and the state behind it. The C struct is the first field: both have one address.
#[repr(C)]
pub(crate) struct Object<T: Facade> {
    c: UnsafeCell<T::C>,
    tag: AtomicU32,
    state: T,
}

/// Tag of objects of this process: the type's, with the fork generation in the upper eight bits.
#[inline]
fn present_tag<T: Facade>() -> u32 {
    T::TAG ^ generation() << 24
}

impl<T: Facade> Object<T> {
    /// Allocates an object. The program owns it until [`Object::release`].
    pub(crate) fn create(c: T::C, state: T) -> *mut T::C {
        let object = Box::new(Self {
            c: UnsafeCell::new(c),
            tag: AtomicU32::new(present_tag::<T>()),
            state,
        });
        Box::into_raw(object).cast()
    }

    /// The state behind a C pointer. NULL and pointers to other things are `EINVAL`.
    ///
    /// # Safety
    /// `pointer` is NULL or a live object that [`Object::create`] made of some `T`, and the object lives for `'a`: the
    /// contract of every verbs function.
    pub(crate) unsafe fn state<'a>(pointer: *mut T::C) -> Result<&'a T, Errno> {
        let object = pointer.cast::<Self>();
        // Programs have been seen to pass the contents of freed memory: an object of ours is aligned.
        if object.is_null() || !object.is_aligned() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller passes a live object of ours; until its type is checked, only the atomic tag is read.
        let tag = unsafe { &(*object).tag };
        let tag = tag.load(Ordering::Relaxed);
        if tag != present_tag::<T>() {
            // An object of the parent in a forked child, or of another type.
            let parents = (tag ^ T::TAG) << 8 == 0;
            return Err(if parents { Errno::EIO } else { Errno::EINVAL });
        }
        // SAFETY: the tag proves that `state` is a `T`; it is only borrowed shared.
        Ok(unsafe { &(*object).state })
    }

    /// Frees the object and returns its state.
    ///
    /// # Safety
    /// As for [`Object::state`], and nothing uses the object during the call or afterwards.
    pub(crate) unsafe fn release(pointer: *mut T::C) -> Result<T, Errno> {
        // SAFETY: the caller's contract includes that of `state`.
        unsafe { Self::state(pointer) }?;
        // SAFETY: `create` made it as a Box of this type, as the tag proves, and nothing else uses it.
        let object = unsafe { Box::from_raw(pointer.cast::<Self>()) };
        // A second release of the pointer fails as long as the memory is not used again.
        object.tag.store(0, Ordering::Relaxed);
        Ok(object.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;

    struct Apple(u8);
    struct Pear;
    impl Facade for Apple {
        type C = u64;
        const TAG: u32 = 1;
    }
    impl Facade for Pear {
        type C = u64;
        const TAG: u32 = 2;
    }

    #[test]
    fn a_pointer_to_another_kind_of_object_is_refused() {
        let apple = Object::create(0, Apple(7));
        // SAFETY: `apple` is alive.
        assert!(unsafe { Object::<Pear>::state(apple) }.is_err());
        // SAFETY: NULL is allowed.
        assert!(unsafe { Object::<Apple>::state(ptr::null_mut()) }.is_err());
        // SAFETY: `apple` is alive.
        assert_eq!(unsafe { Object::<Apple>::state(apple) }.unwrap().0, 7);
        // SAFETY: `apple` is alive and not used afterwards.
        assert_eq!(unsafe { Object::<Apple>::release(apple) }.unwrap().0, 7);
    }
}
