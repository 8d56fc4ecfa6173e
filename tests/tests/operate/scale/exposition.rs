//! `/metrics`: what Python's parser of OpenMetrics reads, and what a scrape costs.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::StatusCode;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{Context, JobError};
use jobqueue_admin::{AccessLevel, Admin, JobReference};
use jobqueue_dashboard::metrics::{self, ALL, Kind};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, task};
use serde_json::Value;
use tokio::time::Instant;

use super::support::{admin, get, present, run_python, send};

/// Returns the sample values of a family, by their names and labels.
fn samples(family: &Value) -> BTreeMap<String, f64> {
    let samples = family["samples"].as_array().unwrap().iter();
    samples
        .map(|s| (format!("{}{}", s["name"].as_str().unwrap(), s["labels"]), s["value"].as_f64().unwrap()))
        .collect()
}

fn parsed(text: &str) -> BTreeMap<String, Value> {
    let families = run_python("exposition.py", text);
    let families = families.as_array().unwrap().iter();
    families.map(|family| (family["name"].as_str().unwrap().to_owned(), family.clone())).collect()
}

/// Runs jobs of which one fails, and scrapes while a worker is present.
async fn scraped() -> String {
    let storage = in_memory();
    send(&storage, 4).await;
    let router = metrics::router(admin(&storage));
    get(&router, "/metrics").await;
    let handler = async |task: Task| {
        after(2).await;
        match task.name.as_str() {
            "3" => Err(JobError::dead_letter("no")),
            _ => Ok(()),
        }
    };
    let running = present(&storage).concurrency(8).handle(handler).build().unwrap().run_until(after(40));
    let scraping = async {
        after(35).await;
        send(&storage, 2).await;
        tokio::task::yield_now().await;
        let (status, headers, text) = get(&router, "/metrics").await;
        assert_eq!(status, StatusCode::OK);
        assert!(headers["content-type"].to_str().unwrap().starts_with("application/openmetrics-text"));
        text
    };
    let (report, text) = tokio::join!(running, scraping);
    assert_eq!(report.unwrap().dead_lettered, 1);
    text
}

