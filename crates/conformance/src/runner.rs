//! Checks all promises and reports the broken ones.

use std::fmt;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use futures_util::stream::{self, StreamExt};

use super::{Broken, Promise, Subject, promises};

/// The results of all promises.
#[derive(Debug)]
#[must_use = "ask `assert_kept` or read `broken`"]
pub struct Report {
    storage: String,
    kept: usize,
    skipped: Vec<&'static str>,
    broken: Vec<(&'static str, Broken)>,
}

impl Report {
    /// Returns the number of promises that were kept.
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// Returns the names of the promises that were not checked, because the storage does not have their
    /// power.
    pub fn skipped(&self) -> &[&'static str] {
        &self.skipped
    }

    /// Returns the names of the broken promises, each with its report.
    pub fn broken(&self) -> &[(&'static str, Broken)] {
        &self.broken
    }

    /// Panics unless all promises were kept.
    ///
    /// # Panics
    /// If a promise was broken. The text lists all broken promises.
    pub fn assert_kept(&self) {
        assert!(self.broken.is_empty(), "{self}");
    }

    fn of(
        storage: &str,
        results: impl IntoIterator<Item = (&'static str, Option<Result<(), Broken>>)>,
    ) -> Self {
        let (skipped, broken) = (Vec::new(), Vec::new());
        let mut report = Self { storage: storage.to_owned(), kept: 0, skipped, broken };
        for (name, result) in results {
            match result {
                None => report.skipped.push(name),
                Some(Ok(())) => report.kept += 1,
                Some(Err(broken)) => report.broken.push((name, broken)),
            }
        }
        report
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kept, skipped, broken) = (self.kept, self.skipped.len(), self.broken.len());
        write!(f, "{}: {kept} promises kept, {skipped} skipped, {broken} broken", self.storage)?;
        for (name, broken) in &self.broken {
            write!(f, "\n  {name}: {broken}")?;
        }
        Ok(())
    }
}

/// Checks all promises on one subject, one after another.
///
/// # Cancel safety
/// As for [`Promise::run`].
pub async fn exercise(subject: &Subject) -> Report {
    let mut results = Vec::new();
    for promise in promises() {
        results.push((promise.name(), attempt(promise, subject).await));
    }
    Report::of(subject.storage().description(), results)
}

/// Checks all promises, up to `concurrency` at once, each on a new subject. Use it for storages in real time,
/// so that promises wait at the same time. The slow promises start first.
///
/// # Cancel safety
/// As for [`Promise::run`].
pub async fn run_all(make_subject: impl AsyncFn() -> Subject, concurrency: usize) -> Report {
    let mut order: Vec<_> = promises().iter().enumerate().collect();
    order.sort_by_key(|(place, promise)| (!promise.is_slow(), *place));
    let make_subject = &make_subject;
    let running = order.into_iter().map(|(place, promise)| async move {
        let subject = make_subject().await;
        let result = attempt(promise, &subject).await;
        (place, promise.name(), result, subject.storage().description().to_owned())
    });
    let mut done: Vec<_> = stream::iter(running).buffer_unordered(concurrency.max(1)).collect().await;
    done.sort_by_key(|(place, ..)| *place);
    let storage = done.first().map(|(.., storage)| storage.clone()).unwrap_or_default();
    Report::of(&storage, done.into_iter().map(|(_, name, result, _)| (name, result)))
}

/// Checks a promise, unless the storage lacks its power. If the storage panics, only this promise is broken
/// and the run continues.
async fn attempt(promise: &Promise, subject: &Subject) -> Option<Result<(), Broken>> {
    if !promise.concerns(subject) {
        return None;
    }
    let outcome = AssertUnwindSafe(promise.run(subject)).catch_unwind().await;
    Some(outcome.unwrap_or_else(|_| {
        Err(Broken::new("the storage or the promise panicked; the message is in the test's output"))
    }))
}
