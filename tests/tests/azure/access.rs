//! F13: a missing permission is reported before the first message is lost to it.

use jobqueue::QueueName;
use jobqueue::Storage;
use jobqueue::azure::Options;
use jobqueue::settings::Metadata;
use jobqueue::storage::ContainerName;
use jobqueue::storage::{Access, Created, GetMessages, OpenStores as _, PutMessage, StoreErrorKind};
use jobqueue_tests::azurite::Azurite;
use jobqueue_tests::sas;

fn options(permissions: &str) -> Options {
    let azurite = Azurite::shared();
    let sas = sas::account_sas(permissions, "2100-01-01T00:00:00Z");
    let string = sas::connection_string(azurite.queue_endpoint(), azurite.blob_endpoint(), &sas);
    Options::from_connection_string(&string).unwrap()
}

async fn queue_with_one_message() -> QueueName {
    let azurite = Azurite::shared();
    let storage =
        Storage::open(Options::from_connection_string(&azurite.connection_string()).unwrap()).await.unwrap();
    let queue = QueueName::new(format!("access-{}", uuid::Uuid::new_v4().simple())).unwrap();
    storage.queues().create_queue(&queue, &Metadata::new()).await.unwrap();
    storage.queues().put(&queue, PutMessage::new("job")).await.unwrap();
    queue
}

// F13
#[tokio::test]
async fn missing_permissions_are_named() {
    let queue = queue_with_one_message().await;
    for (permissions, access, missing) in [
        ("raup", Access::Process, ""),
        ("ra", Access::Send, ""),
        ("rap", Access::Process, "u"),
        ("rau", Access::Process, "p"),
        ("rup", Access::Process, "a"),
        ("r", Access::Send, "a"),
        ("aup", Access::Process, "r"),
        ("r", Access::Process, "aup"),
    ] {
        let storage = Storage::open(options(permissions)).await.unwrap();
        let probe = storage.queues().check_access(&queue, access).await;
        if missing.is_empty() {
            probe.unwrap_or_else(|error| panic!("{permissions} {access:?}: {error}"));
            continue;
        }
        let error = probe.expect_err(permissions);
        assert_eq!(error.kind(), StoreErrorKind::Unauthorized, "{error}");
        for letter in ['r', 'a', 'u', 'p'] {
            let named = error.to_string().contains(&format!("'{letter}'"));
            assert_eq!(named, missing.contains(letter), "{permissions} {letter}: {error}");
        }
    }
}

#[tokio::test]
async fn the_probe_changes_nothing() {
    let queue = queue_with_one_message().await;
    let storage = Storage::open(options("raup")).await.unwrap();
    storage.queues().check_access(&queue, Access::Process).await.unwrap();
    let get = GetMessages::new(32, std::time::Duration::from_secs(1));
    let messages = storage.queues().get(&queue, get).await.unwrap().messages;
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0].dequeue_count, 1);
}

#[tokio::test]
async fn blob_permissions_are_probed_without_a_container() {
    let container = ContainerName::new("nothing-here").unwrap();
    let check = async |permissions: &str, access| {
        let stores = options(permissions).open().await.unwrap();
        stores.check_blob_access(&container, access).await
    };
    check("rwd", Access::Process).await.unwrap();
    check("w", Access::Send).await.unwrap();
    let error = check("rw", Access::Process).await.unwrap_err();
    assert!(error.to_string().contains("'d'"), "{error}");
}

/// Creating a queue that exists needs no permission to create.
#[tokio::test]
async fn existing_queues_are_found_without_the_right_to_create() {
    let queue = queue_with_one_message().await;
    let storage = Storage::open(options("raup")).await.unwrap();
    let existed = storage.queues().create_queue(&queue, &Metadata::new()).await.unwrap();
    assert_eq!(existed, Created::Existed);
    let other = storage.queues().create_queue(&queue, &Metadata::new().with("a", "b")).await.unwrap_err();
    assert_eq!(other.kind(), StoreErrorKind::QueueAlreadyExists, "{other}");
    let missing = QueueName::new(format!("{queue}-x")).unwrap();
    let refused = storage.queues().create_queue(&missing, &Metadata::new()).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Unauthorized, "{refused}");
}

#[tokio::test]
async fn an_invalid_signature_is_told_as_such() {
    let azurite = Azurite::shared();
    let string = sas::connection_string(
        azurite.queue_endpoint(),
        azurite.blob_endpoint(),
        "sv=2021-12-02&ss=q&sig=AAAA",
    );
    let options = Options::from_connection_string(&string).unwrap();
    let storage = Storage::open(options).await.unwrap();
    let orders = QueueName::new("orders").unwrap();
    let error = storage.queues().check_access(&orders, Access::Process).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unauthorized, "{error}");
    assert!(!error.to_string().contains("missing:"), "{error}");
}
