//! Progress, steps and effects: I10, I14, F43, F44, and the circuit breaker.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::job::Verdict;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::worker::{CheckpointOutcome, CircuitBreaker};
use jobqueue::{Context, Event, JobError, memory};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Log, Task, after, payloads, task, worker};

// I10
#[tokio::test(start_paused = true)]
async fn step_runs_once_however_often_the_job_fails() {
    let storage = memory::open();
    let _ = storage.queue::<Task>().await.unwrap().send(&task("a")).await.unwrap();
    let log = Log::default();
    let sink = Arc::clone(&log);
    let handler = move |_: Task, ctx: Context| {
        let sink = Arc::clone(&sink);
        async move {
            let attempt = ctx.info().attempt;
            let note = |text: &str| sink.lock().unwrap().push(format!("{text} {attempt}"));
            // Large enough to need a blob of its own.
            let scan = async || -> Result<String, JobError> {
                note("scan");
                Ok("frame".repeat(20_000))
            };
            assert_eq!(ctx.step("scan", scan).await?.len(), 100_000);
            let before = (attempt > 1).then(|| attempt - 1);
            assert_eq!(ctx.resume::<u32>().await?, before, "of the attempt before");
            ctx.checkpoint(&attempt).await?;
            let encode = async || {
                note("encode");
                if attempt < 2 { Err(JobError::retry("codec crashed")) } else { Ok(7) }
            };
            assert_eq!(ctx.step("encode", encode).await?, 7);
            assert_eq!(ctx.resume::<u32>().await?, Some(attempt), "steps keep the progress");
            if attempt < 3 { Err(JobError::retry("after the steps")) } else { Ok(()) }
        }
    };
    let worker = worker(&storage).handle(handler).build().unwrap();
    let report = worker.run_until(after(120)).await.unwrap();
    assert_eq!(report.retried, 2);
    assert_eq!(report.completed, 1);
    assert_eq!(*log.lock().unwrap(), ["scan 1", "encode 1", "encode 2"]);
}

// I2, F44
#[tokio::test(start_paused = true)]
async fn recorded_effect_is_not_repeated_by_duplicates() {
    let faulty = Faulty::new(&memory::open());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    // A lost answer makes two messages of one job; a lost answer of the record is no loss of the record.
    faulty.plan(Operation::Put, 1, Fault::DropAnswer(StoreErrorKind::Timeout));
    faulty.plan(Operation::PutBlob, 2, Fault::DropAnswer(StoreErrorKind::Timeout));
    let _ = queue.send(&task("a")).await.unwrap();
    let effects: Arc<Mutex<u32>> = Arc::default();
    let counted = Arc::clone(&effects);
    let handler = move |_: Task, ctx: Context| {
        let counted = Arc::clone(&counted);
        async move {
            let charge = async || -> Result<u32, JobError> {
                let mut charged = counted.lock().unwrap();
                *charged += 1;
                Ok(100 + *charged)
            };
            assert_eq!(ctx.once("charge", charge).await?, 101, "the recorded result");
            if ctx.info().attempt == 1 { Err(JobError::retry("after the effect")) } else { Ok(()) }
        }
    };
    let worker = worker(&faulty.storage()).concurrency(1).handle(handler).build().unwrap();
    let report = worker.run_until(after(120)).await.unwrap();
    assert_eq!(report.completed, 2);
    assert_eq!(*effects.lock().unwrap(), 1);
}

// I10
#[tokio::test(start_paused = true)]
async fn no_checkpoint_follows_an_ambiguous_one() {
    let faulty = Faulty::new(&memory::open());
    let _ = faulty.storage().queue::<Task>().await.unwrap().send(&task("a")).await.unwrap();
    faulty.plan(Operation::Update, 2, Fault::DropAnswer(StoreErrorKind::Timeout));
    let log = Log::default();
    let sink = Arc::clone(&log);
    let handler = move |_: Task, ctx: Context| {
        let sink = Arc::clone(&sink);
        async move {
            let found = ctx.resume::<u32>().await?;
            sink.lock().unwrap().push(format!("resume {found:?}"));
            if ctx.info().dequeue_count > 1 {
                return Ok(());
            }
            assert_eq!(ctx.checkpoint(&1).await?, CheckpointOutcome::Saved);
            assert_eq!(ctx.checkpoint(&2).await?, CheckpointOutcome::Unknown);
            assert_eq!(ctx.checkpoint(&3).await?, CheckpointOutcome::Unknown, "no further one");
            Err(JobError::retry("cannot be told to the storage"))
        }
    };
    let worker = worker(&faulty.storage()).handle(handler).build().unwrap();
    let _ = worker.run_until(after(120)).await.unwrap();
    // The one without answer was applied, and 3 never was.
    assert_eq!(*log.lock().unwrap(), ["resume None", "resume Some(2)"]);
}

