//! The recorded ratios of the gateway's CPU times to those of the reference proxy, and the comparison with
//! new ratios. Unlike a time, a ratio of two times of one run hardly depends on the machine.

use super::section::Section;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

/// The ratio of one CPU time of the gateway to that of the reference proxy: the median of the rounds, and the
/// least and the greatest ratio of a round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ratio {
    pub(crate) median: f64,
    pub(crate) range: [f64; 2],
}

/// A new ratio may exceed the recorded ratio by at most this factor.
const MAX_FACTOR: f64 = 1.1;

/// With `PASSTHROUGH_RECORD=1`, records the ratios of a section. Else compares them with the recorded ones.
/// Returns a text, and the number of ratios that are worse than recorded.
pub(crate) fn check(section: Section, ratios: &[(&'static str, Ratio)]) -> (String, usize) {
    let recorded = fs::read_to_string(file()).unwrap_or_default();
    if std::env::var_os("PASSTHROUGH_RECORD").is_some() {
        let (own, others): (String, String) = (lines(section, ratios), others(section, &recorded));
        fs::write(file(), others + &own).unwrap();
        return (own, 0);
    }
    let (mut text, mut worse) = (String::new(), 0);
    for (name, now) in ratios {
        let before = recorded
            .lines()
            .find_map(|line| recorded_ratio(line, section, name));
        let is_worse = before.is_some_and(|[median, greatest]| {
            // A median that is not above the greatest recorded round is noise.
            now.median > greatest.max(MAX_FACTOR * median)
        });
        worse += usize::from(is_worse);
        let verdict = if is_worse {
            ": MORE THAN 10 % WORSE"
        } else {
            ""
        };
        let before = before.map_or("none".into(), |[median, _]| format!("{median:.3}"));
        let _ = writeln!(
            text,
            "{name}: {:.3} × hyper, recorded {before}{verdict}",
            now.median
        );
    }
    (text, worse)
}

fn lines(section: Section, ratios: &[(&'static str, Ratio)]) -> String {
    let line = |(name, ratio): &(&str, Ratio)| {
        let Ratio {
            median,
            range: [least, greatest],
        } = ratio;
        format!(
            "{median:.3} {least:.3} {greatest:.3} {} {name}\n",
            section.as_str()
        )
    };
    ratios.iter().map(line).collect()
}

/// The recorded lines of all sections except this one.
fn others(section: Section, recorded: &str) -> String {
    let is_other = |line: &&str| line.split(' ').nth(3) != Some(section.as_str());
    recorded
        .lines()
        .filter(is_other)
        .fold(String::new(), |text, line| text + line + "\n")
}

/// The recorded median of a figure and its greatest recorded ratio. `None`: the line is about another section
/// or figure.
fn recorded_ratio(line: &str, section: Section, figure: &str) -> Option<[f64; 2]> {
    let mut parts = line.splitn(5, ' ');
    let median = parts.next()?.parse().ok()?;
    let greatest = parts.nth(1)?.parse().ok()?;
    (parts.next()? == section.as_str() && parts.next()? == figure).then_some([median, greatest])
}

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("benches/passthrough/ratios.txt")
}
