//! The rules that `#[message(…)]` puts on fields.
//!
//! Each rule uses a trait that describes the kind of value that a type holds. `Option`, pointers and references forward
//! the trait, so that a rule applies through them by type, not by how the type is spelt, and an absent value breaks no
//! rule. A valid value costs no allocation, except where parsing a URL or an address needs one.
//!
//! The derive's output is compiled in the crate of the message, and there every generic function is compiled once more.
//! So the traits' methods do all the work, and are not generic for strings and numbers. A field is passed as the path
//! above it and its name (empty for none), which makes it one call.

mod custom;
mod forward;
#[cfg(feature = "validation")]
mod grammar;
mod length;
mod number;
mod text;
#[cfg(not(feature = "validation"))]
mod without_grammar;

pub use custom::{Provides, custom, whole};
pub use length::Measured;
pub use number::{Limit, Ranged};
pub use text::Text;

#[cfg(feature = "validation")]
pub use grammar::{Pattern, email, pattern, url};
#[cfg(not(feature = "validation"))]
pub use without_grammar::{Pattern, email, pattern, url};
