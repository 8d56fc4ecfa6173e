//! Emits the implementations. The input has no mistakes that [`crate::check`] can find.
//!
//! The output uses only absolute paths and paths through `__jobqueue`, so that it does not depend on names
//! that the user's module may shadow.

mod generics;
mod message;
mod rules;
mod validate;

pub(crate) use generics::message_clause;

use proc_macro2::TokenStream;
use quote::quote;

use crate::ast::Container;
use crate::attr::Purpose;

pub(crate) fn expand(container: &Container<'_>) -> TokenStream {
    let validate = validate::expand(container);
    let message = (container.purpose == Purpose::Message).then(|| message::expand(container));
    wrap(container, quote! { #validate #message })
}

/// Puts `items` into an anonymous scope, with `__jobqueue` in scope.
pub(crate) fn wrap(container: &Container<'_>, items: TokenStream) -> TokenStream {
    let krate = match container.attrs.krate.get() {
        Some(path) => quote!(#path),
        None => quote!(::jobqueue),
    };
    quote! {
        #[doc(hidden)]
        #[allow(unused_qualifications, clippy::absolute_paths)]
        const _: () = {
            use #krate::__private as __jobqueue;
            #items
        };
    }
}
