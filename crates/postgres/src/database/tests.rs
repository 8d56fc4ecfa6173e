use super::*;
use crate::arrivals::ArrivalHub;
use crate::fake_server::FakeServer;
use crate::store::Store;
use jobqueue_storage::{BlobName, BlobStore as _};
use std::sync::Arc;

impl Database {
    /// Returns the number of statements that wait for a connection.
    pub(crate) fn waiting(&self) -> usize {
        self.pool.status().waiting
    }
}

#[tokio::test]
async fn large_contents_leave_connections_to_other_statements() {
    let (server, mut arrived) = FakeServer::silent().await;
    let settings = Settings { max_connections: 2, ..server.settings() };
    let database = Database::new(settings, Runtime::new()).unwrap();
    let call = Call::new(Operation::PutBlob, &"payload");
    let long = || database.query_longer(call, "SELECT 1", &[], Duration::from_secs(1));
    let other = async {
        arrived.recv().await.unwrap();
        let mut query = pin!(database.query(call, "SELECT 2", &[]));
        tokio::select! {
            // The query is polled before `arrived`, which may already have an item: a query that was not
            // polled does not wait for a connection.
            biased;
            _ = &mut query => panic!("there is no answer"),
            _ = arrived.recv() => {}
        }
        assert_eq!(database.waiting(), 0, "the second content has the other connection");
    };
    tokio::select! {
        _ = long() => panic!("there is no answer"),
        _ = long() => panic!("there is no answer"),
        () = other => {}
    }
}

#[tokio::test]
async fn short_content_waits_for_no_large_one_whatever_is_allowed() {
    let (server, mut arrived) = FakeServer::silent().await;
    let (settings, runtime) = (Settings { max_connections: 2, ..server.settings() }, Runtime::new());
    let database = Arc::new(Database::new(settings, runtime.clone()).unwrap());
    let (hub, _closed) = ArrivalHub::new("jobqueue", &runtime);
    let store = Store::new(Arc::clone(&database), runtime, Arc::new(hub));
    let record = BlobName::new("records".parse().unwrap(), "record").unwrap();
    let call = Call::new(Operation::PutBlob, &"payload");
    let other = async {
        arrived.recv().await.unwrap();
        tokio::select! {
            read = store.get_blob(&record, 32 << 20) => panic!("there is no answer: {read:?}"),
            _ = arrived.recv() => {}
        }
    };
    tokio::select! {
        _ = database.query_longer(call, "SELECT 1", &[], Duration::from_secs(1)) => panic!("there is no answer"),
        () = other => {}
    }
}

/// A pooler forgets the statement of a client that is gone, and reuses its session.
#[tokio::test]
async fn statement_is_cancelled_before_its_connection_is_closed() {
    let (mut server, mut arrived) = FakeServer::silent().await;
    let database = Database::new(server.settings(), Runtime::new()).unwrap();
    let call = Call::new(Operation::Put, &"jobs");
    tokio::select! {
        _ = database.query(call, "SELECT 1", &[]) => panic!("there is no answer"),
        _ = arrived.recv() => {}
    }
    assert_eq!(server.cancelled().await, 1);
}
