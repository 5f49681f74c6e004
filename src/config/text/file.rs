//! Reads a configuration file as UTF-8 text.

use super::error::{ConfigError, Position};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use tokenweir_settings::working_folder;

/// Maximum size of a configuration file, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Reads a file. Fails if it cannot be read, is larger than [`MAX_FILE_BYTES`] or is not UTF-8.
pub(crate) fn read(file: &Path) -> Result<String, ConfigError> {
    let bytes = read_bytes(file).map_err(|error| {
        let problem = describe_io_error(&error) + &working_folder(file);
        ConfigError::unreadable(file, &problem)
    })?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(ConfigError::new("too large: the file may have at most 1MiB").in_file(file));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid_len = error.utf8_error().valid_up_to();
        let text = String::from_utf8_lossy(error.as_bytes());
        // The lossy text contains the valid prefix unchanged.
        let before = text.get(..valid_len).unwrap_or_default();
        let line = before.rsplit('\n').next().unwrap_or_default();
        let position = Position {
            line: before.matches('\n').count() + 1,
            column: line.chars().count() + 1,
            len: 1,
        };
        ConfigError::new("not UTF-8")
            .at(file, position, &text)
            .with_help(Some("write the file in UTF-8"))
    })
}

fn read_bytes(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(file)?
        .take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn describe_io_error(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file".to_owned(),
        io::ErrorKind::IsADirectory => "this is a directory, not a file".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "permission denied: the gateway's user cannot read this file".to_owned()
        }
        _ => format!("cannot be read: {error}"),
    }
}
