//! A child made by `fork` without `exec`, as some servers do.
#![allow(unsafe_code)] // The standard library has no fork, since little is safe after it; that is what is tested.

/// Runs `child` in a child of this process, and returns its result: 0 to 127.
///
/// # Panics
/// If there can be no child, or it ends otherwise.
pub fn fork(child: impl FnOnce() -> u8) -> u8 {
    // SAFETY: of this process's threads the child has only the one that runs `child`. It may allocate, since the C libraries
    // that the tests run on make that safe in a child; it takes no locks that another thread may have held, and it leaves by
    // `_exit`, so that nothing of the parent's is run or dropped in it.
    unsafe {
        match libc::fork() {
            -1 => panic!("no child: {}", std::io::Error::last_os_error()),
            0 => {
                let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(127);
                libc::_exit(code.into())
            }
            id => {
                let mut status = 0;
                assert_eq!(libc::waitpid(id, &raw mut status, 0), id, "the child is ours");
                assert!(libc::WIFEXITED(status), "the child ended by a signal");
                u8::try_from(libc::WEXITSTATUS(status)).expect("a byte")
            }
        }
    }
}
