//! Records the log of the whole process at every level. For test programs of their own: a log of one thread misses a
//! line now and then, because `tracing` remembers for the whole process whether anybody listens to a place in the
//! code, and asks only the first thread that reaches it.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The log of a test, from [`record`] until this is dropped. Tests that record wait for each other.
#[derive(Debug)]
pub struct Log {
    _turn: MutexGuard<'static, ()>,
}

/// Begins an empty log. The first call takes over the process's subscriber.
///
/// # Panics
/// When another subscriber has been set.
pub fn record() -> Log {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    static START: OnceLock<()> = OnceLock::new();
    START.get_or_init(|| {
        tracing_log::LogTracer::init().unwrap();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
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
    /// When the log is not UTF-8.
    pub fn text(&self) -> String {
        String::from_utf8(Recorder::shared().0.lock().unwrap().clone()).unwrap()
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
