//! Recognises a type by its tokens.
//!
//! The shape only improves the texts of errors. Traits decide the effect of a rule, so that a type alias, or
//! another type under a name of the standard library, changes only a text.

use syn::{GenericArgument, Ident, PathArguments, Type};

pub(crate) enum Shape {
    Unsigned(&'static str, u128),
    Signed(&'static str, i128, i128),
    Float(&'static str),
    Bool,
    Char,
    Text,
    List(Box<Shape>),
    Map(Box<Shape>),
    Unit,
    Param(Ident),
    Unknown,
}

impl Shape {
    /// Returns the shape of the value that the rules on a field of type `ty` check, inside options and
    /// pointers.
    pub(crate) fn of(ty: &Type, params: &[&Ident]) -> Self {
        match ty {
            Type::Group(group) => Self::of(&group.elem, params),
            Type::Paren(paren) => Self::of(&paren.elem, params),
            Type::Reference(reference) => Self::of(&reference.elem, params),
            Type::Slice(slice) => Self::List(Box::new(Self::of(&slice.elem, params))),
            Type::Array(array) => Self::List(Box::new(Self::of(&array.elem, params))),
            Type::Tuple(tuple) if tuple.elems.is_empty() => Self::Unit,
            Type::Path(path) if path.qself.is_none() => Self::of_path(&path.path, params),
            _ => Self::Unknown,
        }
    }

    fn of_path(path: &syn::Path, params: &[&Ident]) -> Self {
        let Some(last) = path.segments.last() else { return Self::Unknown };
        if path.segments.len() == 1 && params.contains(&&last.ident) {
            return Self::Param(last.ident.clone());
        }
        let argument = |index: usize| match &last.arguments {
            PathArguments::AngleBracketed(arguments) => arguments
                .args
                .iter()
                .filter_map(|argument| match argument {
                    GenericArgument::Type(ty) => Some(Self::of(ty, params)),
                    _ => None,
                })
                .nth(index)
                .unwrap_or(Self::Unknown),
            _ => Self::Unknown,
        };
        match last.ident.to_string().as_str() {
            "u8" => Self::Unsigned("u8", u8::MAX.into()),
            "u16" => Self::Unsigned("u16", u16::MAX.into()),
            "u32" => Self::Unsigned("u32", u32::MAX.into()),
            "u64" => Self::Unsigned("u64", u64::MAX.into()),
            "u128" => Self::Unsigned("u128", u128::MAX),
            "usize" => Self::Unsigned("usize", u64::MAX.into()),
            "i8" => Self::Signed("i8", i8::MIN.into(), i8::MAX.into()),
            "i16" => Self::Signed("i16", i16::MIN.into(), i16::MAX.into()),
            "i32" => Self::Signed("i32", i32::MIN.into(), i32::MAX.into()),
            "i64" => Self::Signed("i64", i64::MIN.into(), i64::MAX.into()),
            "i128" => Self::Signed("i128", i128::MIN, i128::MAX),
            "isize" => Self::Signed("isize", i64::MIN.into(), i64::MAX.into()),
            "f32" => Self::Float("f32"),
            "f64" => Self::Float("f64"),
            "bool" => Self::Bool,
            "char" => Self::Char,
            "String" | "str" => Self::Text,
            "Option" | "Box" | "Arc" | "Rc" => argument(0),
            "Vec" | "VecDeque" | "LinkedList" | "BTreeSet" | "HashSet" | "BinaryHeap" => {
                Self::List(Box::new(argument(0)))
            }
            "HashMap" | "BTreeMap" => Self::Map(Box::new(argument(1))),
            _ => Self::Unknown,
        }
    }

    /// Returns the primitive's name, if the type is a number.
    pub(crate) fn number(&self) -> Option<&'static str> {
        match self {
            Self::Unsigned(name, _) | Self::Signed(name, ..) | Self::Float(name) => Some(name),
            _ => None,
        }
    }

    /// Returns a noun phrase for the type; `None` if the type is unknown.
    pub(crate) fn noun(&self) -> Option<String> {
        Some(match self {
            Self::Unsigned(name, _) | Self::Signed(name, ..) | Self::Float(name) => {
                format!("a number (`{name}`)")
            }
            Self::Bool => "a `bool`".to_owned(),
            Self::Char => "a `char`".to_owned(),
            Self::Text => "a string".to_owned(),
            Self::List(_) => "a list".to_owned(),
            Self::Map(_) => "a map".to_owned(),
            Self::Unit => "`()`".to_owned(),
            Self::Param(_) | Self::Unknown => return None,
        })
    }
}
