//! The dashboard of `jobqueue` in the browser, with its metrics, its figures for autoscalers and its health checks.
//!
//! [`Dashboard`] is made of a [`jobqueue_admin::Admin`] and becomes an [`axum::Router`], to nest under any path:
//!
//! ```
//! # #[cfg(feature = "pages")] fn app() -> axum::Router {
//! use axum::Router;
//! use jobqueue::Storage;
//! use jobqueue_admin::{AccessLevel, Admin};
//! use jobqueue_dashboard::{Access, Dashboard};
//!
//! /// The user that the middleware of your program has put into the request's extensions.
//! #[derive(Clone)]
//! struct User {
//!     name: String,
//!     is_operator: bool,
//! }
//!
//! let admin = Admin::builder(Storage::memory()).access(AccessLevel::Operate).build();
//! // From the middleware of your program, which has checked it: any client can send a header.
//! let dashboard = Dashboard::new(admin).access(|parts| match parts.extensions.get::<User>() {
//!     Some(user) if user.is_operator => Access::new(user.name.as_str(), AccessLevel::Operate),
//!     Some(user) => Access::read_only(user.name.as_str()),
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
