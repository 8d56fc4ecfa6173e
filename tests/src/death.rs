//! Simulates processes that die: from a chosen write on, the storage never answers. The processes share
//! nothing else.

use std::sync::{Arc, Mutex, PoisonError};

use jobqueue::storage::Operation;
use jobqueue_testing::faults::{Fault, Faulty};

/// Makes the process die now: no further call is performed or answered.
pub fn now(faulty: &Faulty) {
    for &operation in Operation::ALL {
        faulty.plan_always(operation, Fault::Hang);
    }
}

/// Counts the writes of a process.
#[derive(Debug, Clone, Default)]
pub struct Writes(Arc<Mutex<u32>>);

impl Writes {
    /// Returns the number so far, which stops at the write that kills the process.
    pub fn count(&self) -> u32 {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the process die at its `nth` write of a blob, a message or a deletion, counted from 1. `performed`
/// says whether that call is performed. Neither that call nor a later one is answered.
pub fn at_write(faulty: &Faulty, nth: u32, performed: bool) -> Writes {
    let writes = Writes::default();
    for &operation in Operation::ALL {
        let writes = writes.clone();
        faulty.on(operation, move |_| {
            let mut count = writes.0.lock().unwrap_or_else(PoisonError::into_inner);
            if *count >= nth {
                return Some(Fault::Hang);
            }
            use Operation as O;
            if !matches!(
                operation,
                O::PutBlob | O::Put | O::PutAll | O::Update | O::Delete | O::DeleteAll | O::DeadLetter
            ) {
                return None;
            }
            *count += 1;
            (*count == nth).then_some(if performed { Fault::HangAfter } else { Fault::Hang })
        });
    }
    writes
}