#[test]
fn python_reads_every_listed_metric_with_its_type_and_unit() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let text = runtime.block_on(scraped());
    let families = parsed(&text);
    assert_eq!(families.len(), ALL.len(), "{:?}", families.keys());
    for metric in ALL {
        let series = metric.series();
        let family = &families[series.trim_end_matches("_total")];
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
            _ => "gauge",
        };
        assert_eq!(family["type"], kind, "{series}");
        assert_eq!(family["unit"], metric.unit.unwrap_or_default(), "{series}");
        assert_eq!(family["help"], metric.help, "{series}");
        for sample in family["samples"].as_array().unwrap() {
            assert!(sample["name"].as_str().unwrap().starts_with(&*series), "{sample}");
            let labels = sample["labels"].as_object().unwrap().keys().filter(|label| *label != "le");
            let mut labels: Vec<&str> = labels.map(String::as_str).collect();
            let mut listed = metric.labels.to_vec();
            labels.sort_unstable();
            listed.sort_unstable();
            assert_eq!(labels, listed, "{series}");
        }
    }
    let deliveries = samples(&families["jobqueue_deliveries"]);
    let of = |outcome: &str| {
        deliveries
            [&format!(r#"jobqueue_deliveries_total{{"kind":"task","outcome":"{outcome}","queue":"tasks"}}"#)]
    };
    assert_eq!(of("completed"), 3.0);
    assert_eq!(of("dead_lettered"), 1.0);
    assert_eq!(of("retried"), 0.0);
    let times = samples(&families["jobqueue_job_run_time_seconds"]);
    assert_eq!(times[r#"jobqueue_job_run_time_seconds_count{"kind":"task","queue":"tasks"}"#], 4.0);
    assert_eq!(times[r#"jobqueue_job_run_time_seconds_sum{"kind":"task","queue":"tasks"}"#], 8.0);
    let slots = samples(&families["jobqueue_queue_slots"]);
    assert_eq!(slots[r#"jobqueue_queue_slots{"queue":"tasks"}"#], 8.0);
}

/// A parser takes one of two samples of a series, or none.
#[tokio::test(start_paused = true)]
async fn a_queue_is_readable_or_not() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    send(&storage, 3).await;
    faulty.on(Operation::QueueProperties, |call| {
        call.subject.ends_with("-poison").then_some(Fault::Refuse(StoreErrorKind::Unavailable))
    });
    let (_, _, text) = get(&metrics::router(admin(&storage)), "/metrics").await;
    let samples = text.lines().filter(|line| line.starts_with("jobqueue_queue_readable{"));
    assert_eq!(samples.collect::<Vec<_>>(), [r#"jobqueue_queue_readable{queue="tasks"} 0.0"#], "{text}");
    assert!(text.contains("jobqueue_queue_length"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn scrape_of_an_unreadable_storage_shows_no_zeros() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    send(&storage, 3).await;
    let router = metrics::router(admin(&storage));
    let (_, _, text) = get(&router, "/metrics").await;
    assert!(text.contains("jobqueue_scrape_success 1") && text.contains("jobqueue_queue_length"), "{text}");
    faulty.plan_always(Operation::ListQueues, Fault::Refuse(StoreErrorKind::Unavailable));
    after(60).await;
    let (status, _, text) = get(&router, "/metrics").await;
    assert_eq!(status, StatusCode::OK);
    assert!(text.contains("jobqueue_scrape_success 0"), "{text}");
    assert!(text.contains(r#"jobqueue_scrape_refreshes_total{result="failed"} 1"#), "{text}");
    assert!(!text.contains("jobqueue_queue_"), "{text}");
}

/// Prometheus gives a scrape up after 10 seconds, and stores nothing of it.
#[tokio::test(start_paused = true)]
async fn scrape_of_a_storage_that_hangs_reports_it_in_time() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    send(&storage, 3).await;
    let router = metrics::router(admin(&storage));
    faulty.plan_always(Operation::ListQueues, Fault::Hang);
    for _ in 0..3 {
        let began = Instant::now();
        let (status, _, text) = get(&router, "/metrics").await;
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        assert_eq!(status, StatusCode::OK);
        assert!(text.contains("jobqueue_scrape_success 0") && !text.contains("jobqueue_queue_"), "{text}");
        after(60).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_hundred_scrapes_at_once_read_the_storage_once() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    send(&storage, 1).await;
    faulty.plan_always(Operation::ListQueues, Fault::DelayBefore(Duration::from_secs(2)));
    let router = metrics::router(admin(&storage));
    let scrapes = (0..100).map(|_| get(&router, "/metrics"));
    let answers = futures_util::future::join_all(scrapes).await;
    assert!(answers.iter().all(|(_, _, text)| text.contains("jobqueue_scrape_success 1")));
    assert!(answers[0].2.contains("jobqueue_scrape_duration_seconds 2.0"), "{}", answers[0].2);
    assert_eq!(faulty.calls_of(Operation::ListQueues), 1);
    after(5).await;
    get(&router, "/metrics").await;
    assert_eq!(faulty.calls_of(Operation::ListQueues), 1);
    after(5).await;
    get(&router, "/metrics").await;
    assert_eq!(faulty.calls_of(Operation::ListQueues), 2, "figures are at most 10 s old");
}

#[tokio::test(start_paused = true)]
async fn counters_do_not_fall_when_a_worker_goes() {
    let storage = in_memory();
    let router = metrics::router(admin(&storage));
    get(&router, "/metrics").await;
    for round in 1..=2 {
        send(&storage, 5).await;
        let handler = async |_: Task| Ok::<_, JobError>(());
        let running = present(&storage).handle(handler).build().unwrap().run_until(after(40));
        let scraping = async {
            after(35).await;
            get(&router, "/metrics").await.2
        };
        let (_, text) = tokio::join!(running, scraping);
        let line = format!(
            r#"jobqueue_deliveries_total{{queue="tasks",kind="task",outcome="completed"}} {}"#,
            5 * round
        );
        assert!(text.contains(&line), "{text}");
    }
    after(60).await;
    let text = get(&router, "/metrics").await.2;
    assert!(text.contains(r#"outcome="completed"} 10"#), "{text}");
    assert!(text.contains(r#"jobqueue_queue_workers{queue="tasks"} 0"#), "{text}");
}

/// The kinds are those of the jobs: a relay has a handler for every kind.
#[tokio::test(start_paused = true)]
async fn jobs_of_a_relay_are_counted_by_their_kinds() {
    let (outbox, destination) = (in_memory(), in_memory());
    let router = metrics::router(admin(&outbox));
    get(&router, "/metrics").await;
    send(&outbox, 3).await;
    send(&destination, 0).await;
    let running = present(&outbox).relay("tasks", &destination).build().unwrap().run_until(after(40));
    let scraping = async {
        after(35).await;
        get(&router, "/metrics").await.2
    };
    let (_, text) = tokio::join!(running, scraping);
    let line = r#"jobqueue_deliveries_total{queue="tasks",kind="task",outcome="completed"} 3"#;
    assert!(text.contains(line), "{text}");
    assert!(!text.contains(r#"kind="*""#), "no job has this kind: {text}");
}

// round 31, newcomer c 2: the alert of dead letters fired for them.
#[tokio::test(start_paused = true)]
async fn cancelled_jobs_are_counted_apart_from_other_dead_letters() {
    let storage = in_memory();
    let router = metrics::router(admin(&storage));
    get(&router, "/metrics").await;
    let queue = storage.queue::<Task>().await.unwrap();
    for name in ["cancelled", "bad"] {
        let _ = queue.send(&task(name)).id(name).await.unwrap();
    }
    let operator = Admin::builder(storage.clone()).access(AccessLevel::Operate).build();
    let _ = operator.cancel(&JobReference::new("tasks", "cancelled")).await.unwrap();
    let handler = async |_: Task| Err::<(), _>(JobError::dead_letter("no"));
    let running = present(&storage).handle(handler).build().unwrap().run_until(after(40));
    let scraping = async {
        after(35).await;
        get(&router, "/metrics").await.2
    };
    let (report, text) = tokio::join!(running, scraping);
    assert_eq!(report.unwrap().dead_lettered, 2);
    for outcome in ["cancelled", "dead_lettered"] {
        let line = format!(r#"jobqueue_deliveries_total{{queue="tasks",kind="task",outcome="{outcome}"}} 1"#);
        assert!(text.contains(&line), "{text}");
    }
}

// D45
#[tokio::test(start_paused = true)]
async fn lost_leases_are_counted_apart_from_other_deliveries() {
    let storage = in_memory();
    let router = metrics::router(admin(&storage));
    get(&router, "/metrics").await;
    send(&storage, 1).await;
    let cleared = storage.clone();
    let handler = move |_: Task, ctx: Context| {
        let cleared = cleared.clone();
        async move {
            cleared.queue::<Task>().await.unwrap().clear().await.unwrap();
            ctx.token().cancelled().await;
            Ok::<(), JobError>(())
        }
    };
    let running = present(&storage).handle(handler).build().unwrap().run_until(after(60));
    let scraping = async {
        after(55).await;
        get(&router, "/metrics").await.2
    };
    let (report, text) = tokio::join!(running, scraping);
    assert_eq!(report.unwrap().lease_lost, 1);
    for (outcome, count) in [("lease_lost", 1), ("other", 0), ("completed", 0)] {
        let line =
            format!(r#"jobqueue_deliveries_total{{queue="tasks",kind="task",outcome="{outcome}"}} {count}"#);
        assert!(text.contains(&line), "{text}");
    }
}

// D17
#[tokio::test(start_paused = true)]
async fn exporter_that_starts_again_counts_nothing_twice() {
    let storage = in_memory();
    send(&storage, 5).await;
    let handler = async |_: Task| Err::<(), _>(JobError::dead_letter("no"));
    let running = present(&storage).handle(handler).build().unwrap().run_until(after(40));
    let scraping = async {
        after(35).await;
        get(&metrics::router(admin(&storage)), "/metrics").await.2
    };
    let (_, text) = tokio::join!(running, scraping);
    for outcome in ["completed", "dead_lettered"] {
        let line = format!(r#"jobqueue_deliveries_total{{queue="tasks",kind="task",outcome="{outcome}"}} 0"#);
        assert!(text.contains(&line), "{text}");
    }
}
