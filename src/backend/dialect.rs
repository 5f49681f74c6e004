//! How a server family names its load. One pass over the bytes of a metrics page reads the few
//! families that matter, under every name they have had, and keeps nothing else of it.

use memchr::memchr;

/// What a replica said of itself. A field is `None` if the page did not have it, or had a value
/// that it cannot have.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    /// Share of the KV cache that requests hold, from 0 to 1; the fullest engine's.
    pub kv_usage: Option<f64>,
    /// Requests waiting, over all engines.
    pub waiting: Option<f64>,
    /// Requests running, over all engines.
    pub running: Option<f64>,
    /// Preemptions since its start.
    pub preemptions: Option<f64>,
    /// Tokens looked up in the prefix cache since its start.
    pub prefix_queries: Option<f64>,
    /// Tokens found there.
    pub prefix_hits: Option<f64>,
    /// Prompt tokens computed since its start.
    pub prompt_tokens: Option<f64>,
    /// Tokens generated since its start.
    pub generation_tokens: Option<f64>,
    /// Tokens in a KV block.
    pub block_size: Option<f64>,
    /// KV blocks, over all engines.
    pub blocks: Option<f64>,
    /// Seconds that requests have waited in the engine since its start, and how many had.
    pub queue_seconds: Option<f64>,
    /// Requests in that sum.
    pub queued: Option<f64>,
    /// Seconds that requests took from being scheduled to their first token, and how many had.
    pub prefill_seconds: Option<f64>,
    /// Requests in that sum.
    pub prefilled: Option<f64>,
    /// What kind of server it is.
    pub server: Option<Server>,
}

/// Kinds of server, as far as they are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// vLLM, with either front end.
    Vllm,
    /// SGLang.
    Sglang,
}

/// A canonical signal and the names it has had, the one to prefer first. Names of one signal can
/// stand on a page side by side, so they are never added up.
struct Signal {
    names: &'static [&'static str],
    source: Source,
    /// How the series of several engines become one number.
    fold: fn(f64, f64) -> f64,
    field: fn(&mut Load) -> &mut Option<f64>,
}

#[derive(Clone, Copy)]
enum Source {
    /// The value of the sample.
    Value,
    /// The value of a label.
    Label(&'static str),
}

fn sum(a: f64, b: f64) -> f64 {
    a + b
}

/// vLLM from 0.6 to 0.33 (both front ends) and SGLang. The prefix and its separator are left out:
/// some exporters write `vllm_x` for `vllm:x`, and Ray puts `ray_` in front.
const SIGNALS: [Signal; 14] = [
    Signal {
        names: &["kv_cache_usage_perc", "gpu_cache_usage_perc", "token_usage"],
        source: Source::Value,
        fold: f64::max,
        field: |load| &mut load.kv_usage,
    },
    Signal::summed(&["num_requests_waiting", "num_queue_reqs"], |load| &mut load.waiting),
    Signal::summed(&["num_requests_running", "num_running_reqs"], |load| &mut load.running),
    Signal::summed(&["num_preemptions_total", "num_retracted_requests_total"], |load| {
        &mut load.preemptions
    }),
    Signal::summed(&["prefix_cache_queries_total", "gpu_prefix_cache_queries_total"], |load| {
        &mut load.prefix_queries
    }),
    Signal::summed(&["prefix_cache_hits_total", "gpu_prefix_cache_hits_total"], |load| {
        &mut load.prefix_hits
    }),
    Signal::summed(&["prompt_tokens_total"], |load| &mut load.prompt_tokens),
    Signal::summed(&["generation_tokens_total"], |load| &mut load.generation_tokens),
    Signal {
        names: &["cache_config_info"],
        source: Source::Label("block_size"),
        fold: f64::max,
        field: |load| &mut load.block_size,
    },
    Signal {
        names: &["cache_config_info"],
        source: Source::Label("num_gpu_blocks"),
        fold: sum,
        field: |load| &mut load.blocks,
    },
    Signal::summed(&["request_queue_time_seconds_sum", "queue_time_seconds_sum"], |load| {
        &mut load.queue_seconds
    }),
    Signal::summed(&["request_queue_time_seconds_count", "queue_time_seconds_count"], |load| {
        &mut load.queued
    }),
    Signal::summed(&["request_prefill_time_seconds_sum"], |load| &mut load.prefill_seconds),
    Signal::summed(&["request_prefill_time_seconds_count"], |load| &mut load.prefilled),
];

const PREFIXES: [(&[u8], Server); 2] = [(b"vllm", Server::Vllm), (b"sglang", Server::Sglang)];

/// One line of a page that is a sample.
struct Sample<'a> {
    labels: &'a [u8],
    value: &'a [u8],
}

