//! Loads a configuration: reads a file, applies the overrides and checks the rules.

use super::mistake::Mistake;
use super::overrides::{ConfigSources, Overrides};
use super::root::Config;
use super::text::error::ConfigError;
use super::text::source::ConfigSource;
use super::text::yaml::child_path;
use super::text::{file, renames, yaml};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use tokenweir_settings::{RuleViolation, violation_at, working_folder};

/// A configuration with the source of each value.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadedConfig {
    /// The valid values of all sections.
    pub config: Config,
    /// The source of every value.
    pub sources: ConfigSources,
    /// The configuration file. `None`: the configuration was loaded without a file.
    pub file: Option<PathBuf>,
}

impl Config {
    /// Reads a file, if given, applies the overrides and validates the result. A configuration without backends
    /// is valid here: see [`LoadedConfig::require_backend`].
    pub fn load(file: Option<&Path>, overrides: Overrides) -> Result<LoadedConfig, ConfigError> {
        let Some(file) = file else {
            let loaded = Self::parse("", Path::new(""), overrides)?;
            return Ok(LoadedConfig {
                file: None,
                ..loaded
            });
        };
        Self::parse(&file::read(file)?, file, overrides)
    }

    /// Like [`Config::load`], but with `text` as the content of `file`, which is not read.
    pub fn parse(
        text: &str,
        file: &Path,
        overrides: Overrides,
    ) -> Result<LoadedConfig, ConfigError> {
        Self::parse_for_paths(text, file, overrides).map_err(|mistake| mistake.error)
    }

    /// Reads the values that `/config` of a gateway shows, without their sources. Does not check the rules. The
    /// error is the problem of the first invalid value.
    pub fn from_view(values: &Value) -> Result<Self, String> {
        yaml::parse_json(values)
    }

    /// Like [`Config::parse`]. The error contains the paths of the values that together violate a rule.
    pub(super) fn parse_for_paths(
        text: &str,
        file: &Path,
        overrides: Overrides,
    ) -> Result<LoadedConfig, Mistake> {
        let parsed = yaml::parse::<Self>(text, file);
        let (mut config, outline) = parsed.map_err(|error| renames::explain(error, text))?;
        let sources = overrides.apply(&mut config, outline);
        config.check().map_err(|violation| Mistake {
            error: locate_violation(&violation, &sources, text, file),
            paths: violation.paths,
        })?;
        Ok(LoadedConfig {
            config,
            sources,
            file: Some(file.to_owned()),
        })
    }
}

/// The error of a rule violation with its location: a flag, an environment variable or a position in the file.
fn locate_violation(
    violation: &RuleViolation,
    sources: &ConfigSources,
    text: &str,
    file: &Path,
) -> ConfigError {
    let error = ConfigError::new(&violation.problem);
    let set_path = violation
        .paths
        .iter()
        .find(|path| sources.source_of(path) != ConfigSource::Default);
    let Some(path) = set_path.or(violation.paths.first()) else {
        return error;
    };
    match sources.source_of(path) {
        source @ (ConfigSource::Flag(_) | ConfigSource::Environment(_)) => error.at_source(source),
        ConfigSource::File | ConfigSource::Default => match sources.outline().position(path) {
            Some(position) => error.at(file, position, text),
            None => error,
        },
    }
}

impl LoadedConfig {
    /// Fails if the configuration has neither backends nor discovery sources.
    pub fn require_backend(&self) -> Result<(), ConfigError> {
        if !self.config.backends.is_empty() || !self.config.discovery.is_empty() {
            return Ok(());
        }
        let error = match &self.file {
            Some(file) => ConfigError::new("no backend is configured").in_file(file),
            None => ConfigError::new("no backend is configured"),
        };
        let help = "give --backend http://HOST:PORT, set TOKENWEIR_BACKEND or add `backends` or \
                    `discovery` to the configuration file";
        Err(error.with_help(Some(help)))
    }

    /// Fails if the configuration has a discovery source for which this program was built without support.
    pub fn require_support(&self) -> Result<(), ConfigError> {
        for (index, source) in self.config.discovery.iter().enumerate() {
            let supported = source.check_support(&format!("discovery.{index}"));
            if let Err(violation) = supported {
                return Err(self.error_at(&violation.paths[0], &violation.problem));
            }
        }
        Ok(())
    }

    /// Builds an error about the value at `path`, with the location of the value and without an
    /// excerpt.
    pub fn error_at(&self, path: &str, problem: &str) -> ConfigError {
        let file = self.file.as_deref().unwrap_or(Path::new(""));
        let violation = violation_at(path, format!("{path}: {problem}"));
        locate_violation(&violation, &self.sources, "", file).without_excerpt()
    }

    /// Like [`Self::error_at`], for a file `missing` that does not exist. The help text states the folder to
    /// which the relative path refers.
    pub fn missing_file_at(&self, path: &str, problem: &str, missing: &Path) -> ConfigError {
        let error = self.error_at(path, problem);
        let folder = working_folder(missing);
        if folder.is_empty() {
            return error;
        }
        error.with_help(Some(&format!("a relative path begins{folder}")))
    }

    /// The configuration as YAML, with all defaults. A secret is shown as its location.
    pub fn to_yaml(&self) -> String {
        yaml::to_text(&self.config)
    }

    /// The JSON document of `/config`: every value with its source. A secret is shown as its
    /// location.
    pub fn view(&self) -> Value {
        let values = serde_json::to_value(&self.config).unwrap_or_default();
        let file = self.file.as_ref().map(|file| file.display().to_string());
        json!({ "file": file, "config": self.annotate("", values) })
    }

    /// Replaces each value inside `value`, which is at `path`, by an object with the value and its
    /// source.
    fn annotate(&self, path: &str, value: Value) -> Value {
        match value {
            Value::Object(fields) if !fields.is_empty() => {
                let annotate = |(key, value): (String, Value)| {
                    let value = self.annotate(&child_path(path, &key), value);
                    (key, value)
                };
                Value::Object(fields.into_iter().map(annotate).collect::<Map<_, _>>())
            }
            Value::Array(items) if !items.is_empty() => {
                let items = items.into_iter().enumerate();
                items
                    .map(|(index, item)| self.annotate(&child_path(path, &index.to_string()), item))
                    .collect()
            }
            value => json!({ "value": value, "source": self.sources.source_of(path).to_string() }),
        }
    }
}
