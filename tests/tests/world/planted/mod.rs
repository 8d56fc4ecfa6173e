//! Planted defects: for each check of the judge of worlds, shows that it reports the defect that it is for.
//!
//! | the finding of the judge | the planted defect |
//! |---|---|
//! | an acknowledged job is lost | [`ForgetsPuts`](Defect::ForgetsPuts), for a job of the scenario and for a follow-up |
//! | a refused job runs | [`StoresRefused`](Defect::StoresRefused), for a job of the scenario and for a follow-up |
//! | a job ran twice without a cause | [`KeepsDeleted`](Defect::KeepsDeleted), for a job of the scenario and for a follow-up; [`RefusesDeletions`](Defect::RefusesDeletions); [`StoresAgain`](Defect::StoresAgain), for a redriven job |
//! | a job that was done is dead-lettered | `KeepsDeleted`, with a handler that rejects the job the second time; after a deletion without an answer, a history (`checks/doubled.rs`) |
//! | a job is done, and its dead letter is left | a history that no storage can cause (`checks/doubled.rs`) |
//! | an effect happened twice without a cause | `KeepsDeleted` |
//! | an effect happened twice in one run | a handler that repeats it |
//! | two handlers of a job run at once | [`HandsOutLeased`](Defect::HandsOutLeased) |
//! | a handler begins although a later delivery has begun | [`CountsBackwards`](Defect::CountsBackwards) |
//! | a worker settles a message that another one has | [`DoesNotRenew`](Defect::DoesNotRenew), for jobs that are done, rejected and snoozed |
//! | a job fails without end | [`ForgetsFailures`](Defect::ForgetsFailures) |
//! | a message waits forever | [`Hides`](Defect::Hides) |
//! | a job has too many attempts, a job has too few attempts, a failed attempt is not counted | a history that no storage can cause (`checks/attempts.rs`) |
//! | the world itself failed | a worker that cannot be built |
//!
//! Nothing else fails in these worlds, so no fault can be a cause. The checks of the mix of all features have
//! their own planted defects (`mix/checks/planted.rs`).

pub(super) mod queues;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::{
    Context, JobError, JobInfo, QueueMessage, Runtime, SendOptions, State, Storage, WorkerBuilder, memory,
};
use jobqueue_testing::world::{Builder, Effects, Profile, World};
use queues::{BrokenQueues, Defect, Seen};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

/// The orders of a shop.
#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "orders", kind = "order", lease = "20s", poison_threshold = 3)]
#[message(backoff(base = "1s", max = "1s"))]
struct Order {
    millis: u64,
}

/// The message that the handler of an order sends.
#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "receipts", kind = "receipt", lease = "20s", poison_threshold = 3)]
struct Receipt {}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    Careful,
    /// Has its effect twice in a run.
    Repeats,
    /// Always fails.
    Fails,
    /// Rejects every later delivery.
    RejectsLater,
    /// Rejects every delivery.
    Rejects,
    /// Asks for another run in the first delivery.
    SnoozesFirst,
    /// Rejects a job until it is redriven.
    RejectsUntilRedriven,
}

async fn order(
    order: Order,
    ctx: Context,
    job: JobInfo,
    State(effects): State<Effects>,
    State(manner): State<Manner>,
) -> Result<(), JobError> {
    sleep(Duration::from_millis(order.millis)).await;
    effects.happened("charged", &job);
    match manner {
        Manner::Repeats => effects.happened("charged", &job),
        Manner::Fails => return Err(JobError::retry("as planted")),
        Manner::Rejects => return Err(JobError::dead_letter("as planted")),
        Manner::SnoozesFirst if job.dequeue_count == 1 => {
            return Err(JobError::snooze(Duration::from_secs(1)));
        }
        Manner::RejectsLater if job.dequeue_count > 1 => return Err(JobError::dead_letter("as planted")),
        // The fences of a redriven job begin with the time.
        Manner::RejectsUntilRedriven if ctx.fence() < 1 << 32 => {
            return Err(JobError::dead_letter("as planted"));
        }
        _ => {}
    }
    // A refused follow-up is no reason to charge again.
    drop(ctx.queue::<Receipt>().await?.send(&Receipt {}).await);
    Ok(())
}

async fn receipt(_: Receipt) -> Result<(), JobError> {
    sleep(Duration::from_millis(300)).await;
    Ok(())
}

/// Returns `storage` with a defect that affects queues and messages that contain `word`.
pub(super) fn broken(storage: &Storage, defect: Defect, word: &'static str) -> Storage {
    let (inner, seen) = (Arc::clone(storage.queues().store()), Arc::new(Mutex::new(Seen::default())));
    let queues = BrokenQueues { inner, defect, word, seen };
    Storage::new(Arc::new(queues), Arc::clone(storage.blobs()), "a broken storage")
}

/// Returns the world of a shop with two workers in which nothing fails.
fn shop(manner: Manner, millis: u64) -> Builder {
    World::builder()
        .profile(Profile::quiet())
        .patience(Duration::from_secs(3_600))
        .workers(2, move |worker: WorkerBuilder| worker.state(manner).handle(order).handle(receipt))
        .scenario(move |world| async move {
            let till = world.node("till");
            let orders = till.queue::<Order>().await?;
            for number in 0..3 {
                let options = SendOptions::new();
                drop(till.send_with(&orders, &Order { millis }, &format!("order{number}"), options).await);
            }
            Ok(())
        })
}

