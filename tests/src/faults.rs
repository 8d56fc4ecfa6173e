//! Storages at the distance of Azure, and storages of which a part fails.

use std::time::Duration;

use jobqueue::sharded::Sharded;
use jobqueue::{JobError, Storage};
use jobqueue_testing::faults::{AzureLike, Call, Faulty};

use crate::jobs::{Task, in_memory, task, worker};

/// Returns the pauses between storage calls that are longer than a call takes, that is, deliberate waits and
/// calls that hung.
pub fn pauses(calls: &[Call]) -> Vec<Duration> {
    let gaps = calls.windows(2).map(|two| two[1].at.duration_since(two[0].at));
    gaps.map(|gap| gap.saturating_sub(AzureLike::SLOWEST)).filter(|pause| !pause.is_zero()).collect()
}

/// Returns a storage of two shards with four dead letters of `tasks`, and the handle for the faults of the
/// second shard.
pub async fn dead_letters_on_two_shards() -> (Storage, Faulty) {
    let (one, two) = (in_memory(), in_memory());
    let faulty = Faulty::new(&two);
    let accounts = Sharded::builder().account("one", one).account("two", faulty.storage());
    let sharded = accounts.shards("tasks", 2).shards("tasks-poison", 2).build().unwrap();
    let storage = Storage::from(sharded.stores());
    let queue = storage.queue::<Task>().await.unwrap();
    for name in ["a", "b", "c", "d"] {
        queue.send(&task(name)).await.unwrap();
    }
    let reject = |_: Task| async { Err::<(), _>(JobError::dead_letter("no")) };
    let rejected = worker(&storage).handle(reject).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(rejected.dead_lettered, 4);
    (storage, faulty)
}