impl Load {
    /// Reads a page. Whatever is not understood is passed over.
    pub fn read(page: &[u8]) -> Self {
        let mut load = Self::default();
        // The rank of the name that each signal was last read under.
        let mut ranks = [usize::MAX; SIGNALS.len()];
        let mut rest = page;
        while !rest.is_empty() {
            let end = memchr(b'\n', rest).unwrap_or(rest.len());
            let line = &rest[..end];
            rest = rest.get(end + 1..).unwrap_or_default();
            let Some((server, name)) = canonical_name(line) else { continue };
            load.server = Some(server);
            for (signal, rank) in SIGNALS.iter().zip(&mut ranks) {
                let known = signal.names.iter().position(|known| known.as_bytes() == name);
                if let Some(this_rank) = known {
                    signal.read(line, this_rank, rank, &mut load);
                }
            }
        }
        for signal in &SIGNALS {
            let field = (signal.field)(&mut load);
            // Added up, two numbers can be more than a float can hold.
            *field = field.filter(|value| value.is_finite());
        }
        load.kv_usage = load.kv_usage.filter(|usage| (0.0..=1.0).contains(usage));
        load
    }

    /// Whether the page told enough to route by.
    pub fn is_understood(&self) -> bool {
        self.waiting.is_some() && self.running.is_some()
    }

    /// Tokens that the KV cache can hold.
    pub fn capacity(&self) -> Option<u64> {
        let tokens = self.blocks? * self.block_size?;
        (tokens >= 1.0).then_some(tokens as u64)
    }
}

impl Signal {
    /// One whose engines are added up.
    const fn summed(
        names: &'static [&'static str],
        field: fn(&mut Load) -> &mut Option<f64>,
    ) -> Self {
        Self { names, source: Source::Value, fold: sum, field }
    }

    fn read(&self, line: &[u8], this_rank: usize, rank: &mut usize, load: &mut Load) {
        if this_rank > *rank {
            return;
        }
        let Some(sample) = Sample::of(line) else { return };
        let text = match self.source {
            Source::Value => sample.value,
            Source::Label(label) => sample.label(label).unwrap_or_default(),
        };
        let number = std::str::from_utf8(text).ok().and_then(|text| text.parse::<f64>().ok());
        let Some(value) = number.filter(|value| value.is_finite() && *value >= 0.0) else { return };
        let field = (self.field)(load);
        *field = match *field {
            Some(before) if this_rank == *rank => Some((self.fold)(before, value)),
            _ => Some(value),
        };
        *rank = this_rank;
    }
}

/// The metric name of a line without the server's prefix; `None` for comments and for metrics of
/// others.
fn canonical_name(line: &[u8]) -> Option<(Server, &[u8])> {
    let line = line.strip_prefix(b"ray_").unwrap_or(line);
    let known = |(prefix, server): &(&[u8], Server)| Some((*server, line.strip_prefix(*prefix)?));
    let (server, rest) = PREFIXES.iter().find_map(known)?;
    let rest = rest.strip_prefix(b":").or_else(|| rest.strip_prefix(b"_"))?;
    let end = rest.iter().position(|byte| matches!(byte, b'{' | b' ' | b'\t'))?;
    Some((server, &rest[..end]))
}

impl Server {
    /// Reads the `owned_by` of a model.
    pub fn of_owner(owner: &str) -> Option<Self> {
        match owner {
            "vllm" => Some(Self::Vllm),
            "sglang" => Some(Self::Sglang),
            _ => None,
        }
    }
}

impl<'a> Sample<'a> {
    fn of(line: &'a [u8]) -> Option<Self> {
        let end = line.iter().position(|byte| matches!(byte, b'{' | b' ' | b'\t'))?;
        let (labels, rest) = match line[end] {
            b'{' => {
                let close = end + 1 + end_of_labels(&line[end + 1..])?;
                (&line[end + 1..close], &line[close + 1..])
            }
            _ => (&line[..0], &line[end..]),
        };
        // A time stamp or an exemplar may follow the value.
        let value = rest.trim_ascii_start();
        let end = value.iter().position(u8::is_ascii_whitespace).unwrap_or(value.len());
        Some(Self { labels, value: &value[..end] })
    }

