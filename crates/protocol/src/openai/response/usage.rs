//! Token counts in a response.

use crate::json::JsonValue;
use crate::json::members::{self, visit_members};
use crate::openai::Usage;

/// Maximum token count that the gateway accepts in a response. A greater number is an error of the backend,
/// and would distort all sums and means.
pub const MAX_TOKEN_COUNT: u64 = 100_000_000;

/// The counts in the `usage` object of a chat completion or a completion, and in its inner objects, such as
/// `prompt_tokens_details`. `null` counts as absent. An invalid count is `None`.
pub fn read_usage(object: &[u8]) -> Usage {
    let mut usage = Usage::default();
    let mut on_member = |name: &[u8], value: &[u8]| {
        let field = match name {
            _ if value == b"null" => return,
            b"prompt_tokens" => &mut usage.input,
            b"completion_tokens" => &mut usage.output,
            b"cached_tokens" => &mut usage.cached,
            b"created_cache_tokens" => &mut usage.cache_created,
            b"reasoning_tokens" => &mut usage.reasoning,
            _ => return,
        };
        *field = members::count(value).filter(|count| *count <= MAX_TOKEN_COUNT);
    };
    let _ = visit_members(object, |member| {
        let value = &object[member.value];
        on_member(&object[member.name], value);
        let _ = visit_members(value, |detail| {
            on_member(&value[detail.name], &value[detail.value]);
        });
    });
    usage
}

/// The value as a token count. `None`: the value is not a number from 0 to [`MAX_TOKEN_COUNT`].
pub(super) fn token_count(value: JsonValue<'_>) -> Option<u64> {
    value.as_count().filter(|count| *count <= MAX_TOKEN_COUNT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_null_in_details_replaces_no_count() {
        let usage = br#"{"cached_tokens": 5, "prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": null}}"#;
        let expected = Usage {
            input: Some(9),
            cached: Some(5),
            ..Usage::default()
        };
        assert_eq!(read_usage(usage), expected);
    }
}
