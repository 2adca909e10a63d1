//! The code of a transfer: two words that a person reads to another, and the token that both programs derive from them.

use std::fmt;

use dgiwarp_transfer::Secret;

/// Consonants and vowels of the words; none of them is taken for another one.
const CONSONANTS: &[u8; 16] = b"bdfghjklmnprstvz";
const VOWELS: &[u8; 4] = b"aiou";
/// Syllables of a code, of six bits each.
const SYLLABLES: usize = 7;

/// The secret that admits a peer.
#[derive(Clone, PartialEq, Eq)]
pub struct Code(String);

impl Code {
    /// A code of 42 random bits.
    ///
    /// # Errors
    /// The system's reason for not giving random octets.
    pub fn random() -> Result<Self, String> {
        let mut octets = [0; SYLLABLES];
        getrandom::fill(&mut octets).map_err(|error| error.to_string())?;
        let mut text = String::new();
        for (index, octet) in octets.iter().enumerate() {
            if index == 4 {
                text.push('-');
            }
            text.push(char::from(CONSONANTS[usize::from(octet >> 4)]));
            text.push(char::from(VOWELS[usize::from(octet >> 2 & 3)]));
        }
        Ok(Self(text))
    }

    /// A code that a user gives. Case and blanks around it do not matter.
    ///
    /// # Errors
    /// The reason, for one without letters.
    pub fn given(text: &str) -> Result<Self, String> {
        let text = text.trim().to_lowercase();
        if text.is_empty() {
            return Err("the code is empty".into());
        }
        Ok(Self(text))
    }

    /// The secret by which both ends agree on keys.
    #[must_use]
    pub fn secret(&self) -> Secret {
        Secret::Password(self.0.clone())
    }

    /// The token of a session that moves files.
    #[must_use]
    pub fn files(&self) -> [u8; 16] {
        self.token("dgiwarp mz 1 files")
    }

    /// The token of a session that moves a stream.
    #[must_use]
    pub fn stream(&self) -> [u8; 16] {
        self.token("dgiwarp mz 1 stream")
    }

    /// The token of a session that begins with an order of the end that dials.
    #[must_use]
    pub fn orders(&self) -> [u8; 16] {
        self.token("dgiwarp mz 1 orders")
    }

    fn token(&self, context: &str) -> [u8; 16] {
        let key = blake3::derive_key(context, self.0.as_bytes());
        std::array::from_fn(|index| key[index])
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Without the code: it is a secret.
impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Code")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_a_word_to_read_aloud_and_a_token_for_each_use() {
        let code = Code::random().unwrap();
        let text = code.to_string();
        assert_eq!((text.len(), text.find('-')), (15, Some(8)), "{text}");
        let again = Code::given(&format!(" {} ", text.to_uppercase())).unwrap();
        assert_eq!(again, code);
        assert_eq!(again.files(), code.files());
        assert_ne!(code.files(), code.stream());
        assert_ne!(code.files(), code.orders());
        assert_ne!(Code::random().unwrap(), code);
        assert!(Code::given("  ").is_err());
    }
}
