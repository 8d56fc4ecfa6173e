//! The options of a worker.

use std::time::Duration;

use super::limits::LimitSettings;
use super::pacing::CircuitBreaker;
use crate::claim_check::SweptContainer;

/// The options of a worker, except for the options of its deliveries.
pub(super) struct WorkerOptions {
    pub(super) concurrency: usize,
    pub(super) limits: LimitSettings,
    pub(super) max_idle_delay: Duration,
    pub(super) shutdown_timeout: Duration,
    /// The rules of the circuit breaker; `None` for no circuit breaker.
    pub(super) circuit: Option<CircuitBreaker>,
    /// The interval of sweeps; `None` for no sweeps.
    pub(super) sweep_every: Option<Duration>,
    pub(super) swept: &'static [SweptContainer],
    /// The rate of rejections; `None` for no limit.
    pub(super) rejections_per_second: Option<u32>,
    pub(super) presence: PresenceSetting,
    /// The time for which the journal keeps ended jobs; `None` for no journal.
    pub(super) journal_retention: Option<Duration>,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            concurrency: 64,
            limits: LimitSettings::default(),
            max_idle_delay: Duration::from_secs(5),
            shutdown_timeout: Duration::from_secs(25),
            circuit: Some(CircuitBreaker::default()),
            sweep_every: None,
            swept: &[],
            rejections_per_second: Some(100),
            presence: PresenceSetting::default(),
            journal_retention: None,
        }
    }
}

/// The setting whether a worker keeps a record, and how often it writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum PresenceSetting {
    /// A worker that runs until a stop signal keeps a record, except on the virtual time of tests.
    #[default]
    Default,
    /// The worker keeps no record.
    Off,
    /// The worker keeps a record, written at this interval.
    Every(Duration),
}
