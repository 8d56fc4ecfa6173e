//! quick
use jobqueue::*;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
#[derive(Serialize, Deserialize, QueueMessage, Clone)]
#[message(queue = "bench", kind = "bench.job")]
struct M {
    id: u64,
    name: String,
    url: String,
    note: String,
}
fn m(id: u64) -> M {
    M {
        id,
        name: "some name of a job".into(),
        url: "https://example.org/some/path/that/is/long".into(),
        note: "x".repeat(80),
    }
}
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir_in("/work")?;
    let storage = Storage::connect(&format!("sqlite:{}", dir.path().join("b.db").display())).await?;
    let q = storage.queue::<M>().await?;
    let t = Instant::now();
    let n = 3000;
    for i in 0..n {
        q.send(&m(i)).await?;
    }
    println!("send x1: {:.0}/s", n as f64 / t.elapsed().as_secs_f64());
    let total = 200_000u64;
    let next = Arc::new(AtomicU64::new(0));
    let t = Instant::now();
    let mut hs = vec![];
    for _ in 0..64 {
        let q = q.clone();
        let next = next.clone();
        hs.push(tokio::spawn(async move {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= total {
                    break;
                }
                q.send(&m(i)).await.unwrap();
            }
        }));
    }
    for h in hs {
        h.await?;
    }
    println!("send x64: {:.0}/s", total as f64 / t.elapsed().as_secs_f64());
    let ms: Vec<M> = (0..1000).map(m).collect();
    let t = Instant::now();
    for _ in 0..50 {
        for r in q.send_all(&ms).await? {
            r?;
        }
    }
    println!("send_all: {:.0}/s", 50_000f64 / t.elapsed().as_secs_f64());
    for c in [64usize, 256, 1024] {
        let before = q.len().await?;
        async fn noop(_: M) -> Result<(), JobError> {
            Ok(())
        }
        let w = Worker::builder(storage.clone()).handle(noop).concurrency(c).build()?;
        let t = Instant::now();
        let r = w.run_until(tokio::time::sleep(Duration::from_secs(1))).await?;
        println!("process c{c}: {:.0}/s (before {before})", r.completed as f64 / t.elapsed().as_secs_f64());
    }
    Ok(())
}
