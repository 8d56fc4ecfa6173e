//! The dashboard of `jobqueue` in the browser, with its metrics, its figures for autoscalers and its health checks.
