//! The processes that send: single jobs, lists, jobs in order, unique jobs; and batches, which their
//! successors continue.

use std::collections::BTreeSet;
use std::time::Duration;

use jobqueue::batch::OnDeadLetters;
use jobqueue::queue::SendUniqueOutcome;
use jobqueue::{Error, Queue, SendOptions};
use rand::RngExt;
use uuid::Uuid;

use super::jobs::{Freight, Join, Order, Slice, Task, Todo, children_of, goes_on};
use super::ledger::read_all;
use super::process::Process;

/// The time for which a unique job is the only one of its key.
pub const WINDOW: Duration = Duration::from_secs(3);
/// The number of keys that have an order, and of those that have unique jobs.
pub const KEYS: u32 = 4;

const TODOS: [Todo; 10] = [
    Todo::Short,
    Todo::Short,
    Todo::Short,
    Todo::Staged,
    Todo::Staged,
    Todo::Snooze,
    Todo::Fail,
    Todo::Poison,
    Todo::Commit,
    Todo::Commit,
];

/// Sends jobs, one or thirty at a time.
pub async fn produce(process: &Process) {
    let tasks = process.storage.queue::<Task>().await.unwrap();
    let orders = process.storage.queue::<Order>().await.unwrap();
    loop {
        let (todo, key) = {
            let mut random = process.random();
            (TODOS[random.random_range(0..TODOS.len())], random.random_range(0..KEYS))
        };
        let choice = process.random().random_range(0..10);
        match choice {
            0 => send_group(process, &tasks).await,
            1 => send_unique(process, &tasks, todo, key).await,
            2..=5 => {
                let id = format!("{}-o{key}-{}", todo.letter(), Uuid::new_v4());
                let options = SendOptions::new().id(&id).key(format!("o{key}")).in_order();
                send(process, &orders, &Order(Freight::of(&id)), &id, options).await;
            }
            _ => {
                let id = format!("{}-t-{}", todo.letter(), Uuid::new_v4());
                send(process, &tasks, &Task(Freight::of(&id)), &id, SendOptions::new().id(&id)).await;
            }
        }
        while tasks.approximate_len().await.unwrap() + orders.approximate_len().await.unwrap() > 300 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Records what is known about a send. Returns true if it must be sent again under its id.
fn noted<T>(process: &Process, id: &str, sent: &Result<T, Error>) -> bool {
    match sent {
        Ok(_) => process.ledger.note("sent", 0, id),
        Err(error) if error.is_rejected() => process.ledger.note("refused", 0, id),
        Err(_) => {
            process.ledger.note("doubt", 0, id);
            return true;
        }
    }
    false
}

/// Sends a job until it is certain whether it is stored.
async fn send<M: jobqueue::QueueMessage>(
    process: &Process,
    queue: &Queue<M>,
    message: &M,
    id: &str,
    options: SendOptions,
) {
    process.ledger.note("intend", 0, id);
    loop {
        let before = process.doubts.count();
        let sent = queue.send(message).with(options.clone()).await;
        // A message that the library has sent again may exist twice.
        if process.doubts.count() > before {
            process.ledger.note("doubt", 0, id);
        }
        if !noted(process, id, &sent) {
            return;
        }
    }
}

/// Sends many short jobs by one call, whose messages are deleted together.
async fn send_group(process: &Process, tasks: &Queue<Task>) {
    let ids: Vec<_> = (0..30).map(|_| format!("s-t-{}", Uuid::new_v4())).collect();
    let messages: Vec<_> = ids.iter().map(|id| Task(Freight::of(id))).collect();
    for id in &ids {
        process.ledger.note("intend", 0, id);
    }
    let before = process.doubts.count();
    let options = ids.iter().map(|id| SendOptions::new().id(id));
    let sent = tasks.send_all(messages.iter().zip(options)).await;
    let doubted = process.doubts.count() > before;
    for (nth, id) in ids.iter().enumerate() {
        if doubted {
            process.ledger.note("doubt", 0, id);
        }
        if let Ok(sent) = &sent {
            noted(process, id, &sent[nth]);
        }
    }
}

/// Sends a job unless there is one of its key. Does not wait for a dead sender that holds the key.
async fn send_unique(process: &Process, tasks: &Queue<Task>, todo: Todo, key: u32) {
    let own = format!("{}-u{key}-{}", todo.letter(), Uuid::new_v4());
    process.ledger.note("intend", 0, &own);
    let (before, message) = (process.doubts.count(), Task(Freight::of(&own)));
    let options = SendOptions::new().id(&own).key(format!("u{key}"));
    let send = tasks.send(&message).unique_for(WINDOW).with(options);
    let Ok(outcome) = tokio::time::timeout(Duration::from_millis(500), send).await else { return };
    match outcome {
        Ok(SendUniqueOutcome::Joined { id, .. }) => process.ledger.note("joined", 0, &id),
        Ok(outcome) => {
            // In the place of a dead sender, whose message may be stored too.
            if outcome.id() != own || process.doubts.count() > before {
                process.ledger.note("doubt", 0, outcome.id());
            }
            process.ledger.note("unique", key, &own);
            process.ledger.note("sent", 0, outcome.id());
        }
        Err(_) => process.ledger.note("doubt", 0, &own),
    }
}

/// Sends batches. First continues those that its killed predecessors have begun.
pub async fn fan_out(process: &Process) {
    let mut begun = BTreeSet::new();
    for entry in read_all(&process.folder) {
        match entry.what.as_str() {
            "begin" => drop(begun.insert(entry.job)),
            "sealed" => drop(begun.remove(&entry.job)),
            _ => {}
        }
    }
    // The jobs of inner batches continue them.
    begun.retain(|batch| !batch.contains("-in-"));
    let slices = process.storage.queue::<Slice>().await.unwrap();
    loop {
        let batch = begun.pop_first().unwrap_or_else(|| format!("b-{}", Uuid::new_v4()));
        process.ledger.note("begin", 0, &batch);
        while send_batch(process, &batch).await.is_err() {
            process.ledger.note("begin", 0, &batch);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        process.ledger.note("sealed", 0, &batch);
        while slices.approximate_len().await.unwrap() > 100 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
}

async fn send_batch(process: &Process, id: &str) -> Result<(), Error> {
    let mut batch = process.storage.batch(id).await?;
    if goes_on(id) {
        batch.on_dead_letters(OnDeadLetters::Continue);
    }
    batch.send_all(children_of(id).map(|child| Slice(Freight::of(&child)))).await?;
    batch.then(&Join(Freight::small(id))).await
}
