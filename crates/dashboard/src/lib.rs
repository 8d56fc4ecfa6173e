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
//!     Some(name) => Access::new(name.to_str().unwrap_or("unknown"), AccessLevel::Operate),
//!     None => Access::forbidden(),
//! });
//! Router::new().nest_service("/ops/jobs", dashboard.router())
//! # }
//! ```
//!
//! The pages work without JavaScript; with it they update themselves. They load nothing from other hosts.
//!
//! Without the feature `pages`, the crate has the routers of [`metrics`], [`scale`] and [`health`] alone, for a worker that serves nothing
//! else.
#![forbid(unsafe_code)]

#[cfg(feature = "pages")]
mod browser;
pub mod health;
pub mod metrics;
pub mod scale;
pub mod snapshot;
mod sync;

#[cfg(feature = "pages")]
pub use browser::{Access, Dashboard, Field, Shown};
