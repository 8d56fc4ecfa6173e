//! A lazily created cancellation token.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use tokio_util::sync::CancellationToken;

/// A cancellation token that is created on first use. Most handlers never use it.
#[derive(Debug, Default)]
pub struct StopToken {
    has_fired: AtomicBool,
    token: OnceLock<CancellationToken>,
}

impl StopToken {
    /// Returns the token, for callers that wait for it.
    #[inline]
    pub fn get(&self) -> &CancellationToken {
        let token = self.token.get_or_init(CancellationToken::new);
        // With the two fences, either this call sees the flag, or `fire` sees the token.
        fence(Ordering::SeqCst);
        if self.has_fired() {
            token.cancel();
        }
        token
    }

    /// Returns whether the token has fired.
    #[inline]
    pub fn has_fired(&self) -> bool {
        self.has_fired.load(Ordering::Relaxed)
    }

    /// Fires the token.
    #[inline]
    pub fn fire(&self) {
        self.has_fired.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if let Some(token) = self.token.get() {
            token.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_fires_whether_it_is_asked_for_before_or_after() {
        let before = StopToken::default();
        assert!(!before.get().is_cancelled());
        before.fire();
        assert!(before.has_fired());
        assert!(before.get().is_cancelled());
        let after = StopToken::default();
        after.fire();
        assert!(after.get().is_cancelled());
    }

    #[test]
    fn token_fires_while_it_is_asked_for() {
        for _ in 0..2_000 {
            let stop = StopToken::default();
            std::thread::scope(|scope| {
                scope.spawn(|| stop.fire());
                stop.get();
            });
            assert!(stop.token.get().is_some_and(CancellationToken::is_cancelled));
        }
    }
}
