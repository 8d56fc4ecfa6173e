//! The operator of a request, and their level of access.

use std::sync::Arc;

use axum::http::request::Parts;
use jobqueue_admin::{AccessLevel, Admin};

/// The operator of a request and their rights, as returned by the function of
/// [`Dashboard::access`](crate::Dashboard::access).
///
/// The operator never has more rights than the dashboard's [`Admin`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access(Option<(Arc<str>, AccessLevel)>);

impl Access {
    /// Returns the access of the operator with this name, which events and audit lines show.
    pub fn new(operator: impl Into<Arc<str>>, level: AccessLevel) -> Self {
        Self(Some((operator.into(), level)))
    }

    /// Returns the access of an operator who may read and change nothing.
    pub fn read_only(operator: impl Into<Arc<str>>) -> Self {
        Self::new(operator, AccessLevel::ReadOnly)
    }

    /// Returns an access without any rights: every request is answered with 403, including requests for
    /// styles and scripts.
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

    /// Returns the view of the operator who sends the request; `None` if the operator may see nothing.
    /// Without a function, returns `admin` itself.
    pub(crate) fn view(&self, admin: &Admin, parts: &Parts) -> Option<Admin> {
        let Some(resolve) = &self.0 else { return Some(admin.clone()) };
        let (operator, level) = resolve(parts).0?;
        Some(admin.acting_as(operator, &level))
    }
}

jobqueue_storage::debug_fields! {
    Resolver(0.is_some())
}
