//! Checks the names of queues and kinds.

use std::collections::HashSet;

use proc_macro2::Span;
use syn::LitStr;

use crate::attr::{ContainerAttrs, Slot};
use crate::ctxt::Ctxt;

/// The maximum length of a queue name: Azure's 63 characters minus the seven of `-poison`.
const MAX_QUEUE_CHARS: usize = 56;
const MAX_KIND_CHARS: usize = 128;
/// The prefix of the framework's own kinds.
const OWN_KINDS: &str = "jobqueue.";

pub(super) fn check(ctxt: &Ctxt, attrs: &ContainerAttrs) {
    required(ctxt, attrs, "queue", &attrs.queue, r#"`queue = "…"`, the queue that values are sent to"#);
    required(ctxt, attrs, "kind", &attrs.kind, r#"`kind = "…"`, the durable name of the type"#);
    if let Some(name) = attrs.queue.get() {
        queue(ctxt, name);
    }
    if let Some(name) = attrs.kind.get() {
        kind(ctxt, "kind", name);
    }
    let mut known: HashSet<String> = HashSet::new();
    for alias in &attrs.aliases {
        kind(ctxt, "alias", alias);
        if attrs.kind.get().is_some_and(|kind| kind.value() == alias.value()) {
            ctxt.error(alias, "this alias is the `kind` itself; remove it, or write the former name");
        } else if !known.insert(alias.value()) {
            ctxt.error(alias, "this alias is given twice; remove one of them");
        }
    }
}

fn required(ctxt: &Ctxt, attrs: &ContainerAttrs, name: &str, slot: &Slot<LitStr>, what: &str) {
    if !slot.is_set() && !attrs.attempted.iter().any(|attempted| attempted == name) {
        ctxt.error_at(Span::call_site(), format!("a message needs {what}: add it in `#[message(…)]`"));
    }
}

/// Checks [Azure's rules](https://learn.microsoft.com/rest/api/storageservices/naming-queues-and-metadata),
/// and reports each rule that the name breaks.
fn queue(ctxt: &Ctxt, literal: &LitStr) {
    let name = literal.value();
    let length = name.chars().count();
    if length < 3 {
        ctxt.error(
            literal,
            format!("a queue name has at least 3 characters, this has {length}; write a longer one"),
        );
    }
    if length > MAX_QUEUE_CHARS {
        ctxt.error(
            literal,
            format!("a queue name has at most {MAX_QUEUE_CHARS} characters, so that `-poison` fits behind it, this has {length}; write a shorter one"),
        );
    }
    let mut bad: Vec<char> =
        name.chars().filter(|c| !matches!(c, 'a'..='z' | 'A'..='Z' | '0'..='9' | '-')).collect();
    bad.dedup();
    if let Some(bad) = bad.first() {
        ctxt.error(
            literal,
            format!("a queue name cannot contain {bad:?}; use lower-case letters, digits and dashes"),
        );
    }
    if name.chars().any(|c| c.is_ascii_uppercase()) {
        ctxt.error(literal, "a queue name has no capitals; use lower-case letters");
    }
    if name.starts_with('-') {
        ctxt.error(literal, "a queue name cannot begin with a dash; begin with a letter or digit");
    }
    if name.len() > 1 && name.ends_with('-') {
        ctxt.error(literal, "a queue name cannot end with a dash; end with a letter or digit");
    }
    if name.contains("--") {
        ctxt.error(literal, "a queue name cannot have two dashes in a row; use single ones");
    }
    if name.ends_with("-poison") {
        ctxt.error(literal, "`-poison` is the ending of dead-letter queues; choose another name");
    }
}

fn kind(ctxt: &Ctxt, what: &str, literal: &LitStr) {
    let name = literal.value();
    let length = name.chars().count();
    if name.is_empty() {
        ctxt.error(literal, format!("`{what}` is empty; write a durable name such as \"thumbnail.request\""));
    }
    if length > MAX_KIND_CHARS {
        ctxt.error(
            literal,
            format!(
                "`{what}` has at most {MAX_KIND_CHARS} characters, this has {length}; write a shorter one"
            ),
        );
    }
    if name == "*" || name.starts_with(OWN_KINDS) {
        ctxt.error(
            literal,
            format!("`{what}` is one of the framework's own; choose a name that is not `*` and does not begin with `{OWN_KINDS}`"),
        );
    }
    if name.chars().any(char::is_control) {
        ctxt.error(literal, format!("`{what}` contains a control character; use printable ones"));
    } else if name.trim() != name {
        ctxt.error(literal, format!("`{what}` begins or ends with white space; remove it"));
    }
}
