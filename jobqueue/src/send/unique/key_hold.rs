//! A sender's hold on its key while it stores its message: the sender puts the message only while no other
//! sender may take the key over.

use std::convert::Infallible;

use tokio::time::{sleep, timeout_at};

use super::record::{HOLD_PERIOD, KeyClaim};
use super::records::UniqueRecordBlob;
use crate::error::{Error, ErrorKind};
use crate::send::put::SEND_BUDGET;

/// A key that a sender holds, with the record that proves it.
#[derive(Debug)]
pub(in crate::send) struct KeyHold<'r> {
    pub(super) record_blob: &'r UniqueRecordBlob,
    pub(super) claim: KeyClaim,
}

impl KeyHold<'_> {
    /// Runs an upload and renews the hold during it: a large payload may take longer than a hold lasts.
    pub(in crate::send) async fn renew_during<T>(&mut self, upload: impl Future<Output = T>) -> T {
        tokio::select! {
            biased;
            uploaded = upload => uploaded,
            never = self.renew_forever() => match never {},
        }
    }

    async fn renew_forever(&mut self) -> Infallible {
        loop {
            sleep(HOLD_PERIOD / 3).await;
            if let Err(error) = self.record_blob.renew(&mut self.claim).await {
                crate::log::debug!(%error, "the hold on a unique key was not renewed");
            }
        }
    }

    /// Renews the hold unless it lasts for a whole send budget.
    ///
    /// # Errors
    /// - [`Conflict`](ErrorKind::Conflict): another sender has taken the key over.
    /// - [`Rejected`](ErrorKind::Rejected): the hold could not be renewed.
    pub(in crate::send) async fn ensure_time_to_put(&mut self) -> Result<(), Error> {
        if self.claim.left() >= SEND_BUDGET {
            return Ok(());
        }
        match self.record_blob.renew(&mut self.claim).await {
            Ok(true) => Ok(()),
            Ok(false) => {
                let text = "the message is not stored: another sender has taken over the key of this unique work; try again later";
                Err(Error::new(ErrorKind::Conflict, text).with_retryable(true))
            }
            Err(error) => {
                let retryable = error.is_retryable() || error.is_ambiguous();
                let text = "the message is not stored: the hold on its unique key could not be renewed";
                Err(Error::new(ErrorKind::Rejected, text).with_retryable(retryable).with_source(error))
            }
        }
    }

    /// Runs `put`, and drops it when the hold ends.
    ///
    /// # Errors
    /// The errors of `put`; [`Unknown`](ErrorKind::Unknown) if it has not ended in time.
    pub(in crate::send) async fn run_within<T>(
        &self,
        put: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        timeout_at(self.claim.until, put).await.unwrap_or_else(|_| {
            let text =
                "the storage gave no answer while this sender held the key of its unique work; send it again";
            Err(Error::new(ErrorKind::Unknown, text).with_retryable(true))
        })
    }
}
