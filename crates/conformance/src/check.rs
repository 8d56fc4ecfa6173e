//! Expectations of promises, and the report of a broken promise.

use std::fmt;
use std::panic::Location;

use jobqueue::storage::{StoreError, StoreErrorKind};

/// The report of a broken promise: the place in the suite, and the observed behaviour.
#[derive(Debug)]
pub struct Broken {
    place: &'static Location<'static>,
    problem: String,
    source: Option<StoreError>,
}

impl Broken {
    #[track_caller]
    pub(super) fn new(problem: impl Into<String>) -> Self {
        Self { place: Location::caller(), problem: problem.into(), source: None }
    }

    pub(super) fn begins_with(&self, text: &str) -> bool {
        self.problem.starts_with(text)
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.problem)
    }
}

impl std::error::Error for Broken {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

/// An operation that should have succeeded has failed.
impl From<StoreError> for Broken {
    #[track_caller]
    fn from(error: StoreError) -> Self {
        let problem = format!("the storage refused: {:?}: {error}", error.kind());
        Self { place: Location::caller(), problem, source: Some(error) }
    }
}

/// Expects an error whose kind is among `kinds` and that is not ambiguous.
#[track_caller]
pub(super) fn refused<T>(result: Result<T, StoreError>, kinds: &[StoreErrorKind]) -> Result<(), Broken> {
    match result {
        Ok(_) => Err(Broken::new(format!("accepted; expected {kinds:?}"))),
        Err(error) if !kinds.contains(&error.kind()) => {
            Err(Broken::new(format!("refused with {:?}, expected {kinds:?}: {error}", error.kind())))
        }
        Err(error) if error.is_ambiguous() => {
            Err(Broken::new(format!("a refusal must not be ambiguous: {error}")))
        }
        Err(_) => Ok(()),
    }
}

/// Expects `refused` if the storage follows the documented rule, and success if it deviates from the rule.
#[track_caller]
pub(super) fn refused_unless<T>(
    deviates: bool,
    result: Result<T, StoreError>,
    kinds: &[StoreErrorKind],
) -> Result<(), Broken> {
    match (deviates, result) {
        (false, result) => refused(result, kinds),
        (true, Ok(_)) => Ok(()),
        (true, Err(error)) => Err(Broken::new(format!(
            "the storage no longer deviates; remove it from the list of deviations ({error})"
        ))),
    }
}

/// Breaks the promise unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::Broken::new(format!($($message)+)));
        }
    };
}

/// Breaks the promise unless both sides are equal.
macro_rules! ensure_eq {
    ($left:expr, $right:expr, $($message:tt)+) => {
        match (&$left, &$right) {
            (left, right) => ensure!(left == right, "{}: {left:?} is not {right:?}", format!($($message)+)),
        }
    };
}
