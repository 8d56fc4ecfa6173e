//! Settings of a queue, read from its metadata.
//!
//! The result is usable whatever the metadata contains. A malformed or absurd value gives the default and a
//! warning: never a panic, and never a threshold of zero, which would dead-letter everything.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::message::MessageDefaults;
use crate::times::{parse_rfc3339, rfc3339};
use jobqueue_storage::MAX_VISIBILITY;
pub use jobqueue_storage::Metadata;

/// The metadata name of [`QueueSettings::poison_threshold`].
pub const POISON_THRESHOLD: &str = Metadata::POISON_THRESHOLD;
/// The metadata name of [`QueueSettings::timeout`], in seconds.
pub const DEFAULT_TIMEOUT: &str = "defaulttimeout";
/// The metadata name of [`QueueSettings::encoding`]: `none` or `base64`.
pub const MESSAGE_ENCODING: &str = "messageencoding";
/// The metadata name of [`QueueSettings::paused`]: `true` while workers fetch nothing from the queue.
pub const PAUSED: &str = "paused";
/// The metadata name of [`QueueSettings::paused_until`], as RFC 3339.
pub const PAUSED_UNTIL: &str = "pauseduntil";
/// The metadata name of the operator who paused the queue. Workers do not read it.
pub const PAUSED_BY: &str = "pausedby";
/// The metadata name of the operator's note about the pause, percent-encoded. Workers do not read it.
pub const PAUSE_NOTE: &str = "pausenote";
/// The metadata name of [`QueueSettings::max_deliveries`].
pub const MAX_DELIVERIES: &str = Metadata::MAX_DELIVERIES;

/// The metadata name of [`QueueSettings::unknown_kind_timeout`], in seconds.
pub const UNKNOWN_KIND_SECONDS: &str = "unknownkindseconds";
/// The metadata name of [`QueueSettings::raw_version`].
pub const RAW_VERSION: &str = "rawversion";

/// The encoding of the texts of new messages. Readers accept both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MessageEncoding {
    /// JSON without further encoding: up to 65,536 bytes.
    #[default]
    Plain,
    /// JSON in base64, up to 49,152 bytes of JSON: for consumers whose SDK expects it.
    Base64,
}

/// The settings for processing a queue. [`QueueSettings::resolve`] computes them from metadata, type defaults
/// and overrides.
///
/// The sources, by priority, are: the overrides of the process; the queue's metadata, so that operators can
/// change a setting without a release; the type's defaults; the framework's defaults. Workers read the
/// metadata again every 30 seconds. If several types share a queue, each job has the [limits](Self::limits)
/// of its type.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use jobqueue::{QueueMessage, Storage}; use serde::{Deserialize, Serialize};
/// #[derive(Serialize, Deserialize, QueueMessage)]
/// #[message(queue = "mails", kind = "mail", poison_threshold = 3)]
/// struct Mail { to: String }
///
/// let mails = Storage::memory().queue::<Mail>().await?;
/// assert_eq!(mails.settings().await.poison_threshold, 3);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueSettings {
    /// The number of failed attempts after which a message is dead-lettered: 1–1,000, default 5.
    pub poison_threshold: u32,
    /// The lease with which messages are received: 1 second to 7 days, default 30 seconds.
    pub timeout: Duration,
    /// The encoding in which texts are written.
    pub encoding: MessageEncoding,
    /// True if workers fetch nothing from the queue, until [`paused_until`](Self::paused_until) if that is
    /// set: see [`is_paused`](Self::is_paused).
    pub paused: bool,
    /// The time at which the pause ends by itself, by the workers' clocks. `None`, the default, means that an
    /// operator must end it.
    pub paused_until: Option<SystemTime>,
    /// The number of counted deliveries after which a message is dead-lettered without being run: the limit
    /// for jobs that kill their workers. 1–1,000,000, default 4 × threshold + 20.
    pub max_deliveries: u32,
    /// The time for which a message of an unknown kind or version is left to other workers, from its first
    /// such delivery. Then it is dead-lettered. 1 second to 365 days, default 1 day.
    pub unknown_kind_timeout: Duration,
    /// The version to assume for payloads without a version, from producers that write no events or no
    /// `schemaversion`. `None`, the default, means the newest version that can be decoded.
    pub raw_version: Option<u32>,
    /// The values that the metadata or the process sets. They hold for all types of the queue.
    set: SettingOverrides,
}

