//! The gateway's own numbers for the requests of a run: its metrics page before and after, and the
//! difference. Counts say whether somebody else was served in the meantime; the client's values are
//! put into the gateway's buckets, so that what differs is what was measured and not how it is kept.

use super::histogram::Histogram;
use super::tally::Tally;
use serde::{Deserialize, Serialize};
use std::str;
use tokenweir_core::dialect::Sample;
use tokenweir_core::spread;

/// What a page says of one model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Page {
    histograms: Vec<Buckets>,
    /// Output tokens that the engine counted.
    output_tokens: f64,
}

/// A histogram of a page.
#[derive(Debug, Clone, Default, PartialEq)]
struct Buckets {
    /// Upper bounds, without the last one, which is infinite.
    bounds: Vec<f64>,
    /// Values up to each bound, then all.
    upto: Vec<f64>,
    sum: f64,
}

/// The client's number beside the gateway's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Beside {
    /// What is compared.
    pub quantity: String,
    /// The gateway's metric.
    pub metric: String,
    /// What the client measured.
    pub client: Told,
    /// What the gateway did.
    pub gateway: Told,
}

/// A distribution, as far as the gateway's buckets tell it. In seconds, apart from the count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// How many values there were.
    pub count: u64,
    /// Their mean, which is exact.
    pub mean: f64,
    /// The median, interpolated in its bucket. `None`: it is over the last bound, or there is none.
    pub p50: Option<f64>,
    /// The 99th percentile, likewise.
    pub p99: Option<f64>,
}

/// All of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Beheld {
    /// One row for each quantity.
    pub rows: Vec<Beside>,
    /// Output tokens that the client was told of, and those that the gateway counted.
    pub output_tokens: [u64; 2],
    /// The gateway had other requests for this model in the meantime, or not all of these.
    pub is_shared: bool,
}

/// A row of the comparison.
struct Row {
    quantity: &'static str,
    metric: &'static str,
    /// The client's values.
    of: fn(&Tally) -> &Histogram,
}

/// Times of both begin with the request, so the client's are those from when it was sent.
const ROWS: [Row; 4] = [
    Row {
        quantity: "TTFT",
        metric: "gen_ai_server_time_to_first_token_seconds",
        of: |tally| &tally.service_ttft,
    },
    Row { quantity: "TBT", metric: "tokenweir_inter_chunk_seconds", of: |tally| &tally.gaps },
    Row {
        quantity: "TPOT",
        metric: "gen_ai_server_time_per_output_token_seconds",
        of: |tally| &tally.tpot,
    },
    Row {
        quantity: "E2E",
        metric: "gen_ai_server_request_duration_seconds",
        of: |tally| &tally.service_e2e,
    },
];
const TOKENS: &str = "tokenweir_tokens_total";
const MODEL: &str = "gen_ai_request_model";

// === impl Page ===

impl Page {
    /// Reads the gateway's metrics page. `None`: it is another server's.
    pub fn read(page: &[u8], model: &str) -> Option<Self> {
        let mut read =
            Self { histograms: vec![Buckets::default(); ROWS.len()], output_tokens: 0.0 };
        let mut is_gateway = false;
        for line in page.split(|byte| *byte == b'\n') {
            is_gateway |= line.starts_with(b"tokenweir_build_info");
            if line.starts_with(b"#") {
                continue;
            }
            let end =
                line.iter().position(|byte| matches!(byte, b'{' | b' ')).unwrap_or(line.len());
            let (name, rest) = line.split_at(end);
            let Ok(name) = str::from_utf8(name) else { continue };
            let Some(sample) = Sample::of(rest) else { continue };
            if sample.label(MODEL).is_some_and(|label| label == model.as_bytes()) {
                read.take(name, &sample);
            }
        }
        is_gateway.then_some(read)
    }

    fn take(&mut self, name: &str, sample: &Sample<'_>) {
        let Some(value) = sample.number() else { return };
        if name == TOKENS && sample.label("type") == Some(b"output") {
            self.output_tokens += value;
        }
        let known = ROWS.iter().zip(&mut self.histograms);
        for (row, buckets) in known {
            match name.strip_prefix(row.metric) {
                Some("_sum") => buckets.sum += value,
                Some("_bucket") => buckets.add(sample.label("le"), value),
                _ => {}
            }
        }
    }

    /// What was added since an earlier page.
    fn since(&self, before: &Self) -> Self {
        let histograms = self.histograms.iter().zip(&before.histograms);
        Self {
            histograms: histograms.map(|(after, before)| after.since(before)).collect(),
            output_tokens: self.output_tokens - before.output_tokens,
        }
    }

    /// Streams whose first output the gateway has seen since an earlier page.
    pub fn begun_since(&self, before: &Self) -> u64 {
        self.since(before).histograms.first().map_or(0, Buckets::count)
    }

    /// Requests that have ended there since an earlier page.
    pub fn ended_since(&self, before: &Self) -> u64 {
        self.since(before).histograms.last().map_or(0, Buckets::count)
    }

