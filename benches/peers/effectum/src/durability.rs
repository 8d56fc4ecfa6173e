//! effectum opens its connections itself and has no setting for the journal or for syncs: as shipped it asks
//! for `journal = wal`, which SQLite ignores (the pragma is `journal_mode`), and `synchronous = normal`. To
//! compare at equal durability without changing its source, every connection is set up here as SQLite opens
//! it, and an authorizer then ignores effectum's own pragma. Authorizers run when statements are prepared,
//! not when they run.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

use jobqueue_bench_harness::Result;
use rusqlite::ffi;

/// The durability of an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// WAL, synced at each commit.
    Full,
    /// WAL, synced at checkpoints.
    Normal,
    /// As effectum is shipped.
    Shipped,
}

impl Durability {
    pub(crate) fn wanted() -> Self {
        match std::env::var("BENCH_DURABILITY").as_deref() {
            Ok("normal") => Self::Normal,
            Ok("shipped") => Self::Shipped,
            _ => Self::Full,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Full => "WAL, synchronous=FULL (set from outside)",
            Self::Normal => "WAL (set from outside), synchronous=NORMAL",
            Self::Shipped => "rollback journal, synchronous=NORMAL",
        }
    }
}

type EntryPoint =
    unsafe extern "C" fn(*mut ffi::sqlite3, *mut *const c_char, *const ffi::sqlite3_api_routines) -> c_int;

/// Makes SQLite set up every connection that is opened from now on.
pub(crate) fn set() -> Result<()> {
    let setup: EntryPoint = match Durability::wanted() {
        Durability::Full => full,
        Durability::Normal => normal,
        Durability::Shipped => return Ok(()),
    };
    // SAFETY: the entry point has the signature SQLite asks for and lives as long as the program.
    let code = unsafe { ffi::sqlite3_auto_extension(Some(setup)) };
    if code == ffi::SQLITE_OK { Ok(()) } else { Err(format!("SQLite refuses the extension: {code}").into()) }
}

unsafe extern "C" fn full(
    db: *mut ffi::sqlite3,
    _: *mut *const c_char,
    _: *const ffi::sqlite3_api_routines,
) -> c_int {
    // SAFETY: `db` is the connection being opened.
    unsafe {
        match run(db, c"PRAGMA journal_mode = wal; PRAGMA synchronous = FULL") {
            ffi::SQLITE_OK => ffi::sqlite3_set_authorizer(db, Some(keep_synchronous), null_mut()),
            code => code,
        }
    }
}

unsafe extern "C" fn normal(
    db: *mut ffi::sqlite3,
    _: *mut *const c_char,
    _: *const ffi::sqlite3_api_routines,
) -> c_int {
    // SAFETY: `db` is the connection being opened.
    unsafe { run(db, c"PRAGMA journal_mode = wal") }
}

unsafe fn run(db: *mut ffi::sqlite3, sql: &CStr) -> c_int {
    // SAFETY: the caller's connection, a terminated text, no callback.
    unsafe { ffi::sqlite3_exec(db, sql.as_ptr(), None, null_mut(), null_mut()) }
}

/// Ignores `PRAGMA synchronous = …`.
unsafe extern "C" fn keep_synchronous(
    _: *mut c_void,
    action: c_int,
    name: *const c_char,
    _value: *const c_char,
    _: *const c_char,
    _: *const c_char,
) -> c_int {
    // SAFETY: SQLite gives the pragma's name as a terminated text.
    let synchronous = action == ffi::SQLITE_PRAGMA
        && !name.is_null()
        && unsafe { CStr::from_ptr(name) }.to_bytes().eq_ignore_ascii_case(b"synchronous");
    if synchronous { ffi::SQLITE_IGNORE } else { ffi::SQLITE_OK }
}
