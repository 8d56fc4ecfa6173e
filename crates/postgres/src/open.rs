//! Opens a store.

use std::sync::Arc;

use crate::arrivals::ArrivalHub;
use crate::database::Database;
use crate::options::Options;
use crate::store::Store;
use crate::{listen, schema};
use jobqueue_storage::log::warn;
use jobqueue_storage::{OpenStores, StoreError, Stores};

impl OpenStores for Options {
    /// Connects, and creates or migrates the tables if needed.
    ///
    /// # Errors
    /// `Configuration` if the name of the schema is not allowed, this program is too old for the schema, the
    /// database is not encoded in UTF-8, the server is too old, the transactions of the role are not
    /// `read committed`, or tokens would be sent to a server whose identity is not checked; `NotPrepared` if
    /// the tables are missing or too old for this program and must [not be changed](Options::migrate);
    /// `Unauthorized` if the role may not log in or lacks a privilege; `Unavailable` or `Timeout` if the
    /// server cannot be reached; `Timeout` also while another process migrates.
    ///
    /// # Cancel safety
    /// If the future is dropped, the tables are unchanged or completely migrated, and connections that were
    /// being opened are closed within [`timeout`](Self::timeout).
    async fn open(self) -> Result<Stores, StoreError> {
        self.check()?;
        let Self { settings, listens, migrates, runtime } = self;
        let description = settings.description.clone();
        let (arrivals, closed) = ArrivalHub::new(&settings.schema, &runtime);
        let arrivals = Arc::new(arrivals);
        let database = Arc::new(Database::new(settings, runtime.clone())?);
        schema::prepare(&database, migrates).await?;
        if listens {
            let is_notified = listen::start(&database, &runtime, &arrivals, closed).await?;
            arrivals.set_listening(is_notified);
            if !is_notified {
                warn!(
                    storage = description,
                    "no notification has come within 5 seconds: workers of this process poll until it opens the storage again. Where a \
                     pooler in transaction mode holds them back, set `listen=off` in the connection string, or `Options::listen(false)`: \
                     each opening without it leaves a session of the pooler that listens"
                );
            }
        }
        let store = Arc::new(Store::new(database, runtime.clone(), arrivals));
        Ok(Stores::new(Arc::clone(&store) as _, store, description).with_runtime(runtime))
    }
}
