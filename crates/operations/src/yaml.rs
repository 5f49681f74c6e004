//! Serialises values as YAML.

use serde::Serialize;

/// The text of a generated file, or the error of its serialisation.
pub(super) type RenderResult = Result<String, RenderError>;

/// A value cannot be serialised as YAML. This is a defect of the program.
#[derive(Debug, thiserror::Error)]
#[error("cannot serialise as YAML: {0}")]
pub struct RenderError(#[from] serde_saphyr::ser::Error);

/// Renders a value, as a part of a file.
pub(super) fn render(value: &impl Serialize) -> RenderResult {
    let options = serde_saphyr::ser_options! { compact_list_indent: false };
    Ok(serde_saphyr::to_string_with_options(value, options)?)
}

/// Replaces default values in the text of a file. `values`: each default, with which the scalar at the end of a
/// line begins, and the value that replaces it. The scalar is quoted if YAML needs it.
pub(super) fn with_values(text: &str, values: &[(&str, &str)]) -> RenderResult {
    let replaced = |line: &str| {
        for (default, value) in values {
            if let Some((before, after)) = line.split_once(default) {
                // A block scalar does not fit into a line.
                let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
                let scalar = format!("{value}{after}");
                let scalar = serde_saphyr::to_string_with_options(&scalar, options)?;
                return Ok(format!("{before}{}\n", scalar.trim_end()));
            }
        }
        Ok(format!("{line}\n"))
    };
    text.lines().map(replaced).collect()
}
