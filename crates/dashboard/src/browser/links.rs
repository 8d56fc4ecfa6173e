//! Links from the page of a job to other systems, such as those of logs and traces.

use std::str::FromStr;

use jobqueue::{Error, ErrorKind};
use jobqueue_admin::{Explanation, HistoryRecord};

use crate::browser::text::encoded;

/// The address of a page about a job in another system, for [`Dashboard::trace_url`] and
/// [`Dashboard::log_url`]. It begins with `https://` or `http://`, and its path, query or fragment has
/// placeholders: `{queue}`, `{id}`, `{source}` (the sender), `{kind}`, and `{trace}` for the 32 digits of the
/// trace.
///
/// The values are percent-encoded. A job without one of the values has no link. There is no placeholder for a
/// text that [`Dashboard::redact`] may hide.
///
/// ```
/// use jobqueue_dashboard::LinkTemplate;
///
/// let logs: LinkTemplate = "https://logs.example.org/search?q={queue}+{id}".parse()?;
/// # drop(logs);
/// // Producers choose ids, and could choose the host.
/// assert!("https://{id}.example.org/".parse::<LinkTemplate>().is_err());
/// # Ok::<(), jobqueue::Error>(())
/// ```
///
/// [`Dashboard::trace_url`]: crate::Dashboard::trace_url
/// [`Dashboard::log_url`]: crate::Dashboard::log_url
/// [`Dashboard::redact`]: crate::Dashboard::redact
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkTemplate(Vec<TemplatePart>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplatePart {
    Text(String),
    Value(Placeholder),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Placeholder {
    Queue,
    Id,
    Source,
    Kind,
    Trace,
}

impl FromStr for LinkTemplate {
    type Err = Error;

    /// Reads a template.
    ///
    /// # Errors
    /// [`Configuration`](ErrorKind::Configuration) if the text is not a template.
    fn from_str(template: &str) -> Result<Self, Error> {
        let after_scheme = template.strip_prefix("https://").or_else(|| template.strip_prefix("http://"));
        let after_scheme = after_scheme.ok_or_else(|| invalid("must begin with `https://` or `http://`"))?;
        let host = after_scheme.split(['/', '?', '#']).next().unwrap_or_default();
        if host.is_empty() || host.contains(['{', '}']) {
            return Err(invalid("must name a host, without a placeholder"));
        }
        if template.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(invalid("must not contain blanks: write them as `%20`"));
        }
        let (mut parts, mut rest) = (Vec::new(), template);
        while let Some((text, after)) = rest.split_once('{') {
            let placeholder = after.split_once('}').and_then(|(name, after)| Some((named(name)?, after)));
            let (placeholder, after) = placeholder.ok_or_else(|| {
                invalid("has only the placeholders `{queue}`, `{id}`, `{source}`, `{kind}` and `{trace}`")
            })?;
            parts.extend([TemplatePart::Text(text.to_owned()), TemplatePart::Value(placeholder)]);
            rest = after;
        }
        if parts.is_empty() {
            return Err(invalid("must have a placeholder, such as `{id}` or `{trace}`"));
        }
        parts.push(TemplatePart::Text(rest.to_owned()));
        Ok(Self(parts))
    }
}

fn invalid(problem: &str) -> Error {
    Error::new(ErrorKind::Configuration, format!("the template of a link {problem}"))
}

fn named(name: &str) -> Option<Placeholder> {
    match name {
        "queue" => Some(Placeholder::Queue),
        "id" => Some(Placeholder::Id),
        "source" => Some(Placeholder::Source),
        "kind" => Some(Placeholder::Kind),
        "trace" => Some(Placeholder::Trace),
        _ => None,
    }
}

/// The values of a job; `None` if a value is unknown.
#[derive(Debug, Clone, Copy, Default)]
struct LinkValues<'a> {
    queue: Option<&'a str>,
    id: Option<&'a str>,
    source: Option<&'a str>,
    kind: Option<&'a str>,
    trace: Option<&'a str>,
}

