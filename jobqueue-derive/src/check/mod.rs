//! Finds every mistake that can be seen in the tokens, before anything is emitted.

mod names;
mod pattern;
mod ranges;
mod rules;
mod settings;

pub(crate) use ranges::is_checked_by_compiler;

use syn::{GenericParam, Ident};

use crate::ast::{Body, Container, Field};
use crate::attr::Purpose;
use crate::ctxt::Ctxt;

pub(crate) fn check(ctxt: &Ctxt, container: &Container<'_>) {
    if let Body::Union(token) = &container.body {
        ctxt.error(token, "a union cannot be validated or sent; use a struct, or an enum for alternatives");
        return;
    }
    if container.purpose == Purpose::Message {
        ownership(ctxt, container);
        inhabited(ctxt, container);
        names::check(ctxt, &container.attrs);
        settings::check(ctxt, container);
        for fields in container.groups() {
            keys(ctxt, fields);
        }
    }
    let params = type_params(container);
    for field in container.fields() {
        rules::check(ctxt, field, &params);
    }
}

pub(crate) fn type_params<'a>(container: &Container<'a>) -> Vec<&'a Ident> {
    container.generics.type_params().map(|param| &param.ident).collect()
}

/// Refuses borrowed data: a message is read back from storage, where nothing can be borrowed.
fn ownership(ctxt: &Ctxt, container: &Container<'_>) {
    for param in &container.generics.params {
        if let GenericParam::Lifetime(param) = param {
            let lifetime = &param.lifetime;
            ctxt.error(
                lifetime,
                format!("a message owns its data, since it is read back from storage: remove `{lifetime}`, use `String` for `&str` and `Vec<T>` for `&[T]`"),
            );
        }
    }
}

fn inhabited(ctxt: &Ctxt, container: &Container<'_>) {
    if let Body::Enum(variants) = &container.body
        && variants.is_empty()
    {
        ctxt.error(container.ident, "an enum without variants has no values to send; add a variant");
    }
}

/// Allows one key in a struct, and one in each variant of an enum.
fn keys(ctxt: &Ctxt, fields: &[Field<'_>]) {
    let keys = fields.iter().filter_map(|field| field.attrs.key.name());
    for extra in keys.skip(1) {
        ctxt.error(extra, "another field is the `key` already; a message has one key, remove one of them");
    }
}
