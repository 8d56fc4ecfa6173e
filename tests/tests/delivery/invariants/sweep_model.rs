//! A model of random sends, runs, redrives and sweeps, in which no live reference is ever swept.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::maintenance::sweep;
use jobqueue::{Context, JobError, SendOptions, Storage};
use jobqueue_tests::jobs::{Task, after, in_memory, worker};
use proptest::prelude::*;

use super::sweep::{DAY, blobs, large, options, queue};

#[derive(Debug, Clone)]
enum Step {
    Send {
        ttl: Option<u64>,
        delay: u64,
    },
    /// Runs a worker for a while: some jobs end, some fail, some save progress, some are cancelled.
    Work {
        seconds: u64,
        seed: u64,
    },
    Redrive,
    Wait(u64),
    Sweep {
        drained: bool,
    },
}

fn steps() -> impl Strategy<Value = Step> {
    let times = prop_oneof![1..3600u64, 3600..DAY, DAY..10 * DAY];
    prop_oneof![
        3 => (prop::option::of(times.clone()), prop_oneof![Just(0u64), 1..7 * DAY])
            .prop_map(|(ttl, delay)| Step::Send { ttl, delay }),
        3 => (1..300u64, any::<u64>()).prop_map(|(seconds, seed)| Step::Work { seconds, seed }),
        1 => Just(Step::Redrive),
        3 => times.prop_map(Step::Wait),
        3 => any::<bool>().prop_map(|drained| Step::Sweep { drained }),
    ]
}

async fn work(storage: &Storage, seconds: u64, seed: u64) -> u64 {
    let missing = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let handler = move |task: Task, ctx: Context| async move {
        assert_eq!(task.data.len(), 70_000);
        let _: Option<String> = ctx.resume().await?;
        let dice = (seed ^ task.name.bytes().map(u64::from).sum::<u64>()).wrapping_mul(0x9E37_79B9) >> 7;
        if dice & 1 == 0 {
            ctx.checkpoint(&"p".repeat(20_000)).await?;
        }
        match dice % 7 {
            0 => Ok(()),
            1 => Err(JobError::dead_letter("no")),
            2 => Err(JobError::snooze(Duration::from_secs(2 * DAY))),
            3 => std::future::pending().await,
            _ => Err(JobError::retry_after(Duration::from_secs(dice % (6 * DAY)), "again")),
        }
    };
    let counted = Arc::clone(&missing);
    let listen = move |event: &jobqueue::Event| {
        if let jobqueue::Event::Finished { error: Some(error), .. } = event
            && error.contains("blob")
        {
            counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    };
    let worker = worker(storage).circuit_breaker(None).handle(handler).on_event(listen).build().unwrap();
    let _ =
        tokio::time::timeout(Duration::from_secs(seconds), worker.run_until(std::future::pending())).await;
    missing.load(std::sync::atomic::Ordering::SeqCst)
}

async fn run_model(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let storage = in_memory();
    let queue = queue(&storage).await;
    let mut sent = 0;
    for step in steps {
        match step {
            Step::Send { ttl, delay } => {
                sent += 1;
                let mut options = SendOptions::new().delay(Duration::from_secs(delay));
                if let Some(ttl) = ttl {
                    options = options.ttl(Duration::from_secs(ttl + delay + 1));
                }
                let _ = queue.send(&large(format!("job {sent}"))).with(options).await.unwrap();
            }
            Step::Work { seconds, seed } => {
                prop_assert_eq!(work(&storage, seconds, seed).await, 0, "a worker missed a payload");
            }
            Step::Redrive => {
                let _ = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
            }
            Step::Wait(seconds) => after(seconds).await,
            Step::Sweep { drained } => {
                let _ = sweep(&storage, options().drained_queues(drained)).await.unwrap();
            }
        }
        // Whatever can be delivered, now or later, has what it refers to.
        for name in ["tasks", "tasks-poison"] {
            let Ok(peeked) = storage.queues().peek(&name.parse().unwrap(), 32).await else { continue };
            let there = blobs(&storage).await;
            for message in peeked {
                let text = message.text.unwrap();
                let event: serde_json::Value = serde_json::from_str(&text).unwrap();
                let references = event.as_object().unwrap().iter().filter(|(name, _)| name.ends_with("ref"));
                for (attribute, reference) in references {
                    let found = there.iter().any(|blob| reference == blob);
                    prop_assert!(found, "{} of a live message in {} is gone", attribute, name);
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    // I15
    #[test]
    fn no_live_reference_is_ever_swept(steps in prop::collection::vec(steps(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(run_model(steps))?;
    }
}
