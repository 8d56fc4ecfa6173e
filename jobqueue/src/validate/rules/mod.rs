//! The rules that `#[message(…)]` puts on fields.
//!
//! Each rule goes through a trait that tells what kind of value a type holds. `Option`, pointers and
//! references forward the trait, so that a rule sees through them by type, not by how the type is spelt, and
//! an absent value breaks no rule. A value that keeps its rules costs no allocation, except where parsing a
//! URL or an address needs one.
//!
//! What the derive writes is compiled in the crate of the message, and there every generic function is
//! compiled once more. So the traits' methods do all the work, and are not generic for strings and numbers;
//! a field comes as the path above it and its name, empty for none, which makes it one call.

mod custom;
mod forward;
mod length;
mod number;
mod text;

pub use custom::{Provides, custom, whole};
pub use length::Measured;
pub use number::{Limit, Ranged};
pub use text::{Pattern, Text, email, pattern, url};
