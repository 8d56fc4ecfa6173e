//! The trace to which a job belongs, in the form of W3C, and the interface of tracing systems.
//!
//! The framework carries the text form ([W3C Trace Context]). A [`Tracer`] makes spans and exports them; the crate
//! `jobqueue-opentelemetry` has one.
//!
//! [W3C Trace Context]: https://www.w3.org/TR/trace-context/

mod current;
mod open_span;
mod tracer;

pub use crate::job::TraceContext;
pub(crate) use current::{current, scope};
pub(crate) use open_span::OpenSpan;
pub use tracer::{Span, Step, Tracer};
