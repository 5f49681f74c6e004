//! The user, the session and the conversation that the client of a request names. Spans and log lines report
//! them, but metrics never do.

use http::{HeaderMap, HeaderName, HeaderValue};
use std::borrow::Cow;
use tokenweir_protocol::openai::RequestFields;
use tokenweir_protocol::settings;
use tokenweir_request::access::PseudonymKey;
use tokenweir_request::record::RequestIdentity;

settings! {
    /// How the values of clients are reported.
    #[derive(Default)]
    pub enum IdentityMode {
        /// As pseudonyms: equal values have equal pseudonyms.
        #[default]
        Hashed,
        /// As the client sent them.
        Plain,
        /// Not at all.
        Off,
    }
}

/// Reads the user, session and conversation that a request names.
#[derive(Debug, Clone, Default)]
pub struct IdentityReader {
    /// The form in which user, session and conversation are reported.
    pub mode: IdentityMode,
    /// The secret with which values are hashed.
    pub key: PseudonymKey,
    /// Headers that can name the user, by preference.
    pub user_headers: Vec<HeaderName>,
    /// Headers that can name the session, by preference.
    pub session_headers: Vec<HeaderName>,
    /// Headers that can name the conversation, by preference.
    pub conversation_headers: Vec<HeaderName>,
}

/// The user and the session in the `metadata.user_id` of an agent such as Claude Code.
#[derive(Debug, Default, PartialEq, Eq)]
struct AgentUser {
    user: Option<String>,
    session: Option<String>,
}

/// Maximum length of the value of a header in bytes. A longer value is ignored.
const MAX_VALUE_BYTES: usize = 512;
/// Separates user and session in the `metadata.user_id` of older versions of Claude Code:
/// `user_…_account_…_session_…`.
const SESSION_SEPARATOR: &str = "_session_";

impl IdentityReader {
    /// Separates the pseudonyms of users from those of sessions with an equal value.
    pub const USER: &'static str = "user";

    /// The user, session and conversation that a request names, in the form that `mode` requires.
    pub(crate) fn read(&self, headers: &HeaderMap, fields: &RequestFields) -> RequestIdentity {
        if self.mode == IdentityMode::Off {
            return RequestIdentity::default();
        }
        let sent = &fields.identity;
        let headers = &HeaderLookup::new(headers);
        let agent = AgentUser::from_fields(fields);
        let from_body = |value: &Option<Box<str>>| value.as_deref().map(str::to_owned);
        let header_text = |names| first_header(headers, names).and_then(text);
        let user = self.user_of(headers, fields, agent.user);
        let session = header_text(&self.session_headers)
            .or_else(|| from_body(&sent.metadata_session))
            .or(agent.session)
            .or_else(|| from_body(&fields.cache_key));
        let conversation = header_text(&self.conversation_headers)
            .or_else(|| from_body(&sent.conversation))
            .or_else(|| from_body(&sent.metadata_conversation));
        // Session and conversation share the pseudonym kind `session`, so that equal values have equal
        // pseudonyms.
        let session = session.map(|value| self.report("session", value));
        let conversation = conversation.map(|value| self.report("session", value));
        RequestIdentity {
            user: user.map(|value| self.report(Self::USER, value)),
            // If the client names no conversation, the turns of a session form one conversation.
            conversation: conversation.or_else(|| session.clone()),
            session,
        }
    }

    /// The name of the user of a request, as the client sent it. `None`: the request names no user.
    pub(crate) fn user_name(&self, headers: &HeaderMap, fields: &RequestFields) -> Option<String> {
        let agent = AgentUser::from_fields(fields);
        self.user_of(&HeaderLookup::new(headers), fields, agent.user)
    }

    /// The user that a request names. `agent`: the user in the field of an agent.
    fn user_of(
        &self,
        headers: &HeaderLookup<'_>,
        fields: &RequestFields,
        agent: Option<String>,
    ) -> Option<String> {
        let sent = &fields.identity;
        let from_body = |value: &Option<Box<str>>| value.as_deref().map(str::to_owned);
        first_header(headers, &self.user_headers)
            .and_then(text)
            .or_else(|| from_body(&sent.safety_identifier))
            .or_else(|| from_body(&sent.user))
            .or(agent)
    }

