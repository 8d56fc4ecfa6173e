//! Blocking calls of a storage that has its own threads, on a runtime whose time is paused.
//!
//! The runtime's thread blocks until the answer arrives. So virtual time stands still and nothing else runs
//! during the call: calls are sequential, in an order that only the seed decides. The storage's
//! threads cannot see a runtime's paused time. They read a clock that is set before each call.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, SystemTime};

use jobqueue::clock::Clock;

/// A clock that any thread can read. It shows the time that the clock of the runtime had at the last call.
pub(crate) struct StillClock {
    clock: Arc<dyn Clock>,
    /// Nanoseconds since 1970.
    shown: AtomicU64,
}

impl StillClock {
    pub(crate) fn of(clock: Arc<dyn Clock>) -> Arc<Self> {
        let still = Self { clock, shown: AtomicU64::new(0) };
        still.set();
        Arc::new(still)
    }

    /// Copies the time of the runtime's clock. Call this on the runtime's thread.
    fn set(&self) {
        let since = self.clock.now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.shown.store(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Blocks until the call is answered. No virtual time passes.
    pub(crate) fn answer<T>(&self, call: impl Future<Output = T>) -> T {
        self.set();
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        // Without `unconstrained`, a task that has used up its budget is only woken after it yields its
        // thread. Here the thread is blocked, so it would wait forever.
        let mut call = pin!(tokio::task::unconstrained(call));
        loop {
            match call.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(answer) => return answer,
                Poll::Pending => std::thread::park(),
            }
        }
    }
}

impl Clock for StillClock {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_nanos(self.shown.load(Ordering::Relaxed))
    }
}

jobqueue_storage::debug_fields! {
    StillClock(now())
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn task_gets_any_number_of_answers_without_yielding() {
        let clock = StillClock::of(Arc::new(jobqueue::clock::SystemClock));
        for number in 0..1_000 {
            let (reply, answer) = tokio::sync::oneshot::channel();
            let thread = std::thread::spawn(move || reply.send(number));
            assert_eq!(clock.answer(answer), Ok(number));
            assert_eq!(thread.join().ok(), Some(Ok(())));
        }
    }
}
