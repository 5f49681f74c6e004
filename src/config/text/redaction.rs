//! Redaction of excerpts and quotes in configuration errors: values of secret keys, parts of URLs, and the
//! words of a keys file.

/// The parts that an excerpt hides, besides the values of secret keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExcerptRedaction {
    Nothing,
    /// The value of the key at the error position, because this may be a mistyped secret key.
    ValueAfterKey,
    /// The rest of the line from the error position on, because it may be a secret.
    AtPosition,
    /// Every word that is not a key of a keys file.
    Values,
}

const KEYS_FILE_WORDS: [&str; 11] = [
    "tenants",
    "name",
    "tier",
    "models",
    "allow",
    "limits",
    "keys",
    "hash",
    "requests_per_minute",
    "tokens_per_minute",
    "concurrency",
];

/// Maximum number of wrong characters in a mistyped key of a keys file. Secrets have more differing characters.
const MAX_MISTYPED_CHARS: usize = 2;

/// The final words of keys with secret values, such as `api_key`. Excerpts never show these values.
const SECRET_WORDS: [&str; 5] = ["key", "token", "secret", "password", "salt"];

/// Minimum length of a part of a URL path that excerpts hide as a token. Webhook tokens have at least 24
/// characters.
const MIN_TOKEN_CHARS: usize = 20;

/// The column, counted from 0, of the value of a key that ends before column `key_end`. `None`: no
/// colon follows on the line.
pub(super) fn value_column(line: &[char], key_end: usize) -> Option<usize> {
    let colon = key_end + line.get(key_end..)?.iter().position(|c| *c == ':')?;
    let blanks = line
        .get(colon + 1..)?
        .iter()
        .take_while(|c| c.is_whitespace())
        .count();
    Some(colon + 1 + blanks)
}

/// The column, counted from 0, of the first possible secret in a line: the value of a secret key, or a part of
/// a URL. `None`: no possible secret.
pub(super) fn secret_column(line: &str) -> Option<usize> {
    let first = secret_value(line)
        .into_iter()
        .chain(secret_in_url(line))
        .min()?;
    Some(line[..first].chars().count())
}

/// The offset of the first value of a secret key, unless it is the location of a secret. `None`: no such value.
fn secret_value(line: &str) -> Option<usize> {
    for (colon, _) in line.match_indices(':') {
        let value = line[colon + 1..].trim_start();
        if is_secret_key(&line[..colon]) && !is_secret_location(value) {
            return Some(line.len() - value.len());
        }
    }
    None
}

/// Whether a text ends with a key whose value is secret. The key may be quoted, and blanks may follow it.
fn is_secret_key(text: &str) -> bool {
    let is_after_key = |c: char| c.is_whitespace() || matches!(c, '"' | '\'');
    let key = text.trim_end_matches(is_after_key).to_ascii_lowercase();
    SECRET_WORDS.iter().any(|word| key.ends_with(word))
}

/// Whether a value begins like the location of a secret: `{ env: NAME }` or `{ file: PATH }`.
fn is_secret_location(value: &str) -> bool {
    let beginning: String = value
        .chars()
        .filter(|c| *c != ' ')
        .take("{file:".len())
        .collect();
    beginning.starts_with("{env:") || beginning == "{file:"
}

/// The offset of the first possible secret in a URL: user name and password, or a part of the path that can be
/// a token, as in webhook URLs, or the query. `None`: no possible secret.
fn secret_in_url(line: &str) -> Option<usize> {
    const SCHEME_END: &str = "://";
    let start = line.find(SCHEME_END)? + SCHEME_END.len();
    let url = &line[start..];
    if url.contains('@') {
        return Some(start);
    }
    for (mark, text) in url.match_indices(['/', '?']) {
        let part = mark + text.len();
        if text == "?" || begins_with_token(&url[part..]) {
            return Some(start + part);
        }
    }
    None
}

/// Whether a text begins with enough characters for a token.
fn begins_with_token(text: &str) -> bool {
    let chars = text
        .chars()
        .take_while(|c| c.is_alphanumeric() || "-_=".contains(*c));
    chars.count() >= MIN_TOKEN_CHARS
}

/// Redacts the quotes in a text, except for keys of a keys file. A quote extends from the first quotation
/// mark, which is a backtick or `"`, to the last mark of the same kind.
pub(super) fn redact_quotes(text: &str) -> String {
    let Some(start) = text.find(['`', '"']) else {
        return text.to_owned();
    };
    let (before, from_mark) = text.split_at(start);
    let (mark, after_mark) = from_mark.split_at(1);
    let (quoted, after) = after_mark.rsplit_once(mark).unwrap_or((after_mark, ""));
    let is_shown = is_keys_file_word(quoted) || quoted == "tokenweir keygen";
    let shown = if is_shown { quoted } else { "…" };
    format!("{before}{mark}{shown}{mark}{}", redact_quotes(after))
}

/// Replaces each character of a word by `*` unless the word is a key of a keys file.
pub(super) fn redact_values(line: &str) -> String {
    let mut redacted = String::with_capacity(line.len());
    let is_separator = |c: char| c.is_whitespace() || "{}[],:#'\"".contains(c);
    for part in line.split_inclusive(is_separator) {
        let (word, after) = part.split_at(part.trim_end_matches(is_separator).len());
        if word == "-" || is_keys_file_word(word) {
            redacted.push_str(word);
        } else {
            redacted.extend(word.chars().map(|_| '*'));
        }
        redacted.push_str(after);
    }
    redacted
}

/// Whether a word is a key of a keys file, possibly mistyped.
fn is_keys_file_word(word: &str) -> bool {
    KEYS_FILE_WORDS.iter().any(|key| {
        let is_similar =
            word.len().abs_diff(key.len()) <= MAX_MISTYPED_CHARS && word.len() > MAX_MISTYPED_CHARS;
        is_similar && strsim::levenshtein(word, key) <= MAX_MISTYPED_CHARS
    })
}

/// Replaces control characters other than tabs, because a terminal would execute them.
pub(super) fn replace_control_chars(text: &str) -> String {
    let replace = |c: char| {
        if c.is_control() && c != '\t' {
            '\u{fffd}'
        } else {
            c
        }
    };
    text.chars().map(replace).collect()
}
