//! Reads segments: chunks one behind the other. What nobody has written ends the chunk, or the segment.

use uuid::Uuid;

use super::bytes::{Reader, unzigzag};
use super::chunk::{ERROR, MAGIC, ORIGIN, OUTCOME, OUTCOMES, UUID};
use super::id::Id;

/// The queue, the sender and the kind of jobs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Origin<'a> {
    pub(super) queue: &'a str,
    pub(super) source: &'a str,
    pub(super) kind: &'a str,
}

/// An ended job.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    pub(super) origin: usize,
    pub(super) id: Id<'a>,
    /// An index of [`OUTCOMES`].
    pub(super) outcome: usize,
    /// The time of the end in microseconds since 1970.
    pub(super) ended: i64,
    /// The time of insertion in milliseconds since 1970.
    pub(super) inserted: i64,
    pub(super) run_millis: u64,
    pub(super) attempt: u32,
    pub(super) trace: (u128, u64, u8),
    pub(super) reason: Option<&'a str>,
    pub(super) error: Option<&'a str>,
}

/// A chunk that is being read.
#[derive(Debug)]
pub(super) struct Chunk<'a> {
    pub(super) worker: &'a str,
    /// Those of the entries that were read.
    pub(super) origins: Vec<Origin<'a>>,
    rest: Reader<'a>,
    last: i64,
}

/// Returns the chunks of a segment.
pub(super) fn chunks(segment: &[u8]) -> impl Iterator<Item = Chunk<'_>> {
    let mut rest = Reader(segment);
    std::iter::from_fn(move || {
        if rest.array()? != MAGIC {
            return None;
        }
        let length = u32::from_le_bytes(rest.array()?);
        let mut chunk = Reader(rest.bytes(length as usize)?);
        let worker = chunk.text()?;
        let last = i64::from_le_bytes(chunk.array()?);
        Some(Chunk { worker, origins: Vec::new(), rest: chunk, last })
    })
}

impl<'a> Chunk<'a> {
    /// Returns the next job.
    pub(super) fn next(&mut self) -> Option<Entry<'a>> {
        let rest = &mut self.rest;
        let mut flags = rest.byte()?;
        while flags == ORIGIN {
            self.origins.push(Origin { queue: rest.text()?, source: rest.text()?, kind: rest.text()? });
            flags = rest.byte()?;
        }
        let outcome = usize::from(flags & OUTCOME);
        OUTCOMES.get(outcome)?;
        let origin = usize::try_from(rest.number()?).ok().filter(|at| *at < self.origins.len())?;
        let id = match flags & UUID {
            0 => Id::Text(rest.text()?),
            _ => Id::Uuid(Uuid::from_bytes(rest.array()?)),
        };
        let ended = self.last.checked_add(unzigzag(rest.number()?))?;
        self.last = ended;
        let inserted = ended.div_euclid(1000).checked_sub(unzigzag(rest.number()?))?;
        let (run_millis, attempt) = (rest.number()?, u32::try_from(rest.number()?).ok()?);
        let trace = (u128::from_be_bytes(rest.array()?), u64::from_be_bytes(rest.array()?), rest.byte()?);
        let reason = if OUTCOMES[outcome] == "dead_lettered" { Some(rest.text()?) } else { None };
        let error = if flags & ERROR == 0 { None } else { Some(rest.text()?) };
        Some(Entry { origin, id, outcome, ended, inserted, run_millis, attempt, trace, reason, error })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::history::chunk::{self, Ended, micros};
    use crate::job::{JobInfo, Outcome, Reason};
    use crate::name::QueueName;
    use crate::trace::TraceContext;

    fn job(id: &str, kind: &str, inserted: SystemTime) -> JobInfo {
        JobInfo {
            id: id.into(),
            kind: kind.into(),
            version: 1,
            queue: QueueName::new("letters").unwrap(),
            source: "//shop".into(),
            key: None,
            attempt: 3,
            max_attempts: 5,
            dequeue_count: 3,
            sent: None,
            inserted,
            expires: None,
            headers: BTreeMap::new(),
            trace: TraceContext::root(),
        }
    }

