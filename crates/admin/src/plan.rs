//! The dead letters that a preview found. A redrive or a purge of a plan takes these and no others.
//!
//! Knows jobs and the messages that died; knows nothing of access, queues or requests.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::time::SystemTime;

use jobqueue::dead_letters::DeadLetter;
use jobqueue::{Error, ErrorKind, Reason};
use jobqueue_message::envelope::{Parsed, UNREADABLE_KIND, parse};
use jobqueue_message::times::parse_rfc3339;
use serde::{Deserialize, Deserializer, Serialize};

use super::text::exact_time_option;
use super::{Admin, JobReference};

/// A dead letter of a plan.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PlannedLetter {
    /// The job.
    pub job: JobReference,
    /// The storage's id of the message that died: a job that was sent twice, or that died again, has another
    /// letter. `None` means any letter of the job; in the plan of a preview, any that names no message.
    pub message: Option<String>,
    /// True for a text that is not an event: a redrive turns it into a message with another id.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub text: bool,
    #[serde(skip)]
    pub(super) died: DeathTime,
}

/// The time at which a job died, as the past of its next letter shows it; `None` if it is not known, as in a
/// plan from a file. Any two are equal: copies of a letter have different times, and are equal entries.
#[derive(Debug, Clone, Default)]
pub(super) struct DeathTime(Option<String>);

impl PartialEq for DeathTime {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for DeathTime {}

impl PartialOrd for DeathTime {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for DeathTime {
    fn cmp(&self, _: &Self) -> Ordering {
        Ordering::Equal
    }
}

impl Hash for DeathTime {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl From<JobReference> for PlannedLetter {
    fn from(job: JobReference) -> Self {
        Self { job, message: None, text: false, died: DeathTime(None) }
    }
}

impl PlannedLetter {
    jobqueue_storage::setters! {
        /// Sets the id of the message that died, as in
        /// [`RawDeadLetter::message`](super::RawDeadLetter::message).
        with_message(id some String) => message;
    }

    pub(super) fn of(queue: &str, letter: &DeadLetter) -> Self {
        let job = JobReference::new(queue, &letter.id).with_source(&letter.source);
        // The id of a raw payload is only known if the storage itself moved it to the dead letters.
        let loses_its_id =
            |text| letter.reason == Reason::UNKNOWN || !matches!(parse(text), Ok(Parsed::Bare(_)));
        let text = *letter.kind == *UNREADABLE_KIND || letter.unreadable_text().is_some_and(loses_its_id);
        let died = DeathTime(letter.time_text());
        Self { job, message: letter.message_id().map(str::to_owned), text, died }
    }

    /// Returns whether this names a letter of the job with this message. An entry without a message names any
    /// letter of the job if `is_open`.
    fn names(&self, source: &str, id: &str, message: Option<&str>, is_open: bool) -> bool {
        let names_message = self.message.is_none() && is_open || self.message.as_deref() == message;
        self.job.is(source, id) && names_message
    }

    /// Returns whether the job of a letter may have died again after this letter: a redrive adds the letter
    /// that it puts back to the past of its job.
    pub(super) fn may_precede(&self, letter: &DeadLetter) -> bool {
        let DeathTime(died) = &self.died;
        letter.past.iter().any(|past| died.is_none() || *died == past.time_text())
    }
}

/// Dead letters of a queue, each identified by its job and the message that died: the letters that a [dry
/// run](super::BulkReport::plan) found, or the letters of named jobs.
///
/// A redrive or a purge of a plan leaves all other letters alone, including those of jobs that died after the
/// dry run started. It skips letters of the plan that were put back or deleted since. In JSON a plan is a
/// file that one operator writes and another executes; unknown fields are refused.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use jobqueue::Storage;
/// use jobqueue_admin::{AccessLevel, Admin, DeadLetterFilter, DeadLetterPlan, JobReference};
///
/// # let admin = Admin::builder(Storage::memory()).access(AccessLevel::Operate).build();
/// # admin.create_queue("mails").await?;
/// let filter = DeadLetterFilter::new().reason("rejected");
/// let plan = admin.purge("mails").filter(filter).dry_run(true).run().await?.plan();
/// println!("{} dead letters would be deleted", plan.letters.len());
/// let _ = admin.purge("mails").plan(plan).run().await?;
///
/// let one = DeadLetterPlan::of_jobs("mails", [JobReference::new("mails", "7").with_source("/shop")]);
/// let _ = admin.redrive("mails").plan(one).run().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct DeadLetterPlan {
    /// The [description](jobqueue::Storage::description) of the storage of the dry run: no other storage
    /// executes the plan. `None` if the jobs were named, or if any storage may execute the plan, because a
    /// storage has another description on another machine.
    pub storage: Option<String>,
    /// The queue of the dead letters.
    pub queue: String,
    /// The time after which no dead letter belongs to the plan, by the storage's clock; `None` if the jobs
    /// were named.
    #[serde(serialize_with = "exact_time_option", deserialize_with = "time_option")]
    pub before: Option<SystemTime>,
    /// The dead letters. A copy of a letter is an equal entry.
    pub letters: Vec<PlannedLetter>,
}

impl DeadLetterPlan {
    /// Returns the plan for the dead letters of these jobs, or for these letters of them. A job without a
    /// source is a job of any sender. The plan does not include exact copies of a letter, which a crash can
    /// leave; the plan of a preview does.
    pub fn of_jobs<L: Into<PlannedLetter>>(
        queue: impl Into<String>,
        jobs: impl IntoIterator<Item = L>,
    ) -> Self {
        let letters = jobs.into_iter().map(Into::into).collect();
        Self { storage: None, queue: queue.into(), before: None, letters }
    }

