//! Token secrets and tokens.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use blake3::Hash;

use super::keys::{self, KEY, KeyError, PublicKey, hex, unhex};
use crate::engine::admission::Denial;
use crate::error::Error;
use crate::names::{MethodId, ServiceId};
use crate::system::fill_random;
use crate::wire::token::{Claims, MAX_METHODS};

/// Context in which the key of a service is derived.
const CONTEXT: &str = "dgiwarp ripc 2026 token of a service";

/// Right to call a service, as a token gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Permission {
    /// The service.
    pub service: ServiceId,
    /// Methods, at most 64. Empty, the default: all methods, and messages.
    pub methods: Vec<MethodId>,
    /// End, in seconds since 1970-01-01 UTC. `None`, the default: without an end.
    pub end: Option<u64>,
    /// The one client that it is for. `None`, the default: whoever has the token.
    pub client: Option<PublicKey>,
}

impl Permission {
    /// For all methods of a service, without an end, for whoever has the token.
    #[must_use]
    pub const fn new(service: ServiceId) -> Self {
        Self {
            service,
            methods: Vec::new(),
            end: None,
            client: None,
        }
    }

    /// For this method, and others that were named.
    #[must_use]
    pub fn and_method(mut self, method: MethodId) -> Self {
        self.methods.push(method);
        self
    }

    /// Until this second since 1970-01-01 UTC.
    #[must_use]
    pub const fn until(mut self, end: u64) -> Self {
        self.end = Some(end);
        self
    }

    /// For the client with this key alone.
    #[must_use]
    pub const fn only_for(mut self, client: PublicKey) -> Self {
        self.client = Some(client);
        self
    }
}

/// Secret of the issuer of tokens, and of the servers that check them. A key for each service is derived from it.
#[derive(Clone)]
pub struct TokenSecret([u8; KEY]);

impl TokenSecret {
    const WANTED: &'static str = "a file of a token secret, as `ripc keygen --secret` makes it";
    const MARK: &'static str = "ripc-token-secret ";

    /// A new secret.
    ///
    /// # Errors
    /// [`Error::System`] without randomness.
    pub fn generate() -> Result<Self, Error> {
        let mut octets = [0; KEY];
        fill_random(&mut octets)?;
        Ok(Self(octets))
    }

    /// The secret of these octets, which nobody can guess.
    #[must_use]
    pub const fn new(octets: [u8; KEY]) -> Self {
        Self(octets)
    }

    /// Reads the file of a secret, as [`create`](Self::create) makes it.
    ///
    /// # Errors
    /// [`KeyError::Io`], [`KeyError::Open`] where others than the owner have rights to it, [`KeyError::Format`].
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        keys::read_marked(path, Self::MARK, Self::WANTED).map(Self)
    }

    /// Makes the file of the secret, which is new, and closed to others than the owner.
    ///
    /// # Errors
    /// [`KeyError::Io`], also where there is a file of this name.
    pub fn create(&self, path: &Path) -> Result<(), KeyError> {
        keys::create(path, &format!("{}{}\n", Self::MARK, hex(&self.0)))
    }

    /// Makes a token.
    ///
    /// # Errors
    /// [`KeyError::Text`] for more than 64 methods.
    pub fn issue(&self, permission: &Permission) -> Result<Token, KeyError> {
        if permission.methods.len() > MAX_METHODS {
            return Err(KeyError::Text("a permission: at most 64 methods"));
        }
        let methods = permission.methods.iter();
        let claims = Claims {
            service: permission.service.number(),
            // An end of 0 would be none.
            end: permission.end.map_or(0, |end| end.max(1)),
            client: permission.client.map(|key| *key.octets()),
            methods: methods.map(|method| method.number()).collect(),
        };
        let mut octets = claims.emit();
        let hash = blake3::keyed_hash(&self.key_of(claims.service), &octets);
        octets.extend(hash.as_bytes());
        Ok(Token {
            octets,
            service: permission.service,
        })
    }

    fn key_of(&self, service: u64) -> [u8; KEY] {
        let mut material = self.0.to_vec();
        material.extend(service.to_be_bytes());
        blake3::derive_key(CONTEXT, &material)
    }

    /// Checks the hash of a token against the key of the service that it names, and the client. Time and method are those of each call.
    pub(crate) fn check(
        &self,
        octets: &[u8],
        client: Option<&PublicKey>,
    ) -> Result<Claims, Denial> {
        let parsed = Claims::parse(octets).map_err(|_| Denial::Malformed);
        let (claims, covered, hash) = parsed?;
        let wanted = blake3::keyed_hash(&self.key_of(claims.service), covered);
        // Hashes are compared in constant time.
        if wanted != Hash::from_bytes(hash) {
            return Err(Denial::Forged);
        }
        match &claims.client {
            Some(key) if client.map(PublicKey::octets) != Some(key) => Err(Denial::OtherClient),
            Some(_) | None => Ok(claims),
        }
    }
}

