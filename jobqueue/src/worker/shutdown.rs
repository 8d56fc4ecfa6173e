//! Being told to stop by the operating system.

/// Resolves at the first SIGINT or SIGTERM (on Windows: Ctrl-C), for [`Worker::run_until`](crate::Worker::run_until). A second signal
/// then ends the process at once with exit code 130; messages in work come back when their leases are over.
///
/// # Panics
/// If it is not polled on a tokio runtime with I/O enabled.
pub async fn shutdown_signal() {
    first_signal().await;
    tracing::info!("told to stop; a second signal stops at once");
    tokio::spawn(async {
        first_signal().await;
        std::process::exit(130);
    });
}

#[cfg(unix)]
async fn first_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    match (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) {
        (Ok(mut interrupt), Ok(mut terminate)) => {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        }
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(%error, "signals cannot be received; the worker runs until it is killed");
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(not(unix))]
async fn first_signal() {
    if let Err(error) = tokio::signal::ctrl_c().await {
        tracing::error!(%error, "signals cannot be received; the worker runs until it is killed");
        std::future::pending::<()>().await;
    }
}