    fn report(&self, kind: &str, value: String) -> Box<str> {
        match self.mode {
            IdentityMode::Plain => value.into(),
            _ => self.key.pseudonym(kind, &value).into(),
        }
    }
}

/// The session name of a request, for routing: the value of the first header of `names` that the request has.
/// Without such a header, the session field of the body or, if it is missing, the conversation as in
/// [`IdentityReader::read`]. `None`: the request names no session.
pub(crate) fn session_name<'a>(
    headers: &'a HeaderMap,
    names: &[HeaderName],
    fields: &'a RequestFields,
) -> Option<Cow<'a, [u8]>> {
    let sent = &fields.identity;
    let from_body = |value: &'a Option<Box<str>>| Some(value.as_deref()?.as_bytes().into());
    first_header(&HeaderLookup::new(headers), names)
        .map(|value| value.as_bytes().into())
        .or_else(|| from_body(&sent.metadata_session))
        .or_else(|| {
            AgentUser::from_fields(fields)
                .session
                .map(|session| session.into_bytes().into())
        })
        .or_else(|| from_body(&fields.cache_key))
        .or_else(|| from_body(&sent.conversation))
        .or_else(|| from_body(&sent.metadata_conversation))
}

/// A hash without a random key. Every process computes the same hash, so all gateways send a session to one
/// backend.
pub(super) fn stable_hash(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

impl AgentUser {
    fn from_fields(fields: &RequestFields) -> Self {
        fields
            .identity
            .metadata_user
            .as_deref()
            .map(Self::parse)
            .unwrap_or_default()
    }

    /// Splits a `metadata.user_id` into user and session. The field is a JSON object, a text with
    /// [`SESSION_SEPARATOR`], or the id of a user.
    fn parse(text: &str) -> Self {
        if let Ok(serde_json::Value::Object(members)) = serde_json::from_str(text) {
            let member = |name: &str| {
                let value = members.get(name).and_then(serde_json::Value::as_str);
                value.filter(|value| !value.is_empty()).map(str::to_owned)
            };
            let user = member("account_uuid").or_else(|| member("device_id"));
            return Self {
                user,
                session: member("session_id"),
            };
        }
        match text.rsplit_once(SESSION_SEPARATOR) {
            Some((user, session)) => Self {
                user: Some(user.to_owned()),
                session: Some(session.to_owned()),
            },
            None => Self {
                user: Some(text.to_owned()),
                session: None,
            },
        }
    }
}

/// The headers of a request, with a summary of the lengths and first letters of their names. Most names that are looked
/// up differ in both from all header names of a request, so their lookup needs no hash.
pub(super) struct HeaderLookup<'a> {
    headers: &'a HeaderMap,
    bits: u64,
}

impl<'a> HeaderLookup<'a> {
    pub(super) fn new(headers: &'a HeaderMap) -> Self {
        let bits = headers.keys().fold(0, |bits, name| bits | bit_of(name));
        Self { headers, bits }
    }

    pub(super) fn get(&self, name: &HeaderName) -> Option<&'a HeaderValue> {
        if self.bits & bit_of(name) == 0 {
            None
        } else {
            self.headers.get(name)
        }
    }
}

fn bit_of(name: &HeaderName) -> u64 {
    let name = name.as_str().as_bytes();
    let first = name.first().copied().unwrap_or_default();
    1 << ((name.len() + usize::from(first)) % 64)
}

/// The first value of 1 to [`MAX_VALUE_BYTES`] bytes among the headers `names`, in this order.
fn first_header<'a>(headers: &HeaderLookup<'a>, names: &[HeaderName]) -> Option<&'a HeaderValue> {
    let is_plausible = |value: &&HeaderValue| (1..=MAX_VALUE_BYTES).contains(&value.len());
    names
        .iter()
        .filter_map(|name| headers.get(name))
        .find(is_plausible)
}