impl LinkTemplate {
    /// Returns the address for a job; `None` if the job lacks one of the values.
    fn address(&self, job: LinkValues<'_>) -> Option<String> {
        let part = |part: &TemplatePart| match part {
            TemplatePart::Text(text) => Some(text.clone()),
            TemplatePart::Value(placeholder) => {
                let value = match placeholder {
                    Placeholder::Queue => job.queue,
                    Placeholder::Id => job.id,
                    Placeholder::Source => job.source,
                    Placeholder::Kind => job.kind,
                    Placeholder::Trace => job.trace,
                };
                // Browsers drop the segments `.` and `..` from a path, also percent-encoded: the link would
                // lead to another page. This also excludes an empty value.
                value.filter(|value| value.chars().any(|c| c != '.')).map(encoded)
            }
        };
        self.0.iter().map(part).collect()
    }
}

/// The templates of a dashboard.
#[derive(Debug, Default)]
pub(crate) struct Links {
    pub(crate) trace: Option<LinkTemplate>,
    pub(crate) log: Option<LinkTemplate>,
}

impl Links {
    /// Returns the links of a job, each with its text. `ended` is the end of the job in the journal.
    pub(crate) fn of(
        &self,
        found: &Explanation,
        ended: Option<&HistoryRecord>,
    ) -> Vec<(&'static str, String)> {
        let (message, run) = (found.message.as_ref(), found.run.as_ref());
        let job = found.reference();
        let kind = message.map(|message| &message.kind).or(run.map(|run| &run.kind));
        let trace = message.and_then(|message| message.trace.as_deref());
        let trace = trace.or_else(|| run?.trace.as_deref()).or_else(|| ended?.trace.as_deref());
        let values = LinkValues {
            queue: Some(&job.queue),
            id: Some(&job.id),
            source: job.source.as_deref().or(ended.map(|ended| ended.source.as_str())),
            kind: kind.or(ended.map(|ended| &ended.kind)).map(String::as_str),
            trace: trace.and_then(trace_id),
        };
        let link = |text, template: &Option<LinkTemplate>| {
            template.as_ref().and_then(|template| template.address(values)).map(|address| (text, address))
        };
        [link("Trace", &self.trace), link("Logs", &self.log)].into_iter().flatten().collect()
    }
}

/// Returns the id of the trace in a W3C `traceparent`, which any sender can write.
pub(crate) fn trace_id(traceparent: &str) -> Option<&str> {
    let id = traceparent.split('-').nth(1)?;
    let is_id = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    Some(id).filter(|id| is_id && id.bytes().any(|byte| byte != b'0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

    fn template(text: &str) -> LinkTemplate {
        text.parse().unwrap()
    }

    #[test]
    fn values_of_a_link_are_encoded() {
        let values =
            LinkValues { queue: Some("mails"), id: Some("a/b?c#d&e=\"<ü>"), ..LinkValues::default() };
        let address = template("https://logs.example/{queue}/{id}?q={id}#{queue}").address(values).unwrap();
        let id = "a%2Fb%3Fc%23d%26e%3D%22%3C%C3%BC%3E";
        assert_eq!(address, format!("https://logs.example/mails/{id}?q={id}#mails"));
    }

    #[test]
    fn link_without_one_of_its_values_does_not_exist() {
        let traced = template("http://localhost:16686/trace/{trace}");
        assert_eq!(traced.address(LinkValues::default()), None);
        let address = traced.address(LinkValues { trace: Some(TRACE), ..LinkValues::default() });
        assert_eq!(address, Some(format!("http://localhost:16686/trace/{TRACE}")));
        for id in ["", ".", ".."] {
            let values = LinkValues { id: Some(id), ..LinkValues::default() };
            assert_eq!(template("https://logs.example/{id}/").address(values), None, "{id:?}");
        }
    }

    #[test]
    fn templates_of_other_schemes_and_hosts_of_producers_are_refused() {
        for text in [
            "",
            "javascript:alert({id})",
            "//logs.example/{id}",
            "ftp://logs.example/{id}",
            "https://{id}",
            "https://{queue}.example/{id}",
            "https:///{id}",
            "https://logs.example/",
            "https://logs.example/{key}",
            "https://logs.example/{id",
            "https://logs.example/a b/{id}",
        ] {
            assert!(text.parse::<LinkTemplate>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn only_ids_of_traces_are_linked() {
        assert_eq!(trace_id(&format!("00-{TRACE}-b7ad6b7169203331-01")), Some(TRACE));
        for forged in ["", "00", "00-..-b7ad6b7169203331-01", &format!("00-{}-b7ad-01", "0".repeat(32))] {
            assert_eq!(trace_id(forged), None, "{forged:?}");
        }
    }
}
