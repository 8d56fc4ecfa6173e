//! Emits `impl Validate`.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};

use super::generics::validate_clause;
use super::rules;
use crate::ast::{Body, Container, Field, Step, Variant};
use crate::check::type_params;

pub(super) fn expand(container: &Container<'_>) -> TokenStream {
    let ident = container.ident;
    let (impl_generics, ty_generics, _) = container.generics.split_for_impl();
    let clause = validate_clause(container);
    let body = match &container.body {
        Body::Struct(fields) => of_struct(container, fields),
        Body::Enum(variants) => of_enum(container, variants),
        Body::Union(_) => TokenStream::new(),
    };
    let whole = container.attrs.validate.get().map(|rule| {
        quote! { __jobqueue::whole::<Self, _>(self, __path, __violations, #rule); }
    });
    // Without rules the arguments have no names: in a crate that forbids the lint of unused variables, an
    // `allow` would be an error.
    let is_used = !body.is_empty() || whole.is_some();
    let (path, violations) =
        if is_used { (quote!(__path), quote!(__violations)) } else { (quote!(_), quote!(_)) };
    quote! {
        #[automatically_derived]
        impl #impl_generics __jobqueue::Validate for #ident #ty_generics #clause {
            fn validate_into(&self, #path: &__jobqueue::Path<'_>, #violations: &mut __jobqueue::Violations) {
                #body
                #whole
            }
        }
    }
}

fn of_struct(container: &Container<'_>, fields: &[Field<'_>]) -> TokenStream {
    let fields = with_rules(fields).map(|field| {
        let member = &field.member;
        of_field(container, field, &quote!(&self.#member))
    });
    quote! { #(#fields)* }
}

fn of_enum(container: &Container<'_>, variants: &[Variant<'_>]) -> TokenStream {
    let arms: Vec<_> = variants.iter().filter_map(|variant| of_variant(container, variant)).collect();
    if arms.is_empty() {
        return TokenStream::new();
    }
    let rest = (arms.len() < variants.len()).then(|| quote! { _ => {} });
    quote! { match self { #(#arms)* #rest } }
}

fn of_variant(container: &Container<'_>, variant: &Variant<'_>) -> Option<TokenStream> {
    let mut patterns = Vec::new();
    let mut fields = Vec::new();
    for (index, field) in with_rules(&variant.fields).enumerate() {
        let member = &field.member;
        let binding = format_ident!("__field{index}");
        patterns.push(quote!(#member: #binding));
        fields.push(of_field(container, field, &quote!(#binding)));
    }
    if fields.is_empty() {
        return None;
    }
    let ident = variant.ident;
    let prefix = variant.prefix.iter().map(|name| {
        quote! { let __path = &__jobqueue::Path::field(__path, #name); }
    });
    Some(quote! {
        Self::#ident { #(#patterns,)* .. } => {
            #(#prefix)*
            #(#fields)*
        }
    })
}

fn with_rules<'f, 'a>(fields: &'f [Field<'a>]) -> impl Iterator<Item = &'f Field<'a>> {
    fields.iter().filter(|field| field.attrs.rules().next().is_some())
}

/// Emits the validation of a field. `value` is an expression for a reference to the field.
fn of_field(container: &Container<'_>, field: &Field<'_>, value: &TokenStream) -> TokenStream {
    let (step, name) = match &field.step {
        // An empty name means that there is no step.
        Some(Step::Field(name)) if !name.is_empty() => (None, name.as_str()),
        Some(Step::Field(name)) => (Some(quote!(field(__path, #name))), ""),
        Some(Step::Index(index)) => (Some(quote!(index(__path, #index))), ""),
        None => (None, ""),
    };
    let rules = rules::expand(field, &type_params(container), value, name);
    match step {
        Some(step) => quote! {{
            let __path = &__jobqueue::Path::#step;
            #rules
        }},
        None => rules,
    }
}
