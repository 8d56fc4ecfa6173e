//! Worker processes that are restarted after they die or end.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use jobqueue::worker::{Worker, WorkerBuilder};
use jobqueue_storage::sync::lock;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::disturbance::Disturbance;
use super::effects::Effects;
use super::ledger::Fact;
use super::node::Node;
use super::observe::Observer;
use super::shared::Shared;

/// Configures the worker of a process with its handlers.
pub(super) type ConfigureWorker = Arc<dyn Fn(WorkerBuilder, &Node) -> WorkerBuilder + Send + Sync>;

/// The pause between the end of a worker and the next start.
const RESTART_PAUSE: Duration = Duration::from_secs(3);

/// The slot of a worker, in which one process runs at a time.
pub(super) struct Slot {
    this: Weak<Self>,
    name: Arc<str>,
    shared: Arc<Shared>,
    make: ConfigureWorker,
    state: Mutex<SlotState>,
}

struct SlotState {
    node: Option<Node>,
    stop: CancellationToken,
    starts: u32,
    /// True once no more processes are to start.
    closed: bool,
    /// The reason why the worker could not be built. A restart would not help.
    build_error: Option<String>,
}

impl Slot {
    pub(super) fn open(shared: &Arc<Shared>, name: Arc<str>, make: ConfigureWorker) -> Arc<Self> {
        let stop = CancellationToken::new();
        let state = SlotState { node: None, stop, starts: 0, closed: false, build_error: None };
        let slot = Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            name,
            shared: Arc::clone(shared),
            make,
            state: Mutex::new(state),
        });
        slot.start();
        slot
    }

    /// Returns the process that runs now.
    pub(super) fn node(&self) -> Option<Node> {
        lock(&self.state).node.clone()
    }

    pub(super) fn build_error(&self) -> Option<String> {
        lock(&self.state).build_error.clone()
    }

    fn start(&self) {
        let mut state = lock(&self.state);
        if state.closed {
            return;
        }
        state.starts += 1;
        let name = format!("{}.{}", self.name, state.starts).into();
        let node = Node::start(&self.shared, name);
        let stop = CancellationToken::new();
        (state.node, state.stop) = (Some(node.clone()), stop.clone());
        drop(state);
        self.shared.ledger.note(node.name(), Fact::Noted("starts".to_owned()));
        let observer = Observer { shared: Arc::clone(&self.shared), node: Arc::clone(node.name()) };
        let effects = Effects { shared: Arc::clone(&self.shared), node: Arc::clone(node.name()) };
        let builder = Worker::builder(node.storage()).state(effects);
        let builder = (self.make)(builder, &node).layer(observer.clone());
        let worker = match builder.on_event(move |event| observer.record(event)).build() {
            Ok(worker) => worker,
            Err(error) => {
                lock(&self.state).build_error = Some(error.to_string());
                return;
            }
        };
        let slot = Weak::clone(&self.this);
        node.clone().spawn(async move {
            let ended = worker.run_until(stop.cancelled_owned()).await;
            let Some(slot) = slot.upgrade() else { return };
            // A worker that ends with an error has no report.
            let abandoned = ended.as_ref().map_or(u64::MAX, |report| report.abandoned);
            let error = ended.err().map(|error| format!("{error:?}"));
            let ended = Disturbance::WorkerEnded { abandoned, error };
            slot.shared.ledger.note(node.name(), Fact::Incident(ended));
            lock(&slot.state).node = None;
            slot.start_after(RESTART_PAUSE);
        });
    }

    /// Starts the next process of this slot after `pause`, on a task that belongs to no process.
    pub(super) fn start_after(&self, pause: Duration) {
        let slot = Weak::clone(&self.this);
        drop(tokio::spawn(async move {
            sleep(pause).await;
            let Some(slot) = slot.upgrade() else { return };
            let is_free = slot.node().is_none_or(|node| node.process().is_killed());
            if is_free {
                slot.start();
            }
        }));
    }

    /// Asks the worker to stop. Another worker starts after it has ended.
    pub(super) fn restart(&self) {
        let (node, stop) = {
            let state = lock(&self.state);
            (state.node.clone(), state.stop.clone())
        };
        if let Some(node) = node {
            self.shared.ledger.note(node.name(), Fact::Incident(Disturbance::StopRequested));
        }
        stop.cancel();
    }

    pub(super) fn close(&self) {
        lock(&self.state).closed = true;
        self.restart();
    }
}
