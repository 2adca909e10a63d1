//! Resolvers: addresses of the endpoints that serve a service (`rfc-notes/ripc.md`, "Resolver").

pub(crate) mod group;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use crate::endpoint::Endpoint;
use crate::endpoint::client::Client;
use crate::error::Error;
use crate::names::{ServiceId, ServiceName};

use group::Found;

/// Services and addresses of a static file: a service a line, its name or number and then its addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StaticFile {
    services: Vec<(ServiceName, Vec<SocketAddr>)>,
}

impl StaticFile {
    /// Reads a file.
    ///
    /// # Errors
    /// [`Error::System`] where it cannot be read, [`Error::File`] for a line that is not of the format.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = fs::read_to_string(path).map_err(Error::system("a file of services"))?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Parses the text of a file; `name` is for errors.
    ///
    /// # Errors
    /// [`Error::File`] for a line that is not of the format.
    pub fn parse(text: &str, name: &str) -> Result<Self, Error> {
        let mut services = Vec::new();
        for (line, text) in (1..).zip(text.lines()) {
            let error = |problem: String| Error::File {
                file: name.to_owned(),
                line,
                problem,
            };
            let text = text.split('#').next().unwrap_or_default();
            let mut words = text.split_whitespace();
            let Some(service) = words.next() else {
                continue;
            };
            let service: ServiceName = service
                .parse()
                .map_err(|wrong: crate::NameError| error(wrong.to_string()))?;
            let address = |word: &str| {
                let parsed = word.parse::<SocketAddr>();
                parsed.map_err(|_| error(format!("{word:?} is no address and port")))
            };
            let addresses = words.map(address).collect::<Result<Vec<_>, _>>()?;
            if addresses.is_empty() {
                return Err(error(format!("service {service} has no address")));
            }
            services.push((service, addresses));
        }
        Ok(Self { services })
    }

    /// Addresses of a service; none where the file does not have it.
    #[must_use]
    pub fn addresses(&self, service: ServiceId) -> Vec<SocketAddr> {
        let of = self.services.iter().filter(|(name, _)| name.id == service);
        of.flat_map(|(_, addresses)| addresses.iter().copied())
            .collect()
    }

    /// All services with their addresses.
    #[must_use]
    pub fn services(&self) -> &[(ServiceName, Vec<SocketAddr>)] {
        &self.services
    }
}

impl Endpoint {
    /// A client of a service that is found in the group within `timeout`; `None` where no endpoint answers.
    ///
    /// # Errors
    /// [`Error::Name`] for a text that names no service, [`Error::System`] without a socket.
    pub fn resolve(&self, name: &str, timeout: Duration) -> Result<Option<Client>, Error> {
        let name: ServiceName = name.parse()?;
        let Some(group) = self.group() else {
            return Ok(None);
        };
        let found = group.query(name.id.number(), timeout, true)?;
        let addresses: Vec<_> = found.into_iter().map(|it| it.address).collect();
        Ok((!addresses.is_empty()).then(|| self.client(name, addresses)))
    }

    /// All endpoints of the group that answer within `timeout`, with their services.
    ///
    /// # Errors
    /// [`Error::System`] without a socket.
    pub fn list(&self, timeout: Duration) -> Result<Vec<Found>, Error> {
        let Some(group) = self.group() else {
            return Ok(Vec::new());
        };
        group.query(0, timeout, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_static_file_is_parsed() {
        let text = "# all of them\nkv 10.0.0.1:7000 [fd00::1]:7000 # two\n\n17 127.0.0.1:1\nkv 10.0.0.2:7000\n";
        let file = StaticFile::parse(text, "f").unwrap();
        let addresses = file.addresses(ServiceId::named("kv"));
        let expected = ["10.0.0.1:7000", "[fd00::1]:7000", "10.0.0.2:7000"];
        assert_eq!(addresses, expected.map(|it| it.parse().unwrap()));
        assert_eq!(file.services().len(), 3);
        assert!(file.addresses(ServiceId::named("x")).is_empty());
        for (wrong, message) in [
            ("kv\n", "f, line 1: service kv has no address"),
            (
                "\n0 1.1.1.1:1",
                "f, line 2: \"0\" names no service: a number from 1 to 65535, or a name of 1 to 64 bytes",
            ),
            ("kv host:1", "f, line 1: \"host:1\" is no address and port"),
        ] {
            assert_eq!(
                StaticFile::parse(wrong, "f").unwrap_err().to_string(),
                message
            );
        }
    }
}
