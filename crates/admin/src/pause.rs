//! The pause of a queue, with its operator, its note and its end.

use std::fmt;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jobqueue::settings::{Metadata, QueueSettings};
use jobqueue::{Error, ErrorKind, QueueName};
use jobqueue_message::settings::{PAUSE_NOTE, PAUSED, PAUSED_BY, PAUSED_UNTIL};
use jobqueue_message::times::rfc3339;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use serde::Serialize;
use tokio::time::timeout;

use super::event::ActionTarget;
use super::text::{exact_duration, exact_time, rfc3339_option};
use super::{Action, Admin, resolve};

/// The most characters of a note: metadata is small on all storages.
const MAX_NOTE: usize = 200;
/// The longest wait for the time of the storage.
const STORAGE_TIME_TIMEOUT: Duration = Duration::from_secs(2);
/// The characters that metadata cannot contain, and the escape character.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

/// A pause of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Pause {
    /// The operator who paused the queue, if the metadata names them.
    pub by: Option<String>,
    /// The time at which the pause ends by itself; `None` if an operator has to end it.
    #[serde(serialize_with = "rfc3339_option")]
    pub until: Option<SystemTime>,
    /// The operator's note.
    pub note: Option<String>,
}

/// The options of [`Admin::pause_with`].
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct PauseOptions {
    until: Option<SystemTime>,
    length: Option<Duration>,
    note: Option<String>,
    replaces: Replaces,
}

/// The pauses that a new one may replace.
#[derive(Debug, Clone, Default)]
enum Replaces {
    #[default]
    None,
    Any,
    /// The pause with this text.
    Shown(String),
}

impl Replaces {
    /// Fails if the active pause may not be replaced, or if the pause that was shown is no longer active.
    fn check(&self, queue: &QueueName, holds: Option<&Pause>) -> Result<(), Error> {
        let text = match (self, holds) {
            (Self::Any, _) | (Self::None, None) => return Ok(()),
            (Self::Shown(shown), Some(holds)) if holds.is_shown_as(shown) => return Ok(()),
            (_, Some(holds)) => format!(
                "the queue `{queue}` is paused already{holds}; replace that pause (on the command line by `--replace`), or resume the queue first"
            ),
            (Self::Shown(_), None) => format!("the queue `{queue}` is not paused any more"),
        };
        Err(Error::new(ErrorKind::Conflict, text))
    }
}

impl PauseOptions {
    /// Returns the options of a pause without an end and without a note.
    pub fn new() -> Self {
        Self::default()
    }

    jobqueue_storage::setters! {
        /// Ends the pause at this time: workers then fetch again, within 30 seconds and by their own clocks,
        /// whether or not the operator's program is running. By default the pause ends with
        /// [`Admin::resume`].
        until(time: SystemTime) => until;

        /// Ends the pause after this time, measured by the storage's clock, or by this process's clock if the
        /// storage has none. Replaces [`until`](Self::until).
        length(length: Duration);

        /// Replaces an active pause. By default an active pause is an error if it ends by itself, or if these
        /// options have an end or a note: another operator may have made it.
        replacing(replaces: bool) = if replaces { Replaces::Any } else { Replaces::None };

        /// Replaces the active pause only if its text still equals `shown`, the text of a [`Pause`] that the
        /// operator has seen. Differences in white space are ignored. It is an error if another pause is
        /// active, unless it equals the pause that is to be made, and if none is. Replaces
        /// [`replacing`](Self::replacing).
        replacing_shown(shown: impl fmt::Display) => replaces = Replaces::Shown(shown.to_string());

        /// Sets the reason that other operators see: at most 200 characters, trimmed. The default is none.
        note(note: impl Into<String>) = Some(note.into().trim().to_owned()).filter(|note| !note.is_empty());
    }
}

impl Pause {
    pub(super) fn of(metadata: &Metadata, settings: &QueueSettings) -> Self {
        let text =
            |name| metadata.get(name).map(|text| percent_decode_str(text).decode_utf8_lossy().into_owned());
        Self { by: text(PAUSED_BY), until: settings.paused_until, note: text(PAUSE_NOTE) }
    }

    /// Returns whether this is the text of the pause. A form may have changed the white space.
    fn is_shown_as(&self, text: &str) -> bool {
        self.to_string().split_whitespace().eq(text.split_whitespace())
    }

    /// Replaces the pause in the metadata.
    fn write(&self, metadata: &mut Metadata) {
        remove_pause(metadata);
        let escaped = |text: &str| utf8_percent_encode(text, ESCAPED).to_string();
        let texts = [
            (PAUSED, Some("true".to_owned())),
            (PAUSED_BY, self.by.as_deref().map(escaped)),
            (PAUSED_UNTIL, self.until.map(exact_time)),
            (PAUSE_NOTE, self.note.as_deref().map(escaped)),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                metadata.insert(name, text);
            }
        }
    }
}