    /// A label's value as it was written: escapes are kept, the labels read here have none.
    fn label(&self, wanted: &str) -> Option<&'a [u8]> {
        let mut rest = self.labels;
        while let Some(equals) = memchr(b'=', rest) {
            let name = rest[..equals].trim_ascii();
            let open = equals + 1 + memchr(b'"', &rest[equals + 1..])?;
            let close = open + 1 + end_of_text(&rest[open + 1..])?;
            if name == wanted.as_bytes() {
                return Some(&rest[open + 1..close]);
            }
            rest = rest[close + 1..].trim_ascii_start();
            rest = rest.strip_prefix(b",").unwrap_or(rest);
        }
        None
    }
}

/// The position of the brace that closes the labels: braces inside label values do not.
fn end_of_labels(labels: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        match *labels.get(at)? {
            b'}' => return Some(at),
            b'"' => at += 2 + end_of_text(&labels[at + 1..])?,
            _ => at += 1,
        }
    }
}

/// The position of the quote that ends a label value.
fn end_of_text(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        match *text.get(at)? {
            b'"' => return Some(at),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn engines_of_one_replica_are_added_up_but_the_fullest_cache_counts() {
        let page = b"vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 2.0\n\
            vllm:num_requests_waiting{engine=\"1\",model_name=\"m\"} 3.0\n\
            vllm:num_requests_running{engine=\"0\"} 1\n\
            vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\n\
            vllm:kv_cache_usage_perc{engine=\"1\"} 0.75\n\
            vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\",p=\"a,}\\\"b=\"} 1.0\n";
        let load = Load::read(page);
        assert_eq!((load.waiting, load.running, load.kv_usage), (Some(5.0), Some(1.0), Some(0.75)));
        assert_eq!(load.capacity(), Some(1_600));
        assert!(load.is_understood());
    }

    #[test]
    fn old_and_new_names_side_by_side_are_never_added_up() {
        let page = b"vllm:gpu_prefix_cache_hits_total 5\nvllm:prefix_cache_hits_total 6\n\
            vllm:gpu_prefix_cache_hits_total 7\nvllm:gpu_cache_usage_perc 0.5\n";
        let load = Load::read(page);
        assert_eq!((load.prefix_hits, load.kv_usage), (Some(6.0), Some(0.5)));
    }

    #[test]
    fn the_prefix_is_known_in_every_spelling() {
        for name in [
            "vllm:num_requests_running",
            "vllm_num_requests_running",
            "ray_vllm_num_requests_running",
            "sglang:num_running_reqs",
        ] {
            let page = format!("# TYPE {name} gauge\n{name}{{a=\"b\"}} 3 1700000000 # {{}} 1\r\n");
            assert_eq!(Load::read(page.as_bytes()).running, Some(3.0), "{name}");
        }
    }

    #[test]
    fn a_value_that_cannot_be_is_no_value() {
        for value in ["NaN", "+Inf", "-1", "abc", "", "1e999"] {
            let page = format!("vllm:num_requests_waiting {value}\nvllm:kv_cache_usage_perc 1.5\n");
            let nothing = Load { server: Some(Server::Vllm), ..Load::default() };
            assert_eq!(Load::read(page.as_bytes()), nothing, "{value}");
        }
        let unborn =
            Load::read(b"vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1");
        assert_eq!(unborn.capacity(), None);
    }

    #[test]
    fn a_histogram_with_total_in_its_name_is_not_a_counter() {
        let page = b"vllm:prompt_tokens_total_bucket{le=\"1\"} 7\nvllm:prompt_tokens_created 8\n";
        assert_eq!(Load::read(page).prompt_tokens, None);
    }

    proptest! {
        #[test]
        fn no_page_makes_it_panic(page in "(vllm:(kv_cache_usage_perc|cache_config_info)?[{}\"\\\\=, a\n0-9.e]{0,40}){0,8}") {
            Load::read(page.as_bytes());
        }
    }
}
