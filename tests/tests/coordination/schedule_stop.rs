//! The end of a worker that leads schedules: what is under way is finished, and the leases are released. In
//! paused time on memory.

use std::time::Duration;

use jobqueue::schedule::Schedule;
use jobqueue::storage::{BlobName, ContainerName, Operation};
use jobqueue::{JobError, Storage, Worker};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, task, worker};
use serde::{Deserialize, Serialize};

const MINUTE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

/// The message that the workers handle, so that tasks stay where the test counts them.
#[derive(Debug, Serialize, Deserialize, jobqueue::QueueMessage)]
#[message(queue = "others", kind = "other")]
struct Other {}

/// Returns a worker with these schedules.
fn scheduling(storage: &Storage, names: &[&str]) -> Worker {
    let worker = worker(storage).handle(|_: Other| async { Ok::<_, JobError>(()) });
    let schedule = |name: &&str| Schedule::every(MINUTE).name(*name);
    let worker =
        names.iter().fold(worker, |worker, name| worker.schedule_by(schedule(name), || task("tick")));
    worker.build().unwrap()
}

fn blob(container: &str, name: &str) -> BlobName {
    BlobName::new(ContainerName::new(container).unwrap(), name).unwrap()
}

// audit 23, coordination C7
#[tokio::test(start_paused = true)]
async fn worker_that_stops_notes_its_slot_and_releases_its_leases() {
    for names in [&["a"][..], &["a", "b"]] {
        let storage = in_memory();
        let faulty = Faulty::new(&storage);
        faulty.plan_always(Operation::ReleaseLease, Fault::DelayBefore(SECOND));
        faulty.plan_always(Operation::Put, Fault::DelayAfter(2 * SECOND));
        let queue = storage.queue::<Task>().await.unwrap();
        // The worker stops while it sends the first slot.
        let sending = async {
            while queue.approximate_len().await.unwrap() < names.len() as u64 {
                tokio::time::sleep(SECOND / 10).await;
            }
        };
        let _ = scheduling(&faulty.storage(), names).run_until(sending).await.unwrap();
        for name in names {
            let leadership = blob("jobqueue-leaders", &format!("schedules/{name}"));
            let held = storage.blobs().blob_properties(&leadership);
            assert!(!held.await.unwrap().is_leased, "the schedule {name} has a leader");
            let state = storage.blobs().get_blob(&blob("jobqueue-schedules", name), 4096).await.unwrap();
            let state: serde_json::Value = serde_json::from_slice(&state.data).unwrap();
            assert!(state["pending"].is_null(), "{state}");
        }
        let sets = ContainerName::new("jobqueue-leaders").unwrap();
        let leases = storage.blobs().list_blobs(&sets, "", None).await.unwrap().blobs;
        assert!(leases.iter().all(|(_, lease)| !lease.is_leased), "{leases:?}");
        let _ = scheduling(&storage, names).run_until(after(30)).await.unwrap();
        assert_eq!(queue.approximate_len().await.unwrap(), names.len() as u64, "a slot was sent twice");
    }
}

/// A request of the step hangs.
#[tokio::test(start_paused = true)]
async fn worker_that_stops_does_not_lead_on_while_its_storage_hangs() {
    let storage = in_memory();
    let faulty = Faulty::new(&storage);
    faulty.plan_always(Operation::Put, Fault::Hang);
    let _ = scheduling(&faulty.storage(), &["a"]).run_until(after(90)).await.unwrap();
    let held = storage.blobs().blob_properties(&blob("jobqueue-leaders", "schedules/a")).await.unwrap();
    assert!(!held.is_leased);
}
