use jobqueue::*;
use serde::{Deserialize, Serialize};
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
fn main() -> Result<(), Box<dyn std::error::Error>> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let storage = Storage::memory();
        let q = storage.queue::<M>().await?;
        let ms: Vec<M> = (0..1000).map(m).collect();
        for _ in 0..20 {
            for r in q.send_all(&ms).await? {
                r?;
            }
        }
        async fn noop(_: M) -> Result<(), JobError> {
            Ok(())
        }
        let w = Worker::builder(storage.clone()).handle(noop).concurrency(64).build()?;
        let t = std::time::Instant::now();
        let r = w.run_until_idle().await?;
        println!("process: {} {:?}", r.completed, t.elapsed() / r.completed as u32);
        Ok(())
    })
}
