//! Parses `#[message(…)]` on a field.

use syn::{Attribute, Ident, LitStr, Path};

use super::bounds::Bounds;
use super::items::{for_each_item, parenthesized, value};
use super::suggest::unknown;
use super::{FIELD_ATTRIBUTES, Purpose, Slot, TYPE_ATTRIBUTES};
use crate::ctxt::Ctxt;

#[derive(Default)]
pub(crate) struct FieldAttrs {
    pub key: Slot<()>,
    pub range: Slot<Bounds>,
    pub length: Slot<Bounds>,
    pub non_empty: Slot<()>,
    pub url: Slot<()>,
    pub email: Slot<()>,
    pub pattern: Slot<LitStr>,
    pub nested: Slot<()>,
    pub with: Slot<Path>,
}

impl FieldAttrs {
    /// Returns the names of the rules on the field, as written; `key` is not a rule.
    pub(crate) fn rules(&self) -> impl Iterator<Item = &Ident> {
        // A rule that is missing here would never be checked. The full pattern makes a new attribute a
        // compile error until it is added.
        let Self { key: _, range, length, non_empty, url, email, pattern, nested, with } = self;
        [
            range.name(),
            length.name(),
            non_empty.name(),
            url.name(),
            email.name(),
            pattern.name(),
            nested.name(),
            with.name(),
        ]
        .into_iter()
        .flatten()
    }
}

pub(crate) fn field(ctxt: &Ctxt, attrs: &[Attribute], purpose: Purpose) -> FieldAttrs {
    let mut found = FieldAttrs::default();
    for_each_item(ctxt, attrs, |name, input| {
        match name.to_string().as_str() {
            "key" if purpose == Purpose::Part => {
                return Err(syn::Error::new(
                    name.span(),
                    "`key` marks a field of a message; remove it, or derive `QueueMessage` instead of `Validate`",
                ));
            }
            "key" => found.key.set(ctxt, name, ()),
            "range" => {
                let bounds = parenthesized(name, input, "range(1..=64)", |i| Bounds::parse(name, i))?;
                found.range.set(ctxt, name, bounds);
            }
            "length" => {
                let bounds = parenthesized(name, input, "length(1..=64)", |i| Bounds::parse(name, i))?;
                found.length.set(ctxt, name, bounds);
            }
            "non_empty" => found.non_empty.set(ctxt, name, ()),
            "url" => found.url.set(ctxt, name, ()),
            "email" => found.email.set(ctxt, name, ()),
            "pattern" => found.pattern.set(ctxt, name, value(name, input, r#"pattern = "^[a-z]+$""#)?),
            "nested" => found.nested.set(ctxt, name, ()),
            "with" => found.with.set(ctxt, name, value(name, input, "with = path::to::rule")?),
            other if TYPE_ATTRIBUTES.contains(&other) => {
                return Err(syn::Error::new(
                    name.span(),
                    format!("`{name}` belongs on the type; move it there"),
                ));
            }
            _ => return Err(unknown(name, FIELD_ATTRIBUTES)),
        }
        Ok(())
    });
    found
}
