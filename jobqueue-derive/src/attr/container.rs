//! Parses `#[message(…)]` on a type.

use syn::parse::{Parse, ParseStream};
use syn::{Attribute, Ident, LitInt, LitStr, Path, Token, Type};

use super::items::{for_each_item, parenthesized, value};
use super::suggest::{suggestion, unknown};
use super::{FIELD_ATTRIBUTES, Purpose, Slot, TYPE_ATTRIBUTES};
use crate::ctxt::Ctxt;

#[derive(Default)]
pub(crate) struct ContainerAttrs {
    pub queue: Slot<LitStr>,
    pub kind: Slot<LitStr>,
    pub version: Slot<LitInt>,
    pub upgrade_from: Slot<Upgrade>,
    pub aliases: Vec<LitStr>,
    pub codec: Slot<Type>,
    pub poison_threshold: Slot<LitInt>,
    pub lease: Slot<LitStr>,
    pub max_run_time: Slot<LitStr>,
    pub backoff: Slot<Backoff>,
    pub validate: Slot<Path>,
    pub krate: Slot<Path>,
    /// The names that were written, with or without a mistake. An attribute with a mistake must not be
    /// reported as missing too.
    pub attempted: Vec<String>,
}

#[allow(clippy::large_enum_variant, reason = "one value an expansion")]
pub(crate) enum Upgrade {
    /// `none`: no message of an older version is waiting.
    None(Ident),
    Type(Box<Type>),
}

impl Parse for Upgrade {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let ahead = input.fork();
        match ahead.parse::<Ident>() {
            Ok(ident) if ident == "none" && (ahead.is_empty() || ahead.peek(Token![,])) => {
                input.parse().map(Self::None)
            }
            _ => input.parse().map(Box::new).map(Self::Type),
        }
    }
}

#[derive(Default)]
pub(crate) struct Backoff {
    pub base: Slot<LitStr>,
    pub max: Slot<LitStr>,
}

pub(crate) fn container(ctxt: &Ctxt, attrs: &[Attribute], purpose: Purpose) -> ContainerAttrs {
    let mut found = ContainerAttrs::default();
    for_each_item(ctxt, attrs, |name, input| {
        let text = name.to_string();
        if purpose == Purpose::Part && TYPE_ATTRIBUTES.contains(&text.as_str()) {
            allowed_on_part(name, &text)?;
        }
        found.attempted.push(text.clone());
        match text.as_str() {
            "queue" => found.queue.set(ctxt, name, value(name, input, r#"queue = "thumbnails""#)?),
            "kind" => found.kind.set(ctxt, name, value(name, input, r#"kind = "thumbnail.request""#)?),
            "version" => found.version.set(ctxt, name, value(name, input, "version = 2")?),
            "upgrade_from" => {
                found.upgrade_from.set(ctxt, name, value(name, input, "upgrade_from = ThumbnailV1")?);
            }
            "alias" => found.aliases.push(value(name, input, r#"alias = "thumbnail.old-name""#)?),
            "codec" => found.codec.set(ctxt, name, value(name, input, "codec = Json")?),
            "poison_threshold" => {
                found.poison_threshold.set(ctxt, name, value(name, input, "poison_threshold = 5")?);
            }
            "lease" => found.lease.set(ctxt, name, value(name, input, r#"lease = "30s""#)?),
            "max_run_time" => {
                found.max_run_time.set(ctxt, name, value(name, input, r#"max_run_time = "1h""#)?);
            }
            "timeout" => {
                let advice = "`lease` is the time after which another worker takes over, `max_run_time` bounds one run";
                return Err(syn::Error::new(name.span(), format!("unknown attribute `timeout`; {advice}")));
            }
            "backoff" => {
                let example = r#"backoff(base = "1s", max = "10m")"#;
                found.backoff.set(ctxt, name, parenthesized(name, input, example, |i| backoff(ctxt, i))?);
            }
            "validate" => found.validate.set(ctxt, name, value(name, input, "validate = path::to::rule")?),
            "crate" => found.krate.set(ctxt, name, krate(name, input)?),
            other if FIELD_ATTRIBUTES.contains(&other) => {
                return Err(syn::Error::new(
                    name.span(),
                    format!("`{name}` belongs on a field; move it there"),
                ));
            }
            _ if purpose == Purpose::Part => return Err(unknown(name, &["crate", "validate"])),
            _ => {
                found.attempted.extend(suggestion(name, TYPE_ATTRIBUTES).map(str::to_owned));
                return Err(unknown(name, TYPE_ATTRIBUTES));
            }
        }
        Ok(())
    });
    found
}

/// Refuses attributes of a message on a type that is only part of messages.
fn allowed_on_part(name: &Ident, text: &str) -> syn::Result<()> {
    if matches!(text, "crate" | "validate") {
        return Ok(());
    }
    let problem = "belongs to a message; remove it, or derive `QueueMessage` instead of `Validate`";
    Err(syn::Error::new(name.span(), format!("`{name}` {problem}")))
}

fn krate(name: &Ident, input: ParseStream<'_>) -> syn::Result<Path> {
    let example = "crate = path::to::jobqueue";
    let ahead = input.fork();
    let quoted = ahead.parse::<Token![=]>().is_ok() && ahead.peek(LitStr);
    if !quoted {
        return value(name, input, example);
    }
    let text: LitStr = value(name, input, example)?;
    text.parse_with(Path::parse_mod_style)
        .map_err(|_| syn::Error::new(text.span(), format!("this is not a path: write `{example}`")))
}

fn backoff(ctxt: &Ctxt, input: ParseStream<'_>) -> syn::Result<Backoff> {
    let mut found = Backoff::default();
    while !input.is_empty() {
        let name: Ident = input.parse()?;
        match name.to_string().as_str() {
            "base" => found.base.set(ctxt, &name, value(&name, input, r#"base = "1s""#)?),
            "max" => found.max.set(ctxt, &name, value(&name, input, r#"max = "10m""#)?),
            _ => return Err(unknown(&name, &["base", "max"])),
        }
        if !input.is_empty() {
            input.parse::<Token![,]>()?;
        }
    }
    Ok(found)
}
