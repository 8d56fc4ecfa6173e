//! Decides which process may have stores open.
//!
//! SQLite keeps the list of the locks that it holds in the memory of the process. A child made by `fork`
//! inherits the list but not the locks, so a store opened in the child would take the parent's locks for its
//! own. So a child that was forked while its parent had a store open cannot open one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::Cause;
use jobqueue_storage::StoreErrorKind;

/// The id of the process that has stores open (upper half) and their number (lower half). It is one number,
/// because a child of `fork` would wait forever for a mutex that another thread held.
static OPEN_STORES: AtomicU64 = AtomicU64::new(0);

/// A guard that every user of the open file holds.
#[derive(Debug)]
pub(super) struct ProcessGuard(());

impl ProcessGuard {
    /// Registers one more open store of this process; fails in a child of a process that had stores open.
    pub(super) fn claim() -> Result<Arc<Self>, Cause> {
        let own = u64::from(std::process::id()) << 32;
        let claim = |open: u64| match open & u64::from(u32::MAX) {
            0 => Some(own | 1),
            _ if open & !u64::from(u32::MAX) == own => Some(open + 1),
            _ => None,
        };
        match OPEN_STORES.fetch_update(Ordering::AcqRel, Ordering::Acquire, claim) {
            Ok(_) => Ok(Arc::new(Self(()))),
            Err(_) => Err(Cause::new(
                StoreErrorKind::Stopped,
                "this process was forked from one that had a store open, whose locks SQLite takes for this one's; start \
                 processes with exec, or fork before the first store is opened",
            )),
        }
    }
}

impl Drop for ProcessGuard {
    fn drop(&mut self) {
        OPEN_STORES.fetch_sub(1, Ordering::AcqRel);
    }
}
