//! The signals of the operating system that stop a worker.

use crate::runtime::Runtime;

/// Resolves at the first SIGINT or SIGTERM (on Windows: Ctrl-C). Pass it to
/// [`Worker::run_until`](crate::Worker::run_until). A second signal then ends the process at once with exit
/// code 130; the messages of running jobs become visible again when their leases run out.
///
/// Several workers of a process can each call this function: a signal reaches all of them.
///
/// # Panics
/// Panics if the future is not polled on a tokio runtime with I/O enabled.
///
/// # Cancel safety
/// If the future is dropped after it was polled, the signals no longer end the process: tokio keeps the
/// system's default action replaced (see *Caveats* of `tokio::signal::unix::Signal`). Call the function again
/// to listen again.
pub async fn shutdown_signal() {
    shutdown_signal_then(|| {}).await;
}

/// Resolves as [`shutdown_signal`] does, and calls `at_second` before a second signal ends the process.
///
/// # Panics
/// As [`shutdown_signal`].
///
/// # Cancel safety
/// As [`shutdown_signal`].
pub async fn shutdown_signal_then(at_second: impl FnOnce() + Send + 'static) {
    let mut signals = Signals::subscribe();
    signals.next().await;
    crate::log::info!("received a signal to stop; a second signal stops at once");
    // The same listener, so that a second signal right after the first is not missed. A new `Runtime`,
    // because the signals concern the real process.
    drop(Runtime::new().spawn(async move {
        signals.next().await;
        at_second();
        std::process::exit(130);
    }));
}

/// The listeners for SIGINT and SIGTERM; `None` if signals cannot be received.
#[cfg(unix)]
struct Signals(Option<(tokio::signal::unix::Signal, tokio::signal::unix::Signal)>);

#[cfg(unix)]
impl Signals {
    fn subscribe() -> Self {
        use tokio::signal::unix::{SignalKind, signal};
        match (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) {
            (Ok(interrupt), Ok(terminate)) => Self(Some((interrupt, terminate))),
            (Err(error), _) | (_, Err(error)) => {
                crate::log::error!(%error, "signals cannot be received; the worker runs until it is killed");
                Self(None)
            }
        }
    }

    async fn next(&mut self) {
        match &mut self.0 {
            Some((interrupt, terminate)) => tokio::select! {
                biased;
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            },
            None => std::future::pending().await,
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn subscribe() -> Self {
        Self
    }

    async fn next(&mut self) {
        if let Err(error) = tokio::signal::ctrl_c().await {
            crate::log::error!(%error, "signals cannot be received; the worker runs until it is killed");
            std::future::pending::<()>().await;
        }
    }
}
