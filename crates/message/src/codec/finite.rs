//! Finds a number that JSON cannot express. `serde_json` writes `null` for it, which a reader takes for a
//! missing number or refuses. Its output does not show whether a `null` was a missing value or such a number.

use serde::Serialize;
use serde::ser::{
    Error, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

/// Checks that all numbers of a value are finite.
///
/// # Errors
/// The path of the field with a number that is not finite; empty for the value itself.
pub(super) fn check_finite<T: Serialize + ?Sized>(value: &T) -> Result<(), String> {
    match value.serialize(FiniteCheck) {
        Err(CheckError::NotFinite(path)) => Err(path),
        // `serde_json` has written the value, so the check failed for another reason than a number.
        Ok(()) | Err(CheckError::Other) => Ok(()),
    }
}

#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error("a number is not finite")]
    NotFinite(String),
    #[error("not checked")]
    Other,
}

impl Error for CheckError {
    fn custom<T: std::fmt::Display>(_: T) -> Self {
        Self::Other
    }
}

impl CheckError {
    fn inside(self, field: &str) -> Self {
        match self {
            Self::NotFinite(path) if path.is_empty() => Self::NotFinite(field.to_owned()),
            Self::NotFinite(path) => Self::NotFinite(format!("{field}.{path}")),
            Self::Other => Self::Other,
        }
    }
}

/// A serializer that writes nothing and fails at a number that is not finite.
struct FiniteCheck;

fn finite(is_finite: bool) -> Result<(), CheckError> {
    if is_finite { Ok(()) } else { Err(CheckError::NotFinite(String::new())) }
}

/// Implements the methods for values that cannot contain a number that is not finite.
macro_rules! always_finite {
    ($($method:ident($($value:ty),*);)*) => {
        $(fn $method(self, $(_: $value),*) -> Result<(), CheckError> {
            Ok(())
        })*
    };
}

/// Implements the methods that begin a compound value, whose parts are checked one by one.
macro_rules! starts {
    ($($method:ident($($value:ty),*);)*) => {
        $(fn $method(self, $(_: $value),*) -> Result<Self, CheckError> {
            Ok(self)
        })*
    };
}

impl Serializer for FiniteCheck {
    type Ok = ();
    type Error = CheckError;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    always_finite! {
        serialize_bool(bool);
        serialize_i8(i8);
        serialize_i16(i16);
        serialize_i32(i32);
        serialize_i64(i64);
        serialize_i128(i128);
        serialize_u8(u8);
        serialize_u16(u16);
        serialize_u32(u32);
        serialize_u64(u64);
        serialize_u128(u128);
        serialize_char(char);
        serialize_str(&str);
        serialize_bytes(&[u8]);
        serialize_none();
        serialize_unit();
        serialize_unit_struct(&'static str);
        serialize_unit_variant(&'static str, u32, &'static str);
    }

    fn serialize_f32(self, value: f32) -> Result<(), CheckError> {
        finite(value.is_finite())
    }

    fn serialize_f64(self, value: f64) -> Result<(), CheckError> {
        finite(value.is_finite())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), CheckError> {
        value.serialize(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), CheckError> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), CheckError> {
        value.serialize(self).map_err(|found| found.inside(variant))
    }

    starts! {
        serialize_seq(Option<usize>);
        serialize_tuple(usize);
        serialize_tuple_struct(&'static str, usize);
        serialize_tuple_variant(&'static str, u32, &'static str, usize);
        serialize_map(Option<usize>);
        serialize_struct(&'static str, usize);
        serialize_struct_variant(&'static str, u32, &'static str, usize);
    }

    fn collect_str<T: std::fmt::Display + ?Sized>(self, _: &T) -> Result<(), CheckError> {
        Ok(())
    }
}

/// Implements a trait for unnamed elements.
macro_rules! each_in_a_row {
    ($($name:ident::$method:ident;)*) => {
        $(impl $name for FiniteCheck {
            type Ok = ();
            type Error = CheckError;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), CheckError> {
                value.serialize(FiniteCheck)
            }

            fn end(self) -> Result<(), CheckError> {
                Ok(())
            }
        })*
    };
}

each_in_a_row! {
    SerializeSeq::serialize_element;
    SerializeTuple::serialize_element;
    SerializeTupleStruct::serialize_field;
    SerializeTupleVariant::serialize_field;
}

impl SerializeMap for FiniteCheck {
    type Ok = ();
    type Error = CheckError;

    /// Does not check keys: `serde_json` refuses a key that is not finite.
    fn serialize_key<T: Serialize + ?Sized>(&mut self, _: &T) -> Result<(), CheckError> {
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), CheckError> {
        value.serialize(FiniteCheck)
    }

    fn end(self) -> Result<(), CheckError> {
        Ok(())
    }
}

/// Implements a trait for named fields.
macro_rules! each_named {
    ($($name:ident;)*) => {
        $(impl $name for FiniteCheck {
            type Ok = ();
            type Error = CheckError;

            fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), CheckError> {
                value.serialize(FiniteCheck).map_err(|found| found.inside(name))
            }

            fn end(self) -> Result<(), CheckError> {
                Ok(())
            }
        })*
    };
}

each_named! {
    SerializeStruct;
    SerializeStructVariant;
}
