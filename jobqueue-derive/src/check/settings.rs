//! Checks versions, thresholds and times.

use syn::{LitInt, LitStr, Type};

use crate::ast::Container;
use crate::attr::{DurationError, Upgrade, parse_duration};
use crate::ctxt::Ctxt;

pub(super) fn check(ctxt: &Ctxt, container: &Container<'_>) {
    let attrs = &container.attrs;
    version(ctxt, container);
    if let Some(literal) = attrs.poison_threshold.get()
        && !literal.base10_parse::<u32>().is_ok_and(|attempts| (1..=1000).contains(&attempts))
    {
        ctxt.error(literal, "`poison_threshold` is a number of attempts from 1 to 1000");
    }
    for (name, literal) in [("lease", attrs.lease.get()), ("max_run_time", attrs.max_run_time.get())] {
        if let Some(literal) = literal {
            duration(ctxt, name, literal);
        }
    }
    if let (Some(name), Some(backoff)) = (attrs.backoff.name(), attrs.backoff.get()) {
        let base = backoff.base.get().and_then(|literal| duration(ctxt, "base", literal));
        let max = backoff.max.get().and_then(|literal| duration(ctxt, "max", literal));
        if !backoff.base.is_set() || !backoff.max.is_set() {
            ctxt.error(name, r#"`backoff` needs both ends: write `backoff(base = "1s", max = "10m")`"#);
        }
        if let (Some(base), Some(max), Some(literal)) = (base, max, backoff.base.get())
            && base > max
        {
            ctxt.error(
                literal,
                "`base` is longer than `max`; the delay grows from `base` to `max`, swap them",
            );
        }
    }
}

fn version(ctxt: &Ctxt, container: &Container<'_>) {
    let attrs = &container.attrs;
    let number = match attrs.version.get() {
        Some(literal) => match number(ctxt, literal) {
            Some(number) => number,
            None => return,
        },
        // A mistake in `version` was reported; the intended version is unknown.
        None if attrs.attempted.iter().any(|name| name == "version") => return,
        None => 1,
    };
    match (attrs.upgrade_from.get(), attrs.version.get()) {
        (Some(Upgrade::Type(ty)), _) if is_self(container, ty) => {
            ctxt.error(ty, "a type cannot be upgraded from itself; name the type of the version before");
        }
        (Some(Upgrade::Type(ty)), None) => {
            ctxt.error(ty, "`upgrade_from` needs the number of the new version: add `version = 2` or higher");
        }
        (Some(Upgrade::Type(_)), Some(literal)) if number == 1 => {
            ctxt.error(
                literal,
                "version 1 has no version before it: raise `version`, or remove `upgrade_from`",
            );
        }
        (Some(Upgrade::None(none)), _) if number == 1 => {
            ctxt.error(none, "version 1 has no version before it: remove `upgrade_from`");
        }
        (None, Some(literal)) if number > 1 && !attrs.attempted.iter().any(|name| name == "upgrade_from") => {
            ctxt.error(
                literal,
                format!("version {number} must read what older releases sent: add `upgrade_from = …` with the type of the version before, or `upgrade_from = none` if no older message can be waiting"),
            );
        }
        _ => {}
    }
}

fn number(ctxt: &Ctxt, literal: &LitInt) -> Option<u32> {
    match literal.base10_parse::<u32>() {
        Ok(0) => ctxt.error(literal, "versions begin at 1; write `version = 1`, or leave it out"),
        Ok(number) => return Some(number),
        Err(_) => ctxt.error(literal, "a version is a whole number from 1 to 4294967295"),
    }
    None
}

fn is_self(container: &Container<'_>, ty: &Type) -> bool {
    match ty {
        Type::Group(group) => is_self(container, &group.elem),
        Type::Path(path) => path.path.is_ident("Self") || path.path.is_ident(container.ident),
        _ => false,
    }
}

/// Returns the seconds of a duration, or reports a mistake.
fn duration(ctxt: &Ctxt, name: &str, literal: &LitStr) -> Option<u64> {
    let problem = match parse_duration(&literal.value()) {
        Ok(seconds) => return Some(seconds),
        Err(DurationError::Malformed) => {
            "is a number with a unit, `s`, `m`, `h` or `d`: write \"30s\", \"5m\", \"2h\" or \"1d\""
        }
        Err(DurationError::Fractional) => "is in whole seconds: write \"1s\" or more, without a fraction",
        Err(DurationError::Zero) => "cannot be zero: write \"1s\" or more",
        Err(DurationError::TooLong) => "is longer than 7 days: write \"7d\" or less",
    };
    ctxt.error(literal, format!("`{name}` {problem}"));
    None
}
