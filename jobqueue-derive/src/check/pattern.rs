//! Checks regular expressions with the parser of the `regex` crate itself.

use syn::LitStr;

use crate::ctxt::Ctxt;

pub(super) fn check(ctxt: &Ctxt, literal: &LitStr) {
    let pattern = literal.value();
    if pattern.is_empty() {
        ctxt.error(literal, "an empty pattern matches every text; write one, or remove `pattern`");
        return;
    }
    let Err(error) = regex_syntax::parse(&pattern) else { return };
    let (reason, column) = match &error {
        regex_syntax::Error::Parse(error) => (error.kind().to_string(), Some(error.span().start.column)),
        regex_syntax::Error::Translate(error) => (error.kind().to_string(), Some(error.span().start.column)),
        other => (other.to_string(), None),
    };
    let place = column.map(|column| format!(" at character {column}")).unwrap_or_default();
    ctxt.error(
        literal,
        format!("the pattern is not a regular expression: {reason}{place}; correct it there"),
    );
}
