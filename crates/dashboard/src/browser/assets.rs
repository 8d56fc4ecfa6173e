//! Style sheet, icon and scripts, under names that change with their content.

use std::sync::LazyLock;

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use jobqueue_storage::fast::hex::to_hex;
use sha2::{Digest, Sha256};

/// A file that is compiled into the program.
#[derive(Debug)]
pub(crate) struct Asset {
    /// The file's name with a digest of its content.
    pub(crate) name: String,
    media_type: &'static str,
    content: &'static str,
}

/// The files that each page loads.
#[derive(Debug)]
pub(crate) struct Assets {
    pub(crate) style: Asset,
    pub(crate) icon: Asset,
    pub(crate) htmx: Asset,
    pub(crate) sse: Asset,
    pub(crate) script: Asset,
}

pub(crate) static ASSETS: LazyLock<Assets> = LazyLock::new(|| {
    const SCRIPT: &str = "text/javascript; charset=utf-8";
    Assets {
        style: Asset::new(
            "dashboard",
            "css",
            "text/css; charset=utf-8",
            include_str!("assets/dashboard.css"),
        ),
        icon: Asset::new("icon", "svg", "image/svg+xml", include_str!("assets/icon.svg")),
        htmx: Asset::new("htmx", "js", SCRIPT, include_str!("assets/vendor/htmx-2.0.11.min.js")),
        sse: Asset::new("sse", "js", SCRIPT, include_str!("assets/vendor/htmx-ext-sse-2.2.4.min.js")),
        script: Asset::new("dashboard", "js", SCRIPT, include_str!("assets/dashboard.js")),
    }
});

impl Asset {
    fn new(stem: &str, extension: &str, media_type: &'static str, content: &'static str) -> Self {
        let digest = to_hex(&Sha256::digest(content)[..6]);
        Self { name: format!("{stem}-{digest}.{extension}"), media_type, content }
    }
}

pub(crate) fn serve(name: &str) -> Response {
    let Assets { style, icon, htmx, sse, script } = &*ASSETS;
    let Some(asset) = [style, icon, htmx, sse, script].into_iter().find(|asset| asset.name == name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(asset.media_type)),
        // Caching forever is safe, because the name changes with the content.
        (CACHE_CONTROL, HeaderValue::from_static("private, max-age=31536000, immutable")),
    ];
    (headers, asset.content).into_response()
}
