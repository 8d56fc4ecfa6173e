//! Emits `impl QueueMessage`.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::LitStr;

use super::generics::message_clause;
use crate::ast::{Body, Container, Field};
use crate::attr::{Upgrade, parse_duration};

pub(super) fn expand(container: &Container<'_>) -> TokenStream {
    let attrs = &container.attrs;
    let ident = container.ident;
    let (impl_generics, ty_generics, _) = container.generics.split_for_impl();
    let clause = message_clause(container);
    let queue = attrs.queue.get();
    let kind = attrs.kind.get();
    let aliases = &attrs.aliases;
    let codec = match attrs.codec.get() {
        Some(codec) => quote!(#codec),
        None => quote!(__jobqueue::Json),
    };
    let aliases = (!aliases.is_empty()).then(|| {
        quote! { const ALIASES: &'static [&'static ::core::primitive::str] = &[#(#aliases),*]; }
    });
    let (outside, version) = version(container);
    let defaults = defaults(container);
    let key = key(container);
    let upgrade = upgrade(container);
    quote! {
        #outside
        #[automatically_derived]
        impl #impl_generics __jobqueue::QueueMessage for #ident #ty_generics #clause {
            const QUEUE: &'static ::core::primitive::str = #queue;
            const KIND: &'static ::core::primitive::str = #kind;
            #version
            #aliases
            #defaults
            type Codec = #codec;
            #key
            #upgrade
        }
    }
}

/// Returns an assertion that the version is greater than the version of the old type, and the constant. The
/// assertion of a generic message is part of the constant, because its old type can be named only inside the
/// implementation.
fn version(container: &Container<'_>) -> (Option<TokenStream>, Option<TokenStream>) {
    let attrs = &container.attrs;
    let Some(version) = attrs.version.get() else { return (None, None) };
    let assertion = match attrs.upgrade_from.get() {
        Some(Upgrade::Type(old)) => Some(quote_spanned! {version.span()=>
            ::core::assert!(
                <#old as __jobqueue::QueueMessage>::VERSION < #version,
                "`version` must be greater than the version of the type in `upgrade_from`; raise it"
            )
        }),
        _ => None,
    };
    if container.generics.params.is_empty() {
        let outside = assertion.map(|assertion| quote! { const _: () = #assertion; });
        (outside, Some(quote! { const VERSION: ::core::primitive::u32 = #version; }))
    } else {
        let assertion = assertion.map(|assertion| quote! { #assertion; });
        (None, Some(quote! { const VERSION: ::core::primitive::u32 = { #assertion #version }; }))
    }
}

fn defaults(container: &Container<'_>) -> Option<TokenStream> {
    let attrs = &container.attrs;
    let mut calls = TokenStream::new();
    if let Some(attempts) = attrs.poison_threshold.get() {
        calls.extend(quote! { .with_poison_threshold(#attempts) });
    }
    if let Some(lease) = attrs.lease.get().and_then(duration) {
        calls.extend(quote! { .with_lease(#lease) });
    }
    if let Some(limit) = attrs.max_run_time.get().and_then(duration) {
        calls.extend(quote! { .with_max_run_time(#limit) });
    }
    if let Some(backoff) = attrs.backoff.get()
        && let Some(base) = backoff.base.get().and_then(duration)
        && let Some(max) = backoff.max.get().and_then(duration)
    {
        calls.extend(quote! { .with_backoff(__jobqueue::Backoff::exponential(#base, #max)) });
    }
    (!calls.is_empty()).then(|| {
        quote! {
            const DEFAULTS: __jobqueue::MessageDefaults = __jobqueue::MessageDefaults::new() #calls;
        }
    })
}

fn duration(literal: &LitStr) -> Option<TokenStream> {
    let seconds = parse_duration(&literal.value()).ok()?;
    Some(quote!(__jobqueue::Duration::from_secs(#seconds)))
}

fn key(container: &Container<'_>) -> Option<TokenStream> {
    let body = match &container.body {
        Body::Struct(fields) => {
            let field = find_key(fields)?;
            let (member, ty) = (&field.member, field.ty);
            quote! { __jobqueue::key::<#ty>(&self.#member) }
        }
        Body::Enum(variants) => {
            let arms: Vec<_> = variants
                .iter()
                .filter_map(|variant| {
                    let field = find_key(&variant.fields)?;
                    let (ident, member, ty) = (variant.ident, &field.member, field.ty);
                    Some(quote! { Self::#ident { #member: __key, .. } => __jobqueue::key::<#ty>(__key), })
                })
                .collect();
            if arms.is_empty() {
                return None;
            }
            let rest = (arms.len() < variants.len()).then(|| quote! { _ => __jobqueue::Option::None, });
            quote! { match self { #(#arms)* #rest } }
        }
        Body::Union(_) => return None,
    };
    Some(quote! {
        fn key(&self) -> __jobqueue::Option<__jobqueue::Cow<'_, ::core::primitive::str>> {
            #body
        }
    })
}

fn find_key<'f, 'a>(fields: &'f [Field<'a>]) -> Option<&'f Field<'a>> {
    fields.iter().find(|field| field.attrs.key.is_set())
}

fn upgrade(container: &Container<'_>) -> Option<TokenStream> {
    let Some(Upgrade::Type(old)) = container.attrs.upgrade_from.get() else { return None };
    Some(quote! {
        fn upgrade_from() -> __jobqueue::Option<__jobqueue::Upgrade<Self>> {
            __jobqueue::Option::Some(__jobqueue::Upgrade::of::<#old>())
        }
    })
}
