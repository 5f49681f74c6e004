//! Formats numbers and times as short texts. An unknown value is shown as a dash.

use serde_json::Value;
use tokenweir_api::LatencyQuantiles;

const MISSING: &str = "–";

/// Formats a number in few characters, such as `0.42`, `13.2`, `132` or `12.3k`.
pub(super) fn number(value: Option<f64>) -> String {
    match value.filter(|value| value.is_finite()) {
        None => MISSING.to_owned(),
        Some(value) if value.abs() >= 1e6 => format!("{:.1}M", value / 1e6),
        Some(value) if value.abs() >= 1e4 => format!("{:.1}k", value / 1e3),
        Some(value) if value.abs() >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        Some(value) if value.abs() >= 10.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.2}"),
    }
}

/// A number without decimal places.
pub(super) fn count(value: impl Into<Option<f64>>) -> String {
    value
        .into()
        .map_or_else(|| MISSING.to_owned(), |value| format!("{value:.0}"))
}

/// Formats a duration in seconds. Its magnitude determines the unit, from microseconds to days. The result is a
/// dash for `None` and for a value that is not finite.
pub(super) fn seconds(value: Option<f64>) -> String {
    match value.filter(|value| value.is_finite()) {
        None => MISSING.to_owned(),
        Some(value) if value < 0.001 => format!("{:.0}µs", value * 1e6),
        Some(value) if value < 0.01 => format!("{:.1}ms", value * 1e3),
        Some(value) if value < 1.0 => format!("{:.0}ms", value * 1e3),
        Some(value) if value < 10.0 => format!("{value:.2}s"),
        Some(value) if value < 60.0 => format!("{value:.1}s"),
        Some(value) => span(value),
    }
}

/// Formats a duration in seconds with its two largest units. A duration below a minute has only seconds.
pub(super) fn span(value: f64) -> String {
    let total_seconds = value as u64;
    let days = total_seconds / 86_400;
    let hours = total_seconds / 3_600 % 24;
    let minutes = total_seconds / 60 % 60;
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{total_seconds}s"),
        (0, 0, minutes) => format!("{minutes}m{:02}s", total_seconds % 60),
        (0, hours, minutes) => format!("{hours}h{minutes:02}m"),
        (days, hours, _) => format!("{days}d{hours:02}h"),
    }
}

pub(super) fn format_quantiles(name: &str, quantiles: Option<LatencyQuantiles>) -> String {
    let quantile = |read: fn(LatencyQuantiles) -> f64| seconds(quantiles.map(read));
    let [p50, p95, p99] = [
        quantile(|q| q.p50),
        quantile(|q| q.p95),
        quantile(|q| q.p99),
    ];
    format!("{name} p50 {p50} p95 {p95} p99 {p99}")
}

/// A share, from 0 to 1, in percent.
pub(super) fn percent(value: Option<f64>) -> String {
    value.map_or_else(
        || MISSING.to_owned(),
        |value| format!("{:.0}%", value * 100.0),
    )
}

/// Text without control characters, or a dash if no text remains.
pub(super) fn text(value: &str) -> String {
    let clean: String = value
        .chars()
        .filter(|letter| !letter.is_control())
        .collect();
    if clean.is_empty() {
        MISSING.to_owned()
    } else {
        clean
    }
}

/// An identifier of the gateway in words, such as `engine queue` for `engine_queue`.
pub(super) fn words(identifier: &str) -> String {
    text(&identifier.replace('_', " "))
}

/// An identifier in a JSON document, in words. A dash if the value is not a text.
pub(super) fn label(value: &Value) -> String {
    words(value.as_str().unwrap_or_default())
}

/// The items of a list in a JSON document. Empty: the value is not a list.
pub(super) fn rows(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// The first 8 characters of a request id. `tokenweir explain` accepts them instead of the whole id.
pub(super) fn short_id(id: &str) -> String {
    text(&id.chars().take(8).collect::<String>())
}

/// Cuts a text to at most `width` characters. The beginning and the end of the text stay, because names of
/// replicas differ at their ends. `common_end`: the number of last characters that all texts of the column
/// share. These characters are removed first.
pub(super) fn cut(words: &str, width: usize, common_end: usize) -> String {
    let letters: Vec<char> = words.chars().collect();
    let own = letters.len().saturating_sub(common_end);
    if letters.len() <= width {
        return words.to_owned();
    }
    if own < width {
        return letters[..width - 1].iter().chain(&['…']).collect();
    }
    let is_end_cut = common_end > 0 && width > 2;
    let end: &[char] = if is_end_cut { &['…'] } else { &[] };
    let kept = width.saturating_sub(1 + end.len());
    let tail = &letters[own - kept.div_ceil(2)..own];
    let parts = letters[..kept / 2].iter().chain(&['…']).chain(tail);
    parts.chain(end).take(width).collect()
}

/// Length of the longest common end of these names that begins with a separator, such as the domain of host
/// names. 0: there are fewer than two different names, or no such end.
pub(super) fn common_end<'a>(names: impl Iterator<Item = &'a str> + Clone) -> usize {
    let Some(first) = names.clone().next() else {
        return 0;
    };
    if names.clone().all(|name| name == first) {
        return 0;
    }
    let equal = |name: &str| {
        let pairs = name.chars().rev().zip(first.chars().rev());
        pairs.take_while(|(left, right)| left == right).count()
    };
    let shared = names.map(equal).min().unwrap_or_default();
    let end = first.chars().skip(first.chars().count() - shared);
    end.skip_while(|letter| !matches!(letter, '.' | ':' | '/'))
        .count()
}

