//! Removes the parts of an input that a failure does not need.

/// Returns a part of `items`, in their order, for which `fails` still returns true. Tries to leave out
/// halves, then quarters and smaller parts, with at most `tries` calls of `fails`.
pub fn shrink<T: Clone>(mut items: Vec<T>, tries: usize, mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let (mut left, mut size) = (tries, items.len().div_ceil(2));
    while size > 0 && !items.is_empty() {
        let (mut at, mut removed) = (0, false);
        while at < items.len() {
            if left == 0 {
                return items;
            }
            left -= 1;
            let end = (at + size).min(items.len());
            let fewer: Vec<T> = items[..at].iter().chain(&items[end..]).cloned().collect();
            if fails(&fewer) {
                items = fewer;
                removed = true;
            } else {
                at = end;
            }
        }
        size = match size {
            1 if removed => 1,
            size => size / 2,
        };
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needed_items_are_left_in_their_order() {
        let needed = |items: &[u32]| [3, 17, 40].iter().all(|needed| items.contains(needed));
        assert_eq!(shrink((0..64).collect(), 1_000, needed), [3, 17, 40]);
        assert_eq!(shrink(vec![1], 10, |_| true), Vec::<u32>::new());
        assert!(shrink((0..64).collect(), 5, needed).len() > 3);
    }
}
