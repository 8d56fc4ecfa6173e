//! The state that the parts of a running worker share.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use super::health::WorkerHealth;
use super::options::WorkerOptions;
use super::pacing::Rejections;
use super::report::Report;
use crate::delivery::{DeliveryReport, DeliveryState, Registry};
use crate::event::LossCause;
use crate::history::JournalBuffer;
use crate::storage::{QueueName, StoreError};
use crate::sync::lock;

pub(super) struct WorkerState {
    pub(super) delivery_state: Arc<DeliveryState>,
    pub(super) registry: Registry,
    pub(super) options: WorkerOptions,
    pub(super) health: WorkerHealth,
    /// The rate limit that all queues of the worker share.
    pub(super) rejections: Rejections,
    report: Mutex<Report>,
    failure: Mutex<Option<StoreError>>,
    /// The journal of ended jobs; empty if the worker keeps no journal.
    pub(super) journal: OnceLock<Arc<JournalBuffer>>,
}

impl WorkerState {
    pub(super) fn new(delivery_state: DeliveryState, registry: Registry, options: WorkerOptions) -> Self {
        Self {
            delivery_state: Arc::new(delivery_state),
            registry,
            rejections: Rejections::new(options.rejections_per_second),
            options,
            health: WorkerHealth::default(),
            report: Mutex::default(),
            failure: Mutex::default(),
            journal: OnceLock::new(),
        }
    }

    pub(super) fn record(&self, queue: &QueueName, report: &DeliveryReport) {
        let DeliveryReport { job, outcome, ran, error, .. } = report;
        self.report().count(report);
        if report.lost == Some(LossCause::Expired) {
            self.health.note_lease_expired();
        }
        if let (Some(journal), Some(job)) = (self.journal.get(), job.as_deref()) {
            journal.push(job, outcome, *ran, error.as_deref());
        }
        if let Some(tracker) = self.delivery_state.tracker() {
            tracker.count(queue.as_str(), job.as_deref(), outcome, *ran);
            if let Some(job) = job {
                tracker.answer(job, outcome, report.earlier_end.as_ref());
            }
        }
    }

    pub(super) fn show_circuit(&self, queue: &QueueName, is_open: bool) {
        self.health.set_circuit(queue, is_open);
        if let Some(tracker) = self.delivery_state.tracker() {
            tracker.set_circuit(queue.as_str(), is_open);
        }
    }

    pub(super) fn report(&self) -> MutexGuard<'_, Report> {
        lock(&self.report)
    }

    /// Makes the worker end with `error`, unless it already ends with another error.
    pub(super) fn fail(&self, error: StoreError) {
        lock(&self.failure).get_or_insert(error);
    }

    pub(super) fn take_failure(&self) -> Option<StoreError> {
        lock(&self.failure).take()
    }
}
