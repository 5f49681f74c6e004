//! Computes prompt and output lengths from a trace capture or from the metrics of a gateway.

use super::request::TokenLengths;
use tokenweir_engine::dialect::MetricSample;
use tokenweir_protocol::histogram::sample_quantile;
use tokenweir_replay::trace::TraceRequest;

/// Assumed ratio of the 95th percentile of prompt or output lengths to their mean. It is used for sources
/// that state only means, such as a metrics page.
pub const P95_TO_MEAN_RATIO: f64 = 3.0;

/// The lengths of requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RequestLengths {
    /// Lengths of the prompts.
    pub prompt: TokenLengths,
    /// Lengths of the outputs.
    pub output: TokenLengths,
}

/// Lengths of the prompts and of the outputs in a trace. `None`: the trace is empty.
pub fn from_trace(requests: &[TraceRequest]) -> Option<RequestLengths> {
    let lengths = |read_tokens: fn(&TraceRequest) -> u32| {
        let mut lengths: Vec<f64> = requests.iter().map(read_tokens).map(f64::from).collect();
        let mean = lengths.iter().sum::<f64>() / lengths.len() as f64;
        Some(TokenLengths {
            mean,
            p95: sample_quantile(&mut lengths, 0.95)?.max(mean),
        })
    };
    Some(RequestLengths {
        prompt: lengths(|request| request.prompt_tokens)?,
        output: lengths(|request| request.output_tokens)?,
    })
}

/// Lengths of prompts and of outputs from the metrics page of a gateway, over all models. Each mean is the
/// number of tokens divided by the number of requests with outcome `ok`. `None`: the page is not from a
/// gateway, no request was served yet, or a mean is below 1.
pub fn from_metrics_page(page: &[u8]) -> Option<RequestLengths> {
    let mut input = 0.0;
    let mut output = 0.0;
    let mut requests = 0.0;
    for (name, sample) in MetricSample::of_page(page) {
        let number = sample.number().unwrap_or(0.0);
        match (name, sample.label("type"), sample.label("outcome")) {
            ("tokenweir_tokens_total", Some(b"input"), _) => input += number,
            ("tokenweir_tokens_total", Some(b"output"), _) => output += number,
            ("tokenweir_requests_total", _, Some(b"ok")) => requests += number,
            _ => {}
        }
    }
    let lengths = |tokens: f64| {
        let mean = tokens / requests;
        (mean >= 1.0).then_some(TokenLengths {
            mean,
            p95: mean * P95_TO_MEAN_RATIO,
        })
    };
    if requests <= 0.0 {
        return None;
    }
    Some(RequestLengths {
        prompt: lengths(input)?,
        output: lengths(output)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_replay::trace;

    #[test]
    fn trace_lengths_have_means_and_percentiles() {
        let line = |input: u32| {
            format!("{{\"timestamp\":0,\"input_length\":{input},\"output_length\":7}}\n")
        };
        let lines: String = (1..=100).map(line).collect();
        let RequestLengths { prompt, output } =
            from_trace(&trace::read(lines.as_bytes()).unwrap()).unwrap();
        assert_eq!((prompt.mean, prompt.p95, output.p95), (50.5, 95.0, 7.0));
        assert_eq!(from_trace(&[]), None);
    }

    #[test]
    fn metrics_pages_give_mean_lengths() {
        let page = b"tokenweir_tokens_total{type=\"input\",source=\"exact\"} 3000\n\
            tokenweir_tokens_total{type=\"output\",source=\"exact\"} 500\n\
            tokenweir_tokens_total{type=\"cached\",source=\"exact\"} 9\n\
            tokenweir_requests_total{outcome=\"ok\"} 10\n\
            tokenweir_requests_total{outcome=\"rejected\"} 7\n";
        let RequestLengths { prompt, output } = from_metrics_page(page).unwrap();
        assert_eq!((prompt.mean, prompt.p95, output.mean), (300.0, 900.0, 50.0));
        assert_eq!(from_metrics_page(b"vllm:x 1\n"), None);
        assert_eq!(
            from_metrics_page(b"tokenweir_requests_total{outcome=\"ok\"} 0\n"),
            None
        );
    }
}
