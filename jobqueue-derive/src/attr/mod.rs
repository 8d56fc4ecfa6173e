//! Parses `#[message(…)]`. The module knows the grammar of each attribute; [`crate::check`] checks the
//! values.

mod bounds;
mod container;
mod duration;
mod field;
mod items;
mod suggest;

pub(crate) use bounds::{Bound, Bounds, Literal};
pub(crate) use container::{ContainerAttrs, Upgrade, container};
pub(crate) use duration::{DurationError, parse as parse_duration};
pub(crate) use field::{FieldAttrs, field};

use syn::{Attribute, Ident};

use crate::ctxt::Ctxt;

/// The derive that is running.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The derive `#[derive(QueueMessage)]`.
    Message,
    /// The derive `#[derive(Validate)]`.
    Part,
}

/// The attributes that a type takes, in the order of the documentation.
const TYPE_ATTRIBUTES: &[&str] = &[
    "queue",
    "kind",
    "version",
    "upgrade_from",
    "alias",
    "codec",
    "poison_threshold",
    "lease",
    "max_run_time",
    "backoff",
    "validate",
    "crate",
];
/// The attributes that a field takes.
const FIELD_ATTRIBUTES: &[&str] =
    &["key", "range", "length", "non_empty", "url", "email", "pattern", "nested", "with"];

/// An attribute that may be given once.
pub(crate) struct Slot<T>(Option<(Ident, T)>);

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Slot<T> {
    fn set(&mut self, ctxt: &Ctxt, name: &Ident, value: T) {
        if self.0.is_some() {
            ctxt.error(name, format!("`{name}` is given twice; remove one of them"));
        } else {
            self.0 = Some((name.clone(), value));
        }
    }

    pub(crate) fn get(&self) -> Option<&T> {
        self.0.as_ref().map(|(_, value)| value)
    }

    /// Returns the name as written, for errors about the attribute as a whole.
    pub(crate) fn name(&self) -> Option<&Ident> {
        self.0.as_ref().map(|(name, _)| name)
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.is_some()
    }
}

/// Reports attributes on a variant, which takes none.
pub(crate) fn variant(ctxt: &Ctxt, attrs: &[Attribute]) {
    for attr in attrs.iter().filter(|attr| attr.path().is_ident("message")) {
        ctxt.error(
            attr,
            "a variant takes no `message` attribute; put rules on its fields, and attributes of the message on the enum",
        );
    }
}
