//! The model of a type under derive: its data, with parsed attributes and the names on the wire.

use syn::{Data, DeriveInput, Fields, Generics, Ident, Member, Type};

use crate::attr::{self, ContainerAttrs, FieldAttrs, Purpose};
use crate::ctxt::Ctxt;
use crate::serde_names::{self, SerdeContainer};

pub(crate) struct Container<'a> {
    pub purpose: Purpose,
    pub ident: &'a Ident,
    pub generics: &'a Generics,
    pub attrs: ContainerAttrs,
    pub body: Body<'a>,
}

pub(crate) enum Body<'a> {
    Struct(Vec<Field<'a>>),
    Enum(Vec<Variant<'a>>),
    Union(&'a syn::token::Union),
}

pub(crate) struct Variant<'a> {
    pub ident: &'a Ident,
    /// The names on the wire before the names of the fields.
    pub prefix: Vec<String>,
    pub fields: Vec<Field<'a>>,
}

pub(crate) struct Field<'a> {
    pub member: Member,
    pub ty: &'a Type,
    /// The step to the value in the path; `None` when the value has no name on the wire: `#[serde(flatten)]`,
    /// `#[serde(transparent)]`, a newtype.
    pub step: Option<Step>,
    /// True if serde skips the field when it writes or when it reads.
    pub is_skipped: bool,
    pub attrs: FieldAttrs,
}

pub(crate) enum Step {
    Field(String),
    Index(usize),
}

impl<'a> Container<'a> {
    pub(crate) fn from_input(ctxt: &Ctxt, input: &'a DeriveInput, purpose: Purpose) -> Self {
        let serde = SerdeContainer::from_attrs(&input.attrs);
        let body = match &input.data {
            Data::Struct(data) => {
                let mut fields = fields(ctxt, &data.fields, serde.rename_all.as_deref(), purpose);
                if serde.transparent {
                    fields.iter_mut().for_each(|field| field.step = None);
                }
                Body::Struct(fields)
            }
            Data::Enum(data) => {
                Body::Enum(data.variants.iter().map(|v| variant(ctxt, v, &serde, purpose)).collect())
            }
            Data::Union(data) => Body::Union(&data.union_token),
        };
        Self {
            purpose,
            ident: &input.ident,
            generics: &input.generics,
            attrs: attr::container(ctxt, &input.attrs, purpose),
            body,
        }
    }

    pub(crate) fn fields(&self) -> impl Iterator<Item = &Field<'a>> {
        self.groups().flatten()
    }

    /// Returns the fields of the struct, or of each variant.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &[Field<'a>]> {
        let (fields, variants) = match &self.body {
            Body::Struct(fields) => (Some(fields.as_slice()), [].as_slice()),
            Body::Enum(variants) => (None, variants.as_slice()),
            Body::Union(_) => (None, [].as_slice()),
        };
        fields.into_iter().chain(variants.iter().map(|variant| variant.fields.as_slice()))
    }
}

fn variant<'a>(
    ctxt: &Ctxt,
    variant: &'a syn::Variant,
    serde: &SerdeContainer,
    purpose: Purpose,
) -> Variant<'a> {
    attr::variant(ctxt, &variant.attrs);
    let own = SerdeContainer::from_attrs(&variant.attrs);
    let rename_fields = own.rename_all.as_deref().or(serde.rename_all_fields.as_deref());
    let name = serde_names::variant_name(&variant.ident, &variant.attrs, serde.rename_all.as_deref());
    Variant {
        ident: &variant.ident,
        prefix: if own.untagged { Vec::new() } else { serde.variant_prefix(name) },
        fields: fields(ctxt, &variant.fields, rename_fields, purpose),
    }
}

fn fields<'a>(ctxt: &Ctxt, fields: &'a Fields, rename_all: Option<&str>, purpose: Purpose) -> Vec<Field<'a>> {
    let mut index = 0;
    let mut field = |(field, member): (&'a syn::Field, Member)| {
        let is_skipped = serde_names::has(&field.attrs, &["skip", "skip_serializing", "skip_deserializing"]);
        let step = match &field.ident {
            _ if serde_names::has(&field.attrs, &["flatten"]) => None,
            Some(ident) => Some(Step::Field(serde_names::field_name(ident, &field.attrs, rename_all))),
            // serde writes a newtype as its content.
            None if fields.len() == 1 => None,
            None => Some(Step::Index(index)),
        };
        index += usize::from(!is_skipped);
        Field { step, is_skipped, attrs: attr::field(ctxt, &field.attrs, purpose), member, ty: &field.ty }
    };
    fields.iter().zip(fields.members()).map(&mut field).collect()
}
