//! Tells KEDA when a queue begins and ends to have work.

use std::pin::Pin;
use std::time::Duration;

use futures_util::Stream;
use jobqueue::QueueName;
use jobqueue::storage::Subscription;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::generated::IsActiveResponse;
use super::metadata::Asked;
use super::scaler::desired;
use crate::snapshot::Snapshots;

pub(super) type Activity = Pin<Box<dyn Stream<Item = Result<IsActiveResponse, Status>> + Send>>;

/// The least time between two looks at a queue.
const LEAST_PAUSE: Duration = Duration::from_millis(200);

/// Returns a stream that tells at once whether there is work, and again whenever that changes. On a storage that notifies, a job that
/// arrives is told of at once; elsewhere with the next snapshot.
pub(super) fn activity(snapshots: Snapshots, asked: Asked, closing: CancellationToken) -> Activity {
    let (sender, receiver) = mpsc::channel(1);
    let watch = Watch { snapshots, asked, told: None, arrived: None, sender };
    tokio::spawn(async move { closing.run_until_cancelled(watch.run()).await });
    Box::pin(ReceiverStream::new(receiver).map(Ok))
}

struct Watch {
    snapshots: Snapshots,
    asked: Asked,
    told: Option<bool>,
    /// The time of the last arrival that was told of: older snapshots do not know of it.
    arrived: Option<Instant>,
    sender: mpsc::Sender<IsActiveResponse>,
}

impl Watch {
    async fn run(mut self) {
        let mut arrivals = self.subscribe();
        let mut changes = self.snapshots.changes();
        loop {
            // Also keeps the snapshots fresh. While nothing is known, nothing is told.
            if let Ok((taken, desired)) = desired(&self.snapshots, &self.asked).await {
                let active = desired.workers() > 0;
                if active || self.arrived.is_none_or(|at| at <= taken) {
                    self.tell(active).await;
                }
            }
            tokio::select! {
                biased;
                () = self.sender.closed() => return,
                // The sender of the changes is in our own snapshots.
                _ = changes.changed() => {}
                () = arrival(&mut arrivals), if self.told != Some(true) => {
                    let now = Instant::now();
                    if self.has_visible().await {
                        self.arrived = Some(now);
                        self.tell(true).await;
                    }
                    sleep(LEAST_PAUSE).await;
                }
                () = sleep(LONGEST_PAUSE) => {}
            }
        }
    }

    fn subscribe(&self) -> Option<Subscription> {
        let name = QueueName::new(&self.asked.queue).ok()?;
        self.snapshots.admin().storage().queues().subscribe(&name)
    }

    /// Returns whether there is a message that a worker could fetch now.
    async fn has_visible(&self) -> bool {
        let overview = self.snapshots.admin().queue(&self.asked.queue).await;
        overview.is_ok_and(|queue| queue.visible > 0 && !queue.paused)
    }

    async fn tell(&mut self, active: bool) {
        if self.told.replace(active) != Some(active) {
            // If KEDA has gone, the loop ends.
            let _ = self.sender.send(IsActiveResponse { result: active }).await;
        }
    }
}

/// The longest time without a look, so that the snapshots stay fresh while a stream is open.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

async fn arrival(arrivals: &mut Option<Subscription>) {
    match arrivals {
        Some(arrivals) => arrivals.wait().await,
        None => std::future::pending().await,
    }
}
