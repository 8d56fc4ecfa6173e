//! A promise: a name, a sentence and a function.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use jobqueue::Storage;

use super::{Broken, Subject};

type PromiseFuture<'a> = Pin<Box<dyn Future<Output = Result<(), Broken>> + Send + 'a>>;

/// A promise of every storage, or of every storage that has a certain power.
#[derive(Clone, Copy)]
pub struct Promise {
    pub(super) name: &'static str,
    pub(super) summary: &'static str,
    pub(super) slow: bool,
    /// Returns whether a storage has the power that the promise is about.
    pub(super) concerns: fn(&Storage) -> bool,
    pub(super) run: for<'a> fn(&'a Subject) -> PromiseFuture<'a>,
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

    /// Returns whether the promise applies to `subject`. A promise about a power applies only to storages
    /// that have it.
    pub fn concerns(&self, subject: &Subject) -> bool {
        (self.concerns)(subject.storage())
    }

    /// Checks whether `subject` keeps the promise. If the promise does not [apply](Self::concerns), it counts
    /// as kept.
    ///
    /// # Errors
    /// [`Broken`] says where and how the storage breaks the promise.
    ///
    /// # Cancel safety
    /// If the future is dropped, queues and containers of the subject are left behind. Other promises do not
    /// use them.
    pub async fn run(&self, subject: &Subject) -> Result<(), Broken> {
        if !self.concerns(subject) {
            return Ok(());
        }
        let outcome = (self.run)(subject).await;
        let expected = subject.breaks(self.name);
        match outcome {
            Err(broken) if expected.iter().any(|text| broken.begins_with(text)) => Ok(()),
            Ok(()) if !expected.is_empty() => {
                Err(Broken::new("the storage keeps the promise; remove the deviation from its list"))
            }
            outcome => outcome,
        }
    }
}

impl fmt::Debug for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Promise").field(&self.name).finish()
    }
}

/// Declares the promises of a group. The doc comment, in one line, is the sentence of the promise, and the
/// name of the function is its name. A second parameter is a fixture of the subject: `queue` stands for
/// `subject.queue()`, and `queue: missing_queue` for `subject.missing_queue()`. `slow` marks promises that
/// let more than three seconds pass. `if` is followed by a function that returns whether a storage has the
/// required power.
macro_rules! promises {
    (@slow) => { false };
    (@slow slow) => { true };
    (@given $subject:ident $fixture:ident) => { $subject.$fixture().await? };
    (@given $subject:ident $name:ident $fixture:ident) => { $subject.$fixture().await? };
    (@concerns) => { |_| true };
    (@concerns $concerns:expr) => { $concerns };
    ($group:literal $(if $concerns:expr)?; $(
        #[doc = $summary:literal]
        $(@$slow:ident)? async fn $name:ident($subject:ident $(, $given:ident $(: $fixture:ident)?)?) $body:block
    )+) => {
        $(
            #[doc = $summary]
            async fn $name($subject: &$crate::Subject) -> Result<(), $crate::Broken> {
                $(let $given = promises!(@given $subject $given $($fixture)?);)?
                $body
                Ok(())
            }
        )+

        const CONCERNS: fn(&jobqueue::Storage) -> bool = promises!(@concerns $($concerns)?);

        pub(super) const PROMISES: &[$crate::Promise] = &[$(
            $crate::Promise {
                name: concat!($group, "::", stringify!($name)),
                summary: $summary,
                slow: promises!(@slow $($slow)?),
                concerns: CONCERNS,
                run: |subject| Box::pin($name(subject)),
            },
        )+];
    };
}
