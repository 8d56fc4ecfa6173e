//! Tokens of Entra ID as passwords.

use std::sync::Arc;

use azure_core::error::ErrorKind;
use tokio::sync::OnceCell;

use crate::settings::Passwords;
use jobqueue_entra::TokenSource;
use jobqueue_storage::{StoreError, StoreErrorKind};

const SCOPE: &str = "https://ossrdbms-aad.database.windows.net/.default";

/// Returns a source of tokens. It creates the credential on first use.
pub(crate) fn tokens(source: TokenSource) -> Passwords {
    let state = Arc::new((source, OnceCell::new()));
    Arc::new(move || {
        let state = Arc::clone(&state);
        Box::pin(async move {
            let (source, chosen) = &*state;
            let credential =
                chosen.get_or_try_init(|| async { source.credential() }).await.map_err(no_token)?;
            let token = credential.get_token(&[SCOPE], None).await.map_err(no_token)?;
            Ok(token.token.secret().to_owned())
        })
    })
}

fn no_token(error: azure_core::Error) -> StoreError {
    let kind = match error.kind() {
        ErrorKind::Io => StoreErrorKind::Unavailable,
        _ => StoreErrorKind::Unauthorized,
    };
    StoreError::new(kind, "get token", "Entra ID")
        .with_detail(format!("the credential returned no token: {error}"))
}
