//! The functions of the C library that take a path, each with its redirection.

use crate::next::Next;
use crate::redirect::{outside, redirected, shown};
use libc::{DIR, FILE, dirent, dirent64};
use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::ptr;

/// Calls `function` with the path, or with the one it is redirected to.
///
/// # Safety
/// `path` is NULL or a C string.
unsafe fn with_path<T>(path: *const c_char, function: impl FnOnce(*const c_char) -> T) -> T {
    if path.is_null() {
        return function(path);
    }
    // SAFETY: not NULL, so a C string by the caller's contract.
    let text = unsafe { CStr::from_ptr(path) };
    match redirected(text) {
        Some(redirected) => function(redirected.as_c_str().as_ptr()),
        None => function(path),
    }
}

/// The result of a function that this C library does not have.
trait Failure {
    fn failure() -> Self;
}
impl Failure for c_int {
    fn failure() -> Self {
        -1
    }
}
impl Failure for c_long {
    fn failure() -> Self {
        -1
    }
}
impl Failure for isize {
    fn failure() -> Self {
        -1
    }
}
impl<T> Failure for *mut T {
    fn failure() -> Self {
        ptr::null_mut()
    }
}

fn missing<T: Failure>() -> T {
    // SAFETY: the address of the calling thread's own errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: valid for writing while the thread lives.
    unsafe { errno.write(libc::ENOSYS) };
    T::failure()
}

/// Defines functions that differ from the C library's only in where a path leads, and maybe in what becomes of the
/// result: their parameters before the path and after it.
macro_rules! interpose {
    ($(
        $name:ident [$($before:ident: $before_type:ty),*] path [$($after:ident: $after_type:ty),*] -> $result:ty
        $(, then $then:path)?;
    )*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            $($before: $before_type,)* path: *const c_char, $($after: $after_type),*
        ) -> $result {
            type Function =
                unsafe extern "C" fn($($before_type,)* *const c_char, $($after_type),*) -> $result;
            static NEXT: Next = Next::new(
                // SAFETY: the literal ends in its only zero.
                unsafe { CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) }
            );
            let next = NEXT.address();
            if next.is_null() {
                return missing();
            }
            // SAFETY: the function of this name in the C library has this type.
            let next: Function = unsafe { std::mem::transmute::<*mut c_void, Function>(next) };
            let call = |path| {
                // SAFETY: the caller's arguments, which fulfil this very function's contract.
                unsafe { next($($before,)* path, $($after),*) }
            };
            // SAFETY: the contract of this function demands a C string.
            let result = unsafe { with_path(path, call) };
            // SAFETY: the result of this very function.
            $( let result = unsafe { $then(result) }; )?
            result
        }
    )* };
}

interpose! {
    stat [] path [to: *mut libc::stat] -> c_int;
    stat64 [] path [to: *mut libc::stat64] -> c_int;
    lstat [] path [to: *mut libc::stat] -> c_int;
    lstat64 [] path [to: *mut libc::stat64] -> c_int;
    fstatat [at: c_int] path [to: *mut libc::stat, flags: c_int] -> c_int;
    fstatat64 [at: c_int] path [to: *mut libc::stat64, flags: c_int] -> c_int;
    statx [at: c_int] path [flags: c_int, mask: c_uint, to: *mut libc::statx] -> c_int;
    access [] path [mode: c_int] -> c_int;
    eaccess [] path [mode: c_int] -> c_int;
    euidaccess [] path [mode: c_int] -> c_int;
    faccessat [at: c_int] path [mode: c_int, flags: c_int] -> c_int;
    __open_2 [] path [flags: c_int] -> c_int;
    __open64_2 [] path [flags: c_int] -> c_int;
    __openat_2 [at: c_int] path [flags: c_int] -> c_int;
    __openat64_2 [at: c_int] path [flags: c_int] -> c_int;
    fopen [] path [mode: *const c_char] -> *mut FILE;
    fopen64 [] path [mode: *const c_char] -> *mut FILE;
    readlink [] path [to: *mut c_char, size: usize] -> isize;
    readlinkat [at: c_int] path [to: *mut c_char, size: usize] -> isize;
    __readlink_chk [] path [to: *mut c_char, size: usize, room: usize] -> isize;
    __readlinkat_chk [at: c_int] path [to: *mut c_char, size: usize, room: usize] -> isize;
    realpath [] path [to: *mut c_char] -> *mut c_char, then without_directory;
    __realpath_chk [] path [to: *mut c_char, room: usize] -> *mut c_char, then without_directory;
    canonicalize_file_name [] path [] -> *mut c_char, then without_directory;
    opendir [] path [] -> *mut DIR;
    chdir [] path [] -> c_int, then out_of_directory;
    statfs [] path [to: *mut libc::statfs] -> c_int;
    statfs64 [] path [to: *mut libc::statfs64] -> c_int;
    statvfs [] path [to: *mut libc::statvfs] -> c_int;
    statvfs64 [] path [to: *mut libc::statvfs64] -> c_int;
    pathconf [] path [name: c_int] -> c_long;
    inotify_add_watch [fd: c_int] path [mask: u32] -> c_int;
    freopen [] path [mode: *const c_char, file: *mut FILE] -> *mut FILE;
    freopen64 [] path [mode: *const c_char, file: *mut FILE] -> *mut FILE;
    getxattr [] path [name: *const c_char, to: *mut c_void, size: usize] -> isize;
    lgetxattr [] path [name: *const c_char, to: *mut c_void, size: usize] -> isize;
    listxattr [] path [to: *mut c_char, size: usize] -> isize;
    llistxattr [] path [to: *mut c_char, size: usize] -> isize;
    scandir [] path [
        to: *mut *mut *mut dirent,
        filter: Option<unsafe extern "C" fn(*const dirent) -> c_int>,
        compare: Option<unsafe extern "C" fn(*mut *const dirent, *mut *const dirent) -> c_int>
    ] -> c_int;
    scandir64 [] path [
        to: *mut *mut *mut dirent64,
        filter: Option<unsafe extern "C" fn(*const dirent64) -> c_int>,
        compare: Option<unsafe extern "C" fn(*mut *const dirent64, *mut *const dirent64) -> c_int>
    ] -> c_int;
}

