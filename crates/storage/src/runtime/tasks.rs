//! The start of tasks, and the gate that a simulation puts before them.

use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::Runtime;

/// Decides at each poll of a task whether the task runs. A simulation stops and kills its processes with it.
pub trait TaskGate: fmt::Debug + Send + Sync + 'static {
    /// Calls `poll` and returns its answer, or returns [`Poll::Pending`] without calling it. In the second
    /// case the gate wakes the context's waker when the task may continue.
    fn poll(&self, context: &mut Context<'_>, poll: &mut dyn FnMut(&mut Context<'_>) -> Poll<()>)
    -> Poll<()>;
}

impl Runtime {
    /// Starts a task on the current tokio runtime.
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    pub fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        match self.gate() {
            None => tokio::spawn(future),
            Some(gate) => tokio::spawn(gated(gate, future)),
        }
    }

    /// Starts a task on another tokio runtime.
    pub fn spawn_on<T: Send + 'static>(
        &self,
        handle: &Handle,
        future: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        match self.gate() {
            None => handle.spawn(future),
            Some(gate) => handle.spawn(gated(gate, future)),
        }
    }

    fn gate(&self) -> Option<Arc<dyn TaskGate>> {
        self.0.as_ref()?.gate.clone()
    }
}

fn gated<F: Future>(gate: Arc<dyn TaskGate>, future: F) -> impl Future<Output = F::Output> {
    let mut future = Box::pin(future);
    poll_fn(move |context| {
        let mut output = None;
        let mut poll =
            |context: &mut Context<'_>| future.as_mut().poll(context).map(|done| output = Some(done));
        // The output decides, not the gate's answer: a gate that returns `Ready` wrongly does not end the
        // task.
        let _ = gate.poll(context, &mut poll);
        output.map_or(Poll::Pending, Poll::Ready)
    })
}
