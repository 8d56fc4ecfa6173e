//! Explanations of jobs that wait for the rate of their kind.

use std::time::Duration;

use jobqueue::worker::{HandlerLimits, RateLimit};
use jobqueue::{JobError, SendOptions};
use jobqueue_admin::{JobPlace, JobReference};
use jobqueue_tests::jobs::{Task, after, in_memory};
use tokio::time::sleep;

use crate::admin::explain::{explain, send};
use crate::admin::presence::present;

#[tokio::test(start_paused = true)]
async fn rate_limit_of_a_kind_is_named() {
    let storage = in_memory();
    for name in ["first", "second", "third"] {
        send(&storage, name, SendOptions::new()).await;
    }
    let limits = HandlerLimits::new().rate(&RateLimit::new(1, Duration::from_secs(600)));
    let worker =
        present(&storage).concurrency(8).handle(async |_: Task| Ok::<_, JobError>(())).limit::<Task>(limits);
    let looking = async {
        sleep(Duration::from_secs(40)).await;
        let last = JobReference::new("tasks", "third");
        let (found, codes) = explain(&storage, &last).await;
        assert_eq!(found.place, JobPlace::Waiting, "{}", found.summary);
        assert_eq!(codes, vec!["rate_limit"], "{}", found.summary);
        assert!(found.summary.contains("the rate limit of the kind `task` is"), "{}", found.summary);
    };
    let _ = tokio::join!(worker.build().unwrap().run_until(after(60)), looking);
}

#[tokio::test(start_paused = true)]
async fn rate_that_workers_share_is_counted_once() {
    let storage = in_memory();
    for name in ["first", "second", "third", "fourth"] {
        send(&storage, name, SendOptions::new()).await;
    }
    let worker = || {
        let limit = RateLimit::new(1, Duration::from_secs(100)).across_workers(&storage, "provider").unwrap();
        let worker = present(&storage).concurrency(8).handle(async |_: Task| Ok::<_, JobError>(()));
        worker.limit::<Task>(HandlerLimits::new().rate(&limit)).build().unwrap()
    };
    let looking = async {
        sleep(Duration::from_secs(40)).await;
        let last = JobReference::new("tasks", "fourth");
        let (found, _) = explain(&storage, &last).await;
        let texts: Vec<_> = found.reasons.iter().map(|reason| reason.text.as_str()).collect();
        assert!(texts.contains(&"the rate limit of the kind `task` is 0.01 jobs a second"), "{texts:?}");
    };
    let _ = tokio::join!(worker().run_until(after(60)), worker().run_until(after(60)), looking);
}
