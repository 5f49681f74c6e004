//! Formats numbers and times as short texts. An unknown value is shown as a dash.

use tokenweir_api::LatencyQuantiles;

const MISSING: &str = "–";

/// A number in few characters, such as `0.42`, `13.2`, `132` or `12.3k`.
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

/// Formats a duration that is given in seconds. The magnitude of the duration determines the unit,
/// from microseconds to days. `None` or a value that is not finite: a dash.
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

/// A time that is given in seconds, written with its two largest units. A time below a minute is written in
/// seconds only.
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

/// The p50, p95 and p99 of the latency with this name.
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

/// The first characters of a request id. `tokenweir explain` accepts these characters instead of the whole
/// id.
pub(super) fn short_id(id: &str) -> String {
    text(&id.chars().take(8).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

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
