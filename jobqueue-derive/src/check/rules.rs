//! Checks rules against the types of their fields, and against each other.

use syn::{Ident, Type};

use super::{pattern, ranges};
use crate::ast::Field;
use crate::attr::{Bounds, FieldAttrs, Literal};
use crate::ctxt::Ctxt;
use crate::shape::Shape;

pub(super) fn check(ctxt: &Ctxt, field: &Field<'_>, params: &[&Ident]) {
    let attrs = &field.attrs;
    let shape = Shape::of(field.ty, params);
    if let Shape::Unit = shape {
        for rule in attrs.rules() {
            ctxt.error(rule, "`()` has no value to check; remove the rule");
        }
        return;
    }
    if field.is_skipped {
        for rule in attrs.rules() {
            ctxt.error(
                rule,
                format!("serde skips this field, so that a worker would check its default value; remove `{rule}`, or the `skip`"),
            );
        }
    }
    applicable(ctxt, attrs, &shape);
    if let Some(bounds) = attrs.range.get() {
        ranges::range(ctxt, bounds, &shape);
    }
    if let Some(bounds) = attrs.length.get() {
        ranges::length(ctxt, bounds);
    }
    if let Some(literal) = attrs.pattern.get() {
        pattern::check(ctxt, literal);
    }
    together(ctxt, attrs);
    key(ctxt, attrs, field.ty);
}

fn applicable(ctxt: &Ctxt, attrs: &FieldAttrs, shape: &Shape) {
    if let (Some(name), Shape::Param(param)) = (attrs.range.name(), shape) {
        ctxt.error(
            name,
            format!("`range` needs a concrete number type, and `{param}` may be any type; use `nested`, and put the rule on the types used for `{param}`"),
        );
    }
    let Some(noun) = shape.noun() else { return };
    let is_number = shape.number().is_some();
    let is_text = matches!(shape, Shape::Text);
    let is_collection = matches!(shape, Shape::List(_) | Shape::Map(_));
    if let Some(name) = attrs.range.name()
        && !is_number
    {
        let advice =
            if is_text || is_collection { "use `length(…)`" } else { "remove it, or use `with = …`" };
        ctxt.error(name, format!("`range` is for numbers, and this field is {noun}; {advice}"));
    }
    for name in [attrs.length.name(), attrs.non_empty.name()].into_iter().flatten() {
        if !is_text && !is_collection {
            let advice = if is_number { "use `range(…)`" } else { "remove it, or use `with = …`" };
            ctxt.error(
                name,
                format!("`{name}` is for strings and collections, and this field is {noun}; {advice}"),
            );
        }
    }
    for name in [attrs.url.name(), attrs.email.name(), attrs.pattern.name()].into_iter().flatten() {
        if !is_text {
            let advice = match shape {
                _ if is_number => "use `range(…)`",
                Shape::List(_) | Shape::Map(_) => "use `with = …` for its items",
                _ => "remove it",
            };
            ctxt.error(name, format!("`{name}` is for strings, and this field is {noun}; {advice}"));
        }
    }
    if let Some(name) = attrs.nested.name()
        && let Some(noun) = primitive(shape)
    {
        ctxt.error(
            name,
            format!("`nested` is for types with `#[derive(Validate)]`, and this is {noun}; use `range`, `length` or `with = …`"),
        );
    }
}

/// Returns a noun phrase for a type that cannot derive `Validate`, inside lists and maps.
fn primitive(shape: &Shape) -> Option<String> {
    match shape {
        Shape::List(item) | Shape::Map(item) => primitive(item),
        shape => shape.noun(),
    }
}

fn together(ctxt: &Ctxt, attrs: &FieldAttrs) {
    if let (Some(_), Some(email)) = (attrs.url.name(), attrs.email.name()) {
        ctxt.error(email, "no text is both a URL and an email address; remove `url` or `email`");
    }
    if let (Some(name), Some(bounds)) = (attrs.non_empty.name(), attrs.length.get())
        && let Some(problem) = non_empty_with(bounds)
    {
        ctxt.error(name, problem);
    }
}

fn non_empty_with(bounds: &Bounds) -> Option<&'static str> {
    match bounds.low.as_ref().map(|low| &low.literal) {
        None | Some(Literal::Integer { magnitude: 0, .. }) => {
            Some("`length` allows 0, `non_empty` does not; begin `length` at 1 and remove `non_empty`")
        }
        Some(Literal::Integer { negative: false, .. }) => {
            Some("`length` rules out the empty value already; remove `non_empty`")
        }
        _ => None,
    }
}

fn key(ctxt: &Ctxt, attrs: &FieldAttrs, ty: &Type) {
    let Some(name) = attrs.key.name() else { return };
    let absent = match ty {
        Type::Tuple(tuple) => tuple.elems.is_empty(),
        Type::Path(path) => path.path.segments.last().is_some_and(|last| last.ident == "Option"),
        _ => false,
    };
    if absent {
        ctxt.error(
            name,
            "a key must always be present, and this field is optional; put `key` on another field",
        );
    }
}
