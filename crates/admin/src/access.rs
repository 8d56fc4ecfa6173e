//! The rights of an operator.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

/// Defines the actions, each with its name in JSON.
macro_rules! actions {
    ($($(#[$doc:meta])+ $action:ident = $name:literal;)+) => {
        /// An action of an operator that changes something. Its name in JSON and in [`Display`](fmt::Display)
        /// never changes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[non_exhaustive]
        pub enum Action {
            $($(#[$doc])+ #[serde(rename = $name)] $action,)+
        }

        impl Action {
            /// All actions.
            pub const ALL: &'static [Self] = &[$(Self::$action),+];

            /// Returns the name, as in JSON.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$action => $name,)+
                }
            }
        }
    };
}

actions! {
    /// Creating a queue.
    CreateQueue = "create_queue";
    /// Sending a job.
    Send = "send";
    /// Cancelling a job.
    Cancel = "cancel";
    /// Making a job due now that is delayed or backing off.
    RunNow = "run_now";
    /// Pausing a queue.
    Pause = "pause";
    /// Resuming a queue.
    Resume = "resume";
    /// Changing the settings of a queue.
    ChangeSettings = "change_settings";
    /// Looking through all messages of a queue by receiving them and putting them back: other readers do not
    /// see them during that time.
    Inspect = "inspect";
    /// Putting dead letters back into their queue.
    Redrive = "redrive";
    /// Deleting dead letters.
    Purge = "purge";
    /// Sending a job of a schedule outside its timetable.
    TriggerSchedule = "trigger_schedule";
    /// Pausing a schedule.
    PauseSchedule = "pause_schedule";
    /// Resuming a schedule.
    ResumeSchedule = "resume_schedule";
    /// Removing payloads and records that no job needs any more.
    Sweep = "sweep";
}

impl Action {
    /// Returns the action with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|action| action.name() == name)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The actions that an operator may take. Reading is always allowed.
///
/// ```
/// use jobqueue_admin::{AccessLevel, Action};
///
/// let night_shift = AccessLevel::only([Action::Pause, Action::Resume, Action::Redrive]);
/// assert!(night_shift.allows(Action::Redrive) && !night_shift.allows(Action::Purge));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum AccessLevel {
    /// The operator may only read.
    #[default]
    ReadOnly,
    /// The operator may take these actions.
    Only(BTreeSet<Action>),
    /// The operator may take all actions.
    Operate,
}

impl AccessLevel {
    /// Returns the level that allows exactly these actions.
    pub fn only(actions: impl IntoIterator<Item = Action>) -> Self {
        Self::Only(actions.into_iter().collect())
    }

    /// Returns whether the level allows `action`.
    pub fn allows(&self, action: Action) -> bool {
        match self {
            Self::ReadOnly => false,
            Self::Only(actions) => actions.contains(&action),
            Self::Operate => true,
        }
    }

    /// Returns the intersection of two levels.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Operate, level) | (level, Self::Operate) => level.clone(),
            (Self::ReadOnly, _) | (_, Self::ReadOnly) => Self::ReadOnly,
            (Self::Only(one), Self::Only(two)) => Self::Only(one.intersection(two).copied().collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_equal_the_json_names() {
        for action in Action::ALL {
            assert_eq!(serde_json::to_string(action).unwrap(), format!("\"{action}\""));
            assert_eq!(Action::from_name(action.name()), Some(*action));
        }
    }

    #[test]
    fn intersection_allows_only_actions_of_both_levels() {
        let some = AccessLevel::only([Action::Pause, Action::Send]);
        let other = AccessLevel::only([Action::Purge, Action::Send]);
        assert_eq!(some.and(&other), AccessLevel::only([Action::Send]));
        assert_eq!(some.and(&AccessLevel::Operate), some);
        assert_eq!(AccessLevel::ReadOnly.and(&some), AccessLevel::ReadOnly);
    }
}
