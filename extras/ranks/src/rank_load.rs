//! The loads of the data-parallel ranks of one backend, from the time series that have the label `engine`.

use memchr::memmem;
use std::collections::BTreeMap;
use tokenweir_engine::dialect::{EngineLoad, MetricSample, lines};

/// The load of one data-parallel rank.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RankLoad {
    /// The number of the rank: the value of the label `engine`.
    pub(crate) rank: u32,
    /// The load that the page reports for the rank.
    pub(crate) load: EngineLoad,
    /// Number of responses of at most one token since the start of the process. Such responses are rare, so a
    /// probe request for one token shows in this number even while other requests run. `None`: the page does
    /// not have the number.
    pub(crate) short_responses: Option<f64>,
}

/// Maximum number of ranks of a backend. If a page has more ranks, no loads of ranks are read from it.
const MAX_RANKS: usize = 64;
/// The counter of [`RankLoad::short_responses`], with the bound of its bucket as a label.
const SHORT_RESPONSES: &[u8] = b"vllm:request_max_num_generation_tokens_bucket";

impl RankLoad {
    /// Reads the load of each rank from a metrics page, in the order of the rank numbers. Empty: the page names
    /// no ranks, or more than 64.
    pub(crate) fn read_all(page: &[u8]) -> Vec<Self> {
        let mut ranks: BTreeMap<u32, Vec<&[u8]>> = BTreeMap::new();
        for line in lines(page) {
            if let Some(rank) = rank_of(line) {
                ranks.entry(rank).or_default().push(line);
            }
            if ranks.len() > MAX_RANKS {
                return Vec::new();
            }
        }
        let ranks = ranks.into_iter();
        ranks.map(|(rank, lines)| Self::of(rank, lines)).collect()
    }

    fn of(rank: u32, lines: Vec<&[u8]>) -> Self {
        let counts = lines.iter().filter_map(|line| short_responses_of(line));
        Self {
            rank,
            short_responses: counts.reduce(|sum, count| sum + count),
            load: EngineLoad::of_lines(lines),
        }
    }
}

/// The number in the label `engine` of a line. `None`: the line has no such label.
fn rank_of(line: &[u8]) -> Option<u32> {
    const LABEL: &[u8] = b"engine=\"";
    let at = memmem::find(line, LABEL)?;
    // Another label can have a name that ends with `engine`, such as `search_engine`.
    if line.starts_with(b"#") || !matches!(line.get(at.checked_sub(1)?), Some(b'{' | b',')) {
        return None;
    }
    let number = line
        .get(at + LABEL.len()..)?
        .split(|byte| *byte == b'"')
        .next()?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

fn short_responses_of(line: &[u8]) -> Option<f64> {
    let sample = MetricSample::parse(line.strip_prefix(SHORT_RESPONSES)?)?;
    matches!(sample.label("le"), Some(b"1.0" | b"1"))
        .then(|| sample.number())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_has_its_own_values() {
        let page = "# HELP x engine=\"7\"\n\
            vllm:num_requests_running{engine=\"10\",model_name=\"m\"} 4.0\n\
            vllm:num_requests_waiting{engine=\"10\",model_name=\"m\"} 2.0\n\
            vllm:num_requests_running{model_name=\"m\",engine=\"2\"} 1.0\n\
            vllm:request_max_num_generation_tokens_bucket{engine=\"2\",le=\"1.0\"} 3.0\n\
            vllm:request_max_num_generation_tokens_bucket{engine=\"2\",le=\"2.0\"} 9.0\n\
            other{search_engine=\"5\"} 1\nprocess_start_time_seconds 9\n";
        let ranks = RankLoad::read_all(page.as_bytes());
        let values = ranks
            .iter()
            .map(|it| (it.rank, it.load.running, it.load.waiting));
        assert_eq!(
            values.collect::<Vec<_>>(),
            [(2, Some(1.0), None), (10, Some(4.0), Some(2.0))]
        );
        let short = ranks.iter().map(|it| it.short_responses);
        assert_eq!(short.collect::<Vec<_>>(), [Some(3.0), None]);
    }

    #[test]
    fn too_many_ranks_give_no_loads() {
        let line = |rank| format!("vllm:num_requests_running{{engine=\"{rank}\"}} 0\n");
        let page = |count| (0..count).map(line).collect::<String>();
        assert_eq!(
            RankLoad::read_all(page(MAX_RANKS).as_bytes()).len(),
            MAX_RANKS
        );
        assert!(RankLoad::read_all(page(MAX_RANKS + 1).as_bytes()).is_empty());
    }
}
