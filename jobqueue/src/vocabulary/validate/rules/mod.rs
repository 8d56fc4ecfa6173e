//! The rules that `#[message(…)]` puts on fields.
//!
//! Each rule is a function over a trait that tells what kind of value a type holds. `Option`, pointers and
//! references forward the trait, so that a rule sees through them by type, not by how the type is spelt, and
//! an absent value breaks no rule. A value that keeps its rules costs no allocation, except where parsing a
//! URL or an address needs one.

mod custom;
mod forward;
mod length;
mod number;
mod text;

pub use custom::{Provides, custom, whole};
pub use length::{Measured, length, non_empty};
pub use number::{Limit, Ranged, range};
pub use text::{Pattern, Text, email, pattern, url};
