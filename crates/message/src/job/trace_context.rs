//! The position of a job in a trace: W3C trace context, as numbers and as text.

use std::fmt;

use jobqueue_storage::fast::hex::{read_hex, write_hex};
use jobqueue_storage::runtime::Runtime;

/// The number of bytes of a `traceparent` of version 00.
const TRACEPARENT_BYTES: usize = 55;

/// A position in a trace: the `traceparent` of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    trace_id: u128,
    span_id: u64,
    flags: u8,
}

impl TraceContext {
    /// Starts a new trace, sampled.
    pub fn root(runtime: &Runtime) -> Self {
        // Zero is not a valid id of a trace or a span.
        Self { trace_id: runtime.random_u128().max(1), span_id: new_span(runtime), flags: 1 }
    }

    /// Returns the context with these ids and flags, or `None` if an id is zero.
    pub fn new(trace_id: u128, span_id: u64, flags: u8) -> Option<Self> {
        (trace_id != 0 && span_id != 0).then_some(Self { trace_id, span_id, flags })
    }

    /// Returns the trace's id, the span's id and the flags as numbers.
    pub fn to_parts(&self) -> (u128, u64, u8) {
        (self.trace_id, self.span_id, self.flags)
    }

    /// Returns a new span in the same trace.
    #[must_use]
    pub fn child(&self, runtime: &Runtime) -> Self {
        Self { span_id: new_span(runtime), ..*self }
    }

    /// Parses a `traceparent`. Returns `None` if it is malformed; this never fails a job.
    pub fn parse(traceparent: &str) -> Option<Self> {
        let (fields, rest) = traceparent.as_bytes().split_at_checked(TRACEPARENT_BYTES)?;
        let (version, trace, span, flags) = (&fields[..2], &fields[3..35], &fields[36..52], &fields[53..]);
        let version_is_known = match read_hex(version)? {
            [0x00] => rest.is_empty(),
            [0xff] => false,
            // Later versions may have more fields.
            [_] => rest.first().is_none_or(|next| *next == b'-'),
        };
        if !version_is_known || [2, 35, 52].iter().any(|at| fields[*at] != b'-') {
            return None;
        }
        let context = Self {
            trace_id: u128::from_be_bytes(read_hex(trace)?),
            span_id: u64::from_be_bytes(read_hex(span)?),
            flags: u8::from_be_bytes(read_hex(flags)?),
        };
        (context.trace_id != 0 && context.span_id != 0).then_some(context)
    }

    /// Returns the `traceparent` form.
    pub fn traceparent(&self) -> String {
        let mut text = *b"00-................................-................-..";
        write_hex(&self.trace_id.to_be_bytes(), &mut text[3..35]);
        write_hex(&self.span_id.to_be_bytes(), &mut text[36..52]);
        write_hex(&[self.flags], &mut text[53..]);
        std::str::from_utf8(&text).unwrap_or_default().to_owned()
    }

    /// Returns the trace's id: 32 hexadecimal digits.
    pub fn trace_id(&self) -> String {
        format!("{:032x}", self.trace_id)
    }

    /// Returns the span's id: 16 hexadecimal digits.
    pub fn span_id(&self) -> String {
        format!("{:016x}", self.span_id)
    }
}

fn new_span(runtime: &Runtime) -> u64 {
    runtime.random_u64().max(1)
}

/// Writes the `traceparent` form.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.traceparent())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_context_is_read_back_and_malformed_one_is_refused() {
        let runtime = Runtime::new();
        let context = TraceContext::root(&runtime);
        assert_eq!(TraceContext::parse(&context.to_string()), Some(context));
        assert_eq!(context.child(&runtime).trace_id(), context.trace_id());
        assert_ne!(context.child(&runtime).span_id(), context.span_id());
        let zero = format!("00-{:032x}-{:016x}-01", 0, 1);
        for bad in ["", "00", "00-xyz-1-01", &zero, "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"]
        {
            assert_eq!(TraceContext::parse(bad), None, "{bad}");
        }
    }
}