/// Writes the text that follows the word "paused":
/// ` until 2026-11-22T15:00:00.000Z by ada (the bank is down)`, or nothing.
impl fmt::Display for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(until) = self.until {
            write!(f, " until {}", rfc3339(until))?;
        }
        if let Some(by) = &self.by {
            write!(f, " by {by}")?;
        }
        match &self.note {
            Some(note) => write!(f, " ({note})"),
            None => Ok(()),
        }
    }
}

impl Admin {
    /// Pauses the queue: workers finish their running jobs and fetch no more. They notice within 30 seconds.
    /// Messages can still be sent. Returns false, and changes nothing, if the queue was paused already.
    ///
    /// # Errors
    /// [`Forbidden`](ErrorKind::Forbidden); [`NotFound`](ErrorKind::NotFound) if there is no such queue;
    /// [`Invalid`](ErrorKind::Invalid) for a dead-letter queue; [`Conflict`](ErrorKind::Conflict) if the
    /// active pause ends by itself, and if other programs keep changing the metadata of the queue;
    /// [`Storage`](ErrorKind::Storage) if the storage refuses.
    ///
    /// # Cancel safety
    /// If the future is dropped, the queue may or may not be paused.
    pub async fn pause(&self, queue: &str) -> Result<bool, Error> {
        self.pause_with(queue, PauseOptions::new()).await
    }

    /// Pauses the queue like [`pause`](Self::pause), with the options' end and note. Returns whether anything
    /// was changed. An active pause is kept if neither it nor the options have an end and the options have no
    /// note, or if the options equal it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use jobqueue::Storage; use std::time::{Duration, SystemTime};
    /// use jobqueue_admin::{AccessLevel, Admin, PauseOptions};
    ///
    /// # let admin = Admin::builder(Storage::memory()).access(AccessLevel::Operate).operator("ada").build();
    /// # admin.create_queue("mails").await?;
    /// let in_two_hours = SystemTime::now() + Duration::from_secs(7_200);
    /// admin.pause_with("mails", PauseOptions::new().until(in_two_hours).note("the bank is down")).await?;
    /// let pause = admin.queue("mails").await?.pause.ok_or("it is not paused")?;
    /// assert_eq!(pause.by.as_deref(), Some("ada"));
    /// assert_eq!(pause.note.as_deref(), Some("the bank is down"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`pause`](Self::pause); [`Conflict`](ErrorKind::Conflict) if a pause is active and not to be
    /// [replaced](PauseOptions::replacing), or is not the pause that was
    /// [shown](PauseOptions::replacing_shown); [`Invalid`](ErrorKind::Invalid) for a time that has passed or
    /// is outside the calendar, and for a note that is too long.
    ///
    /// # Cancel safety
    /// If the future is dropped, the queue may or may not be paused.
    pub async fn pause_with(&self, queue: &str, options: PauseOptions) -> Result<bool, Error> {
        let shown = Pause { by: None, until: options.until, note: options.note.clone() };
        let length = options.length.map(|length| format!(" for {}", exact_duration(length)));
        let selection = (length.unwrap_or_default() + &shown.to_string()).trim().to_owned();
        let target = ActionTarget { selection, ..format!("queue {queue}").into() };
        let summary = |made: &PauseMade| match made {
            PauseMade::Unneeded => "it was paused already".to_owned(),
            PauseMade::New => "paused".to_owned(),
            PauseMade::Instead(of) => format!("paused; before it was paused{of}"),
        };
        let made = self.act(Action::Pause, target, self.set_pause(queue, options), summary).await?;
        Ok(made != PauseMade::Unneeded)
    }

    /// Resumes the queue: workers fetch from it again, and notice within 30 seconds. Removes the metadata of
    /// a pause that has ended by itself. Returns false if the queue was not paused.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    ///
    /// # Cancel safety
    /// If the future is dropped, the queue may or may not be paused.
    pub async fn resume(&self, queue: &str) -> Result<bool, Error> {
        self.end_pause(queue, None).await
    }

    /// Resumes the queue like [`resume`](Self::resume), if the text of its [`Pause`] is still `shown`:
    /// another operator may have replaced the pause. Differences in white space are ignored.
    ///
    /// # Errors
    /// As [`pause`](Self::pause); [`Conflict`](ErrorKind::Conflict) if another pause is active.
    ///
    /// # Cancel safety
    /// If the future is dropped, the queue may or may not be paused.
    pub async fn resume_shown(&self, queue: &str, shown: impl fmt::Display) -> Result<bool, Error> {
        self.end_pause(queue, Some(shown.to_string())).await
    }

