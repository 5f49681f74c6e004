//! The metrics page as text, in the two forms that Prometheus reads: the classic one, and
//! OpenMetrics 1.0, which has exemplars.

use super::exemplar::Exemplar;
use super::metric::Kind;
use super::series::Point;
use std::fmt::Write;

/// The form of a page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// The Prometheus text format 0.0.4.
    #[default]
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

/// A page that is being written.
pub(super) struct Page {
    text: String,
    format: Format,
}

/// Bounds as they are written in `le`, with the open one.
pub(super) type Bars = Vec<String>;

// === impl Format ===

impl Format {
    /// The form that an `Accept` header asks for. Without a clear wish for OpenMetrics it is the
    /// classic one: that of the two with the larger `q`, where the classic one may be meant by
    /// `text/*` or `*/*`.
    pub fn accepted(accept: &str) -> Self {
        let mut best = [0.0_f64; 2];
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default().to_ascii_lowercase();
            let (mut version, mut q) = (None, 1.0);
            for (name, value) in parts.filter_map(|part| part.split_once('=')) {
                match name.trim().to_ascii_lowercase().as_str() {
                    "version" => version = Some(value.trim().trim_matches('"')),
                    "q" => q = value.trim().parse().unwrap_or(0.0),
                    _ => {}
                }
            }
            let format = match (media_type.as_str(), version) {
                ("application/openmetrics-text", None | Some("1.0.0")) => Self::OpenMetrics,
                ("text/plain", None | Some("0.0.4")) | ("text/*" | "*/*", _) => Self::Text,
                _ => continue,
            };
            best[format as usize] = best[format as usize].max(q);
        }
        let [text, open_metrics] = best;
        if open_metrics > 0.0 && open_metrics >= text { Self::OpenMetrics } else { Self::Text }
    }

    /// The media type.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Bounds as they are written: always with a point or an exponent, as Prometheus stores them.
pub(super) fn bars(bounds: &[f64]) -> Bars {
    let bar = |bound: &f64| {
        if *bound >= 1e-4 {
            return format!("{bound:?}");
        }
        let text = format!("{bound:e}");
        match text.split_once("e-") {
            Some((digits, power)) => format!("{digits}e-{power:0>2}"),
            None => text,
        }
    };
    bounds.iter().map(bar).chain(["+Inf".to_owned()]).collect()
}

// === impl Page ===

impl Page {
    pub(super) fn new(format: Format, capacity: usize) -> Self {
        Self { text: String::with_capacity(capacity), format }
    }

    /// Begins a family.
    pub(super) fn family(&mut self, name: &str, help: &str, kind: Kind) {
        let is_open = self.format == Format::OpenMetrics;
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        };
        // In OpenMetrics `_total` belongs to the sample of a counter, not to its family.
        let bare = name.strip_suffix("_total").filter(|_| is_open).unwrap_or(name);
        let _ = write!(self.text, "# HELP {bare} ");
        for character in help.chars() {
            match character {
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '"' if is_open => self.text.push_str("\\\""),
                other => self.text.push(other),
            }
        }
        let _ = writeln!(self.text, "\n# TYPE {bare} {kind}");
    }

    /// One sample of a counter or a gauge.
    pub(super) fn number(&mut self, name: &str, labels: &str, value: f64) {
        self.sample(name, "", labels);
        self.value(value);
        self.text.push('\n');
    }

    /// The samples of one histogram.
    pub(super) fn histogram(&mut self, name: &str, labels: &str, bars: &Bars, point: &Point) {
        let comma = if labels.is_empty() { "" } else { "," };
        let mut cumulative = 0;
        for (bucket, (bar, count)) in bars.iter().zip(&point.counts).enumerate() {
            cumulative += count;
            let _ = write!(self.text, "{name}_bucket{{{labels}{comma}le=\"{bar}\"}} {cumulative}");
            let shown = point.exemplars.iter().find(|(of, _)| *of == bucket);
            if let Some((_, exemplar)) = shown.filter(|_| self.format == Format::OpenMetrics) {
                self.exemplar(exemplar);
            }
            self.text.push('\n');
        }
        self.sample(name, "_sum", labels);
        self.value(point.sum);
        self.text.push('\n');
        self.sample(name, "_count", labels);
        let _ = writeln!(self.text, "{cumulative}");
    }

    /// The page.
    pub(super) fn end(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    fn sample(&mut self, name: &str, suffix: &str, labels: &str) {
        let _ = match labels {
            "" => write!(self.text, "{name}{suffix} "),
            _ => write!(self.text, "{name}{suffix}{{{labels}}} "),
        };
    }

    fn value(&mut self, value: f64) {
        let _ = match value {
            f64::INFINITY => write!(self.text, "+Inf"),
            f64::NEG_INFINITY => write!(self.text, "-Inf"),
            _ => write!(self.text, "{value}"),
        };
    }

    fn exemplar(&mut self, exemplar: &Exemplar) {
        let Exemplar { trace_id, span_id, value, at } = exemplar;
        let _ = write!(
            self.text,
            " # {{trace_id=\"{trace_id:032x}\",span_id=\"{span_id:016x}\"}} {value} {}.{:03}",
            at.as_secs(),
            at.subsec_millis()
        );
    }
}

#[cfg(test)]
#[path = "exposition_tests.rs"]
mod tests;
