//! Splits an input into pieces. The input itself determines the split, so that an input that failed can be
//! replayed.

/// Number of bytes at the start of the input that determine the split of the rest.
const PLAN_BYTES: usize = 4;

/// Returns the body of an input, and its pieces. The first four bytes of the input are not part of the body:
/// they are the lengths of the pieces minus one, used in turn. Four zeros split the body into single bytes.
/// `None` if the input has less than four bytes.
pub fn cut(input: &[u8]) -> Option<(&[u8], impl Iterator<Item = &[u8]>)> {
    let (plan, body) = input.split_first_chunk::<PLAN_BYTES>()?;
    let mut lengths = plan.iter().map(|&byte| usize::from(byte) + 1).cycle();
    let mut rest = body;
    let pieces = std::iter::from_fn(move || {
        let (piece, after) = rest.split_at(lengths.next()?.min(rest.len()));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    });
    Some((body, pieces))
}
