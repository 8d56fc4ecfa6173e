//! The line that a second signal prints before it ends the program: what the command has done, and what it
//! leaves.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

use crate::exit::Failure;

static LINE: Mutex<String> = Mutex::new(String::new());

/// Deep looks, redrives and purges hold the dead letters that they have received for at most this long.
pub(crate) const HELD: &str = "what it held is invisible to others for up to 10 minutes";

/// Sets what the command has done so far, and what it leaves if it ends now.
pub(crate) fn set(text: impl Into<String>) {
    *LINE.lock().unwrap_or_else(PoisonError::into_inner) = text.into();
}

pub(crate) fn print() {
    let mut errors = io::stderr();
    if errors.is_terminal() {
        // Ends the line of a progress bar. If that fails, the line has no reader.
        let _ = writeln!(errors);
    }
    let text = std::mem::take(&mut *LINE.lock().unwrap_or_else(PoisonError::into_inner));
    let _ = Failure::Interrupted(format!("ended at once by a second signal: {text}")).report();
}
