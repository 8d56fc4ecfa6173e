//! OpenTelemetry for `jobqueue`: spans, links and metrics.
