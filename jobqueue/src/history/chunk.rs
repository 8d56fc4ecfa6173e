//! Writes ended jobs into a chunk: the jobs of one worker between two writes.
//!
//! ```text
//! chunk:  magic, length of the rest (u32), worker, time (µs since 1970, i64), entries
//! entry:  0x80, queue, source, kind                  an origin; origins are numbered from 0
//!         flags, origin, id, µs since the last end, ms from insertion to end, ms of the run, attempt, trace, [reason], [error]
//! ```
//!
//! This runs at the end of every job: it copies bytes into one buffer, and allocates nothing else.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::bytes::{write_number, write_text, zigzag};
use super::id::Id;
use crate::job::JobInfo;
use crate::job::outcome::Outcome;
use crate::name::QueueName;

/// The beginning of a chunk.
pub(super) const MAGIC: [u8; 4] = *b"jqh1";
/// The entry that begins an origin.
pub(super) const ORIGIN: u8 = 0x80;
/// The bits of the flags that tell the outcome.
pub(super) const OUTCOME: u8 = 0b11;
/// The flag of an id in 16 bytes.
pub(super) const UUID: u8 = 1 << 2;
/// The flag of an error.
pub(super) const ERROR: u8 = 1 << 3;

/// The newest origins that are looked for. An older one is written again.
const ORIGINS: usize = 16;

/// The outcomes that end a job, by their number in the flags.
pub(super) const OUTCOMES: [&str; 3] = ["completed", "completed_uncertain", "dead_lettered"];

/// An ended job, as its worker tells it.
pub(super) struct Ended<'a> {
    pub(super) job: &'a JobInfo,
    pub(super) outcome: &'a Outcome,
    pub(super) ran: Duration,
    pub(super) at: SystemTime,
    pub(super) error: Option<&'a str>,
}

/// A chunk that grows.
#[derive(Debug)]
pub(super) struct Chunk {
    worker: Arc<str>,
    bytes: Vec<u8>,
    /// The end of the last job, in microseconds since 1970.
    last: i64,
    /// The earliest and the latest end.
    span: (i64, i64),
    origins: u64,
    newest: Vec<Origin>,
}

#[derive(Debug)]
struct Origin {
    number: u64,
    queue: QueueName,
    source: Arc<str>,
    kind: Arc<str>,
}

impl Chunk {
    pub(super) fn new(worker: Arc<str>) -> Self {
        let span = (i64::MAX, i64::MIN);
        Self { worker, bytes: Vec::new(), last: 0, span, origins: 0, newest: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Adds a job, if it has ended with this outcome.
    pub(super) fn push(&mut self, ended: &Ended<'_>) {
        let (outcome, reason) = match ended.outcome {
            Outcome::Completed => (0, None),
            Outcome::CompletedUncertain => (1, None),
            Outcome::DeadLettered(reason) => (2, Some(reason.as_str())),
            _ => return,
        };
        let (job, at) = (ended.job, micros(ended.at));
        if self.bytes.is_empty() {
            self.begin(at);
        }
        let origin = self.origin(job);
        let id = Id::new(&job.id);
        let bytes = &mut self.bytes;
        let is_uuid = if matches!(id, Id::Uuid(_)) { UUID } else { 0 };
        bytes.push(outcome | is_uuid | if ended.error.is_some() { ERROR } else { 0 });
        write_number(bytes, origin);
        match id {
            Id::Uuid(uuid) => bytes.extend_from_slice(uuid.as_bytes()),
            Id::Text(text) => write_text(bytes, text),
        }
        write_number(bytes, zigzag(at - self.last));
        write_number(bytes, zigzag(at.div_euclid(1000) - micros(job.inserted).div_euclid(1000)));
        write_number(bytes, (ended.ran.as_micros() as u64 + 500) / 1000);
        write_number(bytes, u64::from(job.attempt));
        let (trace, span, flags) = job.trace.to_parts();
        bytes.extend_from_slice(&trace.to_be_bytes());
        bytes.extend_from_slice(&span.to_be_bytes());
        bytes.push(flags);
        reason.into_iter().chain(ended.error).for_each(|text| write_text(bytes, text));
        self.last = at;
        self.span = (self.span.0.min(at), self.span.1.max(at));
    }

    /// Returns the bytes of the chunk, and the earliest and latest end in it; `None` if it is empty.
    pub(super) fn finish(self) -> Option<(Vec<u8>, (i64, i64))> {
        let mut bytes = self.bytes;
        let start = MAGIC.len() + size_of::<u32>();
        let length = u32::try_from(bytes.len().checked_sub(start)?).ok()?;
        bytes[MAGIC.len()..start].copy_from_slice(&length.to_le_bytes());
        Some((bytes, self.span))
    }

    fn begin(&mut self, at: i64) {
        self.bytes.extend_from_slice(&MAGIC);
        self.bytes.extend_from_slice(&[0; size_of::<u32>()]);
        write_text(&mut self.bytes, &self.worker);
        self.bytes.extend_from_slice(&at.to_le_bytes());
        self.last = at;
    }

    /// Returns the number of the job's origin, which is written if it is not among the newest.
    fn origin(&mut self, job: &JobInfo) -> u64 {
        let is_it = |origin: &Origin| {
            origin.kind == job.kind && origin.queue == job.queue && origin.source == job.source
        };
        if let Some(origin) = self.newest.iter().rev().find(|origin| is_it(origin)) {
            return origin.number;
        }
        let number = self.origins;
        self.origins += 1;
        self.bytes.push(ORIGIN);
        [job.queue.as_str(), &job.source, &job.kind]
            .iter()
            .for_each(|text| write_text(&mut self.bytes, text));
        if self.newest.len() >= ORIGINS {
            self.newest.remove(0);
        }
        let (queue, source, kind) = (job.queue.clone(), Arc::clone(&job.source), Arc::clone(&job.kind));
        self.newest.push(Origin { number, queue, source, kind });
        number
    }
}

/// Returns the microseconds since 1970.
pub(super) fn micros(time: SystemTime) -> i64 {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_micros()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |micros| -micros),
    }
}

/// Returns the time so many microseconds after 1970.
pub(super) fn time(micros: i64) -> SystemTime {
    let distance = Duration::from_micros(micros.unsigned_abs());
    let time = match micros < 0 {
        true => SystemTime::UNIX_EPOCH.checked_sub(distance),
        false => SystemTime::UNIX_EPOCH.checked_add(distance),
    };
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}
