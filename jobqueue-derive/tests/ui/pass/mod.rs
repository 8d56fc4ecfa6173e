//! Declarations that the macros accept, one file for each kind.

mod chain_of_three;
mod const_generics;
mod enums;
mod every_attribute;
mod forbidden_lints;
mod generics;
mod made_by_macros;
mod nested_maps;
mod number_types;
mod pointers;
mod raw_identifiers;
mod renamed_crate;
mod serde_names;
mod shadowed_prelude;
mod tuple_structs;
mod where_clauses;
