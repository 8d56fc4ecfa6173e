//! The TLS configuration for AMQP and HTTP.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use rustls_platform_verifier::Verifier;
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::{ClientConfig, Error, RootCertStore};

#[derive(Debug, Clone)]
pub(crate) struct Trust {
    extra_roots: Vec<CertificateDer<'static>>,
    /// Created once, because the platform's authorities are read from some hundred files.
    config: Arc<OnceCell<ClientConfig>>,
}

impl Trust {
    /// Adds authorities in PEM to the platform's; `None` if a text is not a certificate.
    pub(crate) fn of(extra_roots: &[Bytes]) -> Option<Self> {
        let extra_roots = extra_roots.iter().map(|pem| CertificateDer::from_pem_slice(pem).ok());
        Some(Self { extra_roots: extra_roots.collect::<Option<_>>()?, config: Arc::default() })
    }

    /// Returns the configuration of a client that trusts these authorities.
    ///
    /// # Errors
    /// If the platform's authorities cannot be read, or none of the authorities is usable.
    pub(crate) async fn config(&self) -> io::Result<ClientConfig> {
        let read = || async {
            let extra_roots = self.extra_roots.clone();
            spawn_blocking(move || client_config(extra_roots))
                .await
                .map_err(io::Error::other)?
                .map_err(io::Error::other)
        };
        self.config.get_or_try_init(read).await.cloned()
    }

    /// Returns the configuration of a client without trusted roots, for connections without TLS.
    ///
    /// # Errors
    /// If the library supports no version of TLS.
    pub(crate) fn without_roots() -> io::Result<ClientConfig> {
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(io::Error::other)?;
        Ok(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
    }
}

fn client_config(extra_roots: Vec<CertificateDer<'static>>) -> Result<ClientConfig, Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = Verifier::new_with_extra_roots(extra_roots, Arc::clone(&provider))?;
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let config = config.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    Ok(config.with_no_client_auth())
}
