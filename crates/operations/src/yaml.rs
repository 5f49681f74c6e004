//! Values in the text of YAML files.

/// The text of a generated file, or the error of its serialisation.
pub(super) type RenderResult = Result<String, RenderError>;

/// The error for a value that cannot be serialized as YAML, which is a defect of the program.
#[derive(Debug, thiserror::Error)]
#[error("cannot serialise as YAML: {0}")]
pub struct RenderError(#[from] serde_saphyr::ser::Error);

/// A text as a scalar on one line, quoted if YAML requires it.
pub(super) fn scalar(text: &str) -> RenderResult {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    let scalar = serde_saphyr::to_string_with_options(&text, options)?;
    Ok(scalar.trim_end().to_owned())
}

/// Replaces default values in the text of a file. Each pair of `values` has a default and its replacement. The
/// default is the beginning of the scalar at the end of a line. The new scalar is quoted if YAML requires it.
pub(super) fn with_values(text: &str, values: &[(&str, &str)]) -> RenderResult {
    let replaced = |line: &str| {
        for (default, value) in values {
            if let Some((before, after)) = line.split_once(default) {
                let scalar = scalar(&format!("{value}{after}"))?;
                return Ok(format!("{before}{scalar}\n"));
            }
        }
        Ok(format!("{line}\n"))
    };
    text.lines().map(replaced).collect()
}
