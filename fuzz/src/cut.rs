//! An input tells itself how its bytes are cut, so that a found input can be replayed.

/// The bytes of the input at the beginning that say how the rest is cut.
const PLAN: usize = 4;

/// The body of an input and the pieces that it comes in. The first four bytes are lengths, less
/// one, that are used in turn: four zeros cut between all bytes. `None`: too short for a plan.
pub fn cut(input: &[u8]) -> Option<(&[u8], impl Iterator<Item = &[u8]>)> {
    let (plan, body) = input.split_first_chunk::<PLAN>()?;
    let mut lengths = plan.iter().map(|&byte| usize::from(byte) + 1).cycle();
    let mut rest = body;
    let pieces = std::iter::from_fn(move || {
        let (piece, after) = rest.split_at(lengths.next()?.min(rest.len()));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    });
    Some((body, pieces))
}