impl fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenSecret(..)")
    }
}

/// Token of a bearer: its endpoint presents it to servers of its service. As a text it has hexadecimal digits; whoever reads them can use it, unless it is for one client.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    octets: Vec<u8>,
    service: ServiceId,
}

impl Token {
    /// Service that it is for.
    #[must_use]
    pub const fn service(&self) -> ServiceId {
        self.service
    }

    /// Its text.
    #[must_use]
    pub fn to_text(&self) -> String {
        hex(&self.octets)
    }

    /// Reads a file with the text of a token.
    ///
    /// # Errors
    /// [`KeyError::Io`], [`KeyError::Open`] where others than the owner have rights to it, [`KeyError::Text`].
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        keys::read(path, true)?.trim_end().parse()
    }

    /// Makes a file of the text, which is new, and closed to others than the owner.
    ///
    /// # Errors
    /// [`KeyError::Io`], also where there is a file of this name.
    pub fn create(&self, path: &Path) -> Result<(), KeyError> {
        keys::create(path, &format!("{}\n", self.to_text()))
    }

    pub(crate) fn octets(&self) -> &[u8] {
        &self.octets
    }
}

impl FromStr for Token {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let error = || KeyError::Text("a token: hexadecimal digits, as `ripc token` prints them");
        let octets = unhex(text).ok_or_else(error)?;
        let (claims, _, _) = Claims::parse(&octets).map_err(|_| error())?;
        let service = ServiceId::of_wire(claims.service);
        Ok(Self { octets, service })
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token(of {})", self.service)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::keys::PrivateKey;
    use crate::wire::examples::example;
    use proptest::prelude::*;

    const KV: ServiceId = ServiceId::named("kv");

    fn secret() -> TokenSecret {
        TokenSecret::new([7; KEY])
    }

    #[test]
    fn a_token_gives_what_its_permission_has() {
        let client = PrivateKey::new([1; KEY]).public();
        let permission = Permission::new(KV)
            .and_method(MethodId::named("get"))
            .until(1000)
            .only_for(client);
        let token = secret().issue(&permission).unwrap();
        let text = token.to_text();
        assert_eq!(text.parse::<Token>().unwrap(), token);
        assert_eq!(token.service(), KV);
        let claims = secret().check(token.octets(), Some(&client)).unwrap();
        assert_eq!(claims.service, KV.number());
        assert_eq!(claims.end, 1000);
        assert_eq!(claims.methods, [MethodId::named("get").number()]);
        let other = PrivateKey::new([2; KEY]).public();
        for stranger in [None, Some(&other)] {
            let denied = secret().check(token.octets(), stranger);
            assert_eq!(denied, Err(Denial::OtherClient));
        }
        let other = TokenSecret::new([8; KEY]).check(token.octets(), Some(&client));
        assert_eq!(other, Err(Denial::Forged));
        assert!(!format!("{token:?} {:?}", secret()).contains(&text[..8]));
        let many = Permission {
            methods: vec![MethodId::new(1); 65],
            ..Permission::new(KV)
        };
        assert!(secret().issue(&many).is_err());
    }

    #[test]
    fn the_example_is_of_its_secret() {
        let key = "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a";
        let key = PrivateKey::new(unhex(key).unwrap().try_into().unwrap());
        let permission = Permission::new(KV)
            .and_method(MethodId::named("get"))
            .until(2_000_000_000)
            .only_for(key.public());
        let token = secret().issue(&permission).unwrap();
        assert_eq!(hex(token.octets()), hex(&example("token")));
    }

    #[test]
    fn services_have_keys_of_their_own() {
        let token = secret().issue(&Permission::new(KV)).unwrap();
        // The hash of one service with the number of another.
        let mut octets = token.octets().to_vec();
        octets[4..12].copy_from_slice(&ServiceId::named("other").number().to_be_bytes());
        assert_eq!(secret().check(&octets, None), Err(Denial::Forged));
        assert_ne!(secret().key_of(1), secret().key_of(2));
    }

    proptest! {
        #[test]
        fn changed_and_cut_tokens_are_denied(
            at in 0..84_usize,
            bit in 0..8_u32,
            end in 0..84_usize,
        ) {
            let permission = Permission::new(KV).only_for(PublicKey::new([9; KEY]));
            let token = secret().issue(&permission).unwrap();
            prop_assert_eq!(token.octets().len(), 84);
            let client = Some(PublicKey::new([9; KEY]));
            prop_assert!(secret().check(token.octets(), client.as_ref()).is_ok());
            let mut octets = token.octets().to_vec();
            octets[at] ^= 1 << bit;
            prop_assert!(secret().check(&octets, client.as_ref()).is_err());
            let cut = secret().check(&token.octets()[..end], client.as_ref());
            prop_assert_eq!(cut, Err(Denial::Malformed));
        }
    }
}