    /// Returns the jobs, one for each dead letter.
    pub(super) fn jobs(&self) -> Vec<JobReference> {
        self.letters.iter().map(|letter| letter.job.clone()).collect()
    }

    /// Returns whether the jobs were named, without a look at their letters.
    fn names_jobs(&self) -> bool {
        self.before.is_none()
    }

    /// Returns a predicate that selects the dead letters of the plan.
    pub(super) fn selection(&self) -> impl Fn(&DeadLetter) -> bool + Send + Sync + use<> {
        let mut planned = HashMap::<String, Vec<PlannedLetter>>::new();
        for letter in &self.letters {
            planned.entry(letter.job.id.clone()).or_default().push(letter.clone());
        }
        let names_jobs = self.names_jobs();
        move |letter| {
            let message = letter.message_id();
            let is = |one: &PlannedLetter| one.names(&letter.source, &letter.id, message, names_jobs);
            planned.get(&letter.id).is_some_and(|of_id| of_id.iter().any(is))
        }
    }

    /// Removes the letters that were met: one entry for each, because a copy of a letter is an equal entry.
    pub(super) fn remove<'l>(&mut self, done: impl Iterator<Item = &'l PlannedLetter>) {
        let mut by_id = HashMap::<&str, Vec<&PlannedLetter>>::new();
        for letter in done {
            by_id.entry(&letter.job.id).or_default().push(letter);
        }
        let names_jobs = self.names_jobs();
        self.letters.retain(|planned| {
            let is = |done: &&PlannedLetter| {
                let source = done.job.source.as_deref().unwrap_or_default();
                planned.names(source, &done.job.id, done.message.as_deref(), names_jobs)
            };
            let Some(of_id) = by_id.get_mut(planned.job.id.as_str()) else { return true };
            of_id.iter().position(is).map(|at| of_id.swap_remove(at)).is_none()
        });
    }
}

/// Refuses a plan that was made for another storage.
pub(super) fn check_storage(planned: Option<&str>, admin: &Admin) -> Result<(), Error> {
    let here = admin.storage().description();
    match planned.filter(|planned| *planned != here) {
        None => Ok(()),
        Some(planned) => {
            let text = format!("the plan is for the storage `{planned}` and not for `{here}`");
            Err(Error::new(ErrorKind::Invalid, text))
        }
    }
}

fn time_option<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SystemTime>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    let time = parse_rfc3339(&text);
    time.map(Some).ok_or_else(|| serde::de::Error::custom("`before` is not a time as RFC 3339 writes it"))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashSet};
    use std::time::Duration;

    use super::*;

    #[test]
    fn plan_round_trips_through_json() {
        let jobs =
            [JobReference::new("mails", "a\r\nb").with_source("/shop"), JobReference::new("mails", "2")];
        let mut plan = DeadLetterPlan::of_jobs("mails", jobs);
        for before in [None, Some(SystemTime::UNIX_EPOCH + Duration::from_nanos(1_700_000_000_123_456_789))] {
            (plan.before, plan.storage) = (before, before.map(|_| "sqlite:jobs.db".to_owned()));
            plan.letters[0].message = before.map(|_| "17".to_owned());
            let json = serde_json::to_string(&plan).unwrap();
            assert_eq!(serde_json::from_str::<DeadLetterPlan>(&json).unwrap(), plan, "{json}");
        }
    }

    // round 35, E4: a plan that was written and read back was another.
    #[test]
    fn copy_of_a_letter_is_an_equal_entry() {
        let letter = || PlannedLetter::from(JobReference::new("mails", "1")).with_message("17");
        let copy = PlannedLetter { died: DeathTime(Some("2026-11-22T06:15:00.000Z".to_owned())), ..letter() };
        assert_eq!(letter(), copy);
        assert_eq!(HashSet::from([letter(), copy.clone()]).len(), 1);
        assert_eq!(BTreeSet::from([letter(), copy]).len(), 1);
    }

    #[test]
    fn plan_with_an_unknown_field_is_refused() {
        let json = r#"{"queue":"mails","before":null,"letters":[],"reason":"rejected"}"#;
        assert!(serde_json::from_str::<DeadLetterPlan>(json).is_err());
        let job = r#"{"queue":"mails","before":null,"letters":[{"job":{"queue":"mails","source":null,"id":"1"},"message":null,"kind":"mail"}]}"#;
        assert!(serde_json::from_str::<DeadLetterPlan>(job).is_err());
    }
}
