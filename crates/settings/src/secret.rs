//! References to secrets. The configuration contains the location of a secret, not its value, so that the
//! configuration can be shown, logged and committed.

use http::HeaderValue;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::{Deserialize, Deserializer, Error as DeError, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use tokenweir_net::file_watcher;
use tokenweir_protocol::named_enum;
use tokenweir_request::access::KeyDigest;

/// The location of a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(title = "secret")]
pub enum Secret {
    /// Environment variable that contains the secret.
    Env(#[schemars(regex(pattern = "^[A-Za-z_][A-Za-z0-9_]*$"))] String),
    /// File that contains the secret. Line breaks at the end of the file are ignored.
    File(#[schemars(length(min = 1))] PathBuf),
}

/// The value of a secret, as the value of an `Authorization` header: `Bearer TOKEN`. Its `Debug`
/// output is `[redacted]`.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(HeaderValue);

/// Why a secret cannot be read. The error never contains any part of the secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The variable is not set.
    #[error("the environment variable {0} is not set")]
    Unset(String),
    /// The file cannot be read.
    #[error("the file {path} cannot be read: {cause}{folder}", path = .0.display(), cause = .1, folder = working_folder(.0))]
    File(PathBuf, io::Error),
    /// The variable or the file is empty.
    #[error("{0} is empty")]
    Empty(Secret),
    /// The value is not valid in a header.
    #[error("{0} contains characters that are invalid in a token, such as a space or a line break")]
    InvalidCharacters(Secret),
}

/// The error for a secret that the gateway needs and cannot read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {purpose}")]
pub struct UnreadableSecret {
    /// The purpose of the secret, such as `the admin token (access.admin_token)`.
    purpose: String,
    source: SecretError,
}

/// A secret of the configuration with its purpose.
pub struct ConfiguredSecret<'a> {
    /// The purpose of the secret, such as `the admin token (access.admin_token)`.
    purpose: String,
    secret: &'a Secret,
}

named_enum! {
    /// A mistake in the location of a secret. The text at the position of the mistake may itself be a secret.
    pub enum SecretMistake {
        /// The configuration contains the secret itself instead of its location.
        Literal = "do not write the secret here; write `{ env: NAME }` or `{ file: PATH }` as its location",
        /// The configuration contains two locations.
        Ambiguous = "a secret has one location; write either `{ env: NAME }` or `{ file: PATH }`",
        /// The variable has no valid name.
        VariableName = "this is not the name of an environment variable; a name has letters, digits and `_`",
        /// The path is empty.
        MissingPath = "the path of the file is missing",
    }
}

impl SecretMistake {
    /// The mistake with this error text. An error of `serde` contains only a text, from which the parser finds
    /// the kind of mistake.
    pub fn from_text(text: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|mistake| mistake.as_str() == text)
    }
}

impl<'a> ConfiguredSecret<'a> {
    /// Combines a secret with its purpose. `None`: the secret is not configured.
    pub fn new(purpose: impl Into<String>, secret: Option<&'a Secret>) -> Option<Self> {
        Some(Self {
            purpose: purpose.into(),
            secret: secret?,
        })
    }

    /// The file or the environment variable that contains the secret.
    pub fn location(&self) -> &'a Secret {
        self.secret
    }

    /// Reads the secret. `env` returns the value of an environment variable.
    pub fn resolve(&self, env: impl Environment) -> Result<SecretValue, UnreadableSecret> {
        let purpose = self.purpose.clone();
        self.secret
            .resolve(env)
            .map_err(|source| UnreadableSecret { purpose, source })
    }

    /// Reads a secret if it is configured.
    pub fn resolve_any(
        secret: Option<Self>,
        env: impl Environment,
    ) -> Result<Option<SecretValue>, UnreadableSecret> {
        secret.map(|secret| secret.resolve(env)).transpose()
    }
}

/// The environment of the process: a function that returns the value of a variable. `None`: the variable is not
/// set.
pub trait Environment: Fn(&str) -> Option<String> {}

impl<F: Fn(&str) -> Option<String>> Environment for F {}

/// The end of an error text about a file: the folder to which the path is relative. Empty: the path is
/// absolute.
pub fn working_folder(path: &Path) -> String {
    match std::env::current_dir() {
        Ok(folder) if path.is_relative() => format!(" in the working folder {}", folder.display()),
        _ => String::new(),
    }
}

impl Secret {
    /// Reads the secret. `env` returns the value of an environment variable.
    pub fn resolve(&self, env: impl Environment) -> Result<SecretValue, SecretError> {
        let text = match self {
            Self::Env(name) => env(name).ok_or_else(|| SecretError::Unset(name.clone()))?,
            Self::File(path) => {
                read_limited(path).map_err(|error| SecretError::File(path.clone(), error))?
            }
        };
        let token = text.trim_end_matches(['\r', '\n']);
        if token.is_empty() {
            return Err(SecretError::Empty(self.clone()));
        }
        let invalid = || SecretError::InvalidCharacters(self.clone());
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(invalid());
        }
        let bearer = HeaderValue::try_from(format!("Bearer {token}"));
        let mut bearer = bearer.map_err(|_| invalid())?;
        bearer.set_sensitive(true);
        Ok(SecretValue(bearer))
    }
}