// audit 24, core B1
// I10
#[tokio::test(start_paused = true)]
async fn step_without_an_answer_is_saved_by_what_follows_it() {
    // A dead letter keeps the checkpoint.
    for (next, left) in [("save", 0), ("retry", 0), ("complete", 0), ("reject", 1)] {
        let faulty = Faulty::new(&memory::open());
        let _ = faulty.storage().queue::<Task>().await.unwrap().send(&task("a")).await.unwrap();
        let (plan, runs) = (faulty.clone(), Arc::<Mutex<u32>>::default());
        let counted = Arc::clone(&runs);
        let handler = move |_: Task, ctx: Context| {
            let (plan, counted) = (plan.clone(), Arc::clone(&counted));
            async move {
                // In a blob, as the checkpoint before it is.
                ctx.step("text", async || Ok::<_, JobError>("t".repeat(40_000))).await?;
                let is_first = ctx.info().attempt == 1;
                if is_first {
                    plan.plan_always(Operation::Update, Fault::LoseRequest(StoreErrorKind::Timeout));
                }
                let number = async || -> Result<u32, JobError> {
                    let mut runs = counted.lock().unwrap();
                    *runs += 1;
                    Ok(*runs)
                };
                assert_eq!(ctx.step("number", number).await?, 1);
                if !is_first {
                    return Ok(());
                }
                plan.heal();
                // A renewal shows meanwhile that the lease is held.
                after(25).await;
                match next {
                    "save" => ctx.step("charge", async || Ok::<_, JobError>(())).await?,
                    "complete" => return Ok(()),
                    "reject" => return Err(JobError::dead_letter("after the steps")),
                    _ => {}
                }
                Err(JobError::retry("after the steps"))
            }
        };
        let worker = worker(&faulty.storage()).handle(handler).build().unwrap();
        let report = worker.run_until(after(120)).await.unwrap();
        assert_eq!(report.completed + report.dead_lettered, 1, "{next}: {report:?}");
        assert_eq!(*runs.lock().unwrap(), 1, "{next}");
        assert_eq!(payloads(&faulty.storage()).await, left, "{next}: no other blob is left");
    }
}

// audit 25, core C2
#[tokio::test(start_paused = true)]
async fn attempt_with_a_large_step_in_doubt_is_counted_without_blobs() {
    let faulty = Faulty::new(&memory::open());
    let _ = faulty.storage().queue::<Task>().await.unwrap().send(&task("a")).await.unwrap();
    let (plan, attempts, runs) =
        (faulty.clone(), Arc::<Mutex<Vec<u32>>>::default(), Arc::<Mutex<u32>>::default());
    let (begun, counted) = (Arc::clone(&attempts), Arc::clone(&runs));
    let handler = move |_: Task, ctx: Context| {
        let (plan, counted) = (plan.clone(), Arc::clone(&counted));
        begun.lock().unwrap().push(ctx.info().attempt);
        async move {
            let is_first = ctx.info().attempt == 1;
            if is_first {
                plan.plan_always(Operation::Update, Fault::LoseRequest(StoreErrorKind::Timeout));
            }
            ctx.step("small", async || Ok::<_, JobError>(())).await?;
            // The lease is in doubt from its beginning.
            let large = async || -> Result<String, JobError> {
                *counted.lock().unwrap() += 1;
                Ok("t".repeat(40_000))
            };
            ctx.step("large", large).await?;
            if !is_first {
                return Ok(());
            }
            plan.heal();
            // A renewal shows meanwhile that the lease is held.
            after(25).await;
            plan.plan_always(Operation::PutBlob, Fault::Refuse(StoreErrorKind::Unavailable));
            Err(JobError::retry("after the steps"))
        }
    };
    let report =
        worker(&faulty.storage()).handle(handler).build().unwrap().run_until(after(120)).await.unwrap();
    assert_eq!((report.retried, report.completed), (1, 1), "{report:?}");
    assert_eq!(*attempts.lock().unwrap(), [1, 2]);
    assert_eq!(*runs.lock().unwrap(), 1, "the step is saved");
    assert_eq!(payloads(&faulty.storage()).await, 0, "no blob is left");
}

