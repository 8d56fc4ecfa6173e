//! Parses the list inside `#[message(…)]`, and recovers after a mistake.

use proc_macro2::{TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::{Attribute, Ident, Meta, Token, token};

use crate::ctxt::Ctxt;

/// Calls `item` with each name in each `#[message(…)]`. After a mistake, continues with the next item.
pub(super) fn for_each_item(
    ctxt: &Ctxt,
    attrs: &[Attribute],
    mut item: impl FnMut(&Ident, ParseStream<'_>) -> syn::Result<()>,
) {
    for attr in attrs.iter().filter(|attr| attr.path().is_ident("message")) {
        if !matches!(attr.meta, Meta::List(_)) {
            ctxt.error(attr, "write `#[message(…)]` with attributes in the parentheses, or remove it");
            continue;
        }
        let outcome = attr.parse_args_with(|input: ParseStream<'_>| {
            while !input.is_empty() {
                if let Err(error) = parse_item(input, &mut item) {
                    ctxt.push(error);
                    skip_to_comma(input);
                }
                if input.peek(Ident::peek_any) {
                    ctxt.push(input.error("expected a comma before this attribute; add it"));
                } else if !input.is_empty() {
                    input.parse::<Token![,]>()?;
                }
            }
            Ok(())
        });
        if let Err(error) = outcome {
            ctxt.push(error);
        }
    }
}

fn parse_item(
    input: ParseStream<'_>,
    item: &mut impl FnMut(&Ident, ParseStream<'_>) -> syn::Result<()>,
) -> syn::Result<()> {
    let name = Ident::parse_any(input).map_err(|error| {
        syn::Error::new(
            error.span(),
            "expected the name of an attribute; write `name`, `name = value` or `name(…)`",
        )
    })?;
    item(&name, input)?;
    if input.is_empty() || input.peek(Token![,]) || input.peek(Ident::peek_any) {
        return Ok(());
    }
    if input.peek(Token![=]) || input.peek(token::Paren) {
        return Err(input.error(format!("`{name}` takes no value; write `{name}` alone")));
    }
    Err(input.error("this does not belong to the value before it; remove it, or add a comma"))
}

fn skip_to_comma(input: ParseStream<'_>) {
    while !input.is_empty() && !input.peek(Token![,]) {
        if input.parse::<TokenTree>().is_err() {
            return;
        }
    }
}

/// Parses the value after `=`. `example` is a valid form of the whole attribute, for errors.
pub(super) fn value<T: Parse>(name: &Ident, input: ParseStream<'_>, example: &str) -> syn::Result<T> {
    if !input.peek(Token![=]) {
        return Err(syn::Error::new(name.span(), format!("`{name}` needs a value: write `{example}`")));
    }
    input.parse::<Token![=]>()?;
    let place = if input.is_empty() { name.span() } else { input.span() };
    let ahead = input.fork();
    let complete = ahead.parse::<T>().is_ok()
        && (ahead.is_empty() || ahead.peek(Token![,]) || ahead.peek(Ident::peek_any));
    if !complete {
        return Err(syn::Error::new(place, format!("`{name}` cannot take this value: write `{example}`")));
    }
    input.parse()
}

/// Parses the parentheses after the name.
pub(super) fn parenthesized<T>(
    name: &Ident,
    input: ParseStream<'_>,
    example: &str,
    parse: impl FnOnce(ParseStream<'_>) -> syn::Result<T>,
) -> syn::Result<T> {
    if !input.peek(token::Paren) {
        return Err(syn::Error::new(name.span(), format!("`{name}` needs parentheses: write `{example}`")));
    }
    let content;
    syn::parenthesized!(content in input);
    if content.is_empty() {
        return Err(syn::Error::new(name.span(), format!("`{name}` is empty: write `{example}`")));
    }
    let parsed = parse(&content);
    if parsed.is_err() {
        // Consumes the rest, which would otherwise be reported as a second mistake.
        content.parse::<TokenStream>()?;
    }
    parsed
}
