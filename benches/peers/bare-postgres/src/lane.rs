//! Requests that share statements.

use std::future::Future;
use std::sync::Arc;

use jobqueue_bench_harness::Result;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::sync::{Mutex, oneshot};

/// The number of requests in a statement.
const MOST: usize = 1024;

/// The way to connections each of which runs a statement for all requests that wait.
pub(crate) struct Lane<T>(UnboundedSender<Request<T>>);

struct Request<T> {
    items: Vec<T>,
    done: oneshot::Sender<()>,
}

impl<T: Send + 'static> Lane<T> {
    pub(crate) fn start<C, F>(connections: Vec<C>, run: fn(Arc<C>, Vec<T>) -> F) -> Self
    where
        C: Send + Sync + 'static,
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let (sender, inbox) = mpsc::unbounded_channel::<Request<T>>();
        let inbox = Arc::new(Mutex::new(inbox));
        for connection in connections.into_iter().map(Arc::new) {
            let inbox = Arc::clone(&inbox);
            tokio::spawn(async move {
                let mut requests = Vec::new();
                // The lock is not held while a statement runs.
                while take(&inbox, &mut requests).await {
                    let (items, done): (Vec<_>, Vec<_>) =
                        requests.drain(..).map(|request| (request.items, request.done)).unzip();
                    let items = items.into_iter().flatten().collect();
                    run(Arc::clone(&connection), items).await.expect("the statement succeeds");
                    for done in done {
                        // The caller may have given up.
                        let _ = done.send(());
                    }
                }
            });
        }
        Self(sender)
    }

    /// Returns after the commit.
    pub(crate) async fn run(&self, items: Vec<T>) -> Result<()> {
        let (done, answer) = oneshot::channel();
        self.0.send(Request { items, done }).map_err(|_| "the connections are closed")?;
        Ok(answer.await?)
    }
}

async fn take<T>(inbox: &Mutex<mpsc::UnboundedReceiver<Request<T>>>, requests: &mut Vec<Request<T>>) -> bool {
    inbox.lock().await.recv_many(requests, MOST).await > 0
}
