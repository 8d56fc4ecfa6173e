//! A VFS between SQLite and the system. Passes every call to the VFS of the system, and reports it to the
//! [`Recorder`] of the folder.
//!
//! Besides `fork.rs`, this is the only file of the project with unsafe code: SQLite asks for its VFS as C
//! structures of function pointers, and rusqlite has no safe wrapper for them. The code relies on these
//! facts: SQLite calls the methods of an open file only between a successful open and its close, gives
//! `szOsFile` bytes for each file, and never uses one file on two threads at once. All decisions are made in
//! `recorder.rs`, which is safe.
#![allow(unsafe_code)] // SQLite's interface for file systems is C.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::{Arc, OnceLock};

use rusqlite::ffi::{self, sqlite3_file, sqlite3_io_methods, sqlite3_vfs};

use super::recorder::Recorder;

/// SQLite's data of each open file: our data, followed by the data of the inner VFS.
#[repr(C)]
struct File {
    base: sqlite3_file,
    /// Owned. Null for files in folders without a recorder.
    watched: *mut Watched,
}

/// A watched file.
struct Watched {
    recorder: Arc<Recorder>,
    name: String,
    /// True if the next sync also writes the entries of the folder, as the system's VFS does once for each
    /// log or journal.
    syncs_folder: bool,
}

/// The VFS of the system, which lives as long as the process.
struct Behind(*mut sqlite3_vfs);

// SAFETY: SQLite itself uses a registered VFS from all threads; we only read the structure.
unsafe impl Send for Behind {}
// SAFETY: as above.
unsafe impl Sync for Behind {}

static BEHIND: OnceLock<Behind> = OnceLock::new();

/// Makes this VFS the default of every connection that this process opens from now on.
pub(super) fn install() {
    BEHIND.get_or_init(|| {
        // SAFETY: a null name asks for the default VFS. The copy is leaked, as SQLite asks of registered
        // ones, and its methods other than open and delete do not look at the structure they are given.
        unsafe {
            let behind = ffi::sqlite3_vfs_find(null());
            assert!(!behind.is_null(), "SQLite has a default VFS");
            let mut ours = *behind;
            ours.zName = c"jobqueue-power".as_ptr();
            ours.pNext = null_mut();
            ours.szOsFile += c_int::try_from(size_of::<File>()).expect("a small structure");
            ours.xOpen = Some(open);
            ours.xDelete = Some(delete);
            let code = ffi::sqlite3_vfs_register(Box::leak(Box::new(ours)), 1);
            assert_eq!(code, ffi::SQLITE_OK, "SQLite takes the VFS");
            Behind(behind)
        }
    });
}

fn behind() -> *mut sqlite3_vfs {
    BEHIND.get().map_or(null_mut(), |behind| behind.0)
}

/// SAFETY: `name` is null or a C string.
unsafe fn path<'a>(name: *const c_char) -> Option<&'a Path> {
    // SAFETY: by the caller.
    (!name.is_null()).then(|| Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes())))
}

unsafe extern "C" fn open(
    _: *mut sqlite3_vfs,
    name: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    let ours = file.cast::<File>();
    // SAFETY: SQLite gives `szOsFile` bytes at `file`, of which the first are ours and the rest the other
    // VFS's.
    unsafe {
        (*ours).base.pMethods = null();
        (*ours).watched = null_mut();
        let open = || call((*behind()).xOpen, |open| open(behind(), name, inner(file), flags, out));
        let found = path(name).and_then(|path| Some((Recorder::of(path)?, file_name(path))));
        let code = match &found {
            Some((recorder, name)) => recorder.open(name, open),
            None => open(),
        };
        if code == ffi::SQLITE_OK {
            let is_log = flags & (ffi::SQLITE_OPEN_WAL | ffi::SQLITE_OPEN_MAIN_JOURNAL) != 0;
            let syncs_folder = is_log && flags & ffi::SQLITE_OPEN_CREATE != 0;
            if let Some((recorder, name)) = found {
                (*ours).watched = Box::into_raw(Box::new(Watched { recorder, name, syncs_folder }));
            }
            (*ours).base.pMethods = &raw const METHODS;
        }
        code
    }
}

