//! A child process made by `fork` without `exec`, as some servers make them.
#![allow(unsafe_code)] // The standard library has no `fork`, which these tests need.

/// Runs `child` in a forked process and returns its result, from 0 to 127.
///
/// # Panics
/// If the process cannot be forked, or is ended by a signal.
pub fn fork(child: impl FnOnce() -> u8) -> u8 {
    // SAFETY: of the threads of this process, the child has only the one that runs `child`. It may allocate,
    // because the C libraries on which the tests run make allocation safe in a child. It takes no locks that
    // another thread may have held, and it leaves by `_exit`, so that it neither runs nor drops anything of
    // the parent.
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
