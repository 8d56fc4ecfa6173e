//! The router that joins the dashboards of several storages.

use std::sync::Arc;

use axum::extract::Path;
use axum::http::Uri;
use axum::response::Response;
use axum::routing::get;
use axum::{Extension, Router, middleware};
use jobqueue::{Error, ErrorKind};

use crate::browser::app::{App, Joined};
use crate::browser::guard::{self, Admitted};
use crate::browser::pages::{self, PageError, storages};
use crate::browser::{assets, json, live, routes};

/// Storage names that would hide a path of the root, or of the health checks that a program may merge into
/// it.
const RESERVED_NAMES: &[&str] = &["api", "assets", "events", "live", "metrics", "overview", "ready", "scale"];

const MAX_NAME_LENGTH: usize = 63;

pub(crate) fn router(dashboards: impl Iterator<Item = (String, Arc<App>)>) -> Result<Router, Error> {
    let joined = Arc::new(Joined(dashboards.collect()));
    check_names(&joined)?;
    let missing = async |Extension(all): Extension<Admitted>, address: Uri| -> Response {
        match all.first() {
            Some((_, request)) if !json::is_document(&address) => {
                pages::error_page(request, PageError::missing("there is no such page"))
            }
            _ => json::respond(Err(PageError::missing("there is no such document"))),
        }
    };
    let events = async |Extension(all): Extension<Admitted>| {
        let apps: Vec<&App> = all.iter().map(|(_, request)| &*request.app).collect();
        live::answer(&apps, None)
    };
    let mut router = Router::new()
        .route("/", get(storages::show))
        // Links lead to this path, as in the dashboard of one storage.
        .route("/overview", get(storages::show))
        .route("/api/storages", get(storages::document))
        .route("/events", get(events))
        .route("/assets/{name}", get(async |Path(name): Path<String>| assets::serve(&name)))
        .fallback(missing)
        .layer(middleware::from_fn_with_state(Arc::clone(&joined), guard::guard_all));
    for (name, app) in &joined.0 {
        router = router.nest_service(&format!("/{name}"), routes::router(Arc::clone(app)));
    }
    Ok(router.layer(Extension(joined)))
}

fn check_names(joined: &Joined) -> Result<(), Error> {
    let invalid = |text: String| Err(Error::new(ErrorKind::Configuration, text));
    let names: Vec<&str> = joined.0.iter().map(|(name, _)| name.as_str()).collect();
    if names.is_empty() {
        return invalid("a dashboard of several storages needs at least one".to_owned());
    }
    for (index, name) in names.iter().enumerate() {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if name.is_empty() || name.len() > MAX_NAME_LENGTH || !name.bytes().all(fits) {
            return invalid(format!(
                "the name of a storage in the dashboard must consist of 1 to {MAX_NAME_LENGTH} ASCII letters, digits, `-` and `_`; {name:?} does not"
            ));
        }
        if RESERVED_NAMES.contains(name) {
            return invalid(format!(
                "a storage of the dashboard cannot have the name `{name}`, which is a path of the dashboard itself"
            ));
        }
        if names[..index].contains(name) {
            return invalid(format!("two storages of the dashboard have the name `{name}`"));
        }
    }
    Ok(())
}