/// The limits on the runs of a job, from [`QueueSettings::limits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobLimits {
    /// The number of failed attempts after which the job is dead-lettered.
    pub attempts: u32,
    /// The number of counted deliveries after which the job is dead-lettered without being run.
    pub deliveries: u32,
}

/// Settings of a process that override the queue's settings. Values out of range are clamped.
///
/// ```
/// use jobqueue::settings::SettingOverrides;
///
/// let mut overrides = SettingOverrides::default();
/// overrides.poison_threshold = Some(2);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SettingOverrides {
    /// An override of [`QueueSettings::poison_threshold`].
    pub poison_threshold: Option<u32>,
    /// An override of [`QueueSettings::timeout`].
    pub timeout: Option<Duration>,
    /// An override of [`QueueSettings::max_deliveries`].
    pub max_deliveries: Option<u32>,
}

/// A warning about a value in the metadata that was not used. Its text names the setting, the allowed values,
/// and the value used instead. It does not quote the metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingWarning {
    name: &'static str,
    allowed: &'static str,
    used: String,
}

impl SettingWarning {
    /// Returns the name of the setting in the metadata, such as `poisonthreshold`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the text for a reader that knows no message type. For a setting that each
    /// [type](QueueSettings::OF_TYPES) decides, the text names no value.
    pub fn without_type(&self) -> String {
        let Self { name, allowed, .. } = self;
        if QueueSettings::OF_TYPES.contains(name) {
            format!(
                "queue metadata `{name}` is not {allowed}; until it is corrected, the value of each message type is used, or the default"
            )
        } else {
            self.to_string()
        }
    }
}

impl fmt::Display for SettingWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, allowed, used } = self;
        write!(f, "queue metadata `{name}` is not {allowed}; {used} is used until it is corrected")
    }
}

const DEFAULT_POISON_THRESHOLD: u32 = 5;
/// The default lease of received messages, unless their queue or type sets another.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(30);
const MIN_TIMEOUT: Duration = Duration::from_secs(1);
const DEFAULT_UNKNOWN_KIND_SECONDS: u64 = 86_400;
const SECONDS_PER_YEAR: u64 = 365 * 86_400;

