//! Reads bodies with chunked framing.

/// Parses a body with chunked framing. Returns its chunks, and whether the body is complete. If it is not,
/// the last chunk may be cut.
pub(crate) fn chunks(mut framed: &[u8]) -> (Vec<&[u8]>, bool) {
    let mut chunks = Vec::new();
    while let Some(line) = framed.windows(2).position(|window| window == b"\r\n") {
        let size = std::str::from_utf8(&framed[..line]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return (chunks, true);
        }
        let data = &framed[line + 2..];
        chunks.push(&data[..size.min(data.len())]);
        framed = data.get(size + 2..).unwrap_or_default();
    }
    (chunks, false)
}
