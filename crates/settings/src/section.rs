//! The contract between the configuration and a section.

use crate::rule::{CheckResult, violation_of};
use crate::secret::ConfiguredSecret;
use std::path::{Path, PathBuf};

/// A section of the configuration `C`: a key of the file, with all keys below it. The type [`Self::Values`]
/// defines the names and the schema of the keys. Its `Default` defines their defaults.
pub trait ConfigSection<C> {
    /// The type of the values, with a field for each key.
    type Values: Clone + Default;

    /// When new values take effect. Sections whose values need a restart override this constant.
    const RELOAD: ReloadClass = ReloadClass::AtOnce;

    /// The values if the configuration does not contain this section.
    fn defaults() -> Self::Values {
        Self::Values::default()
    }

    /// Returns the first violation of the rules of the section. `config`: the whole configuration, for rules
    /// that compare values of several sections.
    fn check(_values: &Self::Values, _config: &C) -> CheckResult {
        Ok(())
    }

    /// Returns the values to use after a reload that found the values `new`. A section with keys of both reload
    /// classes overrides this function.
    fn reloaded(old: &Self::Values, new: &Self::Values) -> Self::Values {
        match Self::RELOAD {
            ReloadClass::AtOnce => new.clone(),
            ReloadClass::AfterRestart => old.clone(),
        }
    }

    /// Adds the secrets that the section names to `list`.
    fn list_secrets<'a>(_values: &'a Self::Values, _list: &mut SecretList<'a>) {}

    /// The file that the gateway writes for the section. `None`: the section has no such file.
    fn output_file(_values: &Self::Values) -> Option<OutputFile<'_>> {
        None
    }
}

/// When new values of a section take effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReloadClass {
    /// A reload applies new values. A running request keeps the values with which it started.
    AtOnce,
    /// The next start of the gateway applies new values.
    AfterRestart,
}

/// A secret that a section names.
pub struct ListedSecret<'a> {
    /// The path of the key that contains the location.
    pub path: String,
    /// The location of the secret and its purpose.
    pub secret: ConfiguredSecret<'a>,
    /// Whether a reload reads the secret again, so that a change of its file causes a reload.
    pub is_reloaded: bool,
}

/// The secrets that the sections name.
#[derive(Default)]
pub struct SecretList<'a>(pub Vec<ListedSecret<'a>>);

impl<'a> SecretList<'a> {
    /// Adds a secret that is read only at the start. `path`: the path of the key that contains its location.
    pub fn add(&mut self, path: &str, secret: Option<ConfiguredSecret<'a>>) {
        self.push(path.to_owned(), secret, false);
    }

    /// Adds a secret that a reload reads again. `path`: the path of the key that contains its location.
    pub fn add_reloaded(&mut self, path: String, secret: Option<ConfiguredSecret<'a>>) {
        self.push(path, secret, true);
    }

    fn push(&mut self, path: String, secret: Option<ConfiguredSecret<'a>>, is_reloaded: bool) {
        if let Some(secret) = secret {
            self.0.push(ListedSecret {
                path,
                secret,
                is_reloaded,
            });
        }
    }
}

/// A file that the gateway writes.
pub struct OutputFile<'a> {
    /// The path of the key that contains the file name.
    pub path: &'static str,
    /// The path of the file.
    pub file: &'a Path,
}

impl<'a> OutputFile<'a> {
    /// The file that the key at `path` names. `None`: the key is not set.
    pub fn new(path: &'static str, file: Option<&'a Path>) -> Option<Self> {
        Some(Self { path, file: file? })
    }

    /// The file with an absolute path.
    fn absolute(&self) -> PathBuf {
        std::path::absolute(self.file).unwrap_or_else(|_| self.file.to_owned())
    }

    /// The file to which the rotation of this file renames it.
    fn rotated(&self) -> PathBuf {
        let mut rotated = self.absolute().into_os_string();
        rotated.push(".old");
        rotated.into()
    }
}

/// Fails if two sections write the same file, or if the rotation of one file replaces another.
pub fn distinct_files(files: &[OutputFile<'_>]) -> CheckResult {
    for (index, file) in files.iter().enumerate() {
        for earlier in &files[..index] {
            let paths = [file.path, earlier.path];
            if file.absolute() == earlier.absolute() {
                let problem = format!("{} is the same file: write another path", earlier.path);
                return Err(violation_of(paths, problem));
            }
            if file.rotated() == earlier.absolute() || earlier.rotated() == file.absolute() {
                let problem = format!(
                    "{} and this file overwrite each other, because one is FILE.old of the other: \
                     write another path",
                    earlier.path
                );
                return Err(violation_of(paths, problem));
            }
        }
    }
    Ok(())
}

/// A configuration that knows whether tenants are configured.
pub trait KnownTenants {
    /// Whether a file of tenants is configured.
    fn has_tenants(&self) -> bool;
}

/// A configuration whose backends other sections can name.
pub trait KnownBackends {
    /// Returns an error text if no backend can have this name. `None`: a backend has the name, or may have it
    /// later. Discovery may find further backends, and if `backends` is empty, flags or variables may name
    /// some.
    fn unknown_backend(&self, name: &str) -> Option<String>;
}