/// The header value as text. `None`: the value is not ASCII.
fn text(value: &HeaderValue) -> Option<String> {
    value.to_str().ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = r#"{"user":"alice","prompt_cache_key":"key","messages":[]}"#;

    fn reader(mode: IdentityMode) -> IdentityReader {
        IdentityReader {
            mode,
            session_headers: vec![HeaderName::from_static("x-session-id")],
            ..IdentityReader::default()
        }
    }

    fn identity(mode: IdentityMode, header: Option<&str>, body: &str) -> [Option<String>; 3] {
        let headers = header.map(|value| ("x-session-id".parse().unwrap(), value.parse().unwrap()));
        let headers = HeaderMap::from_iter(headers);
        let fields = RequestFields::parse(body.as_bytes()).unwrap();
        let RequestIdentity {
            user,
            session,
            conversation,
        } = reader(mode).read(&headers, &fields);
        [user, session, conversation].map(|value| value.map(String::from))
    }

    fn texts(values: [Option<&str>; 3]) -> [Option<String>; 3] {
        values.map(|value| value.map(str::to_owned))
    }

    #[test]
    fn a_session_header_wins_over_the_body() {
        let plain = |header, body| identity(IdentityMode::Plain, header, body);
        assert_eq!(
            plain(None, BODY),
            texts([Some("alice"), Some("key"), Some("key")])
        );
        assert_eq!(
            plain(Some("s"), BODY),
            texts([Some("alice"), Some("s"), Some("s")])
        );
        let own = r#"{"safety_identifier":"b","user":"a","conversation":"conv_1"}"#;
        assert_eq!(
            plain(Some("s"), own),
            texts([Some("b"), Some("s"), Some("conv_1")])
        );
        assert_eq!(plain(None, "{}"), texts([None; 3]));
    }

    #[test]
    fn user_and_session_are_hashed_by_default() {
        assert_eq!(
            identity(IdentityMode::Off, Some("s"), BODY),
            texts([None; 3])
        );
        let [user, session, conversation] = identity(IdentityMode::default(), None, BODY);
        assert_eq!(session, conversation);
        for value in [user, session] {
            let value = value.unwrap();
            assert!(value.len() == 32 && value.bytes().all(|byte| byte.is_ascii_hexdigit()));
        }
    }

    #[test]
    fn routing_and_records_read_one_session() {
        let names = [
            HeaderName::from_static("x-session-id"),
            HeaderName::from_static("x-chat"),
        ];
        let session = |header: Option<(&str, &str)>, body: &str| {
            let header =
                header.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
            let (headers, fields) = (
                HeaderMap::from_iter(header),
                RequestFields::parse(body.as_bytes()).unwrap(),
            );
            let name = session_name(&headers, &names, &fields)?;
            Some(String::from_utf8(name.into_owned()).unwrap())
        };
        for (header, body, expected) in [
            (Some(("x-session-id", "s")), BODY, Some("s")),
            (Some(("x-chat", "c")), BODY, Some("c")),
            (Some(("x-chat", "")), BODY, Some("key")),
            (
                None,
                r#"{"metadata":{"session_id":"m"},"prompt_cache_key":"k"}"#,
                Some("m"),
            ),
            (
                None,
                r#"{"metadata":{"user_id":"user_1_account_2_session_3"}}"#,
                Some("3"),
            ),
            (None, r#"{"conversation":"conv_1"}"#, Some("conv_1")),
            (None, r#"{"user":"alice"}"#, None),
        ] {
            assert_eq!(
                session(header, body).as_deref(),
                expected,
                "{header:?} {body}"
            );
        }
    }

    #[test]
    fn the_claude_code_field_names_user_and_session() {
        for user_id in [
            "user_1_account_2_session_3",
            r#"{\"device_id\":\"d\",\"account_uuid\":\"user_1_account_2\",\"session_id\":\"3\"}"#,
        ] {
            let body = format!(r#"{{"metadata":{{"user_id":"{user_id}"}}}}"#);
            let expected = texts([Some("user_1_account_2"), Some("3"), Some("3")]);
            assert_eq!(
                identity(IdentityMode::Plain, None, &body),
                expected,
                "{user_id}"
            );
        }
    }
}
