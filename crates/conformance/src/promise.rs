//! One promise: a name, a sentence, a function.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use super::{Broken, Subject};

type Running<'a> = Pin<Box<dyn Future<Output = Result<(), Broken>> + Send + 'a>>;

/// A promise of every storage.
#[derive(Clone, Copy)]
pub struct Promise {
    pub(super) name: &'static str,
    pub(super) summary: &'static str,
    pub(super) slow: bool,
    pub(super) run: for<'a> fn(&'a Subject) -> Running<'a>,
}

impl Promise {
    /// Returns the name, such as `update::gives_a_new_receipt`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the promise as a sentence.
    pub fn summary(&self) -> &'static str {
        self.summary.trim_start()
    }

    /// Returns whether the promise lets more than three seconds of storage time pass.
    pub fn is_slow(&self) -> bool {
        self.slow
    }

    /// Checks whether `subject` keeps the promise.
    ///
    /// # Errors
    /// [`Broken`], which says where and how the storage breaks it.
    ///
    /// # Cancel safety
    /// If the future is dropped, queues and containers of the subject are left behind; nobody else uses them.
    pub async fn run(&self, subject: &Subject) -> Result<(), Broken> {
        let outcome = (self.run)(subject).await;
        match (subject.breaks(self.name), outcome) {
            (false, outcome) => outcome,
            (true, Err(_)) => Ok(()),
            (true, Ok(())) => {
                Err(Broken::new("the storage keeps the promise; remove the deviation from its list"))
            }
        }
    }
}

impl fmt::Debug for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Promise").field(&self.name).finish()
    }
}

/// Declares the promises of a group: the doc comment is the promise's sentence, the function's name its name.
/// `slow` marks those that let more than three seconds pass.
macro_rules! promises {
    (@slow) => { false };
    (@slow slow) => { true };
    ($group:literal; $(#[doc = $summary:literal] $(@$slow:ident)? async fn $name:ident($subject:ident) $body:block)+) => {
        $(
            #[doc = $summary]
            async fn $name($subject: &$crate::Subject) -> Result<(), $crate::Broken> {
                $body
                Ok(())
            }
        )+

        pub(super) const PROMISES: &[$crate::Promise] = &[$(
            $crate::Promise {
                name: concat!($group, "::", stringify!($name)),
                summary: $summary,
                slow: promises!(@slow $($slow)?),
                run: |subject| Box::pin($name(subject)),
            },
        )+];
    };
}
