//! F13: a worker that lacks a permission names it and does not start, before it has touched a message.

use std::error::Error as _;
use std::time::Duration;

use jobqueue::azure::Options;
use jobqueue::{JobError, QueueMessage, Storage, Worker};
use jobqueue_tests::azurite::Azurite;
use jobqueue_tests::sas;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "parcels", kind = "parcel", poison_threshold = 1)]
struct Parcel {
    content: String,
}

pub(super) async fn by_key() -> Storage {
    let string = Azurite::shared().connection_string();
    Storage::open(Options::from_connection_string(&string).unwrap()).await.unwrap()
}

/// Returns a storage by a signature that allows only `queues` on queues and `blobs` on blobs.
pub(super) async fn by_sas(queues: &str, blobs: &str) -> Storage {
    by_sas_for("co", queues, blobs).await
}

/// Does the same for other resource types.
pub(super) async fn by_sas_for(types: &str, queues: &str, blobs: &str) -> Storage {
    let azurite = Azurite::shared();
    let open = async |permissions: &str| {
        let sas = sas::account_sas_for(types, permissions, "2100-01-01T00:00:00Z");
        let string = sas::connection_string(azurite.queue_endpoint(), azurite.blob_endpoint(), &sas);
        Storage::open(Options::from_connection_string(&string).unwrap()).await.unwrap()
    };
    // One account signature has the same letters for both services.
    let (queues, blobs) = (open(queues).await, open(blobs).await);
    Storage::new(queues.queues().store().clone(), blobs.blobs().clone(), "azure:test")
}

fn unique() -> String {
    format!("start-{}", uuid::Uuid::new_v4().simple())
}

async fn accept(parcel: Parcel) -> Result<(), JobError> {
    if parcel.content.is_empty() { Err(JobError::dead_letter("empty")) } else { Ok(()) }
}

fn parcel(content: impl Into<String>) -> Parcel {
    Parcel { content: content.into() }
}

// F13
#[tokio::test]
async fn worker_without_permission_does_not_start() {
    let name = unique();
    let parcels = by_key().await.queue_named::<Parcel>(&name).await.unwrap();
    parcels.send(&parcel("x")).await.unwrap();
    for (permissions, missing) in [("rap", "'u'"), ("rau", "'p'"), ("rup", "'a'"), ("ra", "'p'")] {
        let worker = Worker::builder(by_sas(permissions, "rwd").await).handle_on(&name, accept);
        let error = worker.build().unwrap().run_until_idle().await.unwrap_err();
        assert!(error.to_string().contains(&name), "{error}");
        assert!(!error.is_retryable());
        let cause = error.source().unwrap().to_string();
        assert!(cause.contains(missing), "{permissions}: {cause}");
    }
    let delivery = parcels.receive(Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(delivery.info().dequeue_count, 1, "no worker has touched the message");
}

/// Checks that the permissions of the guide are enough when queues and container exist: small and large jobs,
/// retries, dead letters.
#[tokio::test]
async fn the_permissions_of_the_guide_are_enough_for_existing_queues() {
    let name = unique();
    let admin = by_key().await;
    let parcels = admin.queue_named::<Parcel>(&name).await.unwrap();
    let letters = admin.queue_named::<Parcel>(&format!("{name}-poison")).await.unwrap();
    // Makes the container.
    parcels.send(&parcel("x".repeat(100_000))).await.unwrap();

    let producer = by_sas("ra", "w").await.queue_named::<Parcel>(&name).await.unwrap();
    producer.send(&parcel("small")).await.unwrap();
    producer.send(&parcel("y".repeat(100_000))).await.unwrap();
    producer.send(&parcel("")).await.unwrap();

    let worker = Worker::builder(by_sas("raup", "rwd").await).handle_on(&name, accept);
    let report = worker.build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 3);
    assert_eq!(report.dead_lettered, 1);
    assert_eq!(letters.approximate_len().await.unwrap(), 1);
}

/// With the permission to create, nothing has to exist.
#[tokio::test]
async fn the_permissions_of_the_guide_are_enough_to_create() {
    let name = unique();
    let producer = by_sas("rac", "cw").await.queue_named::<Parcel>(&name).await.unwrap();
    producer.send(&parcel("x".repeat(100_000))).await.unwrap();
    producer.send(&parcel("")).await.unwrap();
    let worker = Worker::builder(by_sas("raupc", "rcwd").await).handle_on(&name, accept);
    let report = worker.build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1);
    assert_eq!(report.dead_lettered, 1);
}

/// A worker of small jobs needs no blobs.
#[tokio::test]
async fn small_jobs_need_no_right_to_blobs() {
    let name = unique();
    by_key().await.queue_named::<Parcel>(&name).await.unwrap().send(&parcel("small")).await.unwrap();
    let worker = Worker::builder(by_sas("raup", "l").await).handle_on(&name, accept);
    let report = worker.build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1);
}
