//! The features that a world may use, and the features that are left out until they are fixed.

macro_rules! features {
    ($($name:ident,)+) => {
        /// A feature of the library, or a kind of fault, that a world may use.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub(super) enum Feature {
            $($name,)+
        }

        const ALL: &[Feature] = &[$(Feature::$name,)+];
    };
}

features! {
    Delayed, TimeToLive, InOrder, SendAll, Resend, Unique, Cancel, CancelUnique, Batches, Nested, Blobs, Checkpoints, Steps, Once,
    Snooze, Panic, Fail, Reject, Redrive, Purge, Clear, Sweep, Schedule, Leader, Sharding, Pause, Threshold, Versions,
    Sources, Headers, Interrupted, Twice, Forged, Durable, Limits, Faults, Crashes, Freezes, Skew, Outages, Restarts,
    SenderCrashes, Journal, CancelPlans, Canaries, PausesWithEnd,
}

/// The features that are known to be broken, each with the reason. Remove an entry when its cause is fixed.
const LEFT_OUT: &[(Feature, &str)] = &[];

impl Feature {
    pub(super) fn in_the_mix() -> Vec<Self> {
        ALL.iter().copied().filter(|feature| !LEFT_OUT.iter().any(|(out, _)| out == feature)).collect()
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        ALL.iter().copied().find(|feature| format!("{feature:?}") == name)
    }
}
