#![cfg_attr(feature = "pages", doc = include_str!("../README.md"))]
//! # A worker without pages
//!
//! Without the feature `pages`, the crate has only the routers of [`metrics`], [`scale`] and [`health`], for
//! a worker that serves no pages:
//!
//! ```no_run
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use jobqueue::{JobError, QueueMessage}; use serde::{Deserialize, Serialize};
//! # #[derive(Serialize, Deserialize, QueueMessage)]
//! # #[message(queue = "mails", kind = "mail")] struct Mail { to: String }
//! # async fn send(_: Mail) -> Result<(), JobError> { Ok(()) }
//! use jobqueue::{CancellationToken, Storage, Worker, shutdown_signal};
//! use jobqueue_admin::Admin;
//! use jobqueue_dashboard::scale::{self, Target};
//! use jobqueue_dashboard::snapshot::Snapshots;
//! use jobqueue_dashboard::{health, metrics};
//! use tokio::net::TcpListener;
//!
//! let storage = Storage::connect("sqlite:mails.db").await?;
//! let worker = Worker::builder(storage.clone()).handle(send).build()?;
//! let figures = Snapshots::new(Admin::new(storage));        // both routers share one read of the storage
//! let checks = health::router([worker.health()])            // /live and /ready of this worker
//!     .merge(metrics::router(figures.clone()))              // /metrics of the whole storage
//!     .merge(scale::router(figures, Target::new()));        // /scale of the whole storage
//!
//! // The checks ask for no credentials. They are served until the last job has ended.
//! let (listener, stop) = (TcpListener::bind("0.0.0.0:8080").await?, CancellationToken::new());
//! let server = axum::serve(listener, checks).with_graceful_shutdown(stop.clone().cancelled_owned());
//! let server = tokio::spawn(server.into_future());
//! let report = worker.run_until(shutdown_signal()).await;
//! stop.cancel();
//! server.await??;
//! println!("{} jobs completed", report?.completed);
//! # Ok(()) }
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

#[cfg(feature = "pages")]
mod browser;
pub mod health;
pub mod metrics;
pub mod scale;
pub mod snapshot;

/// The task tracker of `tokio-util`, for [`Dashboard::tasks`].
#[cfg(feature = "pages")]
pub use tokio_util::task::TaskTracker;

#[cfg(feature = "pages")]
pub use browser::{Access, Dashboard, Field, LinkTemplate, Shown};