impl QueueSettings {
    /// Returns the effective settings: overrides first, then metadata, then the type's defaults, then the
    /// framework's.
    ///
    /// A value in the metadata that is malformed or out of range counts as absent and adds a warning.
    /// Overrides are clamped to their range.
    ///
    /// ```
    /// use jobqueue::message::MessageDefaults;
    /// use jobqueue::settings::{Metadata, QueueSettings, SettingOverrides};
    ///
    /// let metadata = Metadata::new().with("poisonthreshold", "3").with("defaulttimeout", "soon");
    /// let (settings, warnings) = QueueSettings::resolve(&metadata, &MessageDefaults::new(), &SettingOverrides::default());
    /// assert_eq!((settings.poison_threshold, settings.timeout.as_secs()), (3, 30));
    /// assert_eq!(warnings[0].name(), "defaulttimeout");
    /// ```
    pub fn resolve(
        metadata: &Metadata,
        defaults: &MessageDefaults,
        overrides: &SettingOverrides,
    ) -> (Self, Vec<SettingWarning>) {
        let mut reader = MetadataReader { metadata, warnings: Vec::new() };
        let threshold = threshold_of(defaults);
        let set =
            reader.number(POISON_THRESHOLD, "a whole number from 1 to 1000", 1..=1000, threshold.into());
        let set_threshold = overrides.poison_threshold.map(|n| n.clamp(1, 1000)).or(set.map(|n| n as u32));
        let poison_threshold = set_threshold.unwrap_or(threshold);

        let default = defaults.lease.unwrap_or(DEFAULT_LEASE).clamp(MIN_TIMEOUT, MAX_VISIBILITY);
        let set = reader.number(DEFAULT_TIMEOUT, "seconds from 1 to 604800", 1..=604_800, default.as_secs());
        let set_timeout = overrides.timeout.map(|t| t.clamp(MIN_TIMEOUT, MAX_VISIBILITY));
        let set_timeout = set_timeout.or(set.map(Duration::from_secs));

        let default_deliveries = max_deliveries_for(poison_threshold);
        let set = reader.number(
            MAX_DELIVERIES,
            "a whole number from 1 to 1000000",
            1..=1_000_000,
            default_deliveries.into(),
        );
        let set_max = overrides.max_deliveries.map(|n| n.clamp(1, 1_000_000)).or(set.map(|n| n as u32));

        let allowed = "seconds from 1 to 31536000";
        let unknown =
            reader.number(UNKNOWN_KIND_SECONDS, allowed, 1..=SECONDS_PER_YEAR, DEFAULT_UNKNOWN_KIND_SECONDS);
        let unknown_kind_timeout = Duration::from_secs(unknown.unwrap_or(DEFAULT_UNKNOWN_KIND_SECONDS));

        let encoding = reader.word(
            MESSAGE_ENCODING,
            "`none` or `base64`",
            &[("none", MessageEncoding::Plain), ("base64", MessageEncoding::Base64)],
        );
        let switch = [("false", false), ("true", true)];
        let paused = reader.word(PAUSED, "`true` or `false`", &switch);
        let paused_until = reader.moment(PAUSED_UNTIL, "a time such as 2026-11-22T15:00:00Z");
        let raw_version = reader.version(RAW_VERSION, "a whole number from 1 to 4294967295");
        let settings = Self {
            poison_threshold,
            timeout: set_timeout.unwrap_or(default),
            encoding,
            paused,
            paused_until,
            max_deliveries: set_max.unwrap_or(default_deliveries),
            unknown_kind_timeout,
            raw_version,
            set: SettingOverrides {
                poison_threshold: set_threshold,
                timeout: set_timeout,
                max_deliveries: set_max,
            },
        };
        (settings, reader.warnings)
    }

