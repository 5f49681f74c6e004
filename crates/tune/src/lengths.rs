//! How long requests are, from what was observed.

use super::request::Tokens;
use tokenweir_core::dialect::Sample;
use tokenweir_lab::trace::Job;

/// Of a page that has means only, the 95th percentile is taken to be so many times the mean.
pub const P95_OF_MEAN: f64 = 3.0;

/// Prompts and answers of a trace. `None`: it is empty.
pub fn of_trace(jobs: &[Job]) -> Option<[Tokens; 2]> {
    let of = |read: fn(&Job) -> u32| {
        let mut all: Vec<u32> = jobs.iter().map(read).collect();
        all.sort_unstable();
        let mean = all.iter().copied().map(f64::from).sum::<f64>() / all.len() as f64;
        let p95 = all.get(((all.len() * 95).div_ceil(100)).saturating_sub(1))?;
        Some(Tokens { mean, p95: f64::from(*p95).max(mean) })
    };
    Some([of(|job| job.prompt_tokens)?, of(|job| job.output_tokens)?])
}

/// Prompts and answers of a gateway's metrics page: tokens ÷ answers that ended well, of all its models.
/// `None`: it is another server's page, or nothing was served yet.
pub fn of_page(page: &[u8]) -> Option<[Tokens; 2]> {
    let (mut input, mut output, mut answers) = (0.0, 0.0, 0.0);
    for line in page.split(|byte| *byte == b'\n') {
        let is = |name: &str| line.strip_prefix(name.as_bytes()).and_then(Sample::of);
        if let Some(sample) = is("tokenweir_tokens_total") {
            let tokens = sample.number().unwrap_or(0.0);
            match sample.label("type") {
                Some(b"input") => input += tokens,
                Some(b"output") => output += tokens,
                _ => {}
            }
        } else if let Some(sample) = is("tokenweir_requests_total")
            && sample.label("outcome") == Some(b"ok")
        {
            answers += sample.number().unwrap_or(0.0);
        }
    }
    let of = |tokens: f64| {
        let mean = tokens / answers;
        (mean >= 1.0).then_some(Tokens { mean, p95: mean * P95_OF_MEAN })
    };
    if answers > 0.0 { Some([of(input)?, of(output)?]) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_lab::trace;

    #[test]
    fn a_trace_has_means_and_percentiles() {
        let line = |input: u32| {
            format!("{{\"timestamp\":0,\"input_length\":{input},\"output_length\":7}}\n")
        };
        let lines: String = (1..=100).map(line).collect();
        let [prompt, output] = of_trace(&trace::read(lines.as_bytes()).unwrap()).unwrap();
        assert_eq!((prompt.mean, prompt.p95, output.p95), (50.5, 95.0, 7.0));
        assert_eq!(of_trace(&[]), None);
    }

    #[test]
    fn a_gateways_page_has_means() {
        let page = b"tokenweir_tokens_total{type=\"input\",source=\"exact\"} 3000\n\
            tokenweir_tokens_total{type=\"output\",source=\"exact\"} 500\n\
            tokenweir_tokens_total{type=\"cached\",source=\"exact\"} 9\n\
            tokenweir_requests_total{outcome=\"ok\"} 10\n\
            tokenweir_requests_total{outcome=\"rejected\"} 7\n";
        let [prompt, output] = of_page(page).unwrap();
        assert_eq!((prompt.mean, prompt.p95, output.mean), (300.0, 900.0, 50.0));
        assert_eq!(of_page(b"vllm:x 1\n"), None);
        assert_eq!(of_page(b"tokenweir_requests_total{outcome=\"ok\"} 0\n"), None);
    }
}
