//! The answer of `tokenweir check`: whether a file is a valid configuration, and what will be
//! missing where it is used.

use super::{Config, ConfigError, Overrides, Place, transport};
use serde_json::{Value, json};
use std::fmt;
use std::path::{Path, PathBuf};

/// What was found in a file.
#[derive(Debug)]
pub struct Check {
    file: PathBuf,
    found: Result<Found, ConfigError>,
}

#[derive(Debug)]
struct Found {
    backends: usize,
    /// What is no mistake, and may surprise.
    notes: Vec<String>,
}

/// Reads a file and judges it. Secrets are looked up with `env` as the environment; one that is
/// not there is noted, since the gateway may run elsewhere.
pub fn check(file: &Path, env: impl Fn(&str) -> Option<String>) -> Check {
    let found = Config::load(Some(file), Overrides::default());
    let found = found.and_then(|loaded| Found::of(&loaded.config, env));
    Check { file: file.to_owned(), found }
}

impl Check {
    /// Whether the file is a valid configuration.
    pub fn is_ok(&self) -> bool {
        self.found.is_ok()
    }

    /// For programs: `ok`, `file`, and then `backends` and `notes`, or `line`, `column`,
    /// `problem` and `help`.
    pub fn to_json(&self) -> Value {
        let file = self.file.display().to_string();
        match &self.found {
            Ok(Found { backends, notes }) => {
                json!({ "ok": true, "file": file, "backends": backends, "notes": notes })
            }
            Err(error) => {
                let position = match error.place() {
                    Some(Place::File(_, position)) => *position,
                    _ => None,
                };
                json!({
                    "ok": false,
                    "file": file,
                    "line": position.map(|at| at.line),
                    "column": position.map(|at| at.column),
                    "problem": error.problem(),
                    "help": error.help(),
                })
            }
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.found {
            Err(error) => write!(f, "{error}"),
            Ok(Found { backends, notes }) => {
                let plural = if *backends == 1 { "" } else { "s" };
                write!(f, "{}: ok, {backends} backend{plural}", self.file.display())?;
                notes.iter().try_for_each(|note| write!(f, "\nnote: {note}"))
            }
        }
    }
}

impl Found {
    fn of(config: &Config, env: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let mut notes = Vec::new();
        if config.backends.is_empty() && config.discovery.is_empty() {
            notes.push("no backend is listed; `serve` will need --backend".to_owned());
        }
        for backend in &config.backends {
            if let Some(Err(error)) = backend.api_key.as_ref().map(|key| key.resolve(&env)) {
                notes.push(format!("the api_key of {}: {error}", backend.id()));
            }
        }
        if let Some(Err(error)) = config.access.admin_token.as_ref().map(|key| key.resolve(&env)) {
            notes.push(format!("access.admin_token: {error}"));
        }
        if let Some(Err(error)) =
            config.access.cache_salt.secret.as_ref().map(|key| key.resolve(&env))
        {
            notes.push(format!("access.cache_salt.secret: {error}"));
        }
        match &config.access.keys_file {
            Some(file) if file.exists() => drop(super::load_keys(file, &config.tiers)?),
            Some(file) => notes.push(format!("access.keys_file: {} is not here", file.display())),
            None => {}
        }
        notes.extend(transport::notes(config));
        Ok(Self { backends: config.backends.len(), notes })
    }
}
