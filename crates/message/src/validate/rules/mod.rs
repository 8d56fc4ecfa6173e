//! The rules that `#[message(…)]` puts on fields.
//!
//! Each rule is a function of the value that a trait finds in a field. `Option`, pointers and references
//! forward the trait. So a rule applies through them whatever name or alias a type has, and an absent value
//! breaks no rule. Checking a valid value allocates only where parsing a URL or an email address needs it.
//!
//! The derive's output is compiled in the message's crate, and every generic function is compiled there
//! again. So the parts that do the work are not generic. A field is passed as its parent's path and its name,
//! which is empty for a value that is not a named field.

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
