//! Computes the names that serde gives to fields and variants, so that paths show the names on the wire.
//!
//! The module reads serde's attributes, and leaves their mistakes to serde.

use syn::ext::IdentExt;
use syn::{Attribute, Expr, Ident, LitStr, Token, token};

/// The names that serde's attributes on a type or variant set.
#[derive(Default)]
pub(crate) struct SerdeContainer {
    pub rename_all: Option<String>,
    pub rename_all_fields: Option<String>,
    pub transparent: bool,
    tag: bool,
    content: Option<String>,
    pub untagged: bool,
}

impl SerdeContainer {
    pub(crate) fn from_attrs(attrs: &[Attribute]) -> Self {
        let mut found = Self::default();
        for_each_attribute(attrs, |name, value| match name {
            "rename_all" => found.rename_all = value,
            "rename_all_fields" => found.rename_all_fields = value,
            "transparent" => found.transparent = true,
            "tag" => found.tag = true,
            "content" => found.content = value,
            "untagged" => found.untagged = true,
            _ => {}
        });
        found
    }

    /// Returns the names between an enum and the fields of its variant `name`.
    pub(crate) fn variant_prefix(&self, name: String) -> Vec<String> {
        match (&self.content, self.tag || self.untagged) {
            (Some(content), _) => vec![content.clone()],
            (None, true) => Vec::new(),
            (None, false) => vec![name],
        }
    }
}

pub(crate) fn field_name(ident: &Ident, attrs: &[Attribute], rename_all: Option<&str>) -> String {
    renamed(attrs).unwrap_or_else(|| {
        let name = ident.unraw().to_string();
        match rename_all {
            Some(rule) => apply(rule, &words_of_field(&name)).unwrap_or(name),
            None => name,
        }
    })
}

pub(crate) fn variant_name(ident: &Ident, attrs: &[Attribute], rename_all: Option<&str>) -> String {
    renamed(attrs).unwrap_or_else(|| {
        let name = ident.unraw().to_string();
        match rename_all {
            Some("lowercase") => name.to_ascii_lowercase(),
            Some("UPPERCASE") => name.to_ascii_uppercase(),
            Some(rule) => apply(rule, &words_of_variant(&name)).unwrap_or(name),
            None => name,
        }
    })
}

/// Returns whether the attributes have one of these names.
pub(crate) fn has(attrs: &[Attribute], names: &[&str]) -> bool {
    let mut found = false;
    for_each_attribute(attrs, |name, _| found |= names.contains(&name));
    found
}

fn renamed(attrs: &[Attribute]) -> Option<String> {
    let mut renamed = None;
    for_each_attribute(attrs, |name, value| {
        if name == "rename" && value.is_some() {
            renamed = value;
        }
    });
    renamed
}

/// Calls `visit` with each serde attribute and its text. For `rename(serialize = "a", deserialize = "b")`,
/// the text is the serialized name.
fn for_each_attribute(attrs: &[Attribute], mut visit: impl FnMut(&str, Option<String>)) {
    for attr in attrs.iter().filter(|attr| attr.path().is_ident("serde")) {
        let _ = attr.parse_nested_meta(|meta| {
            let mut value = None;
            if meta.input.peek(Token![=]) {
                let input = meta.value()?;
                match input.fork().parse::<LitStr>() {
                    Ok(_) => value = Some(input.parse::<LitStr>()?.value()),
                    Err(_) => drop(input.parse::<Expr>()?),
                }
            } else if meta.input.peek(token::Paren) {
                meta.parse_nested_meta(|inner| {
                    let text = inner.value()?.parse::<LitStr>()?.value();
                    if inner.path.is_ident("serialize") {
                        value = Some(text);
                    }
                    Ok(())
                })?;
            }
            if let Some(name) = meta.path.get_ident() {
                visit(&name.to_string(), value);
            }
            Ok(())
        });
    }
}

/// Returns the words of a snake-case name. Empty words preserve doubled and leading underscores, as serde
/// does.
fn words_of_field(name: &str) -> Vec<String> {
    name.split('_').map(str::to_owned).collect()
}

fn words_of_variant(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for c in name.chars() {
        match words.last_mut() {
            Some(word) if !c.is_uppercase() => word.push(c),
            _ => words.push(c.to_ascii_lowercase().to_string()),
        }
    }
    words
}

fn apply(rule: &str, words: &[String]) -> Option<String> {
    let upper = || words.join("_").to_ascii_uppercase();
    Some(match rule {
        "lowercase" | "snake_case" => words.join("_"),
        "UPPERCASE" | "SCREAMING_SNAKE_CASE" => upper(),
        // A word of a variant may contain underscores.
        "kebab-case" => words.join("_").replace('_', "-"),
        "SCREAMING-KEBAB-CASE" => upper().replace('_', "-"),
        "PascalCase" => words.iter().map(|word| capitalized(word)).collect(),
        "camelCase" => {
            let pascal: String = words.iter().map(|word| capitalized(word)).collect();
            let mut chars = pascal.chars();
            chars.next().map(|first| first.to_ascii_lowercase()).into_iter().chain(chars).collect()
        }
        _ => return None,
    })
}

fn capitalized(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(chars).collect()
}
