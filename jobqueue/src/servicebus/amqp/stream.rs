//! Opens sockets, with TLS where the namespace has it.

use std::fmt;
use std::io;
use std::sync::Arc;

use rustls_platform_verifier::Verifier;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, Error as TlsError};

/// A socket, with or without TLS.
pub(super) trait Socket: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin> Socket for S {}

/// The certificate authorities that are trusted besides those of the platform.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trust(Vec<CertificateDer<'static>>);

impl Trust {
    /// Adds an authority in PEM; false if the text is none.
    pub(crate) fn add(&mut self, pem: &[u8]) -> bool {
        let Ok(certificate) = CertificateDer::from_pem_slice(pem) else { return false };
        self.0.push(certificate);
        true
    }

    fn config(&self) -> Result<ClientConfig, TlsError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = Verifier::new_with_extra_roots(self.0.iter().cloned(), Arc::clone(&provider))?;
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let config = config.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
        Ok(config.with_no_client_auth())
    }
}

/// Connects to `host`, with TLS if `trust` is given.
pub(super) async fn open(host: &str, port: u16, trust: Option<&Trust>) -> io::Result<Box<dyn Socket>> {
    let socket = TcpStream::connect((host, port)).await?;
    socket.set_nodelay(true)?;
    let Some(trust) = trust else { return Ok(Box::new(socket)) };
    let config = trust.config().map_err(io::Error::other)?;
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    Ok(Box::new(TlsConnector::from(Arc::new(config)).connect(name, socket).await?))
}
