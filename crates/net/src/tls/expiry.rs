//! Reads the expiry of a certificate from its DER encoding (RFC 5280, section 4.1).

use std::time::SystemTime;

const SEQUENCE: u8 = 0x30;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// DER tag of the version field. X.509 certificates of version 1 do not have this field.
const VERSION: u8 = 0xa0;

/// The end of the validity of a certificate. `None`: the bytes are not a certificate.
pub(super) fn not_after(certificate: &[u8]) -> Option<SystemTime> {
    let mut certificate = sequence(&mut { certificate })?;
    let mut signed = sequence(&mut certificate)?;
    let (first, _) = element(&mut signed)?;
    // Skips the serial number (after the version, if there is one), the signature algorithm and the issuer.
    for _ in 0..if first == VERSION { 3 } else { 2 } {
        element(&mut signed)?;
    }
    let mut validity = sequence(&mut signed)?;
    element(&mut validity)?;
    let (form, digits) = element(&mut validity)?;
    time(form, std::str::from_utf8(digits).ok()?)
}

fn sequence<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    element(input)
        .filter(|(tag, _)| *tag == SEQUENCE)
        .map(|(_, content)| content)
}

/// Takes a DER element from the input. Returns its tag and its content. `None`: the input is invalid.
fn element<'a>(input: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (tag, rest) = input.split_first()?;
    let (first, mut rest) = rest.split_first()?;
    let mut length = usize::from(*first);
    if length >= 0x80 {
        let (bytes, after) = rest.split_at_checked(length - 0x80)?;
        if bytes.len() > 4 {
            return None;
        }
        length = bytes
            .iter()
            .fold(0, |length, byte| length << 8 | usize::from(*byte));
        rest = after;
    }
    let (content, after) = rest.split_at_checked(length)?;
    *input = after;
    Some((*tag, content))
}

/// Parses `YYMMDDhhmmssZ` (UTC time) or `YYYYMMDDhhmmssZ` (generalized time). `None`: the text has another
/// form.
fn time(form: u8, digits: &str) -> Option<SystemTime> {
    let digits = match form {
        // A year of two digits lies between 1950 and 2049.
        UTC_TIME if digits >= "5" => format!("19{digits}"),
        UTC_TIME => format!("20{digits}"),
        GENERALIZED_TIME => digits.to_owned(),
        _ => return None,
    };
    let part = |from: usize, to: usize| digits.get(from..to);
    let year = part(0, 4)?;
    let month = part(4, 6)?;
    let day = part(6, 8)?;
    let hour = part(8, 10)?;
    let minute = part(10, 12)?;
    let second = digits.get(12..)?;
    humantime::parse_rfc3339(&format!("{year}-{month}-{day}T{hour}:{minute}:{second}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(tag: u8, content: &[u8]) -> Vec<u8> {
        let length = match content.len() {
            short @ 0..0x80 => vec![short as u8],
            long => vec![0x82, (long >> 8) as u8, long as u8],
        };
        [&[tag], &length[..], content].concat()
    }

    /// The DER encoding of a certificate from its beginning to its validity.
    fn certificate(version: &[u8], form: u8, not_after: &str) -> Vec<u8> {
        let begin = encode(UTC_TIME, b"200101000000Z");
        let validity = encode(
            SEQUENCE,
            &[begin, encode(form, not_after.as_bytes())].concat(),
        );
        let issuer = encode(SEQUENCE, &[0; 300]);
        let before = [encode(0x02, &[1]), encode(SEQUENCE, &[]), issuer].concat();
        encode(
            SEQUENCE,
            &encode(SEQUENCE, &[version, &before, &validity].concat()),
        )
    }

    #[test]
    fn both_time_forms_are_read() {
        let version = encode(VERSION, &encode(0x02, &[2]));
        for (form, digits, expected) in [
            (UTC_TIME, "491231235959Z", "2049-12-31T23:59:59Z"),
            (UTC_TIME, "991231235959Z", "1999-12-31T23:59:59Z"),
            (GENERALIZED_TIME, "20500101000000Z", "2050-01-01T00:00:00Z"),
            (GENERALIZED_TIME, "99991231235959Z", "9999-12-31T23:59:59Z"),
        ] {
            let expected = humantime::parse_rfc3339(expected).ok();
            for version in [&version[..], &[]] {
                assert_eq!(
                    not_after(&certificate(version, form, digits)),
                    expected,
                    "{digits}"
                );
            }
        }
    }

    #[test]
    fn bytes_that_are_no_certificate_have_no_expiry() {
        let complete = certificate(&[], UTC_TIME, "491231235959Z");
        for length in 0..complete.len() {
            assert_eq!(not_after(&complete[..length]), None, "{length}");
        }
        for (form, digits) in [
            (UTC_TIME, "4912"),
            (UTC_TIME, "491331235959Z"),
            (0x0c, "491231235959Z"),
        ] {
            assert_eq!(not_after(&certificate(&[], form, digits)), None, "{digits}");
        }
        assert_eq!(not_after(&[SEQUENCE, 0x88, 1, 1, 1, 1, 1, 1, 1, 1]), None);
    }
}
