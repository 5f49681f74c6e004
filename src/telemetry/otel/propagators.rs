//! `OTEL_PROPAGATORS`, which the SDK leaves to whoever uses it.

use tokenweir_core::trace_context::Formats;

/// The names that are known.
pub(super) const KNOWN: &str = "tracecontext, baggage, b3, b3multi, none";

/// Reads a list of names. Fails if one of them is not known.
pub(super) fn read(list: &str) -> Result<Formats, ()> {
    let mut formats = Formats::NONE;
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
    fn a_list_is_of_known_names_or_none() {
        assert_eq!(read("tracecontext,baggage"), Ok(Formats::default()));
        assert_eq!(read("none"), Ok(Formats::NONE));
        let b3 = Formats { b3: true, b3_multi: true, ..Formats::NONE };
        assert_eq!(read("b3, b3multi"), Ok(b3));
        for bad in ["jaeger", "tracecontext,xray", "none,b3", "", "b3,,baggage", "B3"] {
            assert_eq!(read(bad), Err(()), "{bad}");
        }
    }
}
