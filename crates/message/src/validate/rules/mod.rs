//! The rules that `#[message(…)]` puts on fields.
//!
//! Each rule is a function of the value that a trait finds in a field. `Option`, pointers and references forward the trait,
//! so that a rule applies through them by type, not by how the type is spelt, and an absent value breaks no rule. A valid
//! value costs no allocation, except where parsing a URL or an address needs one.
//!
//! The derive's output is compiled in the crate of the message, and there every generic function is compiled once more. So
//! the functions, and the method of numbers, are not generic where they do work. A field is passed as the path above it and
//! its name (empty for none).

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
pub use length::{Measure, Measured, length, non_empty};
pub use number::{Limit, Ranged};
pub use text::Text;

#[cfg(feature = "validation")]
pub use grammar::{Pattern, email, pattern, url};
#[cfg(not(feature = "validation"))]
pub use without_grammar::{Pattern, email, pattern, url};
