//! The composition root: builds the gateway from the configuration, runs it and reloads it.
//!
//! `application` assembles the parts in order. `config` converts itself into settings, `server`
//! binds the listeners, and `telemetry_pipeline` starts the sinks.

pub(crate) mod application;
pub(crate) mod banner;
pub mod check;
mod diagnosis;
pub(crate) mod discovery_sources;
pub(crate) mod error;
mod exposure;
mod keys_file;
pub(crate) mod process;
mod reload;
mod secret_files;
mod telemetry_pipeline;

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    /// A folder for the files of a test. It is removed when the value is dropped.
    pub(crate) struct TempFolder(PathBuf);

    impl TempFolder {
        /// Creates a folder in the temporary directory of the system. Each test must use its own `name`.
        pub(crate) fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("tokenweir-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        pub(crate) fn path(&self) -> &Path {
            &self.0
        }

        /// Writes a file below the folder, and creates the subfolders that `name` contains. Returns the
        /// path of the file.
        pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
            let file = self.0.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, text).unwrap();
            file
        }
    }

    impl Drop for TempFolder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}
