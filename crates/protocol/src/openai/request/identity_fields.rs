//! The fields of a request that name its user, its session and its conversation. The gateway reports these
//! fields and does not act on them. It treats a value that is not a string as absent.

use crate::json::JsonValue;

/// The fields of a request that name its user, its session and its conversation. `None`: the request
/// does not have the field.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IdentityFields {
    /// `safety_identifier`, which replaces `user` in the API of OpenAI.
    pub safety_identifier: Option<Box<str>>,
    /// The field `user`.
    pub user: Option<Box<str>>,
    /// `metadata.user_id`. Claude Code writes user and session into it.
    pub metadata_user: Option<Box<str>>,
    /// The field `metadata.session_id`.
    pub metadata_session: Option<Box<str>>,
    /// `metadata.conversation_id` or `metadata.thread_id`
    pub metadata_conversation: Option<Box<str>>,
    /// `conversation` or `conversation.id` of a Responses request.
    pub conversation: Option<Box<str>>,
    /// Length of the list `messages`.
    pub messages: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IdentityField {
    User,
    SafetyIdentifier,
    MetadataUser,
    MetadataSession,
    MetadataConversation,
    Conversation,
}

/// Maximum length of a value in bytes. A longer value is treated as absent.
const MAX_VALUE_BYTES: usize = 512;

impl IdentityFields {
    /// Stores the value of a field, and replaces an earlier value of the same field.
    pub(super) fn read(&mut self, field: IdentityField, value: JsonValue<'_>) {
        let Some(text) = value.as_text() else { return };
        if text.is_empty() || text.len() > MAX_VALUE_BYTES {
            return;
        }
        let stored = match field {
            IdentityField::User => &mut self.user,
            IdentityField::SafetyIdentifier => &mut self.safety_identifier,
            IdentityField::MetadataUser => &mut self.metadata_user,
            IdentityField::MetadataSession => &mut self.metadata_session,
            IdentityField::MetadataConversation => &mut self.metadata_conversation,
            IdentityField::Conversation => &mut self.conversation,
        };
        *stored = Some(text.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::request_fields::RequestFields;

    fn fields(body: &str) -> IdentityFields {
        RequestFields::parse(body.as_bytes()).unwrap().identity
    }

    #[test]
    fn the_fields_of_each_api_are_read() {
        let chat = fields(
            r#"{"user":"u","safety_identifier":"s","metadata":{"user_id":"m","session_id":"n",
            "thread_id":"t","other":"x"},"messages":[{"role":"system","content":"a"},
            {"role":"user","content":[{"type":"text","text":"{\"role\":1}"}]}]}"#,
        );
        let text = |value: &str| Some(Box::from(value));
        let expected = IdentityFields {
            safety_identifier: text("s"),
            user: text("u"),
            metadata_user: text("m"),
            metadata_session: text("n"),
            metadata_conversation: text("t"),
            conversation: None,
            messages: 2,
        };
        assert_eq!(chat, expected);
        for body in [
            r#"{"conversation":"conv_1"}"#,
            r#"{"conversation":{"id":"conv_1"}}"#,
        ] {
            assert_eq!(fields(body).conversation, text("conv_1"), "{body}");
        }
    }

    #[test]
    fn long_or_binary_values_count_as_absent() {
        let long = "x".repeat(MAX_VALUE_BYTES + 1);
        let body = format!(
            r#"{{"user":7,"safety_identifier":"{long}","metadata":"m","conversation":null,
            "messages":"hello"}}"#
        );
        assert_eq!(fields(&body), IdentityFields::default());
    }
}
