//! Computes the bounds that a generic type's implementations need.
//!
//! Bounds are put on the types of fields that have rules, and on `Self` for serde's traits, but never on
//! every parameter: the bounds that a parameter needs depend on where it is used.

use proc_macro2::{TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::{Ident, WhereClause, parse_quote};

use crate::ast::{Container, Field};
use crate::check::type_params;

/// Returns the `where` clause of `impl Validate`.
pub(super) fn validate_clause(container: &Container<'_>) -> WhereClause {
    let mut clause = own(container);
    let params = type_params(container);
    for field in container.fields() {
        for bound in rule_bounds(field) {
            push(&mut clause, container, field, &params, &bound);
        }
    }
    clause
}

/// Returns the `where` clause of `impl QueueMessage`.
pub(crate) fn message_clause(container: &Container<'_>) -> WhereClause {
    let mut clause = own(container);
    if !container.generics.params.is_empty() {
        clause.predicates.push(parse_quote! {
            Self: __jobqueue::Validate + __jobqueue::Serialize + __jobqueue::DeserializeOwned
                + ::core::marker::Send + ::core::marker::Sync + 'static
        });
    }
    let params = type_params(container);
    for field in container.fields().filter(|field| field.attrs.key.is_set()) {
        push(&mut clause, container, field, &params, &quote!(__jobqueue::Key));
    }
    clause
}

fn own(container: &Container<'_>) -> WhereClause {
    container.generics.where_clause.clone().unwrap_or_else(|| parse_quote!(where))
}

fn rule_bounds(field: &Field<'_>) -> Vec<TokenStream> {
    let attrs = &field.attrs;
    let mut bounds = Vec::new();
    if attrs.length.is_set() || attrs.non_empty.is_set() {
        bounds.push(quote!(__jobqueue::Measured));
    }
    if attrs.url.is_set() || attrs.email.is_set() || attrs.pattern.is_set() {
        bounds.push(quote!(__jobqueue::Text));
    }
    if attrs.nested.is_set() {
        bounds.push(quote!(__jobqueue::Validate));
    }
    bounds
}

fn push(
    clause: &mut WhereClause,
    container: &Container<'_>,
    field: &Field<'_>,
    params: &[&Ident],
    bound: &TokenStream,
) {
    let ty = field.ty;
    let names = |name: &str| mentions(ty.to_token_stream(), name);
    let used: Vec<_> = params.iter().filter(|param| names(&param.to_string())).collect();
    if used.is_empty() {
        return;
    }
    // The bound on a field type that mentions the deriving type would be circular.
    if names(&container.ident.to_string()) || names("Self") {
        for param in used {
            clause.predicates.push(parse_quote!(#param: #bound));
        }
    } else {
        clause.predicates.push(parse_quote!(#ty: #bound));
    }
}

fn mentions(tokens: TokenStream, name: &str) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == name,
        TokenTree::Group(group) => mentions(group.stream(), name),
        _ => false,
    })
}
