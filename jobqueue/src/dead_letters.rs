//! Dead letters: jobs that failed for good, why they failed, and the way back.
//!
//! A dead letter is read, redriven or purged through [`DeadLetters`], which
//! [`Queue::dead_letters`](crate::Queue::dead_letters) returns. The [guide](crate::guide::dead_letters) has the whole story.

pub use crate::queue::dead_letters::{
    DeadLetter, DeadLetters, PastDeadLetter, PurgeReport, RedriveOptions, RedriveReport, SkippedLetter,
};