/// Maximum size of a file of a secret, in bytes.
const MAX_FILE_BYTES: u64 = 64 << 10;

/// Reads a regular file. Fails if it is larger than [`MAX_FILE_BYTES`].
fn read_limited(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    file_watcher::open_regular(path)?
        .take(MAX_FILE_BYTES + 1)
        .read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "it has more than 64 KiB",
        ));
    }
    Ok(text)
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => write!(f, "the environment variable {name}"),
            Self::File(path) => write!(f, "the file {}", path.display()),
        }
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(SecretVisitor)
    }
}

/// The errors of derived visitors quote the invalid value, which may be a secret, so this visitor is written by
/// hand.
struct SecretVisitor;

impl<'de> Visitor<'de> for SecretVisitor {
    type Value = Secret;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`{ env: NAME }` or `{ file: PATH }`")
    }

    visit_scalars!(Err(E::custom(SecretMistake::Literal.as_str())));

    fn visit_bytes<E: DeError>(self, _: &[u8]) -> Result<Secret, E> {
        Err(E::custom(SecretMistake::Literal.as_str()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<Secret, A::Error> {
        Err(A::Error::custom(SecretMistake::Literal.as_str()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut reference: A) -> Result<Secret, A::Error> {
        let secret = match reference.next_key::<String>()?.as_deref() {
            Some("env") => Secret::Env(reference.next_value::<VariableName>()?.0),
            Some("file") => Secret::File(reference.next_value::<FilePath>()?.0),
            _ => return Err(A::Error::custom(SecretMistake::Literal.as_str())),
        };
        match reference.next_key::<String>()? {
            None => Ok(secret),
            Some(_) => Err(A::Error::custom(SecretMistake::Ambiguous.as_str())),
        }
    }
}

/// The name of an environment variable. It is checked during deserialization, so that an error contains its
/// position.
#[derive(serde::Deserialize)]
#[serde(try_from = "String")]
struct VariableName(String);

impl TryFrom<String> for VariableName {
    type Error = &'static str;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let has_valid_start = name.starts_with(|first: char| !first.is_ascii_digit());
        let is_valid = has_valid_start && name.chars().all(is_name);
        if is_valid {
            Ok(Self(name))
        } else {
            Err(SecretMistake::VariableName.as_str())
        }
    }
}

/// The path of a file, which is not empty.
#[derive(serde::Deserialize)]
#[serde(try_from = "String")]
struct FilePath(PathBuf);

impl TryFrom<String> for FilePath {
    type Error = &'static str;

    fn try_from(path: String) -> Result<Self, Self::Error> {
        if path.is_empty() {
            Err(SecretMistake::MissingPath.as_str())
        } else {
            Ok(Self(path.into()))
        }
    }
}

impl SecretValue {
    /// The value of an `Authorization` header, marked as sensitive.
    pub fn bearer(&self) -> &HeaderValue {
        &self.0
    }

    /// Converts the secret into the header value that [`SecretValue::bearer`] returns.
    pub fn into_bearer(self) -> HeaderValue {
        self.0
    }

    /// The secret itself, without `Bearer`.
    pub fn as_bytes(&self) -> &[u8] {
        let bearer = self.0.as_bytes();
        bearer.strip_prefix(b"Bearer ").unwrap_or(bearer)
    }

    /// The digest of the token, for the comparison with tokens in requests.
    pub fn digest(&self) -> KeyDigest {
        KeyDigest::from_key(self.as_bytes())
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str) -> Option<String> {
        match name {
            "KEY" => Some("sk-123".to_owned()),
            "EMPTY" => Some("\n".to_owned()),
            "TWO_LINES" => Some("sk-123\nx: y".to_owned()),
            _ => None,
        }
    }

    #[test]
    fn the_debug_output_of_a_value_is_redacted() {
        let value = Secret::Env("KEY".to_owned()).resolve(env).unwrap();
        assert_eq!(value.bearer(), "Bearer sk-123");
        assert_eq!(
            format!("{value:?} {:?}", value.bearer()),
            "[redacted] Sensitive"
        );
    }

    #[test]
    fn the_error_does_not_show_the_secret() {
        for (name, problem) in [
            ("NONE", "the environment variable NONE is not set"),
            ("EMPTY", "the environment variable EMPTY is empty"),
            (
                "TWO_LINES",
                "the environment variable TWO_LINES contains characters that are invalid in a \
                 token, such as a space or a line break",
            ),
        ] {
            let error = Secret::Env(name.to_owned()).resolve(env).unwrap_err();
            assert_eq!(error.to_string(), problem);
        }
        let absent = Secret::File("no/such/file".into())
            .resolve(env)
            .unwrap_err();
        assert!(
            absent
                .to_string()
                .starts_with("the file no/such/file cannot be read: ")
        );
    }
}
