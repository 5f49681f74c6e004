//! Functions that the tests of several crates share.

#![expect(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "fixtures of tests, which fail by a panic"
)]

use std::fs;
use std::path::{Path, PathBuf};

/// A folder for the files of a test. Dropping the value removes the folder.
pub struct TempFolder(PathBuf);

impl TempFolder {
    /// Creates a folder in the temporary directory of the system. Each test must use its own `name`.
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tokenweir-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file below the folder, and creates the subfolders that `name` contains. Returns the
    /// path of the file.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
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
