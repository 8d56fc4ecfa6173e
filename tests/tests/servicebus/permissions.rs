//! The guide's letters for the blobs of Azure Storage beside Service Bus.

use jobqueue::{Context, JobError, Storage, Worker};
use jobqueue_test_support::azurite::Azurite;
use jobqueue_tests::sas;

use super::jobs::{Work, work};
use super::{Bench, options};

const GUIDE: &str = include_str!("../../../jobqueue/src/docs/permissions_and_costs.md");

/// Returns the letters in the row of `who` in the table of Service Bus.
fn letters(who: &str) -> &'static str {
    let (_, table) = GUIDE.split_once("**Service Bus**").unwrap();
    let row = table.lines().find(|line| line.starts_with(&format!("| {who} |"))).unwrap();
    row.split('`').nth(1).unwrap()
}

/// Returns the queues of `bench` with blobs on Azurite, by a signature that allows `letters`.
async fn with_blobs(bench: &Bench, letters: &str) -> Storage {
    let azurite = Azurite::shared();
    let sas = sas::account_sas(letters, "2100-01-01T00:00:00Z");
    let string = sas::connection_string(azurite.queue_endpoint(), azurite.blob_endpoint(), &sas);
    let blobs =
        Storage::open(jobqueue::azure::Options::from_connection_string(&string).unwrap()).await.unwrap();
    Storage::from(options(&bench.emulator).with_blobs_of(blobs).unwrap())
}

#[tokio::test]
async fn letters_of_the_guide_are_enough_beside_service_bus() {
    let bench = Bench::new();
    let handler = async |job: Work, context: Context| {
        if context.resume::<u32>().await?.is_none() {
            context.checkpoint(&1_u32).await?;
            return Err(JobError::snooze(std::time::Duration::ZERO));
        }
        if job.name == "bad" { Err(JobError::dead_letter("bad")) } else { Ok(()) }
    };
    // The first round makes the containers.
    for (producer, worker) in [("rwdlc", "rwdlc"), (letters("producer"), letters("worker"))] {
        let queue = with_blobs(&bench, producer).await.queue::<Work>().await.unwrap();
        for name in ["good", "bad"] {
            queue.send(&work(name)).await.unwrap();
        }
        let worker = Worker::builder(with_blobs(&bench, worker).await).presence(None).handle(handler);
        let report = worker.build().unwrap().run_until_idle().await.unwrap();
        assert_eq!((report.completed, report.dead_lettered), (1, 1));
    }
    let error = match with_blobs(&bench, "l").await.queue::<Work>().await {
        Ok(queue) => queue.send(&work("good")).await.unwrap_err(),
        Err(error) => error,
    };
    assert!(format!("{error:?}").contains("missing: 'r'"), "{error:?}");
}
