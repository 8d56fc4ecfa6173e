//! Sends and ends of jobs within the caller's own transaction. Besides `connect`, only this module depends on both adapters and queues.

#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

use crate::error::{Error, ErrorKind};
use crate::send::Prepared;

/// The record of an effect in a transaction.
const EFFECT: &[u8] = b"true";

const CANNOT_WAIT: &str =
    "a send in a transaction cannot wait for a shorter queue; wait before the transaction begins";

fn invalid(text: &str) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

/// Refuses a message whose place in its order is not part of the storage.
fn refuse_announced(prepared: &Prepared) -> Result<(), Error> {
    match prepared.announcement {
        None => Ok(()),
        Some(_) => Err(invalid(
            "a send in order can only be part of a transaction where the storage keeps the order itself",
        )),
    }
}