unsafe extern "C" fn delete(_: *mut sqlite3_vfs, name: *const c_char, sync_folder: c_int) -> c_int {
    // SAFETY: the name is SQLite's, the VFS the one we found.
    unsafe {
        let delete = || call((*behind()).xDelete, |delete| delete(behind(), name, sync_folder));
        match path(name).and_then(|path| Some((Recorder::of(path)?, file_name(path)))) {
            Some((recorder, name)) => recorder.delete(&name, sync_folder != 0, delete),
            None => delete(),
        }
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The file of the VFS behind us. SAFETY: `file` is one of ours.
unsafe fn inner(file: *mut sqlite3_file) -> *mut sqlite3_file {
    // SAFETY: `szOsFile` is the sum of both sizes, and ours is a multiple of the alignment of pointers.
    unsafe { file.cast::<File>().add(1).cast() }
}

/// Returns the watched file, if a recorder listens to it. SAFETY: `file` is one of ours and open.
unsafe fn watched<'a>(file: *mut sqlite3_file) -> Option<&'a mut Watched> {
    // SAFETY: null or from `Box::into_raw`; SQLite uses a file on one thread at a time.
    unsafe { (*file.cast::<File>()).watched.as_mut() }
}

fn call<F>(method: Option<F>, with: impl FnOnce(F) -> c_int) -> c_int {
    method.map_or(ffi::SQLITE_MISUSE, with)
}

/// Hands a method on. SAFETY: `$file` is one of ours and open, the arguments are SQLite's.
macro_rules! pass {
    ($file:ident . $method:ident ( $($argument:expr),* )) => {
        // SAFETY: as above; the inner file is open as long as ours is.
        unsafe { call((*(*inner($file)).pMethods).$method, |method| method(inner($file), $($argument),*)) }
    };
}

static METHODS: sqlite3_io_methods = sqlite3_io_methods {
    // Has no xFetch, so that nothing is mapped and every read and write goes through this VFS.
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};

unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    let code = pass!(file.xClose());
    // SAFETY: the last call for this file; the box came from `open`.
    unsafe {
        let ours = file.cast::<File>();
        if !(*ours).watched.is_null() {
            drop(Box::from_raw((*ours).watched));
            (*ours).watched = null_mut();
        }
    }
    code
}

unsafe extern "C" fn write(file: *mut sqlite3_file, data: *const c_void, size: c_int, offset: i64) -> c_int {
    // SAFETY: the file is open, and SQLite gives `size` bytes at `data`.
    let (watched, bytes) = unsafe {
        let size = usize::try_from(size).unwrap_or(0);
        (watched(file), std::slice::from_raw_parts(data.cast::<u8>(), size))
    };
    let write = |bytes: &[u8]| {
        let size = c_int::try_from(bytes.len()).unwrap_or(c_int::MAX);
        pass!(file.xWrite(bytes.as_ptr().cast(), size, offset))
    };
    match watched {
        Some(watched) => watched.recorder.write(&watched.name, offset.unsigned_abs(), bytes, write),
        None => write(bytes),
    }
}

unsafe extern "C" fn truncate(file: *mut sqlite3_file, size: i64) -> c_int {
    // SAFETY: the file is open.
    match unsafe { watched(file) } {
        Some(watched) => {
            watched.recorder.truncate(&watched.name, size.unsigned_abs(), || pass!(file.xTruncate(size)))
        }
        None => pass!(file.xTruncate(size)),
    }
}

unsafe extern "C" fn sync(file: *mut sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: the file is open.
    let Some(watched) = (unsafe { watched(file) }) else { return pass!(file.xSync(flags)) };
    let code = watched.recorder.sync(&watched.name, watched.syncs_folder, || pass!(file.xSync(flags)));
    watched.syncs_folder &= code != ffi::SQLITE_OK;
    code
}

unsafe extern "C" fn read(file: *mut sqlite3_file, data: *mut c_void, size: c_int, offset: i64) -> c_int {
    pass!(file.xRead(data, size, offset))
}

unsafe extern "C" fn file_size(file: *mut sqlite3_file, size: *mut i64) -> c_int {
    pass!(file.xFileSize(size))
}

unsafe extern "C" fn lock(file: *mut sqlite3_file, level: c_int) -> c_int {
    pass!(file.xLock(level))
}

unsafe extern "C" fn unlock(file: *mut sqlite3_file, level: c_int) -> c_int {
    pass!(file.xUnlock(level))
}

unsafe extern "C" fn check_reserved_lock(file: *mut sqlite3_file, out: *mut c_int) -> c_int {
    pass!(file.xCheckReservedLock(out))
}

unsafe extern "C" fn file_control(file: *mut sqlite3_file, operation: c_int, argument: *mut c_void) -> c_int {
    pass!(file.xFileControl(operation, argument))
}

unsafe extern "C" fn sector_size(file: *mut sqlite3_file) -> c_int {
    pass!(file.xSectorSize())
}

unsafe extern "C" fn device_characteristics(file: *mut sqlite3_file) -> c_int {
    pass!(file.xDeviceCharacteristics())
}

unsafe extern "C" fn shm_map(
    file: *mut sqlite3_file,
    region: c_int,
    size: c_int,
    extend: c_int,
    out: *mut *mut c_void,
) -> c_int {
    let map = || pass!(file.xShmMap(region, size, extend, out));
    // SAFETY: the file is open.
    match unsafe { watched(file) } {
        Some(watched) if extend != 0 => watched.recorder.grow_index(map),
        _ => map(),
    }
}

unsafe extern "C" fn shm_lock(file: *mut sqlite3_file, offset: c_int, count: c_int, flags: c_int) -> c_int {
    pass!(file.xShmLock(offset, count, flags))
}

unsafe extern "C" fn shm_barrier(file: *mut sqlite3_file) {
    // SAFETY: the inner file is open as long as ours is.
    unsafe {
        if let Some(barrier) = (*(*inner(file)).pMethods).xShmBarrier {
            barrier(inner(file));
        }
    }
}

unsafe extern "C" fn shm_unmap(file: *mut sqlite3_file, delete: c_int) -> c_int {
    pass!(file.xShmUnmap(delete))
}
