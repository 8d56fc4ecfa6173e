//! Parses the range expressions of `range(…)` and `length(…)`.

use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::parse::ParseStream;
use syn::{Expr, Ident, Lit, RangeLimits, UnOp};

pub(crate) struct Bounds {
    /// The range as written, for the span of errors.
    pub tokens: TokenStream,
    pub low: Option<Bound>,
    pub high: Option<Bound>,
    /// True if the upper bound itself is allowed (`..=`).
    pub closed: bool,
}

/// One end of a range, as written and as understood.
pub(crate) struct Bound {
    pub expr: Expr,
    pub literal: Literal,
}

/// The value of a bound, as far as the macro can know it.
pub(crate) enum Literal {
    Integer {
        negative: bool,
        magnitude: u128,
    },
    Float {
        text: String,
    },
    /// A constant, or another expression whose value only the compiler knows.
    Opaque,
    NotANumber,
}

impl Bounds {
    pub(crate) fn parse(name: &Ident, input: ParseStream<'_>) -> syn::Result<Self> {
        let expr: Expr = input.parse()?;
        if !input.is_empty() {
            return Err(input.error(format!("`{name}` takes one range, such as `{name}(1..=64)`")));
        }
        let tokens = expr.to_token_stream();
        let Expr::Range(range) = peel(expr) else {
            return Err(syn::Error::new_spanned(
                tokens,
                format!(
                    "`{name}` takes a range: `a..=b` for a to b, `a..` for at least a, `..=b` for at most b"
                ),
            ));
        };
        Ok(Self {
            tokens,
            low: range.start.map(|expr| Bound::new(*expr)),
            high: range.end.map(|expr| Bound::new(*expr)),
            closed: matches!(range.limits, RangeLimits::Closed(_)),
        })
    }
}

impl Bound {
    fn new(expr: Expr) -> Self {
        let expr = peel(expr);
        Self { literal: Literal::of(&expr), expr }
    }

    pub(crate) fn text(&self) -> String {
        match &self.literal {
            Literal::Integer { negative, magnitude } => {
                format!("{}{magnitude}", if *negative { "-" } else { "" })
            }
            Literal::Float { text } => text.clone(),
            _ => self.expr.to_token_stream().to_string(),
        }
    }
}

impl Literal {
    fn of(expr: &Expr) -> Self {
        match expr {
            Expr::Group(group) => Self::of(&group.expr),
            Expr::Paren(paren) => Self::of(&paren.expr),
            Expr::Unary(unary) if matches!(unary.op, UnOp::Neg(_)) => match Self::of(&unary.expr) {
                Self::Integer { negative, magnitude } => {
                    Self::Integer { negative: !negative && magnitude != 0, magnitude }
                }
                Self::Float { text } => Self::Float { text: format!("-{text}") },
                other => other,
            },
            Expr::Lit(literal) => match &literal.lit {
                Lit::Int(int) if matches!(int.suffix(), "f32" | "f64") => {
                    Self::Float { text: int.base10_digits().to_owned() }
                }
                Lit::Int(int) => match int.base10_parse() {
                    Ok(magnitude) => Self::Integer { negative: false, magnitude },
                    Err(_) => Self::Opaque,
                },
                Lit::Float(float) => Self::Float { text: float.base10_digits().to_owned() },
                _ => Self::NotANumber,
            },
            _ => Self::Opaque,
        }
    }
}

/// Removes the invisible delimiters that `macro_rules!` puts around its arguments.
fn peel(expr: Expr) -> Expr {
    match expr {
        Expr::Group(group) => peel(*group.expr),
        Expr::Paren(paren) => peel(*paren.expr),
        expr => expr,
    }
}