/// Leaves the directory where a relative path led out of what is redirected, as `..` does.
///
/// # Safety
/// Sound whenever called.
unsafe fn out_of_directory(result: c_int) -> c_int {
    if result != 0 {
        return result;
    }
    let mut room: [c_char; libc::PATH_MAX as usize] = [0; libc::PATH_MAX as usize];
    // SAFETY: the room has this size.
    if unsafe { real_getcwd(room.as_mut_ptr(), room.len()) }.is_null() {
        return result;
    }
    // SAFETY: a C string, as the call succeeded.
    let now = unsafe { CStr::from_ptr(room.as_ptr()) };
    match outside(now) {
        // SAFETY: a C string; it does not lie in the directory.
        Some(path) => unsafe { chdir(path.as_ptr()) },
        None => result,
    }
}

/// Defines the functions that return a path; it is translated back.
macro_rules! interpose_results {
    ($( $name:ident [$($argument:ident: $type:ty),*] calls $real:ident; )*) => { $(
        unsafe fn $real($($argument: $type),*) -> *mut c_char {
            type Function = unsafe extern "C" fn($($type),*) -> *mut c_char;
            static NEXT: Next = Next::new(
                // SAFETY: the literal ends in its only zero.
                unsafe { CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) }
            );
            let next = NEXT.address();
            if next.is_null() {
                return missing();
            }
            // SAFETY: the function of this name in the C library has this type.
            let next: Function = unsafe { std::mem::transmute::<*mut c_void, Function>(next) };
            // SAFETY: the caller's arguments, which fulfil that function's contract.
            unsafe { next($($argument),*) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> *mut c_char {
            // SAFETY: the caller's arguments.
            let found = unsafe { $real($($argument),*) };
            // SAFETY: NULL or a C string that belongs to the caller.
            unsafe { without_directory(found) }
        }
    )* };
}

interpose_results! {
    getcwd [to: *mut c_char, size: usize] calls real_getcwd;
    __getcwd_chk [to: *mut c_char, size: usize, room: usize] calls real_getcwd_chk;
    getwd [to: *mut c_char] calls real_getwd;
    __getwd_chk [to: *mut c_char, room: usize] calls real_getwd_chk;
    get_current_dir_name [] calls real_get_current_dir_name;
}

/// Defines functions that find the paths of a pattern; those in the directory are translated back.
macro_rules! interpose_glob {
    ($( $name:ident; )*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            pattern: *const c_char,
            flags: c_int,
            failed: Option<unsafe extern "C" fn(*const c_char, c_int) -> c_int>,
            found: *mut libc::glob_t,
        ) -> c_int {
            type Function = unsafe extern "C" fn(
                *const c_char, c_int, Option<unsafe extern "C" fn(*const c_char, c_int) -> c_int>, *mut libc::glob_t
            ) -> c_int;
            static NEXT: Next = Next::new(
                // SAFETY: the literal ends in its only zero.
                unsafe { CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) }
            );
            let next = NEXT.address();
            if next.is_null() {
                return missing();
            }
            // SAFETY: the function of this name in the C library has this type; both structures are alike on 64-bit machines.
            let next: Function = unsafe { std::mem::transmute::<*mut c_void, Function>(next) };
            let call = |pattern| {
                // SAFETY: the caller's arguments, which fulfil this very function's contract.
                unsafe { next(pattern, flags, failed, found) }
            };
            // SAFETY: the contract of this function demands a C string.
            let result = unsafe { with_path(pattern, call) };
            if result == 0 {
                // SAFETY: a structure that a successful call has filled.
                unsafe { paths_without_directory(found, flags) };
            }
            result
        }
    )* };
}

