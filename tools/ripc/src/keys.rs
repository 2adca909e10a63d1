//! Keys, token secrets and tokens: their options, and the subcommands that make them.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use dgiwarp_ripc::{
    Config, KeyError, Permission, PrivateKey, PublicKey, Security, ServiceName, Token, TokenSecret,
};

use crate::{Failure, cli};

/// Options of a caller.
#[derive(Debug, Clone, Args)]
pub(crate) struct CallerKeys {
    /// Public key that the server has to have: 64 digits, or a file with them
    #[arg(long, value_name = "KEY", value_parser = public_key)]
    pub(crate) peer_key: Option<PublicKey>,
    /// File of this end's private key; without one, the key is new
    #[arg(long, value_name = "FILE", requires = "peer_key")]
    pub(crate) key: Option<PathBuf>,
    /// Encrypt and authenticate all messages; items have to fit one
    #[arg(long, requires = "peer_key")]
    pub(crate) seal: bool,
    /// File of a token for the service; may be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) token: Vec<PathBuf>,
}

impl CallerKeys {
    pub(crate) fn apply(&self, config: &mut Config) -> Result<(), Failure> {
        if let Some(peer) = self.peer_key {
            let security = match &self.key {
                Some(file) => Security::new(PrivateKey::read(file)?),
                None => Security::anonymous()?,
            };
            config.security = Some(sealed(security.with_peer(peer), self.seal));
        }
        for file in &self.token {
            config.tokens.push(Token::read(file)?);
        }
        Ok(())
    }
}

/// Options of a server.
#[derive(Debug, Args)]
pub(crate) struct ServerKeys {
    /// File of the server's private key: callers need its public key
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// File with the public keys of the clients that are taken; otherwise any
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) known_clients: Option<PathBuf>,
    /// Encrypt and authenticate all messages; items have to fit one
    #[arg(long, requires = "key")]
    pub(crate) seal: bool,
    /// File of a token secret: callers need a token of it
    #[arg(long, value_name = "FILE")]
    pub(crate) secret: Option<PathBuf>,
}

impl ServerKeys {
    pub(crate) fn apply(&self, config: &mut Config) -> Result<(), Failure> {
        if let Some(file) = &self.key {
            let mut security = Security::new(PrivateKey::read(file)?);
            if let Some(file) = &self.known_clients {
                security = security.with_known_clients(PublicKey::read_list(file)?);
            }
            config.security = Some(sealed(security, self.seal));
        }
        if let Some(file) = &self.secret {
            config.token_secret = Some(TokenSecret::read(file)?);
        }
        Ok(())
    }
}

fn sealed(security: Security, seal: bool) -> Security {
    if seal { security.sealed() } else { security }
}

/// New key or secret.
#[derive(Debug, Args)]
pub(crate) struct Keygen {
    /// File to be made
    file: PathBuf,
    /// Make a token secret
    #[arg(long)]
    secret: bool,
    /// Print the public key of a file that is there
    #[arg(long, conflicts_with = "secret")]
    show: bool,
}

pub(crate) fn keygen(task: &Keygen) -> Result<(), Failure> {
    if task.secret {
        return Ok(TokenSecret::generate()?.create(&task.file)?);
    }
    let key = if task.show {
        PrivateKey::read(&task.file)?
    } else {
        let key = PrivateKey::generate()?;
        key.create(&task.file)?;
        key
    };
    println!("{}", key.public());
    Ok(())
}

/// New token.
#[derive(Debug, Args)]
pub(crate) struct NewToken {
    /// File of the token secret
    #[arg(long, value_name = "FILE")]
    secret: PathBuf,
    /// Service that may be called
    service: String,
    /// Methods that may be called; otherwise all
    #[arg(value_name = "METHOD")]
    methods: Vec<String>,
    /// Seconds in which it may be used; otherwise without an end
    #[arg(long, value_name = "SECONDS", value_parser = cli::seconds)]
    valid: Option<Duration>,
    /// Public key of the one client that may use it: 64 digits, or a file with them
    #[arg(long, value_name = "KEY", value_parser = public_key)]
    client: Option<PublicKey>,
    /// File to be made; otherwise the token is printed
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(crate) fn token(task: &NewToken) -> Result<(), Failure> {
    let secret = TokenSecret::read(&task.secret)?;
    let service: ServiceName = task.service.parse()?;
    let mut permission = Permission::new(service.id);
    for method in &task.methods {
        permission = permission.and_method(cli::method(method));
    }
    permission.client = task.client;
    permission.end = task
        .valid
        .map(|valid| now().saturating_add(valid).as_secs());
    let token = secret.issue(&permission)?;
    match &task.out {
        Some(file) => token.create(file)?,
        None => println!("{}", token.to_text()),
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "a program reads the clock")]
fn now() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}

/// A public key: its digits, or the only one of a file.
fn public_key(text: &str) -> Result<PublicKey, String> {
    if let Ok(key) = text.parse() {
        return Ok(key);
    }
    match PublicKey::read_list(Path::new(text)) {
        Ok(keys) => match keys.as_slice() {
            [key] => Ok(*key),
            _ => Err(format!("{text} has {} keys", keys.len())),
        },
        Err(KeyError::Io { .. }) => Err("neither 64 hexadecimal digits nor a file".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