    fn ended<'a>(
        job: &'a JobInfo,
        outcome: &'a Outcome,
        at: SystemTime,
        error: Option<&'a str>,
    ) -> Ended<'a> {
        Ended { job, outcome, ran: Duration::from_micros(1_700), at, error }
    }

    /// Returns a segment of two chunks with 60 jobs of 20 kinds, and the jobs.
    fn segment() -> (Vec<u8>, Vec<JobInfo>) {
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_800_000_000_123);
        let jobs =
            (0..60).map(|n| job(&format!("job-{n}"), &format!("kind-{}", n % 20), now)).collect::<Vec<_>>();
        let mut segment = Vec::new();
        for jobs in jobs.chunks(30) {
            let mut chunk = chunk::Chunk::new(Arc::from("w"));
            for (n, job) in jobs.iter().enumerate() {
                // The clock is set back once.
                let at = now + Duration::from_millis(if n == 7 { 1 } else { 100 + n as u64 });
                chunk.push(&ended(job, &Outcome::Completed, at, None));
                chunk.push(&ended(job, &Outcome::Duplicate, at, None));
            }
            segment.extend(chunk.finish().unwrap().0);
        }
        (segment, jobs)
    }

    #[test]
    fn jobs_are_read_as_they_were_written() {
        let (segment, jobs) = segment();
        let mut read = Vec::new();
        for mut chunk in chunks(&segment) {
            while let Some(entry) = chunk.next() {
                let origin = chunk.origins[entry.origin];
                read.push((entry.id.to_string(), origin.kind.to_owned()));
                assert_eq!((chunk.worker, origin.queue, origin.source), ("w", "letters", "//shop"));
                let (trace, span, flags) = entry.trace;
                assert!(TraceContext::new(trace, span, flags).is_some());
                assert_eq!((entry.attempt, entry.run_millis, entry.error), (3, 2, None));
                assert_eq!(entry.inserted, micros(jobs[0].inserted) / 1000);
            }
        }
        let expected = jobs.iter().map(|job| (job.id.to_string(), job.kind.to_string()));
        assert_eq!(read, expected.collect::<Vec<_>>());
    }

    #[test]
    fn dead_letters_keep_reason_and_error() {
        let now = SystemTime::now();
        let job = job("0199f3ad-1a2b-7c3d-8e4f-0123456789ab", "mail", now);
        let mut chunk = chunk::Chunk::new(Arc::from("w"));
        let outcome = Outcome::DeadLettered(Reason::REJECTED);
        chunk.push(&ended(&job, &outcome, now, Some("no such address")));
        let (bytes, span) = chunk.finish().unwrap();
        let mut chunk = chunks(&bytes).next().unwrap();
        let entry = chunk.next().unwrap();
        assert_eq!((entry.reason, entry.error), (Some("rejected"), Some("no such address")));
        assert_eq!((entry.id.to_string(), OUTCOMES[entry.outcome]), (job.id.to_string(), "dead_lettered"));
        assert_eq!((span, entry.ended), ((micros(now), micros(now)), micros(now)));
        assert!(chunk.next().is_none());
    }

    #[test]
    fn damaged_segments_end_early_and_never_panic() {
        let (segment, jobs) = segment();
        let count = |bytes: &[u8]| -> usize {
            chunks(bytes).map(|mut chunk| std::iter::from_fn(|| chunk.next().map(drop)).count()).sum()
        };
        assert_eq!(count(&segment), jobs.len());
        for end in 0..segment.len() {
            assert!(count(&segment[..end]) < jobs.len());
        }
        for at in 0..segment.len() {
            let mut damaged = segment.clone();
            damaged[at] ^= 0xff;
            let _ = count(&damaged);
        }
        assert_eq!(count(b"{\"queue\":\"letters\"}\n"), 0);
    }
}
