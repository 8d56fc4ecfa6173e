//! Shares texts that are the same in message after message, such as the kind and the source: one copy for all messages
//! of a thread.

use std::cell::RefCell;
use std::sync::Arc;

/// The number of texts that are kept, and the greatest length of one in bytes.
const KEPT: usize = 8;
const LONGEST: usize = 128;

/// Returns the text, shared with the thread's last messages if one of them had it.
pub(crate) fn repeated(text: &str) -> Arc<str> {
    thread_local! {
        /// The index of the text to replace next, and the texts that are kept.
        static KNOWN: RefCell<(usize, Vec<Arc<str>>)> = const { RefCell::new((0, Vec::new())) };
    }
    if text.len() > LONGEST {
        return text.into();
    }
    KNOWN.with_borrow_mut(|(oldest, known)| {
        if let Some(found) = known.iter().find(|found| ***found == *text) {
            return Arc::clone(found);
        }
        let new = Arc::from(text);
        if known.len() < KEPT {
            known.push(Arc::clone(&new));
        } else {
            known[*oldest] = Arc::clone(&new);
            *oldest = (*oldest + 1) % KEPT;
        }
        new
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_repeated_is_shared_and_little_is_kept() {
        let first = repeated("kind");
        assert!(Arc::ptr_eq(&first, &repeated("kind")));
        let other = std::thread::spawn(|| repeated("kind")).join().unwrap();
        assert!(other == first && !Arc::ptr_eq(&first, &other));
        let made: Vec<Arc<str>> = (0..3 * KEPT).map(|number| repeated(&number.to_string())).collect();
        let kept = |made: &Arc<str>| Arc::ptr_eq(made, &repeated(made));
        assert!(made[2 * KEPT..].iter().all(kept), "the newest are kept");
        assert!(!made[..2 * KEPT].iter().any(kept) && !kept(&first), "others were given up for them");
        let (longest, longer) = ("x".repeat(LONGEST), "x".repeat(LONGEST + 1));
        assert!(kept(&repeated(&longest)) && !kept(&repeated(&longer)) && *repeated(&longer) == *longer);
    }
}
