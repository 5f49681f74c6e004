//! `tokenweir check`: validates a configuration file, and notes problems of the environment, such
//! as missing secrets and files.

use super::files;
use super::overrides::Overrides;
use super::root::Config;
use super::rules::tls;
use super::sections::secret::Secret;
use super::text::error::{ConfigError, ConfigLocation};
use serde_json::{Value, json};
use std::fmt;
use std::path::{Path, PathBuf};

/// The result of the validation of a configuration file.
#[derive(Debug)]
pub struct ConfigCheck {
    file: PathBuf,
    result: Result<CheckSummary, ConfigError>,
}

/// The result for a valid configuration.
#[derive(Debug)]
struct CheckSummary {
    /// Number of entries in `backends`.
    backends: usize,
    /// Problems that are not errors, as texts for operators.
    notes: Vec<String>,
}

/// Validates a configuration file. `env` returns the value of an environment variable. A missing
/// secret is a note and not an error, because the gateway may run on another machine.
pub fn check(file: &Path, env: impl Fn(&str) -> Option<String>) -> ConfigCheck {
    let result = Config::load(Some(file), Overrides::default())
        .and_then(|loaded| CheckSummary::from_config(&loaded.config, env));
    ConfigCheck { file: file.to_owned(), result }
}

impl ConfigCheck {
    /// Whether the file is a valid configuration.
    pub fn is_ok(&self) -> bool {
        self.result.is_ok()
    }

    /// The result as a JSON object. Its keys are `ok`, `file`, and then `backends` and `notes`, or
    /// for an error `line`, `column`, `problem` and `help`.
    pub fn to_json(&self) -> Value {
        let file = self.file.display().to_string();
        match &self.result {
            Ok(CheckSummary { backends, notes }) => {
                json!({ "ok": true, "file": file, "backends": backends, "notes": notes })
            }
            Err(error) => {
                let position = match error.location() {
                    Some(ConfigLocation::File(_, position)) => *position,
                    _ => None,
                };
                json!({
                    "ok": false,
                    "file": file,
                    "line": position.map(|position| position.line),
                    "column": position.map(|position| position.column),
                    "problem": error.problem(),
                    "help": error.help(),
                })
            }
        }
    }
}

impl fmt::Display for ConfigCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.result {
            Err(error) => write!(f, "{error}"),
            Ok(CheckSummary { backends, notes }) => {
                let plural = if *backends == 1 { "" } else { "s" };
                write!(f, "{}: ok, {backends} backend{plural}", self.file.display())?;
                notes.iter().try_for_each(|note| write!(f, "\nnote: {note}"))
            }
        }
    }
}

impl CheckSummary {
    fn from_config(
        config: &Config,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let mut notes = Vec::new();
        if config.backends.is_empty() && config.discovery.is_empty() {
            notes.push("no backend is configured: `serve` needs --backend".to_owned());
        }
        for (purpose, secret) in secrets(config) {
            if let Err(error) = secret.resolve(&env) {
                notes.push(format!("{purpose}: {error}"));
            }
        }
        match &config.access.keys_file {
            Some(file) if file.exists() => drop(files::load_keys(file, &config.tiers)?),
            Some(file) => notes.push(format!("access.keys_file: {}: no such file", file.display())),
            None => {}
        }
        notes.extend(tls::notes(config));
        Ok(Self { backends: config.backends.len(), notes })
    }
}
/// The secrets of a configuration, each with its purpose in words.
fn secrets(config: &Config) -> impl Iterator<Item = (String, &Secret)> {
    let backends = config.backends.iter().filter_map(|backend| {
        Some((format!("the api_key of {}", backend.id()), backend.api_key.as_ref()?))
    });
    let discovery = config.discovery.iter().enumerate().filter_map(|(index, source)| {
        Some((format!("discovery[{index}].api_key"), source.api_key.as_ref()?))
    });
    let tiers = config.tiers.keys.iter().enumerate();
    let admin_token = config.access.admin_token.as_ref();
    let salt = config.access.cache_salt.secret.as_ref();
    backends
        .chain(discovery)
        .chain(admin_token.map(|secret| ("access.admin_token".to_owned(), secret)))
        .chain(salt.map(|secret| ("access.cache_salt.secret".to_owned(), secret)))
        .chain(tiers.map(|(index, entry)| (format!("tiers.keys[{index}].key"), &entry.key)))
}
