//! Serialises values as YAML.

use serde::Serialize;

/// The text of a generated file, or the error of its serialisation.
pub(super) type RenderResult = Result<String, RenderError>;

/// The error for a value that cannot be serialized as YAML, which is a defect of the program.
#[derive(Debug, thiserror::Error)]
#[error("cannot serialise as YAML: {0}")]
pub struct RenderError(#[from] serde_saphyr::ser::Error);

/// Renders a value as a part of a file.
pub(super) fn render(value: &impl Serialize) -> RenderResult {
    let options = serde_saphyr::ser_options! { compact_list_indent: false };
    Ok(serde_saphyr::to_string_with_options(value, options)?)
}

/// Replaces default values in the text of a file. Each pair of `values` has a default and its replacement. The
/// default is the beginning of the scalar at the end of a line. The new scalar is quoted if YAML requires it.
pub(super) fn with_values(text: &str, values: &[(&str, &str)]) -> RenderResult {
    let replaced = |line: &str| {
        for (default, value) in values {
            if let Some((before, after)) = line.split_once(default) {
                // A value must fit into a line, so block scalars are not allowed.
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
