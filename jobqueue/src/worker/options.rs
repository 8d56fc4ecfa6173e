//! The options of a worker.

use std::time::Duration;

use super::limits::LimitSettings;
use super::pacing::CircuitBreaker;
use crate::claim_check::SweptContainer;

/// The options of a worker, apart from those of its deliveries.
pub(super) struct WorkerOptions {
    pub(super) concurrency: usize,
    pub(super) limits: LimitSettings,
    pub(super) max_idle_delay: Duration,
    pub(super) shutdown_timeout: Duration,
    /// The rules of the circuit breaker; `None`: never stop fetching.
    pub(super) circuit: Option<CircuitBreaker>,
    /// The interval of sweeps; `None`: never sweep.
    pub(super) sweep_every: Option<Duration>,
    pub(super) swept: &'static [SweptContainer],
    /// The rate of rejections; `None`: no limit.
    pub(super) rejections_per_second: Option<u32>,
    pub(super) presence: PresenceSetting,
    /// The time for which ended jobs are kept; `None`: no journal.
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

/// The choice whether a worker keeps a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum PresenceSetting {
    /// A worker that runs until a stop signal keeps one, except on the virtual time of tests.
    #[default]
    Default,
    /// The worker keeps none.
    Off,
    /// The worker keeps one, written at this interval.
    Every(Duration),
}
