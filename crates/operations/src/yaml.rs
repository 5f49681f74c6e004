//! Shapes to YAML, with a head that says where the file comes from.

use serde::Serialize;

/// A file, or why it cannot be written down.
pub(super) type Result = std::result::Result<String, Error>;

/// A shape that YAML has no form for: a defect.
#[derive(Debug, thiserror::Error)]
#[error("cannot be written as YAML: {0}")]
pub struct Error(#[from] serde_saphyr::ser::Error);

/// The file. `origin` are the words of the command that prints it.
pub(super) fn print(origin: &str, value: &impl Serialize) -> Result {
    let options = serde_saphyr::ser_options! { compact_list_indent: false };
    let body = serde_saphyr::to_string_with_options(value, options)?;
    Ok(format!("# Printed by `tokenweir generate {origin}`. Change it there.\n{body}"))
}
