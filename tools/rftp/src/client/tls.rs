//! TLS of the client's end: certificates that are trusted, and the server's name.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::{TLS12, TLS13};
use rustls::{
    AlertDescription, ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme, SupportedProtocolVersion,
};

/// Configuration of TLS. Connections with one configuration to one server resume the first one's session.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
    /// TLS 1.2 alone.
    repeatable: Arc<ClientConfig>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl Tls {
    /// Trusts the certificates of a PEM file, and what they signed; without a file those of this host's authorities.
    ///
    /// # Errors
    /// The reason, where there are none.
    pub fn new(authorities: Option<&Path>) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        let mut own = Vec::new();
        if let Some(path) = authorities {
            let wrong = |error: &dyn fmt::Display| format!("{}: {error}", path.display());
            let certificates = CertificateDer::pem_file_iter(path).map_err(|it| wrong(&it))?;
            for certificate in certificates {
                own.push(certificate.map_err(|it| wrong(&it))?);
            }
            if own.is_empty() {
                return Err(wrong(&"no certificate in it"));
            }
            roots.add_parsable_certificates(own.iter().cloned());
        } else {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        if roots.is_empty() && own.is_empty() {
            return Err("this host has no certificates of authorities: name some with --ca".into());
        }
        let provider = Arc::new(ring::default_provider());
        let verifier = if roots.is_empty() {
            None
        } else {
            let roots = Arc::new(roots);
            let built =
                WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider)).build();
            Some(built.map_err(|error| error.to_string())?)
        };
        let verifier = Arc::new(Verifier {
            verifier,
            own,
            provider: Arc::clone(&provider),
        });
        let config = |versions: &[&'static SupportedProtocolVersion]| {
            let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
                .with_protocol_versions(versions)
                .map_err(|error| error.to_string())?
                .dangerous()
                .with_custom_certificate_verifier(Arc::<Verifier>::clone(&verifier))
                .with_no_client_auth();
            Ok::<_, String>(Arc::new(config))
        };
        Ok(Self {
            config: config(&[&TLS13, &TLS12])?,
            repeatable: config(&[&TLS12])?,
        })
    }

    /// TLS whose session any number of data connections resume. Many FTP servers want it, and give too few tickets of TLS 1.3, each of which resumes one.
    pub(super) fn repeatable(&self) -> Self {
        Self {
            config: Arc::clone(&self.repeatable),
            repeatable: Arc::clone(&self.repeatable),
        }
    }

    /// A connection to a host of this name or address.
    pub(super) fn connection(&self, host: &str) -> Result<ClientConnection, String> {
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|_| format!("TLS: {host} is no name of a host"))?;
        let connection = ClientConnection::new(Arc::clone(&self.config), name);
        connection.map_err(|error| format!("TLS: {error}"))
    }
}

/// The usual checks of a certificate, its chain, dates and name; one that is itself in the user's file needs none of them.
#[derive(Debug)]
struct Verifier {
    /// None without a certificate that can be an authority's.
    verifier: Option<Arc<WebPkiServerVerifier>>,
    own: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        server: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.own.iter().any(|it| it == server) {
            return Ok(ServerCertVerified::assertion());
        }
        let Some(verifier) = &self.verifier else {
            return Err(rustls::CertificateError::UnknownIssuer.into());
        };
        verifier.verify_server_cert(server, others, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

/// Whether a handshake failed because the server has none of the offered versions, or no ciphers for them.
pub(super) fn is_version(error: &std::io::Error) -> bool {
    let inner = error.get_ref().and_then(|it| it.downcast_ref::<Error>());
    matches!(
        inner,
        Some(Error::AlertReceived(
            AlertDescription::ProtocolVersion | AlertDescription::HandshakeFailure
        ))
    )
}

/// A failed handshake, with a hint where a certificate is not trusted.
pub(super) fn failed(error: &std::io::Error) -> String {
    let text = error.to_string();
    let hint = if text.contains("UnknownIssuer") || text.contains("CaUsedAsEndEntity") {
        "; --ca FILE names certificates that are trusted"
    } else {
        ""
    };
    match error.kind() {
        std::io::ErrorKind::WouldBlock => "TLS: the server does not reply".into(),
        _ => format!("TLS: {text}{hint}"),
    }
}
