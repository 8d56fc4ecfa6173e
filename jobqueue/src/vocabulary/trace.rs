//! W3C trace context, so that a job's trace is one with its sender's.
//!
//! Knows the text form only ([W3C Trace Context]); what exports spans is the application's affair.
//!
//! [W3C Trace Context]: https://www.w3.org/TR/trace-context/

use std::fmt;

use rand::RngExt;

/// Where in which trace something happens: the `traceparent` of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    trace_id: u128,
    span_id: u64,
    flags: u8,
}

impl TraceContext {
    /// The beginning of a new trace, sampled.
    pub fn root() -> Self {
        let mut random = rand::rng();
        // Zero is not a valid id in either place.
        Self {
            trace_id: random.random_range(1..=u128::MAX),
            span_id: random.random_range(1..=u64::MAX),
            flags: 1,
        }
    }

    /// A new span in the same trace.
    #[must_use]
    pub fn child(&self) -> Self {
        Self { span_id: rand::rng().random_range(1..=u64::MAX), ..*self }
    }

    /// Reads a `traceparent`; `None` if it is malformed, which is no reason to fail a job.
    pub fn parse(traceparent: &str) -> Option<Self> {
        let mut parts = traceparent.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let hex = |text: &str, length: usize| {
            text.len() == length && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        let known = version == "00" && parts.next().is_none() || version != "ff" && version != "00";
        if !(known && hex(version, 2) && hex(trace, 32) && hex(span, 16) && hex(flags, 2)) {
            return None;
        }
        let context = Self {
            trace_id: u128::from_str_radix(trace, 16).ok()?,
            span_id: u64::from_str_radix(span, 16).ok()?,
            flags: u8::from_str_radix(flags, 16).ok()?,
        };
        (context.trace_id != 0 && context.span_id != 0).then_some(context)
    }

    /// The `traceparent` form.
    pub(crate) fn traceparent(&self) -> String {
        let mut text = String::with_capacity(55);
        text.push_str("00-");
        push_hex(&mut text, &self.trace_id.to_be_bytes());
        text.push('-');
        push_hex(&mut text, &self.span_id.to_be_bytes());
        text.push('-');
        push_hex(&mut text, &[self.flags]);
        text
    }

    /// The trace's id: 32 hexadecimal digits.
    pub fn trace_id(&self) -> String {
        let mut text = String::with_capacity(32);
        push_hex(&mut text, &self.trace_id.to_be_bytes());
        text
    }

    /// The span's id: 16 hexadecimal digits.
    pub fn span_id(&self) -> String {
        let mut text = String::with_capacity(16);
        push_hex(&mut text, &self.span_id.to_be_bytes());
        text
    }
}

/// By hand, since every message has one: `format!` takes ten times as long.
fn push_hex(text: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
}

/// The `traceparent` form.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.traceparent())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes_and_nothing_malformed() {
        let context = TraceContext::root();
        assert_eq!(TraceContext::parse(&context.to_string()), Some(context));
        assert_eq!(context.child().trace_id(), context.trace_id());
        assert_ne!(context.child().span_id(), context.span_id());
        let zero = format!("00-{:032x}-{:016x}-01", 0, 1);
        for bad in ["", "00", "00-xyz-1-01", &zero, "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"]
        {
            assert_eq!(TraceContext::parse(bad), None, "{bad}");
        }
    }
}
