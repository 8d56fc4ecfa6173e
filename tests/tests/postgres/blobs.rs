//! Blobs in a table.

use jobqueue::postgres::tokio_postgres::Transaction;
use jobqueue::postgres::{Numbers, OpenTransaction, StatementError, Value, create_blob_in};
use jobqueue::storage::{BlobName, Condition, ContainerName, PutBlob, Storage, StoreErrorKind};
use jobqueue_test_support::postgres::Postgres;

use crate::{connect, own_schema};

/// No name has this character, which no text of the server can have.
#[tokio::test]
async fn listing_by_a_text_with_nul_finds_the_names_around_it() {
    let (options, _) = own_schema();
    let storage = Storage::open(options).await.unwrap();
    let container: ContainerName = "a-container".parse().unwrap();
    storage.blobs().create_container(&container).await.unwrap();
    for name in ["a", "ab", "b"] {
        let blob = BlobName::new(container.clone(), name).unwrap();
        storage.blobs().put_blob(&blob, "text".into(), PutBlob::new()).await.unwrap();
    }
    for (prefix, marker, expected) in [
        ("a\0b", None, &[][..]),
        ("a\0", None, &[]),
        ("", Some("a\0b"), &["ab", "b"]),
        ("", Some("\0"), &["a", "ab", "b"]),
    ] {
        let listed = storage.blobs().list_blobs(&container, prefix, marker).await.unwrap();
        let names: Vec<_> = listed.blobs.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, expected, "{prefix:?} {marker:?}");
    }
}

/// A transaction in which the container is deleted after each statement.
struct Interrupted<'t>(&'t Transaction<'t>, &'t Storage);

impl OpenTransaction for Interrupted<'_> {
    async fn query(&mut self, statement: &str, values: &[Value<'_>]) -> Result<Vec<Numbers>, StatementError> {
        let rows = OpenTransaction::query(&mut &*self.0, statement, values).await;
        self.1.blobs().delete_container(&"a-container".parse().unwrap()).await.ok();
        rows
    }
}

/// A record of this kind keeps an effect from being made twice: one that was never written must not count as
/// written.
#[tokio::test]
async fn blob_in_a_container_that_is_deleted_meanwhile_does_not_exist_already() {
    let (options, schema) = own_schema();
    let storage = Storage::open(options).await.unwrap();
    let container: ContainerName = "a-container".parse().unwrap();
    storage.blobs().create_container(&container).await.unwrap();
    let blob = BlobName::new(container, "name").unwrap();
    let mut client = connect(Postgres::shared()).await;
    let transaction = client.transaction().await.unwrap();
    let mut absent = PutBlob::new();
    absent.condition = Condition::IfAbsent;
    let interrupted = Interrupted(&transaction, &storage);
    let refused = create_blob_in(interrupted, &schema, &blob, "text".into(), absent).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::ContainerNotFound, "{refused}");
}
