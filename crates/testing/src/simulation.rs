//! Simulated processes: groups of tasks that a test stops, resumes and kills between any two polls.
//!
//! The processes share one thread, one runtime and its clock. While a process is stopped, none of its tasks
//! is polled, but its timers continue: after it resumes, time has passed, as after SIGSTOP and SIGCONT. A
//! killed process is never polled again and runs no destructors before the runtime ends, as after SIGKILL.
//!
//! A run is repeatable on a current-thread runtime with paused time, if the [`Runtime`](jobqueue::Runtime)
//! has a [seed](jobqueue::Runtime::with_seed) and a clock that follows tokio's
//! ([`TokioClock`](jobqueue::memory::TokioClock)).

use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use jobqueue::runtime::TaskGate;
use jobqueue_storage::sync::lock;

/// A simulated process: the [gate](TaskGate) of the tasks of one [`Runtime`](jobqueue::Runtime). Cheap to
/// clone; all clones are the same process.
///
/// A process owns the tasks that its runtime starts: the tasks of a storage with this runtime, of its
/// workers, and of their deliveries and leases. A task that a handler starts by `tokio::spawn` does not
/// belong to the process.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// use jobqueue::Runtime;
/// use jobqueue_testing::simulation::Process;
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// let process = Process::default();
/// let runtime = Runtime::new().with_task_gate(Arc::new(process.clone()));
/// let job = runtime.spawn(tokio::time::sleep(Duration::from_secs(1)));
/// process.stop();                                          // SIGSTOP: nothing is polled, time goes on
/// tokio::time::sleep(Duration::from_secs(60)).await;
/// assert!(!job.is_finished());
/// process.resume();                                        // SIGCONT
/// job.await.unwrap();
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Process(Arc<Mutex<ProcessState>>);

#[derive(Default)]
struct ProcessState {
    life: Life,
    /// The wakers of tasks that were due for a poll while the process was stopped.
    waiting: Vec<Waker>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Life {
    #[default]
    Running,
    Stopped,
    Killed,
}

impl Process {
    /// Stops the process: none of its tasks is polled until [`resume`](Self::resume).
    pub fn stop(&self) {
        let mut state = self.lock();
        if state.life == Life::Running {
            state.life = Life::Stopped;
        }
    }

    /// Resumes the process after a [`stop`](Self::stop). A killed process stays killed.
    pub fn resume(&self) {
        let mut state = self.lock();
        if state.life == Life::Stopped {
            state.life = Life::Running;
            let waiting = std::mem::take(&mut state.waiting);
            drop(state);
            waiting.into_iter().for_each(Waker::wake);
        }
    }

    /// Kills the process: none of its tasks is polled again.
    pub fn kill(&self) {
        let mut state = self.lock();
        state.life = Life::Killed;
        state.waiting.clear();
    }

    /// Returns whether the process is stopped.
    pub fn is_stopped(&self) -> bool {
        self.lock().life == Life::Stopped
    }

    /// Returns whether the process was killed.
    pub fn is_killed(&self) -> bool {
        self.lock().life == Life::Killed
    }

    fn lock(&self) -> MutexGuard<'_, ProcessState> {
        lock(&self.0)
    }
}

impl TaskGate for Process {
    fn poll(
        &self,
        context: &mut Context<'_>,
        poll: &mut dyn FnMut(&mut Context<'_>) -> Poll<()>,
    ) -> Poll<()> {
        let mut state = self.lock();
        match state.life {
            Life::Running => {
                drop(state);
                poll(context)
            }
            Life::Stopped => {
                state.waiting.push(context.waker().clone());
                Poll::Pending
            }
            Life::Killed => Poll::Pending,
        }
    }
}

jobqueue_storage::debug_fields! {
    Process(lock().life)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use tokio::time::sleep;

    use super::*;
    use jobqueue::Runtime;

    /// Starts a task in the process that counts seconds.
    fn counting(process: &Process) -> Arc<AtomicU32> {
        let runtime = Runtime::new().with_task_gate(Arc::new(process.clone()));
        let seconds = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&seconds);
        let count = async move {
            loop {
                sleep(Duration::from_secs(1)).await;
                counted.fetch_add(1, Ordering::Relaxed);
            }
        };
        drop(runtime.spawn(count));
        seconds
    }

    #[tokio::test(start_paused = true)]
    async fn stopped_process_resumes_and_killed_process_never_does() {
        let (stopped, other) = (Process::default(), Process::default());
        let (of_stopped, of_other) = (counting(&stopped), counting(&other));
        sleep(Duration::from_millis(2500)).await;
        stopped.stop();
        sleep(Duration::from_secs(10)).await;
        assert_eq!(of_stopped.load(Ordering::Relaxed), 2);
        assert_eq!(of_other.load(Ordering::Relaxed), 12);
        stopped.resume();
        sleep(Duration::from_secs(2)).await;
        assert_eq!(of_stopped.load(Ordering::Relaxed), 4, "its third second was over when it resumed");
        stopped.kill();
        stopped.resume();
        sleep(Duration::from_secs(10)).await;
        assert_eq!(of_stopped.load(Ordering::Relaxed), 4);
        assert!(stopped.is_killed());
        assert!(!other.is_killed());
    }
}