    /// The client's numbers beside those that were added since an earlier page.
    pub fn beside(&self, before: &Self, tally: &Tally) -> Beheld {
        let added = self.since(before);
        let rows = ROWS.iter().zip(&added.histograms).map(|(row, buckets)| {
            let client = (row.of)(tally);
            Beside {
                quantity: row.quantity.to_owned(),
                metric: row.metric.to_owned(),
                client: Told {
                    mean: client.summary().mean,
                    ..Told::of(&buckets.bounds, &client.under(&buckets.bounds))
                },
                gateway: buckets.told(),
            }
        });
        let ended = added.histograms.last().map_or(0, Buckets::count);
        let sent = tally.counts.served + tally.counts.failed;
        Beheld {
            rows: rows.collect(),
            output_tokens: [tally.counts.output_tokens, added.output_tokens.round() as u64],
            is_shared: ended != sent,
        }
    }
}

// === impl Buckets ===

impl Buckets {
    fn add(&mut self, bound: Option<&[u8]>, value: f64) {
        let bound: Option<f64> = bound.and_then(|text| str::from_utf8(text).ok()?.parse().ok());
        let Some(bound) = bound else { return };
        let place = self.bounds.partition_point(|known| *known < bound);
        if self.upto.is_empty() {
            self.upto.push(0.0);
        }
        if bound.is_finite() && self.bounds.get(place) != Some(&bound) {
            self.bounds.insert(place, bound);
            self.upto.insert(place, 0.0);
        }
        self.upto[place] += value;
    }

    /// Series appear with their first value, so the earlier page may lack bounds.
    fn since(&self, before: &Self) -> Self {
        let earlier = |bound: Option<&f64>| match bound {
            Some(bound) => {
                let place = before.bounds.iter().position(|known| known.total_cmp(bound).is_eq());
                place.map_or(0.0, |place| before.upto[place])
            }
            None => before.upto.last().copied().unwrap_or(0.0),
        };
        let upto = self.upto.iter().enumerate();
        Self {
            bounds: self.bounds.clone(),
            upto: upto.map(|(place, upto)| upto - earlier(self.bounds.get(place))).collect(),
            sum: self.sum - before.sum,
        }
    }

    fn count(&self) -> u64 {
        self.upto.last().copied().unwrap_or(0.0).round() as u64
    }

    fn told(&self) -> Told {
        let mut below = 0.0;
        let counts = self.upto.iter().map(|upto| {
            let count = upto - below;
            below = *upto;
            count.max(0.0).round() as u64
        });
        let told = Told::of(&self.bounds, &counts.collect::<Vec<_>>());
        Told { mean: self.sum / self.count().max(1) as f64, ..told }
    }
}

// === impl Told ===

impl Told {
    fn of(bounds: &[f64], counts: &[u64]) -> Self {
        let narrow = |count: &u64| u32::try_from(*count).unwrap_or(u32::MAX);
        let narrow: Vec<u32> = counts.iter().map(narrow).collect();
        let at = |q| spread::quantile(bounds, &narrow, q).filter(|value| value.is_finite());
        Self { count: counts.iter().sum(), mean: 0.0, p50: at(0.5), p99: at(0.99) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_lab::score::Objectives;

    fn page(count: u32, sum: f64) -> String {
        let series = |backend: &str, model: &str| {
            let labels = format!("gen_ai_request_model=\"{model}\",backend=\"{backend}\"");
            format!(
                "gen_ai_server_time_to_first_token_seconds_bucket{{{labels},le=\"0.1\"}} {}\n\
                 gen_ai_server_time_to_first_token_seconds_bucket{{{labels},le=\"0.5\"}} {count}\n\
                 gen_ai_server_time_to_first_token_seconds_bucket{{{labels},le=\"+Inf\"}} {count}\n\
                 gen_ai_server_time_to_first_token_seconds_sum{{{labels}}} {sum}\n",
                count / 2
            )
        };
        format!(
            "# HELP x y\ntokenweir_build_info{{version=\"1\"}} 1\n{}{}{}",
            series("a", "m"),
            series("b", "m"),
            series("a", "another")
        )
    }

    #[test]
    fn what_was_added_is_summed_over_replicas_and_only_for_the_model() {
        let read = |text: String| Page::read(text.as_bytes(), "m").unwrap();
        let (before, after) = (read(page(2, 0.3)), read(page(12, 2.3)));
        assert_eq!(after.begun_since(&before), 20);
        let mut tally = Tally::new(Objectives { ttft: 1.0, tpot: 1.0 });
        tally.service_ttft.add(0.3);
        let row = &after.beside(&before, &tally).rows[0];
        assert_eq!((row.gateway.count, row.client.count), (20, 1));
        assert!((row.gateway.mean - 0.2).abs() < 1e-9 && (row.client.mean - 0.3).abs() < 1e-9);
        assert_eq!(row.gateway.p50, Some(0.1));
        // One value in the bucket from 0.1 to 0.5, as the gateway would tell it.
        assert_eq!(row.client.p50.map(|p50| (p50 * 1e3).round()), Some(300.0));
    }

    #[test]
    fn a_page_without_series_yet_is_one_with_nothing_and_another_servers_is_none() {
        let empty = Page::read(b"tokenweir_build_info{version=\"1\"} 1\n", "m").unwrap();
        let after = Page::read(page(4, 1.0).as_bytes(), "m").unwrap();
        assert_eq!(after.begun_since(&empty), 8);
        assert_eq!(Page::read(b"vllm:num_requests_running 1\n", "m"), None);
    }
}
