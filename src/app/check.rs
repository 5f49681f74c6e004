//! `tokenweir check`: finds the mistakes of a configuration file, and the reasons why the gateway would not
//! start with it on this machine.

use super::options::{AttachedOptions, start_context};
use super::process::environment::ErrorChain;
use crate::config::{
    self, CheckedFile, Config, ConfigError, ConfigLocation, ListedSecret, LoadedConfig, Mistakes,
    OutputFile, backends_in, check_appendable,
};
use serde_json::{Value, json};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use tokenweir_gateway::server::bind_socket;
use tokenweir_net::tls::TlsError;
use tokenweir_settings::Environment;

/// The result of `tokenweir check` for one file.
#[derive(Debug, Default)]
pub struct ConfigCheck {
    file: PathBuf,
    /// A summary of the content of a valid file, such as `2 backends`.
    content: String,
    /// Mistakes in the file. A file with a mistake is invalid on every machine.
    mistakes: Vec<ConfigError>,
    /// The reasons why the gateway does not start on this machine.
    obstacles: Vec<ConfigError>,
    /// Texts for operators about problems that are no errors.
    notes: Vec<String>,
    /// The configuration. `None`: the file has mistakes, or contains no configuration.
    loaded: Option<LoadedConfig>,
}

/// Checks a file of the kind `checked`: a configuration, a keys file or a list of backends. `env`
/// returns the value of an environment variable.
pub fn check(file: &Path, checked: CheckedFile, env: impl Environment) -> ConfigCheck {
    let mut check = ConfigCheck {
        file: file.to_owned(),
        ..ConfigCheck::default()
    };
    match checked {
        CheckedFile::Keys => {
            check.set(config::load_all_keys(file), |keys| {
                plural(keys.tenants.len(), "tenant")
            });
        }
        CheckedFile::Backends => {
            check.set(config::all_backends_in(file), |backends| {
                plural(backends.len(), "backend")
            });
        }
        CheckedFile::Config | CheckedFile::ConfigSyntax => {
            let loaded = check.set(Config::load_all(file), |loaded| {
                plural(loaded.config.backends.len(), "backend")
            });
            check.add_findings(loaded, checked == CheckedFile::Config, env);
        }
    }
    check
}

/// Finds the reasons why the gateway does not start with a valid configuration on this machine.
fn obstacles(loaded: &LoadedConfig, env: impl Environment) -> Vec<ConfigError> {
    let mut found = Vec::new();
    for ListedSecret { path, secret, .. } in loaded.config.secrets() {
        if let Err(error) = secret.resolve(&env) {
            found.push(loaded.error_at(&path, &ErrorChain(&error).to_string()));
        }
    }
    found.extend(file_obstacles(loaded, env));
    found
}

/// Like `obstacles`, without secrets that cannot be read.
pub(crate) fn file_obstacles(loaded: &LoadedConfig, env: impl Environment) -> Vec<ConfigError> {
    let config = &loaded.config;
    let at = |path: &str, error: &dyn std::error::Error| {
        loaded.error_at(path, &ErrorChain(error).to_string())
    };
    let mut found: Vec<ConfigError> = loaded.require_support().err().into_iter().collect();
    found.extend(input_obstacles(loaded));
    found.extend(output_obstacles(loaded));
    found.extend(
        loaded
            .tracing_settings(&env)
            .err()
            .map(|error| at("tracing", &error)),
    );
    for obstacle in AttachedOptions::obstacles(config, &start_context(config, &env)) {
        found.push(at(&obstacle.path, &*obstacle.error));
    }
    match config.proxy_settings(None, &env).err() {
        None | Some(config::ProxySettingsError::Secret(_)) => {}
        Some(error) => found.push(at("metrics.buckets", &error)),
    }
    found
}

/// Finds the files of keys, backends and TLS that cannot be used.
fn input_obstacles(loaded: &LoadedConfig) -> Vec<ConfigError> {
    let config = &loaded.config;
    // An error inside the named file keeps its location there. If the file is unreadable, the error gets the
    // location of the key that names the file.
    let in_file = |path: &str, error: ConfigError| {
        if error.is_unreadable() {
            loaded.error_at(path, &error.to_string())
        } else {
            error
        }
    };
    let mut found = Vec::new();
    if let Some(file) = &config.access.keys_file
        && let Err(error) = config::load_keys(file, &config.tiers)
    {
        found.push(in_file("access.keys_file", error));
    }
    for (index, source) in config.discovery.iter().enumerate() {
        if let Some(Err(error)) = source.file.as_deref().map(backends_in) {
            found.push(in_file(&format!("discovery.{index}.file"), error));
        }
    }
    for (path, error) in config::tls_file_problems(config) {
        let problem = ErrorChain(&error).to_string();
        found.push(match &error {
            TlsError::ReadFile { path: file, cause } if is_missing(cause) => {
                loaded.missing_file_at(&path, &problem, file)
            }
            _ => loaded.error_at(&path, &problem),
        });
    }
    found
}

/// Finds the files that the gateway cannot write.
fn output_obstacles(loaded: &LoadedConfig) -> Vec<ConfigError> {
    let mut found = Vec::new();
    for OutputFile { path, file } in loaded.config.output_files() {
        let Err(error) = check_appendable(file) else {
            continue;
        };
        let problem = format!("cannot write {}: {error}", file.display());
        found.push(if is_missing(&error) {
            loaded.missing_file_at(path, &problem, file)
        } else {
            loaded.error_at(path, &problem)
        });
    }
    found
}

fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// Finds problems of a valid configuration that do not prevent the start of the gateway.
fn notes(loaded: &LoadedConfig, env: impl Environment) -> Vec<String> {
    let config = &loaded.config;
    let mut notes = Vec::new();
    if config.backends.is_empty() && config.discovery.is_empty() {
        notes.push("no backend is configured: `serve` needs --backend".to_owned());
    }
    notes.extend(super::exposure::warnings(loaded, env));
    notes
}

/// Returns why listeners cannot bind their addresses on this machine, as texts for operators.
fn ports_in_use(config: &Config) -> Vec<String> {
    let listeners = [("listen", *config.listen), ("admin", *config.admin)];
    let is_shared = config.listen_reuse_port;
    listeners
        .into_iter()
        .filter_map(|(key, address)| bind_socket(address, key, is_shared).err())
        .map(|error| error.to_string())
        .collect()
}

fn plural(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

impl ConfigCheck {
    /// Stores the mistakes of a file, or a description of its content. Returns the value of the file without
    /// the entries that have mistakes. `None`: the file cannot be read at all.
    fn set<T>(
        &mut self,
        loaded: Result<T, Mistakes<T>>,
        content: impl FnOnce(&T) -> String,
    ) -> Option<T> {
        match loaded {
            Ok(value) => {
                self.content = content(&value);
                Some(value)
            }
            Err(Mistakes { errors, rest }) => {
                self.mistakes = errors;
                rest.map(|rest| *rest)
            }
        }
    }

    /// Adds the obstacles and the notes about a configuration. If the file has mistakes, `loaded` lacks the
    /// entries with mistakes. In that case only obstacles at a position in this file are certain, and all
    /// others are discarded.
    fn add_findings(
        &mut self,
        loaded: Option<LoadedConfig>,
        is_machine_checked: bool,
        env: impl Environment,
    ) {
        let Some(loaded) = loaded else { return };
        if is_machine_checked {
            self.obstacles = obstacles(&loaded, &env);
        }
        if !self.is_valid() {
            let is_here = |error: &ConfigError| matches!(error.location(), Some(ConfigLocation::File(file, Some(_))) if *file == self.file);
            self.obstacles.retain(is_here);
            return;
        }
        self.notes = notes(
            &loaded,
            |name| if is_machine_checked { env(name) } else { None },
        );
        if is_machine_checked {
            self.notes.extend(ports_in_use(&loaded.config));
        }
        self.loaded = Some(loaded);
    }

    /// Whether the gateway can start with the file.
    pub fn is_ok(&self) -> bool {
        self.mistakes.is_empty() && self.obstacles.is_empty()
    }

    /// Whether the file itself is valid.
    pub fn is_valid(&self) -> bool {
        self.mistakes.is_empty()
    }

    /// Returns the configuration with all defaults as YAML. `None`: the file is no valid
    /// configuration.
    pub fn effective_yaml(&self) -> Option<String> {
        self.loaded.as_ref().map(LoadedConfig::to_yaml)
    }

    /// Returns the result as a JSON object with the keys `ok`, `file`, `errors`, `notes` and
    /// `config`. An error has the keys `file`, `line`, `column`, `problem` and `help`.
    pub fn to_json(&self, has_config: bool) -> Value {
        let errors: Vec<Value> = self.errors().into_iter().map(error_json).collect();
        let config = match &self.loaded {
            Some(loaded) if has_config => serde_json::to_value(&loaded.config).ok(),
            _ => None,
        };
        json!({
            "ok": self.is_ok(),
            "file": self.file.display().to_string(),
            "errors": errors,
            "notes": self.notes,
            "config": config,
        })
    }

    /// Returns all errors. Errors in the checked file come first, by line, and then errors in other files.
    fn errors(&self) -> Vec<&ConfigError> {
        let line_and_column = |error: &&ConfigError| match error.location() {
            Some(ConfigLocation::File(file, Some(position))) if *file == self.file => {
                (position.line, position.column)
            }
            _ => (usize::MAX, 0),
        };
        let mut errors: Vec<&ConfigError> = self.mistakes.iter().chain(&self.obstacles).collect();
        errors.sort_by_key(line_and_column);
        errors
    }
}

fn error_json(error: &ConfigError) -> Value {
    let (file, position) = match error.location() {
        Some(ConfigLocation::File(file, position)) => (Some(file), *position),
        _ => (None, None),
    };
    json!({
        "file": file.map(|file| file.display().to_string()),
        "line": position.map(|position| position.line),
        "column": position.map(|position| position.column),
        "problem": error.problem(),
        "help": error.help(),
    })
}

impl fmt::Display for ConfigCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errors = self.errors();
        errors.iter().try_for_each(|error| writeln!(f, "{error}"))?;
        match errors.len() {
            0 => write!(f, "{}: ok, {}", self.file.display(), self.content)?,
            count => write!(f, "{}: {}", self.file.display(), plural(count, "error"))?,
        }
        self.notes
            .iter()
            .try_for_each(|note| write!(f, "\nnote: {note}"))
    }
}
