//! The attributes that tell one storage from another.

use std::time::Duration;

use jobqueue::storage::Stores;
use jobqueue::{JobError, Storage};
use opentelemetry_sdk::trace::SpanData;

use crate::support::{Kept, Order, sum, value, worker};

/// Returns a storage in memory with the description of another.
fn described(description: &str) -> Storage {
    let mut stores = Stores::from(Storage::memory());
    stores.description = description.into();
    stores.into()
}

// D43: the figures of a deploy in blue and green were summed, and the gauges of one overwrote the other's.
#[tokio::test(start_paused = true)]
async fn queues_of_one_name_in_two_storages_are_told_apart() {
    let kept = Kept::new();
    let telemetry = kept.builder().build();
    let (blue, green) = ("postgres:db.example:5432/shop/blue", "postgres:db.example:5432/shop/green");
    let mut watches = Vec::new();
    for (description, jobs) in [(blue, 1), (green, 30)] {
        let storage = telemetry.observe(described(description));
        let orders = storage.queue::<Order>().await.unwrap();
        for number in 0..jobs {
            orders.send(&Order { number }).await.unwrap();
        }
        // Late enough that no job dies meanwhile.
        let later = Duration::from_secs(3_600);
        let fail = move |_: Order| async move { Err::<(), _>(JobError::retry_after(later, "down")) };
        let stop = tokio::time::sleep(Duration::from_millis(500));
        let worker = worker(&storage).handle(fail).build().unwrap();
        drop(worker.run_until(stop).await.unwrap());
        let watch = telemetry.watch_queues(&storage, &["orders"], Duration::from_secs(10)).unwrap();
        watches.push(tokio::spawn(watch));
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let of = |name: &str, storage| sum(&kept, name, &[("jobqueue.storage.name", storage)]);
    for name in ["messaging.client.sent.messages", "jobqueue.queue.length"] {
        assert_eq!(of(name, blue), 1.0, "{name}");
        assert_eq!(of(name, green), 30.0, "{name}");
    }
    for name in ["jobqueue.job.wait", "jobqueue.job.attempts"] {
        assert_eq!(of(name, blue), 1.0, "{name}");
        assert!(of(name, green) >= 20.0, "{name}");
    }
    assert_eq!(of("jobqueue.circuit.state", blue), 0.0);
    assert_eq!(of("jobqueue.circuit.state", green), 1.0);
    for (name, attributes, _) in kept.all_points() {
        assert_eq!(value(&attributes, "messaging.system").as_deref(), Some("jobqueue"), "{name}");
        assert_eq!(value(&attributes, "server.address").as_deref(), Some("db.example"), "{name}");
        assert_eq!(value(&attributes, "server.port").as_deref(), Some("5432"), "{name}");
    }
    let spans = kept.spans();
    let named = |storage: &str| {
        let is_of =
            |span: &&SpanData| value(&span.attributes, "jobqueue.storage.name").as_deref() == Some(storage);
        spans.all("send orders").into_iter().filter(is_of).count()
    };
    assert_eq!(named(blue), 1);
    assert_eq!(named(green), 30);
    watches.iter().for_each(tokio::task::JoinHandle::abort);
}
