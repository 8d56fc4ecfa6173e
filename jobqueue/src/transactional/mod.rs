//! Sends and completions of jobs within the caller's own transaction. Apart from `connect`, only this module
//! depends on both adapters and queues.

#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

use crate::error::{Error, ErrorKind};
use crate::send::Prepared;

/// The content of the record of an effect.
const EFFECT_RECORD: &[u8] = b"true";

const CANNOT_WAIT: &str =
    "a send in a transaction cannot wait for a shorter queue; wait before the transaction begins";

fn invalid(text: &str) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

/// Refuses a message in order whose position is kept by a log, because the log is not part of the
/// transaction.
fn refuse_announced(prepared: &Prepared) -> Result<(), Error> {
    match prepared.announcement {
        None => Ok(()),
        Some(_) => Err(invalid(
            "a send in order can only be part of a transaction where the storage keeps the order itself",
        )),
    }
}
