//! Records the log of the whole process at every level. Use it only in separate test programs: a log of one
//! thread sometimes misses a line, because `tracing` caches for the whole process whether a callsite is
//! enabled, and asks only the first thread that reaches it.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;

/// The log of a test, from [`record`] until this value is dropped. Tests that record wait for each other.
#[derive(Debug)]
pub struct Log {
    _turn: MutexGuard<'static, ()>,
}

/// Starts an empty log. The first call sets the subscriber of the process.
///
/// # Panics
/// If another subscriber has been set.
pub fn record() -> Log {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    static START: OnceLock<()> = OnceLock::new();
    START.get_or_init(|| {
        tracing_log::LogTracer::init().unwrap();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .fmt_fields(AsTheyAre)
            .with_writer(Recorder::shared);
        tracing::subscriber::set_global_default(subscriber.finish()).unwrap();
    });
    Recorder::shared().0.lock().unwrap().clear();
    Log { _turn: turn }
}

impl Log {
    /// Returns all lines so far.
    ///
    /// # Panics
    /// If the log is not UTF-8.
    pub fn text(&self) -> String {
        String::from_utf8(Recorder::shared().0.lock().unwrap().clone()).unwrap()
    }
}

/// Writes texts unchanged, like many exporters. The default format quotes them, which would hide a line break
/// that the library lets through.
struct AsTheyAre;

impl<'w> FormatFields<'w> for AsTheyAre {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut line = Line { writer, result: Ok(()) };
        fields.record(&mut line);
        line.result
    }
}

struct Line<'w> {
    writer: Writer<'w>,
    result: fmt::Result,
}

impl Visit for Line<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let written = match field.name() {
            "message" => write!(self.writer, "{value:?}"),
            name => write!(self.writer, " {name}={value:?}"),
        };
        self.result = self.result.and(written);
    }
}

#[derive(Clone)]
struct Recorder(Arc<Mutex<Vec<u8>>>);

impl Recorder {
    fn shared() -> Self {
        static SHARED: OnceLock<Recorder> = OnceLock::new();
        SHARED.get_or_init(|| Self(Arc::default())).clone()
    }
}

impl io::Write for Recorder {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A subscriber that panics at each event of the framework, and whenever a span of the framework is entered.
#[derive(Debug)]
pub struct Broken;

impl tracing::Subscriber for Broken {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("jobqueue")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        panic!("boom")
    }

    fn enter(&self, _: &Id) {
        panic!("boom")
    }

    fn exit(&self, _: &Id) {}
}