interpose_glob! {
    glob;
    glob64;
}

/// Translates the paths that `glob` found.
///
/// # Safety
/// `found` is the result of a successful call with these flags.
unsafe fn paths_without_directory(found: *mut libc::glob_t, flags: c_int) {
    // SAFETY: the caller's contract.
    let found = unsafe { &*found };
    let reserved = if flags & libc::GLOB_DOOFFS == 0 {
        0
    } else {
        found.gl_offs
    };
    for index in 0..found.gl_pathc {
        // SAFETY: `gl_pathc` paths behind the reserved ones.
        let path = unsafe { found.gl_pathv.add(reserved + index) };
        // SAFETY: as above.
        let path = unsafe { path.read() };
        // SAFETY: each is a C string of its own.
        unsafe { without_directory(path) };
    }
}

/// Translates the result of `realpath` in the directory back to the program's path.
///
/// # Safety
/// `found` is NULL or a writable C string.
unsafe fn without_directory(found: *mut c_char) -> *mut c_char {
    if found.is_null() {
        return found;
    }
    // SAFETY: not NULL, so a C string by the caller's contract.
    let whole = unsafe { CStr::from_ptr(found) };
    if let Some(rest) = shown(whole) {
        let (from, length) = (rest.as_ptr(), rest.count_bytes() + 1);
        // SAFETY: `rest` is the end of the string, with its zero, and moves to its beginning.
        unsafe { ptr::copy(from, found, length) };
    }
    found
}

/// Defines functions with a mode argument that exists only if they may create the file. The register of a missing mode
/// is passed on, and the C library ignores it.
macro_rules! interpose_open {
    ($( $name:ident [$($before:ident: $before_type:ty),*]; )*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            $($before: $before_type,)* path: *const c_char, flags: c_int, mode: c_uint
        ) -> c_int {
            type Function = unsafe extern "C" fn($($before_type,)* *const c_char, c_int, ...) -> c_int;
            static NEXT: Next = Next::new(
                // SAFETY: the literal ends in its only zero.
                unsafe { CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) }
            );
            let next = NEXT.address();
            if next.is_null() {
                return missing();
            }
            // SAFETY: the function of this name in the C library has this type.
            let next: Function = unsafe { std::mem::transmute::<*mut c_void, Function>(next) };
            let call = |path| {
                // SAFETY: the caller's arguments, which fulfil this very function's contract.
                unsafe { next($($before,)* path, flags, mode) }
            };
            // SAFETY: the contract of this function demands a C string.
            unsafe { with_path(path, call) }
        }
    )* };
}

interpose_open! {
    open [];
    open64 [];
    openat [at: c_int];
    openat64 [at: c_int];
}

/// Defines what programs call that were linked before version 2.33 of the GNU C library. Their first argument is the
/// version of the structure, of which 64-bit machines have only one.
macro_rules! interpose_old {
    ($( $name:ident is $new:ident [$($before:ident),*] to $to:ty [$($after:ident),*]; )*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            _version: c_int, $($before: c_int,)* path: *const c_char, to: *mut $to $(, $after: c_int)*
        ) -> c_int {
            // SAFETY: the same arguments with the same contract.
            unsafe { $new($($before,)* path, to $(, $after)*) }
        }
    )* };
}

interpose_old! {
    __xstat is stat [] to libc::stat [];
    __xstat64 is stat64 [] to libc::stat64 [];
    __lxstat is lstat [] to libc::stat [];
    __lxstat64 is lstat64 [] to libc::stat64 [];
    __fxstatat is fstatat [at] to libc::stat [flags];
    __fxstatat64 is fstatat64 [at] to libc::stat64 [flags];
}
