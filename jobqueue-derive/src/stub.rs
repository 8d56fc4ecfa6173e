//! Emits implementations that do nothing after a mistake, so that the user reads the macro's own errors and
//! not the compiler's about missing implementations.

use proc_macro2::TokenStream;
use quote::quote;

use crate::ast::Container;
use crate::attr::Purpose;
use crate::expand;

pub(crate) fn stub(container: &Container<'_>) -> TokenStream {
    let ident = container.ident;
    let (impl_generics, ty_generics, own_clause) = container.generics.split_for_impl();
    let message = (container.purpose == Purpose::Message).then(|| {
        let clause = expand::message_clause(container);
        quote! {
            impl #impl_generics __jobqueue::QueueMessage for #ident #ty_generics #clause {
                const QUEUE: &'static ::core::primitive::str = "invalid";
                const KIND: &'static ::core::primitive::str = "invalid";
                type Codec = __jobqueue::Json;
            }
        }
    });
    let items = quote! {
        impl #impl_generics __jobqueue::Validate for #ident #ty_generics #own_clause {
            fn validate_into(&self, _: &__jobqueue::Path<'_>, _: &mut __jobqueue::Violations) {}
        }
        #message
    };
    expand::wrap(container, items)
}
