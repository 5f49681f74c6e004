//! Functions that build input for tests.

use http::{HeaderMap, HeaderName, HeaderValue};

/// Builds a header map with these names and values. A name that occurs several times keeps all its
/// values.
pub(crate) fn header_map(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let header = |&(name, value): &(&'static str, &str)| {
        (
            HeaderName::from_static(name),
            HeaderValue::from_str(value).unwrap(),
        )
    };
    pairs.iter().map(header).collect()
}

/// Divides bytes at the offsets `cuts`. An offset after the end counts as the end.
pub(crate) fn pieces(bytes: &[u8], mut cuts: Vec<usize>) -> Vec<&[u8]> {
    cuts.sort_unstable();
    let mut pieces = Vec::new();
    let mut start = 0;
    for cut in cuts.into_iter().map(|cut| cut.min(bytes.len())) {
        pieces.push(&bytes[start..cut]);
        start = cut;
    }
    pieces.push(&bytes[start..]);
    pieces
}
