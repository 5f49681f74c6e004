//! Tests of the private data that must be redacted and of the text that must not change.

use super::*;

/// Redacts all kinds of private data in `text`.
fn redact_all(text: &str) -> String {
    redact(text, &RedactionKind::ALL).0
}

/// Asserts that each secret is replaced completely: in plain text, between quotes, after escapes of
/// one and two levels, and at the start and the end of the text.
fn assert_redacted(kind: RedactionKind, secrets: &[&str]) {
    for secret in secrets {
        for (before, after) in [
            ("", ""),
            ("so: ", " and more"),
            ("(", ")."),
            ("\\n", "\\n"),
            ("\\\\n", "\\\\nthen"),
            ("\\\"", "\\\""),
            ("{\\\"text\\\":\\\"", "\\\"}"),
            ("\\t", "\\r\\n"),
            ("é ", " é"),
        ] {
            let text = format!("{before}{secret}{after}");
            let expected = format!("{before}[{}]{after}", kind.as_str());
            assert_eq!(redact_all(&text), expected, "{text}");
        }
    }
}

#[test]
fn email_addresses_in_prompts_and_responses_are_redacted() {
    assert_redacted(
        RedactionKind::Email,
        &[
            "bob@example.com",
            "a.b+c_d@mail.example.co.uk",
            "müller@exämple.de",
            "X%y@A1.IO",
        ],
    );
    assert_eq!(redact_all("a bob\\u0040example.com b"), "a [email] b");
}

#[test]
fn phone_numbers_in_prompts_and_responses_are_redacted() {
    assert_redacted(
        RedactionKind::Phone,
        &[
            "+1 415 555 0123",
            "+14155550123",
            "+44 20 7946 0958",
            "+49 (30) 123456-78",
            "0049 30 1234567",
            "(415) 555-0123",
            "415-555-0123",
            "415.555.0123",
            "1-415-555-0123",
            "020 7946 0958",
            "06 12 34 56 78",
            "030/12345678",
            "(030) 1234567",
            "090-1234-5678",
            "98765 43210",
        ],
    );
    assert_eq!(
        redact_all("+1 415 555 9123 20261121 7"),
        "[phone] 20261121 7",
        "two numbers"
    );
}

#[test]
fn payment_card_numbers_are_redacted() {
    assert_redacted(
        RedactionKind::Card,
        &[
            "4111111111111111",
            "4111 1111 1111 1111",
            "5500-0000-0000-0004",
            "3400 000000 00009",
            "4222222222222",
            "6011000990139424",
        ],
    );
    assert_eq!(
        redact_all("5 4111 1111 1111 1111 999"),
        "5 [card] 999",
        "among other digits"
    );
}

#[test]
fn keys_and_tokens_of_known_formats_are_redacted() {
    // Each key is written in two parts, so that secret scanners do not report this file.
    let keys = [
        ("sk-", "proj-abcdefghijklmnop1234"),
        ("sk-ant-", "api03-Abc_def-0123456789"),
        ("sk_live", "_0123456789abcdefABCD"),
        ("ghp_", "0123456789abcdefghijABCDEFGHIJ012345"),
        ("github_pat_", "11ABCDEFG0123456789_abcdef"),
        ("AKIA", "IOSFODNN7EXAMPLE"),
        ("xoxb-", "123456789012-abcdefABCDEF"),
        ("hf_", "abcdefghijklmnopqrstuvwxyzABCDEFGH"),
        ("eyJhbGciOiJIUzI1NiJ9", ".eyJzdWIiOiIxIn0.c2lnbmF0dXJl"),
        ("eyJhbGciOiJIUzI1NiJ9", ".eyJzdWIiOiIx"),
    ];
    let keys: Vec<String> = keys.iter().map(|(a, b)| format!("{a}{b}")).collect();
    assert_redacted(
        RedactionKind::Key,
        &keys.iter().map(String::as_str).collect::<Vec<_>>(),
    );
}

#[test]
fn truncated_private_key_blocks_are_redacted() {
    let (begin, end) = ("-----BEGIN RSA PRIVATE", "-----END RSA PRIVATE");
    for newline in ["\n", "\\n", "\\\\n", "\\r\\n"] {
        let block = format!("{begin} KEY-----{newline}MIIEpA{newline}abc={newline}");
        assert_eq!(
            redact_all(&format!("a {block}{end} KEY----- b")),
            "a [key] b"
        );
        assert_eq!(
            redact_all(&format!("a {block}")),
            "a [key]",
            "truncated block"
        );
    }
}

#[test]
fn only_the_value_of_a_password_is_redacted() {
    for (text, expected) in [
        (
            "Authorization: Bearer abc123def456",
            "Authorization: Bearer [key]",
        ),
        ("password=hunter2!", "password=[key]"),
        (
            "\\\"password\\\": \\\"s3cr3t\\\"",
            "\\\"password\\\": \\\"[key]\\\"",
        ),
        (
            "api_key = 9f86d081884c7d659a2feaa0c55ad015",
            "api_key = [key]",
        ),
        (
            "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            "AWS_SECRET_ACCESS_KEY=[key]",
        ),
        ("token: dGhpcyBpcyBhIHNlY3JldA==", "token: [key]"),
    ] {
        assert_eq!(redact_all(text), expected);
    }
}

#[test]
fn redaction_does_not_change_text_without_private_data() {
    for text in [
        "max_tokens: 1024, total_tokens=123456789012",
        "at 1795278586249 ms",
        "1234567890123456 is a number",
        "4111 1111 1111 1112",
        "2026-11-21T18:41:18.123Z and 2026-11-21 18:41:18",
        "on 05.11.2026 and 05-11-2026",
        "192.168.100.200:8080 and 10.0.0.1",
        "the @decorator of foo@1.2.3, or me@localhost",
        "a risk-averse task-oriented desk-bound mask",
        "bearer certificates, and basic understanding",
        "the key: value of it, a token: string",
        "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16",
        "0.123456789 and 3.141592653589793",
        "C:\\notes\\table",
        "0x7fff5fbff8c0",
        "550e8400-e29b-41d4-a716-446655440000",
        "[{\"role\":\"user\",\"content\":\"Hello, how are you?\"}]",
        "PRIVATE KEY",
        "",
    ] {
        assert_eq!(redact_all(text), text);
    }
}

#[test]
fn only_selected_kinds_are_redacted() {
    let text = "bob@example.com and +1 415 555 0123 and eve@example.com";
    let (redacted, count) = redact(text, &[RedactionKind::Email]);
    assert_eq!(
        (redacted.as_str(), count),
        ("[email] and +1 415 555 0123 and [email]", 2)
    );
    assert_eq!(redact(text, &[]), (text.to_owned(), 0));
}

#[test]
fn texts_that_almost_match_are_fast() {
    for piece in [
        "4111 ",
        "+1 ",
        "a@",
        "eyJ",
        "key=",
        "\\\\",
        "0123 ",
        "-----BEGIN PRIVATE KEY ",
    ] {
        let text = piece.repeat(4_000);
        assert!(
            redact(&text, &RedactionKind::ALL).0.len() <= text.len() + 16,
            "{piece}"
        );
    }
}