    async fn end_pause(&self, queue: &str, shown: Option<String>) -> Result<bool, Error> {
        let work = async {
            let name = QueueName::new(queue)?;
            let resume = |metadata: &mut Metadata| {
                // Removes the pause even if it has ended: workers of an older version, or with another clock,
                // may still keep it.
                let settings = resolve(metadata).0;
                let holds = Pause::of(metadata, &settings);
                if settings.paused && shown.as_ref().is_some_and(|shown| !holds.is_shown_as(shown)) {
                    let text = format!(
                        "another pause than the one shown holds: the queue `{name}` is paused{holds}"
                    );
                    return Err(Error::new(ErrorKind::Conflict, text));
                }
                Ok((settings.paused, remove_pause(metadata)))
            };
            self.change_metadata(&name, resume).await
        };
        let summary = |new: &bool| if *new { "resumed".to_owned() } else { "it was not paused".to_owned() };
        self.act(Action::Resume, format!("queue {queue}"), work, summary).await
    }

    /// Returns the time by which the end of a pause is judged: the storage's time. If no pause has an end, or
    /// if the storage does not return its time and no length is measured from it, this process's time.
    async fn time_of_pause(&self, queue: &QueueName, options: &PauseOptions) -> Result<SystemTime, Error> {
        // Without a timeout, because the first request of a process may have to wait for a token.
        let metadata = self.metadata(queue).await?;
        let has_end = options.until.is_some() || options.length.is_some();
        if !has_end && metadata.get(PAUSED_UNTIL).is_none() {
            return Ok(self.clock().now());
        }
        let no_answer = |_| {
            let text = "the storage does not return its time: give the pause an end instead of a length";
            Error::new(ErrorKind::Storage, text).with_retryable(true)
        };
        match timeout(STORAGE_TIME_TIMEOUT, self.storage_time(queue))
            .await
            .map_err(no_answer)
            .and_then(|time| time)
        {
            Err(_) if options.length.is_none() => Ok(self.clock().now()),
            time => time,
        }
    }

    async fn set_pause(&self, queue: &str, options: PauseOptions) -> Result<PauseMade, Error> {
        let invalid = |text: &str| Error::new(ErrorKind::Invalid, text);
        let outside = || invalid("the time at which the pause is to end is outside of the calendar");
        Self::check_home(queue)?;
        let name = QueueName::new(queue)?;
        let now = self.time_of_pause(&name, &options).await?;
        let mut until = options.until;
        if let Some(length) = options.length {
            until = Some(now.checked_add(length).ok_or_else(outside)?);
        }
        if until.is_some_and(|until| until <= now) {
            return Err(invalid("the time at which the pause is to end has passed"));
        }
        if until.is_some_and(|until| Timestamp::try_from(until).is_err()) {
            return Err(outside());
        }
        if options.note.as_ref().is_some_and(|note| note.chars().count() > MAX_NOTE) {
            return Err(invalid(&format!("the note is too long: it may have {MAX_NOTE} characters")));
        }
        let pause = Pause { by: Some(self.operator.trim().to_owned()), until, note: options.note };
        self.change_metadata(&name, |metadata| {
            let settings = resolve(metadata).0;
            let holds = settings.is_paused(now).then(|| Pause::of(metadata, &settings));
            if let Some(holds) = &holds {
                // A repeated request whose first response was lost finds its own pause.
                let is_same = *holds == pause;
                // An operator who pauses without an end does not expect the queue to resume at the end of
                // another pause.
                let adds_nothing = pause.note.is_none() && pause.until.is_none() && holds.until.is_none();
                let is_unneeded = match options.replaces {
                    Replaces::None => is_same || adds_nothing,
                    Replaces::Shown(_) => is_same,
                    Replaces::Any => false,
                };
                if is_unneeded {
                    return Ok((PauseMade::Unneeded, false));
                }
            }
            options.replaces.check(&name, holds.as_ref())?;
            pause.write(metadata);
            Ok((holds.map_or(PauseMade::New, PauseMade::Instead), true))
        })
        .await
    }
}

/// The effect of a request to pause a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PauseMade {
    /// It was paused already.
    Unneeded,
    New,
    /// Replaced this pause.
    Instead(Pause),
}

/// The names of a pause's metadata. They are not settings, because pausing and resuming are separate actions.
pub(super) const NAMES: [&str; 4] = [PAUSED, PAUSED_UNTIL, PAUSED_BY, PAUSE_NOTE];

/// Removes the metadata of a pause. Returns whether there was any.
fn remove_pause(metadata: &mut Metadata) -> bool {
    let mut was_there = false;
    for name in NAMES {
        was_there |= metadata.remove(name).is_some();
    }
    was_there
}