    /// The names of all settings in the metadata.
    pub const NAMES: &'static [&'static str] = &[
        POISON_THRESHOLD,
        DEFAULT_TIMEOUT,
        MESSAGE_ENCODING,
        PAUSED,
        PAUSED_UNTIL,
        PAUSED_BY,
        PAUSE_NOTE,
        MAX_DELIVERIES,
        UNKNOWN_KIND_SECONDS,
        RAW_VERSION,
    ];

    /// Returns whether workers fetch nothing from the queue at the time `now`.
    pub fn is_paused(&self, now: SystemTime) -> bool {
        self.paused && self.paused_until.is_none_or(|until| now < until)
    }

    /// Returns the limits of a job whose type has these defaults. A limit that the metadata or the process
    /// sets holds for all types of the queue. Otherwise each type has its own limit.
    ///
    /// ```
    /// use jobqueue::message::MessageDefaults;
    /// use jobqueue::settings::{Metadata, QueueSettings, SettingOverrides};
    ///
    /// let (charge, report) = (MessageDefaults::new().with_poison_threshold(1), MessageDefaults::new());
    /// let resolve = |metadata| QueueSettings::resolve(&metadata, &charge, &SettingOverrides::default()).0;
    /// let settings = resolve(Metadata::new());
    /// assert_eq!((settings.limits(&charge).attempts, settings.limits(&report).attempts), (1, 5));
    /// let settings = resolve(Metadata::new().with("poisonthreshold", "3"));
    /// assert_eq!((settings.limits(&charge).attempts, settings.limits(&report).attempts), (3, 3));
    /// ```
    pub fn limits(&self, defaults: &MessageDefaults) -> JobLimits {
        let attempts = self.set.poison_threshold.unwrap_or_else(|| threshold_of(defaults));
        JobLimits {
            attempts,
            deliveries: self.set.max_deliveries.unwrap_or_else(|| max_deliveries_for(attempts)),
        }
    }

    /// The names of the settings that each message type decides, unless the metadata or the process sets
    /// them.
    pub const OF_TYPES: &'static [&'static str] = &[POISON_THRESHOLD, DEFAULT_TIMEOUT, MAX_DELIVERIES];

    /// Returns the settings as metadata entries. Settings that the [types](Self::OF_TYPES) decide are left
    /// out.
    pub fn entries(&self) -> Vec<(&'static str, String)> {
        let encoding = match self.encoding {
            MessageEncoding::Plain => "none",
            MessageEncoding::Base64 => "base64",
        };
        let SettingOverrides { poison_threshold, timeout, max_deliveries } = self.set;
        let max_deliveries = max_deliveries.or(poison_threshold.map(max_deliveries_for));
        let mut entries = Vec::new();
        entries.extend(poison_threshold.map(|attempts| (POISON_THRESHOLD, attempts.to_string())));
        entries.extend(timeout.map(|timeout| (DEFAULT_TIMEOUT, timeout.as_secs().to_string())));
        entries.extend(max_deliveries.map(|deliveries| (MAX_DELIVERIES, deliveries.to_string())));
        entries.extend([
            (MESSAGE_ENCODING, encoding.to_owned()),
            (PAUSED, self.paused.to_string()),
            (UNKNOWN_KIND_SECONDS, self.unknown_kind_timeout.as_secs().to_string()),
        ]);
        entries.extend(self.paused_until.map(|until| (PAUSED_UNTIL, rfc3339(until))));
        entries.extend(self.raw_version.map(|version| (RAW_VERSION, version.to_string())));
        entries
    }
}

fn threshold_of(defaults: &MessageDefaults) -> u32 {
    defaults.poison_threshold.unwrap_or(DEFAULT_POISON_THRESHOLD).clamp(1, 1000)
}

/// Returns the default limit of deliveries. It is generous, because most workers that die do so for other
/// reasons than the job.
fn max_deliveries_for(attempts: u32) -> u32 {
    attempts * 4 + 20
}

struct MetadataReader<'a> {
    metadata: &'a Metadata,
    warnings: Vec<SettingWarning>,
}

impl MetadataReader<'_> {
    fn number(
        &mut self,
        name: &'static str,
        allowed: &'static str,
        range: std::ops::RangeInclusive<u64>,
        default: u64,
    ) -> Option<u64> {
        let value = self.metadata.get(name)?.trim().parse::<u64>().ok().filter(|value| range.contains(value));
        if value.is_none() {
            self.warnings.push(SettingWarning { name, allowed, used: default.to_string() });
        }
        value
    }

    fn version(&mut self, name: &'static str, allowed: &'static str) -> Option<u32> {
        let text = self.metadata.get(name)?;
        let version = text.trim().parse().ok().filter(|version| *version > 0);
        if version.is_none() {
            self.warnings.push(SettingWarning { name, allowed, used: "the newest that fits".to_owned() });
        }
        version
    }

    fn moment(&mut self, name: &'static str, allowed: &'static str) -> Option<SystemTime> {
        let time = parse_rfc3339(self.metadata.get(name)?.trim());
        if time.is_none() {
            self.warnings.push(SettingWarning { name, allowed, used: "no end".to_owned() });
        }
        time
    }

    /// Reads a word. The first choice is the default.
    fn word<T: Copy>(&mut self, name: &'static str, allowed: &'static str, choices: &[(&str, T); 2]) -> T {
        let default = choices[0];
        let Some(text) = self.metadata.get(name) else { return default.1 };
        match choices.iter().find(|(word, _)| text.trim().eq_ignore_ascii_case(word)) {
            Some((_, value)) => *value,
            None => {
                self.warnings.push(SettingWarning { name, allowed, used: format!("`{}`", default.0) });
                default.1
            }
        }
    }
}

#[cfg(test)]
mod tests;