// I10
#[tokio::test(start_paused = true)]
async fn refused_checkpoint_is_retried_and_the_next_succeeds() {
    refuse_checkpoints(Faulty::new(&memory::open()), StoreErrorKind::Unavailable).await;
    // Quiet: only such a storage throttles with certainty.
    refuse_checkpoints(Faulty::quiet(&memory::open()), StoreErrorKind::Throttled).await;
}

async fn refuse_checkpoints(faulty: Faulty, refusal: StoreErrorKind) {
    let _ = faulty.storage().queue::<Task>().await.unwrap().send(&task("a")).await.unwrap();
    let plan = faulty.clone();
    let handler = move |_: Task, ctx: Context| {
        let plan = plan.clone();
        async move {
            plan.plan(Operation::Update, 1, Fault::Refuse(refusal));
            ctx.checkpoint(&1).await?;
            plan.plan_always(Operation::Update, Fault::Refuse(refusal));
            let refused = ctx.checkpoint(&2).await.unwrap_err();
            assert!(!refused.is_lease_uncertain() && !refused.is_lease_lost(), "{refused}");
            plan.heal();
            ctx.checkpoint(&3).await?;
            plan.plan_always(Operation::Update, Fault::LoseRequest(StoreErrorKind::Timeout));
            assert_eq!(ctx.checkpoint(&4).await?, CheckpointOutcome::Unknown);
            plan.heal();
            Ok::<(), JobError>(())
        }
    };
    let report = worker(&faulty.storage()).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1);
    assert_eq!(report.retried, 0);
}

// I14
#[tokio::test(start_paused = true)]
async fn snoozes_keep_checkpoint_and_attempts() {
    let storage = memory::open();
    let _ = storage.queue::<Task>().await.unwrap().send(&task("a")).await.unwrap();
    let handler = |_: Task, ctx: Context| async move {
        assert_eq!(ctx.info().attempt, 1);
        let times: u32 = ctx.resume().await?.unwrap_or_default();
        ctx.checkpoint(&(times + 1)).await?;
        if times < 50 { Err(JobError::snooze(Duration::from_secs(5))) } else { Ok(()) }
    };
    // A snooze is no failure, about which a policy decides.
    let worker = worker(&storage).handle(handler).retry_policy(|_, _| Some(Verdict::Retry));
    let report = worker.build().unwrap().run_until(after(600)).await.unwrap();
    assert_eq!(report.released, 50, "50 releases are over any threshold");
    assert_eq!(report.completed, 1, "50 releases are over any threshold");
}

// I11
#[tokio::test(start_paused = true)]
async fn outage_does_not_use_up_all_attempts() {
    let storage = memory::open();
    let queue = storage.queue::<Task>().await.unwrap();
    for n in 0..500 {
        let _ = queue.send(&task(n.to_string())).await.unwrap();
    }
    let mended = tokio::time::Instant::now() + Duration::from_secs(1800);
    let handler = move |_: Task| async move {
        if tokio::time::Instant::now() < mended {
            Err(JobError::retry("the database is down"))
        } else {
            Ok(())
        }
    };
    let log = Log::default();
    let sink = Arc::clone(&log);
    let listen = move |event: &Event| match event {
        Event::CircuitOpened { .. } => sink.lock().unwrap().push("opened".into()),
        Event::CircuitClosed { .. } => sink.lock().unwrap().push("closed".into()),
        _ => {}
    };
    let breaker = CircuitBreaker::new();
    let worker = worker(&storage).concurrency(8).circuit_breaker(breaker).handle(handler).on_event(listen);
    let report = worker.build().unwrap().run_until(after(7200)).await.unwrap();
    let log = log.lock().unwrap();
    assert!(log.len() > 3 && log[0] == "opened" && log.last().unwrap() == "closed", "{log:?}");
    assert!(report.dead_lettered <= 5, "{} of 500 jobs ran out of attempts", report.dead_lettered);
    assert_eq!(report.completed + report.dead_lettered, 500);
}