fn findings(world: &Builder) -> Vec<String> {
    let run = world.run(1);
    run.findings.iter().map(|finding| format!("{}: {}", finding.what, finding.subject)).collect()
}

/// Returns the world of a shop whose orders die, and are redriven after half a minute.
fn redriving_shop() -> Builder {
    shop(Manner::RejectsUntilRedriven, 300).scenario(|world| async move {
        let till = world.node("till");
        let orders = till.queue::<Order>().await?;
        for number in 0..8 {
            till.send_with(&orders, &Order { millis: 300 }, &format!("order{number}"), SendOptions::new())
                .await?;
        }
        sleep(Duration::from_secs(30)).await;
        let node = till.clone();
        let all = DeadLetterOptions::new().filter(move |letter| {
            node.redriven(&letter.id);
            true
        });
        orders.dead_letters()?.redrive(all).await.map(drop)
    })
}

/// Asserts that a shop has the finding `what` on a storage with this defect, and that the same shop has no
/// findings without the defect.
#[track_caller]
fn assert_found(defect: Defect, word: &'static str, manner: Manner, millis: u64, what: &str) {
    assert_found_in(&shop(manner, millis), defect, word, what);
}

#[track_caller]
fn assert_found_in(shop: &Builder, defect: Defect, word: &'static str, what: &str) {
    let sound =
        shop.clone().storage(|clock| async move { memory::open_on(Runtime::new().with_clock(clock)) });
    let sound = findings(&sound);
    assert!(sound.is_empty(), "without the defect: {sound:?}");
    let broken = shop.clone().storage(move |clock| async move {
        broken(&memory::open_on(Runtime::new().with_clock(clock)), defect, word)
    });
    let found = findings(&broken);
    assert!(found.iter().any(|found| found.starts_with(what)), "{defect:?} is found as {found:?}");
}

#[test]
fn forgotten_message_is_found() {
    assert_found(Defect::ForgetsPuts, "orders", Manner::Careful, 300, "an acknowledged job is lost: order0");
    // Follow-ups are known only by their puts.
    assert_found(Defect::ForgetsPuts, "receipts", Manner::Careful, 300, "an acknowledged job is lost");
}

#[test]
fn refused_job_that_runs_is_found() {
    assert_found(Defect::StoresRefused, "orders", Manner::Careful, 300, "a refused job runs: order0");
    assert_found(Defect::StoresRefused, "receipts", Manner::Careful, 300, "a refused job runs");
}

#[test]
fn second_run_of_a_job_that_was_done_is_found() {
    let what = "a job ran twice without a cause";
    assert_found(Defect::KeepsDeleted, "orders", Manner::Careful, 300, what);
    assert_found(Defect::KeepsDeleted, "receipts", Manner::Careful, 300, what);
    assert_found(Defect::RefusesDeletions, "orders", Manner::Careful, 300, what);
    // A redrive puts a job again, but its first message is gone by then.
    assert_found_in(&redriving_shop(), Defect::StoresAgain, "deadletterpast", what);
}

#[test]
fn repeated_effect_is_found() {
    let without_cause = "an effect happened twice without a cause";
    assert_found(Defect::KeepsDeleted, "orders", Manner::Careful, 300, without_cause);
    let careless = findings(&shop(Manner::Repeats, 300));
    let in_one_run = |found: &String| found.starts_with("an effect happened twice in one run");
    assert!(careless.iter().any(in_one_run), "{careless:?}");
}

#[test]
fn death_of_a_job_that_was_done_is_found() {
    let what = "a job that was done is dead-lettered";
    assert_found(Defect::KeepsDeleted, "orders", Manner::RejectsLater, 300, what);
}

#[test]
fn overlapping_handlers_are_found() {
    let what = "two handlers of a job run at once";
    assert_found(Defect::HandsOutLeased, "orders", Manner::Careful, 10_000, what);
}

#[test]
fn stale_delivery_is_found() {
    let what = "a handler begins although a later delivery has begun";
    assert_found(Defect::CountsBackwards, "orders", Manner::Careful, 10_000, what);
}

#[test]
fn settlement_by_a_worker_without_the_lease_is_found() {
    let what = "a worker settles a message that another one has";
    for manner in [Manner::Careful, Manner::Rejects, Manner::SnoozesFirst] {
        assert_found(Defect::DoesNotRenew, "orders", manner, 50_000, what);
    }
}

#[test]
fn failures_without_end_are_found() {
    assert_found(Defect::ForgetsFailures, "orders", Manner::Fails, 10, "a job fails without end");
}

#[test]
fn message_that_is_never_delivered_is_found() {
    assert_found(Defect::Hides, "orders", Manner::Careful, 300, "a message waits forever");
}

#[test]
fn worker_that_cannot_be_built_is_found() {
    let found = findings(&World::builder().profile(Profile::quiet()).workers(1, |worker| worker));
    assert!(found.iter().any(|found| found.starts_with("the world itself failed")), "{found:?}");
}

// The judge used to keep the dead letters leased, on Service Bus for minutes, so that the judges of a
// scenario saw none.
#[test]
fn judges_of_a_scenario_see_dead_letters() {
    let judged = shop(Manner::Fails, 10).judge(|world| async move {
        let orders = world.storage().queue::<Order>().await.unwrap();
        assert_eq!(orders.dead_letters().unwrap().list().await.unwrap().letters.len(), 3);
        Vec::new()
    });
    assert_eq!(findings(&judged), Vec::<String>::new());
}
