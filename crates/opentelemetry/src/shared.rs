//! The state that all observed storages share.

use std::sync::Arc;

use opentelemetry::global::BoxedTracer;
use opentelemetry::metrics::Meter;

use crate::cells::Cells;
use crate::instruments::Instruments;

/// The tracer, the instruments and their options.
pub(crate) struct Shared {
    /// The tracer, or `None` if no spans are made.
    pub(crate) tracer: Option<BoxedTracer>,
    pub(crate) meter: Meter,
    pub(crate) instruments: Instruments,
    pub(crate) options: Options,
    pub(crate) cells: Arc<Cells>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    pub(crate) always_linked: bool,
    pub(crate) receive_spans: bool,
    pub(crate) log_spans: bool,
}
