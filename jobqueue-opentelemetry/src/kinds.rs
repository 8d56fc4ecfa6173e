//! The kinds that attributes of metrics may have as values.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};

use opentelemetry::StringValue;

use crate::conventions::OTHER;

/// The greatest number of kinds. A program has few, and they do not grow while it runs.
const MOST: usize = 200;

/// The kinds that this process has sent or run. A message of somebody else can name any kind: those count as one.
#[derive(Debug, Default)]
pub(crate) struct Kinds(RwLock<HashSet<Arc<str>>>);

impl Kinds {
    /// Takes note of a kind of this process, and returns its value.
    pub(crate) fn own(&self, kind: &Arc<str>) -> StringValue {
        if self.knows(kind) {
            return Arc::clone(kind).into();
        }
        let mut kinds = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if kinds.len() < MOST {
            kinds.insert(Arc::clone(kind));
            return Arc::clone(kind).into();
        }
        OTHER.into()
    }

    /// Returns the value of a kind that a message names.
    pub(crate) fn of(&self, kind: &Arc<str>) -> StringValue {
        if self.knows(kind) { Arc::clone(kind).into() } else { OTHER.into() }
    }

    fn knows(&self, kind: &str) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains(kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_strangers_are_one_value() {
        let kinds = Kinds::default();
        let (own, strange) = (Arc::from("order"), Arc::from("<script>"));
        assert_eq!(kinds.of(&own).as_str(), OTHER);
        assert_eq!(kinds.own(&own).as_str(), "order");
        assert_eq!((kinds.of(&own).as_str(), kinds.of(&strange).as_str()), ("order", OTHER));
        for number in 0..2 * MOST {
            kinds.own(&number.to_string().into());
        }
        assert_eq!(kinds.own(&Arc::from("new")).as_str(), OTHER);
    }
}