/// A text for sorting names in natural order: `gpu-9` before `gpu-10`. Each number is padded with zeros.
pub(super) fn natural_key(words: &str) -> String {
    let mut key = String::with_capacity(words.len() + NUMBER_DIGITS);
    let mut rest = words;
    while let Some(letter) = rest.chars().next() {
        let is_same = |other: char| other.is_ascii_digit() == letter.is_ascii_digit();
        let end = rest.find(|other| !is_same(other)).unwrap_or(rest.len());
        if letter.is_ascii_digit() {
            let zeros = NUMBER_DIGITS.saturating_sub(end);
            key.extend(std::iter::repeat_n('0', zeros));
        }
        key.push_str(&rest[..end]);
        rest = &rest[end..];
    }
    key
}

/// Digits of a number in [`natural_key`].
const NUMBER_DIGITS: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_stay_distinguishable() {
        let names: Vec<String> = (0..40)
            .map(|number| format!("vllm-llama4-maverick-17b-128e-{number:02}.vllm.svc:8000"))
            .collect();
        let end = common_end(names.iter().map(String::as_str));
        assert_eq!(end, ".vllm.svc:8000".len());
        for width in [8, 12, 18, 36] {
            let mut shown: Vec<String> = names.iter().map(|name| cut(name, width, end)).collect();
            assert!(shown.iter().all(|name| name.chars().count() <= width));
            shown.dedup();
            assert_eq!(shown.len(), 40, "{shown:?}");
        }
        assert_eq!(cut(&names[7], 14, end), "vllm-l…28e-07…");
        assert_eq!(cut("vllm-llama4-maverick-07", 12, 0), "vllm-…ick-07");
        assert_eq!(["abc", "abcd"].map(|name| cut(name, 3, 0)), ["abc", "a…d"]);
        assert_eq!(
            [0, 1, 2].map(|width| cut("abcd", width, 2).chars().count()),
            [0, 1, 2]
        );
        assert_eq!(common_end(["a.b", "a.b"].into_iter()), 0);
    }

    #[test]
    fn names_are_sorted_in_natural_order() {
        let mut names = [
            "gpu-10",
            "gpu-2",
            "b",
            "gpu-1",
            "a",
            "10.0.0.9",
            "10.0.0.10",
        ];
        names.sort_by_key(|name| natural_key(name));
        assert_eq!(
            names,
            [
                "10.0.0.9",
                "10.0.0.10",
                "a",
                "b",
                "gpu-1",
                "gpu-2",
                "gpu-10"
            ]
        );
        assert_eq!(natural_key(""), "");
    }

    #[test]
    fn numbers_and_times_are_short() {
        let format = |value| number(Some(value));
        assert_eq!(
            [0.421, 7.0, 13.25, 132.4, 12_345.0, 2.5e6].map(format),
            ["0.42", "7", "13.2", "132", "12.3k", "2.5M"]
        );
        let format = |value| seconds(Some(value));
        assert_eq!(
            [0.0005, 0.0042, 0.042, 4.2, 42.0, 4_200.0].map(format),
            ["500µs", "4.2ms", "42ms", "4.20s", "42.0s", "1h10m"]
        );
        assert_eq!(
            [span(59.9), span(61.0), span(90_000.0)],
            ["59s", "1m01s", "1d01h"]
        );
        assert_eq!(
            [number(None), seconds(Some(f64::NAN)), percent(None)],
            ["–"; 3]
        );
    }

    #[test]
    fn control_characters_are_removed() {
        assert_eq!(text("a\u{1b}[2J\r\nb"), "a[2Jb");
        assert_eq!([text("\u{7}"), text("")], ["–", "–"]);
    }
}
