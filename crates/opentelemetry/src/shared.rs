//! The state of observed storages.

use std::sync::Arc;

use opentelemetry::global::BoxedTracer;
use opentelemetry::metrics::Meter;

use crate::attributes::StorageAttributes;
use crate::cells::{Cells, StorageCells};
use crate::instruments::Instruments;

/// The tracer, the instruments and their options, which all observed storages share.
pub(crate) struct Shared {
    /// The tracer, or `None` if no spans are made.
    pub(crate) tracer: Option<BoxedTracer>,
    pub(crate) meter: Meter,
    pub(crate) instruments: Instruments,
    pub(crate) options: Options,
    pub(crate) storages: Arc<StorageCells>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    pub(crate) always_linked: bool,
    pub(crate) receive_spans: bool,
    pub(crate) log_spans: bool,
}

/// An observed storage.
pub(crate) struct Observed {
    pub(crate) shared: Arc<Shared>,
    pub(crate) storage: StorageAttributes,
    pub(crate) cells: Arc<Cells>,
}
