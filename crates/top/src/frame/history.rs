//! Plots of the last hour, as lines of block characters.

use crate::formatting::{percent, seconds, span};
use ratatui::text::Line;
use tokenweir_api::History;

const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Minimum number of columns of a screen that shows history.
const MIN_WIDTH: u16 = 60;
/// Columns before each plot, for its name and its maximum.
const LABEL_WIDTH: usize = 38;
/// Maximum number of characters of a plot.
const MAX_PLOT_WIDTH: usize = 60;

/// Plots of the p95 of TTFT, and of the share of requests that failed or were refused. Empty on a narrow
/// screen, and until there are three intervals.
pub(super) fn history_lines(history: &History, width: u16) -> Vec<Line<'static>> {
    let intervals = history.requests.len();
    if width < MIN_WIDTH || intervals < 3 {
        return Vec::new();
    }
    let plot_width = usize::from(width)
        .saturating_sub(LABEL_WIDTH)
        .min(MAX_PLOT_WIDTH);
    let past = span(intervals as f64 * history.interval_seconds);
    let unserved = |index: usize| {
        let at = |values: &[u64]| values.get(index).copied().unwrap_or_default();
        let requests = at(&history.requests);
        (requests > 0)
            .then(|| (at(&history.failed) + at(&history.refused)) as f64 / requests as f64)
    };
    let unserved: Vec<Option<f64>> = (0..intervals).map(unserved).collect();
    let line = |name: &str, values: &[Option<f64>], format: fn(Option<f64>) -> String| {
        let highest = values.iter().flatten().copied().reduce(f64::max);
        let label = format!("{name}, {past}: max {}", format(highest));
        Line::from(format!("{label:<LABEL_WIDTH$}{}", plot(values, plot_width)))
    };
    vec![
        line("TTFT p95", &history.ttft_p95, seconds),
        line("failed or refused", &unserved, percent),
    ]
}

/// Plots values with one character for each group of successive intervals. The character shows the highest
/// value of the group. A group without values is a space.
fn plot(values: &[Option<f64>], width: usize) -> String {
    let group = values.len().div_ceil(width.max(1)).max(1);
    let highest = values
        .iter()
        .flatten()
        .copied()
        .fold(0.0, f64::max)
        .max(1e-9);
    let block = |group: &[Option<f64>]| match group.iter().flatten().copied().reduce(f64::max) {
        None => ' ',
        Some(value) => {
            let level = (value / highest * (BLOCKS.len() - 1) as f64).round() as usize;
            BLOCKS.get(level).copied().unwrap_or('█')
        }
    };
    values.chunks(group).map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_shows_maxima_and_gaps() {
        let values = [Some(0.0), Some(7.0), None, None, Some(3.5), Some(1.0)];
        assert_eq!(plot(&values, 3), "█ ▅");
        assert_eq!(plot(&values, 60), "▁█  ▅▂");
        assert_eq!(plot(&[Some(0.0); 4], 4), "▁▁▁▁");
    }

    #[test]
    fn short_histories_and_narrow_screens_have_no_plot() {
        let history = |intervals| History {
            interval_seconds: 10.0,
            requests: vec![10; intervals],
            refused: vec![5; intervals],
            ttft_p95: vec![Some(0.2); intervals],
            ..History::default()
        };
        assert!(history_lines(&history(2), 200).is_empty());
        assert!(history_lines(&history(9), 40).is_empty());
        let lines = history_lines(&history(9), 80);
        assert!(
            lines[0]
                .to_string()
                .starts_with("TTFT p95, 1m30s: max 200ms "),
            "{lines:?}"
        );
        assert!(lines[1].to_string().contains("max 50%"), "{lines:?}");
    }
}
