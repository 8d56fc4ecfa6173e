//! The dashboard of `jobqueue` in the browser, with its metrics, its figures for autoscalers and its health checks.
//!
//! [`Dashboard`] is made of a [`jobqueue::admin::Admin`] and becomes an [`axum::Router`], to nest under any path:
//!
//! ```
//! # #[cfg(feature = "pages")] fn app() -> axum::Router {
//! use axum::Router;
//! use jobqueue::Storage;
//! use jobqueue::admin::{AccessLevel, Admin};
//! use jobqueue_dashboard::{Access, Dashboard};
//!
//! let admin = Admin::builder(Storage::memory()).access(AccessLevel::Operate).build();
//! let dashboard = Dashboard::new(admin).access(|parts| match parts.headers.get("x-user") {
//!     Some(name) => Access::new(name.to_str().unwrap_or("somebody"), AccessLevel::Operate),
//!     None => Access::forbidden(),
//! });
//! Router::new().nest_service("/ops/jobs", dashboard.router())
//! # }
//! ```
//!
//! The pages need no JavaScript; with it they follow what happens. They load nothing from other hosts.
//!
//! Without the feature `pages`, the crate has the routers of [`metrics`], [`scale`] and [`health`] alone, for a worker that serves nothing
//! else; with the feature `keda` it has the external scaler of KEDA as well.
#![forbid(unsafe_code)]

#[cfg(feature = "pages")]
mod browser;
pub mod health;
#[cfg(feature = "keda")]
pub mod keda;
pub mod metrics;
pub mod scale;
pub mod snapshot;
mod sync;

#[cfg(feature = "pages")]
pub use browser::{Access, Dashboard, Field, Shown};
