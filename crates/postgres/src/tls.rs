//! TLS by rustls, with the checks of the server's certificate that `sslmode` asks for.

use std::path::Path;
use std::sync::Arc;

use rustls_platform_verifier::Verifier;
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use tokio_postgres::Socket;
use tokio_postgres::tls::MakeTlsConnect;

use crate::settings::{Settings, Tls};
use jobqueue_storage::{StoreError, StoreErrorKind};

/// A connection with TLS.
pub(crate) type Stream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;

/// Returns the maker of connections with TLS. It is used unless the mode is `disable`.
///
/// # Errors
/// `Configuration` if the authorities cannot be used.
pub(crate) fn connector(settings: &Settings) -> Result<MakeRustlsConnect, StoreError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier: Arc<dyn ServerCertVerifier> = match &settings.tls {
        Tls::Unchecked => Arc::new(LenientVerifier { provider: Arc::clone(&provider), inner: None }),
        Tls::Authority(root) => {
            let inner = Some(authorities(Some(root), &provider).map_err(|text| refuse(settings, text))?);
            Arc::new(LenientVerifier { provider: Arc::clone(&provider), inner })
        }
        Tls::Full(root) => authorities(root.as_deref(), &provider).map_err(|text| refuse(settings, text))?,
    };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| refuse(settings, "TLS cannot be used".to_owned()).with_source(error))?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

/// Returns a verifier that trusts the authorities in a file, or else the authorities of this machine.
fn authorities(
    root: Option<&Path>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, String> {
    let Some(root) = root else {
        let verifier = Verifier::new(Arc::clone(provider));
        return Ok(Arc::new(verifier.map_err(|_| "this machine has no certificate authorities".to_owned())?));
    };
    let unusable = || "the file of `sslrootcert` has no certificates in PEM".to_owned();
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(root).map_err(|_| unusable())? {
        store.add(certificate.map_err(|_| unusable())?).map_err(|_| unusable())?;
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(store), Arc::clone(provider)).build();
    Ok(verifier.map_err(|_| unusable())?)
}

fn refuse(settings: &Settings, detail: String) -> StoreError {
    StoreError::new(StoreErrorKind::Configuration, "open storage", &settings.description).with_detail(detail)
}

/// Checks less than rustls does, for the weaker modes of libpq: with `inner` the authority but not the name,
/// without it only that the server has the key of its certificate.
#[derive(Debug)]
struct LenientVerifier {
    provider: Arc<CryptoProvider>,
    inner: Option<Arc<dyn ServerCertVerifier>>,
}

impl ServerCertVerifier for LenientVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(inner) = &self.inner else { return Ok(ServerCertVerified::assertion()) };
        match inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            checked => checked,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        tokio_rustls::rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        tokio_rustls::rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
