//! Groups tasks into simulated processes, which can be stopped and killed between any two polls.
//!
//! The processes share one thread, one runtime and its clock. A stopped process polls nothing while its timers
//! continue: when it is resumed, time has passed, as after SIGSTOP and SIGCONT. A killed process is never polled again
//! and runs no destructors before the runtime ends, as after SIGKILL.

use std::cell::RefCell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use crate::sync::lock;

thread_local! {
    static CURRENT: RefCell<Option<Process>> = const { RefCell::new(None) };
}

/// A simulated process on this thread's runtime. Cheap to clone; all clones are the same process.
///
/// A process owns the tasks that [`run`](Self::run) polls, and those that the library starts from there: workers, their
/// deliveries and their leases. Tasks that a handler starts by `tokio::spawn` do not belong to it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// use jobqueue::testing::simulation::Process;
/// use std::time::Duration;
///
/// let process = Process::default();
/// let job = tokio::spawn(process.run(tokio::time::sleep(Duration::from_secs(1))));
/// process.stop();                                          // SIGSTOP: nothing is polled, time goes on
/// tokio::time::sleep(Duration::from_secs(60)).await;
/// assert!(!job.is_finished());
/// process.resume();                                        // SIGCONT
/// job.await.unwrap();
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Process(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    life: Life,
    /// The wakers of tasks that were to be polled while the process was stopped.
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
    /// Returns the process whose task is being polled on this thread.
    pub(crate) fn current() -> Option<Self> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Runs a future as a task of this process, together with all tasks that it starts through the library.
    pub fn run<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        in_process(Some(self.clone()), future)
    }

    /// Polls no task of this process until [`resume`](Self::resume).
    pub fn stop(&self) {
        let mut state = self.lock();
        if state.life == Life::Running {
            state.life = Life::Stopped;
        }
    }

    /// Continues after a [`stop`](Self::stop).
    pub fn resume(&self) {
        let mut state = self.lock();
        if state.life == Life::Stopped {
            state.life = Life::Running;
            let waiting = std::mem::take(&mut state.waiting);
            drop(state);
            waiting.into_iter().for_each(Waker::wake);
        }
    }

    /// Polls no task of this process any more.
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

    fn poll<T>(&self, context: &mut Context<'_>, poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        let mut state = self.lock();
        match state.life {
            Life::Running => {}
            Life::Stopped => {
                state.waiting.push(context.waker().clone());
                return Poll::Pending;
            }
            Life::Killed => return Poll::Pending,
        }
        drop(state);
        let _entered = Entered(CURRENT.replace(Some(self.clone())));
        poll(context)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Process").field(&self.lock().life).finish()
    }
}

/// A guard that restores the process that was being polled on the thread, also after a panic.
struct Entered(Option<Process>);

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// Makes a future part of the process that is being polled on this thread, if there is one.
pub(super) fn in_current_process<F: Future>(future: F) -> impl Future<Output = F::Output> + use<F> {
    in_process(Process::current(), future)
}

async fn in_process<F: Future>(process: Option<Process>, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| match &process {
        None => future.as_mut().poll(context),
        Some(process) => process.poll(context, |context| future.as_mut().poll(context)),
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use tokio::time::sleep;

    use super::*;
    use crate::task::spawn;

    /// Counts seconds in a task that a task of the process has started.
    fn counting(process: &Process) -> Arc<AtomicU32> {
        let seconds = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&seconds);
        let count = async move {
            loop {
                sleep(Duration::from_secs(1)).await;
                counted.fetch_add(1, Ordering::Relaxed);
            }
        };
        tokio::spawn(process.run(async { spawn(count).await }));
        seconds
    }

    #[tokio::test(start_paused = true)]
    async fn stopped_process_resumes_and_killed_one_never_does() {
        let (one, other) = (Process::default(), Process::default());
        let (of_one, of_other) = (counting(&one), counting(&other));
        sleep(Duration::from_millis(2500)).await;
        one.stop();
        sleep(Duration::from_secs(10)).await;
        assert_eq!((of_one.load(Ordering::Relaxed), of_other.load(Ordering::Relaxed)), (2, 12));
        one.resume();
        sleep(Duration::from_secs(2)).await;
        assert_eq!(of_one.load(Ordering::Relaxed), 4, "its third second was over when it went on");
        one.kill();
        one.resume();
        sleep(Duration::from_secs(10)).await;
        assert_eq!(of_one.load(Ordering::Relaxed), 4);
        assert!(one.is_killed() && !other.is_killed());
    }
}
