//! The external scaler of KEDA over gRPC.
//!
//! A trigger of the type `external` asks for figures; one of the type `external-push` is also told when the first job arrives, so that
//! it scales from zero at once. The metadata of the trigger says what to scale by:
//!
//! | metadata | meaning |
//! |---|---|
//! | `queue` | the queue; required |
//! | `targetDelay` | the time in seconds within which a job that waits shall start; without it, the scaler counts [slots](crate::scale::Target) |
//! | `slotsPerWorker` | the slots of a worker; by default the present workers tell it |
//!
//! The metric is the [load](crate::scale::Target), which is the work of the queue in workers, and its target is 1 for each worker. If the figures are not known, the
//! answer is an error with the code `UNAVAILABLE`, never 0: KEDA then changes nothing, or uses its `fallback`.
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! # use jobqueue::Storage; use jobqueue::admin::Admin;
//! use jobqueue_dashboard::keda::{self, Scaler};
//! use jobqueue_dashboard::snapshot::Snapshots;
//!
//! let snapshots = Snapshots::new(Admin::new(Storage::memory()));
//! keda::serve(Scaler::new(snapshots), "[::]:6000".parse()?, std::future::pending()).await?;
//! # Ok(()) }
//! ```
//!
//! KEDA sends no credentials unless you configure TLS: let only the cluster reach the port.

mod metadata;
// Made from externalscaler.proto by the test `keda_code_is_made_from_the_proto`.
#[rustfmt::skip]
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
mod generated;
mod scaler;
mod stream;

use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;

pub use generated::external_scaler_server::ExternalScalerServer;
pub use scaler::Scaler;

/// Serves the scaler over HTTP/2 without TLS at this address until `shutdown` resolves. For TLS or a server of your own, use
/// [`Scaler::into_service`].
///
/// # Errors
/// The address cannot be bound, or the server fails.
///
/// # Cancel safety
/// If the future is dropped, the server ends, and KEDA's requests with it.
pub async fn serve(
    scaler: Scaler,
    address: SocketAddr,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    serve_on(scaler, TcpListener::bind(address).await?, shutdown).await
}

/// Serves the scaler on a listener, as [`serve`] does.
///
/// # Errors
/// The server fails.
///
/// # Cancel safety
/// As [`serve`].
pub async fn serve_on(
    scaler: Scaler,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let closing = scaler.closing();
    let shutdown = async {
        shutdown.await;
        // A stream would keep the server from ending.
        closing.cancel();
    };
    let server = tonic::transport::Server::builder().add_service(scaler.into_service());
    Ok(server.serve_with_incoming_shutdown(TcpListenerStream::new(listener), shutdown).await?)
}
