//! Disturbances of processes, connections and accounts, as recorded in the ledger.

use std::fmt;
use std::time::Duration;

/// A disturbance of a process, of its worker or of the storage.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Disturbance {
    /// The process was killed.
    Killed,
    /// The process died during a storage call.
    DiedInCall,
    /// The process is frozen.
    Frozen {
        /// The duration of the freeze.
        time: Duration,
    },
    /// A frozen process continues.
    Continues,
    /// The wall clock of the process was changed.
    Clock {
        /// The milliseconds by which the clock is ahead; negative if it is behind.
        ahead: i64,
    },
    /// The worker of the process was asked to shut down.
    StopRequested,
    /// The worker of the process has ended.
    WorkerEnded {
        /// The number of deliveries that had not ended when the shutdown grace was over.
        abandoned: u64,
        /// The error with which the worker ended, if it failed.
        error: Option<String>,
    },
    /// A connection of the process was disturbed.
    Connection(String),
    /// The queues of an account do not answer.
    QueuesOut {
        /// The account.
        account: usize,
        /// The duration of the outage.
        time: Duration,
    },
    /// The blobs of an account do not answer.
    BlobsOut {
        /// The account.
        account: usize,
        /// The duration of the outage.
        time: Duration,
    },
    /// A planned break of a process did not happen.
    BreakNotReached(String),
    /// No more faults occur from now on.
    FaultsEnd,
}

impl Disturbance {
    /// Returns whether the disturbance may keep a process from renewing its leases. A wrong clock does not,
    /// and neither does the end of a worker, which waits for its deliveries.
    pub(super) fn stops(&self) -> bool {
        match self {
            Self::Killed
            | Self::DiedInCall
            | Self::Frozen { .. }
            | Self::Continues
            | Self::Connection(_)
            | Self::QueuesOut { .. }
            | Self::BlobsOut { .. } => true,
            Self::Clock { .. }
            | Self::StopRequested
            | Self::WorkerEnded { .. }
            | Self::BreakNotReached(_)
            | Self::FaultsEnd => false,
        }
    }
}

impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Killed => f.write_str("killed"),
            Self::DiedInCall => f.write_str("died in a storage call"),
            Self::Frozen { time } => write!(f, "frozen for {time:?}"),
            Self::Continues => f.write_str("continues"),
            Self::Clock { ahead } => write!(f, "clock {ahead} ms ahead"),
            Self::StopRequested => f.write_str("asked to stop"),
            Self::WorkerEnded { abandoned: 0, error: None } => f.write_str("worker ended"),
            Self::WorkerEnded { abandoned, error: None } => {
                write!(f, "worker ended; {abandoned} deliveries had not")
            }
            Self::WorkerEnded { error: Some(error), .. } => write!(f, "worker ended: {error}"),
            Self::Connection(text) => f.write_str(text),
            Self::QueuesOut { account, time } => {
                write!(f, "the queues of account {account} are out for {time:?}")
            }
            Self::BlobsOut { account, time } => {
                write!(f, "the blobs of account {account} are out for {time:?}")
            }
            Self::BreakNotReached(text) => f.write_str(text),
            Self::FaultsEnd => f.write_str("all faults end"),
        }
    }
}
