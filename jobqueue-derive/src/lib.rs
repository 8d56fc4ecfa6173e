//! The derive macros of `jobqueue`.
//!
//! A macro has five steps, each in its module: `attr` parses, `ast` models, `check` finds every mistake, and
//! `expand` emits the implementation; if there were mistakes, `stub` emits a stub instead.
#![forbid(unsafe_code)]

mod ast;
mod attr;
mod check;
mod ctxt;
mod expand;
mod serde_names;
mod shape;
mod stub;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

use ast::Container;
use attr::Purpose;
use ctxt::Ctxt;

/// Implements `jobqueue::QueueMessage` and `jobqueue::Validate` for a struct or enum.
#[doc = include_str!("derive.md")]
#[proc_macro_derive(QueueMessage, attributes(message))]
pub fn derive_queue_message(input: TokenStream) -> TokenStream {
    derive(parse_macro_input!(input as DeriveInput), Purpose::Message)
}

/// Implements `jobqueue::Validate` for a struct or enum that is part of messages.
///
/// Fields take the same attributes as with [`QueueMessage`](macro@QueueMessage), except `key`; the type takes
/// `crate` and `validate`. `#[derive(QueueMessage)]` includes this derive.
#[proc_macro_derive(Validate, attributes(message))]
pub fn derive_validate(input: TokenStream) -> TokenStream {
    derive(parse_macro_input!(input as DeriveInput), Purpose::Part)
}

fn derive(input: DeriveInput, purpose: Purpose) -> TokenStream {
    let ctxt = Ctxt::new();
    let container = Container::from_input(&ctxt, &input, purpose);
    check::check(&ctxt, &container);
    let output = match ctxt.check() {
        Ok(()) => expand::expand(&container),
        Err(errors) => {
            let errors = errors.iter().map(syn::Error::to_compile_error);
            let stub = stub::stub(&container);
            quote::quote! { #(#errors)* #stub }
        }
    };
    output.into()
}
