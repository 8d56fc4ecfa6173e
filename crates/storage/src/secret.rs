//! A value that is never shown, and the check for hosts to which it may be sent in the clear.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// A key, signature or token of an adapter. Cheap to clone; `Debug` does not show the value.
///
/// It deliberately has no `Display` and no serialisation; code that needs the value calls
/// [`expose`](Self::expose).
pub struct Secret<T>(Arc<T>);

impl<T> Secret<T> {
    /// Wraps a value.
    pub fn new(value: T) -> Self {
        Self(Arc::new(value))
    }

    /// Returns the value itself, for the wire only.
    pub fn expose(&self) -> &T {
        &self.0
    }
}

impl<T> Clone for Secret<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Returns whether a host name or address is this machine: data sent to it never leaves the machine.
pub fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    address.map_or_else(|_| host.eq_ignore_ascii_case("localhost"), |address| address.is_loopback())
}
