//! The sender of a request, and the level of access that the sender has.

use std::sync::Arc;

use axum::http::request::Parts;
use jobqueue_admin::{AccessLevel, Admin};

/// The operator of a request and their rights, as returned by the function of
/// [`Dashboard::access`](crate::Dashboard::access).
///
/// The rights of the dashboard's [`Admin`] are the upper limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access(Option<(Arc<str>, AccessLevel)>);

impl Access {
    /// Returns the access of the operator with this name. Events and audit lines show the name.
    pub fn new(operator: impl Into<Arc<str>>, level: AccessLevel) -> Self {
        Self(Some((operator.into(), level)))
    }

    /// Returns the access of an operator who only looks.
    pub fn read_only(operator: impl Into<Arc<str>>) -> Self {
        Self::new(operator, AccessLevel::ReadOnly)
    }

    /// Returns an access without any rights: every request is answered with 403, also those for styles and scripts.
    pub fn forbidden() -> Self {
        Self(None)
    }
}

type Resolve = dyn Fn(&Parts) -> Access + Send + Sync;

/// The embedding program's function from a request to its access.
#[derive(Clone, Default)]
pub(crate) struct Resolver(Option<Arc<Resolve>>);

impl Resolver {
    pub(crate) fn new(resolve: impl Fn(&Parts) -> Access + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(resolve)))
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the view of who sends the request; `None` if they may see nothing. Without a function it is `admin` itself.
    pub(crate) fn view(&self, admin: &Admin, parts: &Parts) -> Option<Admin> {
        let Some(resolve) = &self.0 else { return Some(admin.clone()) };
        let (operator, level) = resolve(parts).0?;
        Some(admin.acting_as(operator, &level))
    }
}

jobqueue_storage::debug_fields! {
    Resolver(0.is_some())
}
