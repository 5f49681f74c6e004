//! Parses `OTEL_PROPAGATORS`, the list of formats in which trace context is read and forwarded. The
//! SDK does not read this variable.

use tokenweir_core::trace_context::PropagationFormats;

/// The supported propagators, for error messages.
pub(super) const ALLOWED_PROPAGATORS: &str = "tracecontext, baggage, b3, b3multi, none";

/// Parses a comma-separated list of propagators. Fails if the list contains a propagator that is
/// not supported.
pub(super) fn parse(list: &str) -> Result<PropagationFormats, ()> {
    let mut formats = PropagationFormats::NONE;
    for name in list.split(',').map(str::trim) {
        match name {
            "tracecontext" => formats.trace_context = true,
            "baggage" => formats.baggage = true,
            "b3" => formats.b3 = true,
            "b3multi" => formats.b3_multi = true,
            "none" if list.trim() == "none" => {}
            _ => return Err(()),
        }
    }
    Ok(formats)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_has_only_known_names_or_none() {
        assert_eq!(parse("tracecontext,baggage"), Ok(PropagationFormats::default()));
        assert_eq!(parse("none"), Ok(PropagationFormats::NONE));
        let b3 = PropagationFormats { b3: true, b3_multi: true, ..PropagationFormats::NONE };
        assert_eq!(parse("b3, b3multi"), Ok(b3));
        for invalid in ["jaeger", "tracecontext,xray", "none,b3", "", "b3,,baggage", "B3"] {
            assert_eq!(parse(invalid), Err(()), "{invalid}");
        }
    }
}
