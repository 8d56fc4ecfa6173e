//! The sources of Entra ID tokens, for the adapters of `jobqueue` to services of Azure.
//!
//! The crate knows credentials and tokens. It knows nothing of storages: an adapter asks a [`TokenSource`] for a credential, and
//! sends the token in its own way. Applications use the options of the adapters, `jobqueue::azure::Options` and
//! `jobqueue::servicebus::Options`.

#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use azure_core::error::ErrorKind;
use azure_identity::{
    DeveloperToolsCredential, ManagedIdentityCredential, ManagedIdentityCredentialOptions, UserAssignedId,
    WorkloadIdentityCredential,
};
use tokio::sync::OnceCell;

/// The time that the automatic choice waits for a managed identity: outside Azure no server answers.
const MANAGED_IDENTITY_PATIENCE: Duration = Duration::from_secs(3);

/// The choice of a credential.
#[derive(Clone)]
pub enum TokenSource {
    /// Workload identity if its variables are set; else managed identity; else developer tools.
    Automatic,
    /// The identity of the machine, or the user-assigned one with this client id.
    Managed(Option<String>),
    /// Workload identity of Kubernetes.
    Workload,
    /// The login of `az` or `azd`.
    DeveloperTools,
    /// The application's own credential.
    Custom(Arc<dyn TokenCredential>),
}

/// Writes the methods by which options choose the source of their tokens. The options have a method `token` that keeps it.
#[macro_export]
macro_rules! credential_methods {
    () => {
        /// Uses the identity of the machine, or the user-assigned one with `client_id`.
        pub fn managed_identity(self, client_id: Option<&str>) -> Self {
            self.token($crate::TokenSource::Managed(client_id.map(str::to_owned)))
        }

        /// Uses workload identity: `AZURE_CLIENT_ID`, `AZURE_TENANT_ID` and `AZURE_FEDERATED_TOKEN_FILE`.
        pub fn workload_identity(self) -> Self {
            self.token($crate::TokenSource::Workload)
        }

        /// Uses the login of `az` or `azd`.
        pub fn developer_tools(self) -> Self {
            self.token($crate::TokenSource::DeveloperTools)
        }

        /// Uses a credential of the application's own: any [`TokenCredential`](azure_core::credentials::TokenCredential) of `azure_core`
        /// 1.x, the only type of the SDK in this interface. The lease renewer's thread calls it too, so it must not wait for tasks of one
        /// particular runtime.
        pub fn credential(
            self,
            credential: std::sync::Arc<dyn azure_core::credentials::TokenCredential>,
        ) -> Self {
            self.token($crate::TokenSource::Custom(credential))
        }
    };
}

impl TokenSource {
    /// Returns a credential with connections and a cache of its own. The application's credential is shared: there is
    /// only one.
    pub fn credential(&self) -> azure_core::Result<Arc<dyn TokenCredential>> {
        let inner: Arc<dyn TokenCredential> = match self {
            Self::Automatic => match WorkloadIdentityCredential::new(None) {
                Ok(workload) => workload,
                // The variables of workload identity are not set.
                Err(_) => Arc::new(FirstThatWorks {
                    managed: managed(None)?,
                    tools: DeveloperToolsCredential::new(None)?,
                    chosen: OnceCell::new(),
                }),
            },
            Self::Managed(client_id) => managed(client_id.clone())?,
            Self::Workload => WorkloadIdentityCredential::new(None)?,
            Self::DeveloperTools => DeveloperToolsCredential::new(None)?,
            Self::Custom(credential) => Arc::clone(credential),
        };
        Ok(Arc::new(Named(inner)))
    }
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Automatic => "Automatic",
            Self::Managed(_) => "Managed",
            Self::Workload => "Workload",
            Self::DeveloperTools => "DeveloperTools",
            Self::Custom(_) => "Custom",
        })
    }
}

fn managed(client_id: Option<String>) -> azure_core::Result<Arc<ManagedIdentityCredential>> {
    ManagedIdentityCredential::new(Some(ManagedIdentityCredentialOptions {
        user_assigned_id: client_id.map(UserAssignedId::ClientId),
        ..ManagedIdentityCredentialOptions::default()
    }))
}

/// A credential that tries managed identity, then developer tools, and keeps the first that returns a token.
#[derive(Debug)]
struct FirstThatWorks {
    managed: Arc<ManagedIdentityCredential>,
    tools: Arc<DeveloperToolsCredential>,
    chosen: OnceCell<Arc<dyn TokenCredential>>,
}

#[async_trait]
impl TokenCredential for FirstThatWorks {
    async fn get_token(
        &self,
        scopes: &[&str],
        options: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        let choose = || async {
            let first = self.managed.get_token(scopes, None);
            let managed = tokio::time::timeout(MANAGED_IDENTITY_PATIENCE, first).await;
            if matches!(managed, Ok(Ok(_))) {
                return Ok(Arc::clone(&self.managed) as Arc<dyn TokenCredential>);
            }
            self.tools.get_token(scopes, None).await?;
            Ok::<_, azure_core::Error>(Arc::clone(&self.tools) as Arc<dyn TokenCredential>)
        };
        // Both cache their tokens, so that asking the chosen one again costs nothing.
        self.chosen.get_or_try_init(choose).await?.get_token(scopes, options).await
    }
}

/// A credential whose failures are marked, so that an answer of Entra ID is not taken for one of the storage.
#[derive(Debug)]
struct Named(Arc<dyn TokenCredential>);

#[async_trait]
impl TokenCredential for Named {
    async fn get_token(
        &self,
        scopes: &[&str],
        options: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        self.0.get_token(scopes, options).await.map_err(|error| {
            azure_core::Error::with_message(ErrorKind::Credential, shortened(&error.to_string()))
        })
    }
}

fn shortened(text: &str) -> String {
    const MOST: usize = 400;
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MOST).collect()
}
