//! Objects behind C pointers: a C struct first, the state of this crate behind it.

use crate::ffi::fork::generation;
use crate::ffi::live;
use nix::errno::Errno;
use std::alloc::Layout;
use std::cell::UnsafeCell;
use std::ptr::{self, NonNull};
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
        let object = Box::into_raw(object);
        live::enter(object, T::TAG);
        object.cast()
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

    /// The state behind a C pointer, for functions that destroy: nothing is read before the pointer is found to be an object that the
    /// program has.
    ///
    /// # Safety
    /// No other thread destroys the object in `'a`.
    pub(crate) unsafe fn live<'a>(pointer: *mut T::C) -> Result<&'a T, Errno> {
        if !live::contains(pointer, T::TAG) {
            return Err(Errno::EINVAL);
        }
        // SAFETY: made by `create` for a `T` and not released.
        unsafe { Self::state(pointer) }
    }

    /// Destroys the object and returns its state. The C struct stays readable for a while.
    ///
    /// # Safety
    /// Nothing uses the object during the call or afterwards, except as an argument of functions that destroy.
    pub(crate) unsafe fn release(pointer: *mut T::C) -> Result<T, Errno> {
        // SAFETY: the caller's contract.
        unsafe { Self::live(pointer) }?;
        if !live::leave(pointer, T::TAG) {
            return Err(Errno::EINVAL);
        }
        let object = NonNull::new(pointer.cast::<Self>()).ok_or(Errno::EINVAL)?;
        // SAFETY: a live object until just now, which this call alone found.
        let inner = unsafe { object.as_ref() };
        inner.tag.store(0, Ordering::Relaxed);
        // SAFETY: the state is not used, nor dropped, in its old place any more.
        let state = unsafe { ptr::read(&raw const inner.state) };
        // SAFETY: `create` made it as a Box of this type; the state was moved out, and a C struct needs no drop.
        unsafe { live::retire(object.cast(), Layout::new::<Self>()) };
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // SAFETY: nobody else has `apple`.
        assert!(unsafe { Object::<Pear>::release(apple) }.is_err());
        // SAFETY: nobody else has `apple`.
        assert_eq!(unsafe { Object::<Apple>::release(apple) }.unwrap().0, 7);
    }

    #[test]
    fn a_pointer_is_released_once_and_memory_of_others_is_not_read() {
        let apple = Object::create(5, Apple(7));
        let release = |pointer| {
            // SAFETY: no other thread has these pointers.
            let released = unsafe { Object::<Apple>::release(pointer) };
            released.map(|apple| apple.0)
        };
        assert_eq!(release(apple), Ok(7));
        assert_eq!(release(apple), Err(Errno::EINVAL));
        // SAFETY: inline functions of C read the struct of an object that was just destroyed.
        assert_eq!(unsafe { apple.read() }, 5);
        let nowhere = ptr::without_provenance_mut(1 << 20);
        assert_eq!(release(nowhere), Err(Errno::EINVAL));
        assert_eq!(release(ptr::null_mut()), Err(Errno::EINVAL));
        for _ in 0..1000 {
            let one = Object::create(1, Apple(1));
            assert_eq!(release(one), Ok(1));
        }
        assert_eq!(release(apple), Err(Errno::EINVAL));
    }
}
