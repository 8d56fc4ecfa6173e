//! Emits the call for each rule on a field: `__path` and `__violations` are in scope.
//!
//! The field's type is passed to each function, so that a trait error points at the type in the user's
//! source. A rule is one call with plain arguments where possible, since the user's crate compiles it in each
//! build.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Ident, LitFloat};

use crate::ast::Field;
use crate::attr::{Bound, Bounds, Literal};
use crate::check::is_checked_by_compiler;
use crate::shape::Shape;

/// Emits the rules of a field. `value` is an expression for a reference to the field; `name` is the field's
/// name below `__path`.
pub(super) fn expand(field: &Field<'_>, params: &[&Ident], value: &TokenStream, name: &str) -> TokenStream {
    let attrs = &field.attrs;
    let ty = field.ty;
    let place = quote!(__path, #name, __violations);
    let text = || quote!(<#ty as __jobqueue::Text>::text(#value), #place);
    let measured = || quote!(<#ty as __jobqueue::Measured>::measure(#value), #place);
    let mut calls = TokenStream::new();
    if let Some(bounds) = attrs.range.get() {
        let shape = Shape::of(ty, params);
        let (assertion, limits) = range(bounds, &shape);
        calls.extend(quote! { #assertion <#ty as __jobqueue::Ranged>::range(#value, #place, #limits); });
    }
    if let Some(bounds) = attrs.length.get() {
        let (measured, (assertion, limits)) = (measured(), length(bounds));
        calls.extend(quote! { #assertion __jobqueue::length(#measured, #limits); });
    }
    if attrs.non_empty.is_set() {
        let measured = measured();
        calls.extend(quote! { __jobqueue::non_empty(#measured); });
    }
    if attrs.url.is_set() {
        let text = text();
        calls.extend(quote! { __jobqueue::url(#text); });
    }
    if attrs.email.is_set() {
        let text = text();
        calls.extend(quote! { __jobqueue::email(#text); });
    }
    if let Some(pattern) = attrs.pattern.get() {
        let text = text();
        calls.extend(quote! {{
            static __PATTERN: __jobqueue::Pattern = __jobqueue::Pattern::new(#pattern);
            __jobqueue::pattern(#text, &__PATTERN);
        }});
    }
    if let Some(rule) = attrs.with.get() {
        calls.extend(quote! { __jobqueue::custom::<#ty, _, _>(#value, #place, #rule); });
    }
    if attrs.nested.is_set() {
        let path =
            if name.is_empty() { quote!(__path) } else { quote!(&__jobqueue::Path::field(__path, #name)) };
        calls.extend(quote! { <#ty as __jobqueue::Validate>::validate_into(#value, #path, __violations); });
    }
    calls
}

/// Returns an assertion about the limits, and the argument.
fn range(bounds: &Bounds, shape: &Shape) -> (Option<TokenStream>, TokenStream) {
    let number = |bound: &Bound| in_type(bound, shape);
    let low = match &bounds.low {
        Some(low) => {
            let low = number(low);
            quote!(__jobqueue::Limit::Included(#low))
        }
        None => quote!(__jobqueue::Limit::None),
    };
    let high = match &bounds.high {
        Some(high) => {
            let high = number(high);
            let limit = if bounds.closed { quote!(Included) } else { quote!(Excluded) };
            quote!(__jobqueue::Limit::#limit(#high))
        }
        None => quote!(__jobqueue::Limit::None),
    };
    let assertion = shape.number().and_then(|primitive| {
        let primitive = Ident::new(primitive, proc_macro2::Span::call_site());
        order_assertion(bounds, quote!(::core::primitive::#primitive), number)
    });
    (assertion, quote!((#low, #high)))
}

/// Returns an assertion about the limits, and the argument.
fn length(bounds: &Bounds) -> (Option<TokenStream>, TokenStream) {
    let as_written = |bound: &Bound| bound.expr.to_token_stream();
    let min = match &bounds.low {
        Some(low) => as_written(low),
        None => quote!(0),
    };
    let max = match &bounds.high {
        Some(high) if bounds.closed => as_written(high),
        Some(high) => {
            let high = as_written(high);
            quote_spanned! {bounds.tokens.span()=>
                const {
                    let high: ::core::primitive::usize = #high;
                    ::core::assert!(high > 0, "no value is in this range; raise the bound");
                    high - 1
                }
            }
        }
        None => quote!(::core::primitive::usize::MAX),
    };
    let assertion = order_assertion(bounds, quote!(::core::primitive::usize), as_written);
    (assertion, quote!((#min, #max)))
}

/// Returns an assertion that the bounds are in order, if they are constants whose values the macro cannot
/// see. The assertion fails when the program is built; `cargo check` does not evaluate it.
///
/// ```compile_fail
/// const LOW: u32 = 5;
///
/// #[derive(jobqueue::Validate)]
/// struct Part {
///     #[message(range(LOW..=4))]
///     n: u32,
/// }
/// ```
fn order_assertion(
    bounds: &Bounds,
    primitive: TokenStream,
    number: impl Fn(&Bound) -> TokenStream,
) -> Option<TokenStream> {
    let (Some(low), Some(high)) = (&bounds.low, &bounds.high) else { return None };
    if !is_checked_by_compiler(bounds) {
        return None;
    }
    let (low, high) = (number(low), number(high));
    let sign = if bounds.closed { quote!(<=) } else { quote!(<) };
    Some(quote_spanned! {bounds.tokens.span()=>
        const {
            let low: #primitive = #low;
            let high: #primitive = #high;
            ::core::assert!(low #sign high, "no value is in this range; swap the bounds");
        }
    })
}

/// Returns the bound as a literal of the field's type: a whole number may bound a float.
fn in_type(bound: &Bound, shape: &Shape) -> TokenStream {
    match (&bound.literal, shape) {
        (Literal::Integer { negative, magnitude }, Shape::Float(_)) => {
            let literal = LitFloat::new(&format!("{magnitude}.0"), bound.expr.span());
            if *negative { quote!(-#literal) } else { quote!(#literal) }
        }
        _ => bound.expr.to_token_stream(),
    }
}
