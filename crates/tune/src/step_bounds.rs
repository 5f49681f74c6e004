//! Bounds of the tokens per engine step. The duration of a step is that of a step without prompts
//! plus the time for its prompt tokens: more prompt tokens per step delay the tokens of running
//! requests, and fewer spread a prompt over more steps.

use super::report::TuneReportLine;
use super::request::TuneRequest;

/// Bounds of `max_num_batched_tokens`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StepBounds {
    /// Upper bound, from the target for the time between tokens.
    pub(super) max_tokens: Option<u64>,
    /// Lower bound, from the target for the TTFT.
    pub(super) least: Option<u64>,
    pub(super) lines: Vec<TuneReportLine>,
    /// Targets that contradict each other or that no setting reaches.
    pub(super) contradictions: Vec<String>,
}

impl StepBounds {
    /// Computes the bounds from measured speeds and targets. There are none without speeds.
    pub(super) fn from_targets(request: &TuneRequest) -> Self {
        let mut bounds =
            Self { max_tokens: None, least: None, lines: Vec::new(), contradictions: Vec::new() };
        let (Some(prefill), Some(step)) = (request.speed.prefill, request.speed.step) else {
            return bounds;
        };
        if let Some(tbt) = request.targets.tbt {
            bounds.bound_by_tbt(tbt, prefill, step);
        }
        if let Some(ttft) = request.targets.ttft {
            bounds.bound_by_ttft(ttft, request.prompt.p95, prefill, step);
        }
        if let (Some(least), Some(most)) = (bounds.least, bounds.max_tokens)
            && least > most
        {
            bounds.contradictions.push(format!(
                "the TTFT needs steps of at least {least} tokens and the TBT of at most {most}: \
                 while long prompts arrive, one of both is missed"
            ));
        }
        bounds
    }

    fn bound_by_tbt(&mut self, tbt: f64, prefill: f64, step: f64) {
        let most = (tbt - step) * prefill;
        if most < 1.0 {
            self.contradictions.push(format!(
                "a step without prompts takes {:.1} ms: a TBT of {:.1} ms is out of reach",
                step * 1e3,
                tbt * 1e3
            ));
            return;
        }
        let how = format!(
            "({:.1} ms TBT − {:.1} ms step) × {prefill:.0} prompt tokens/s",
            tbt * 1e3,
            step * 1e3
        );
        self.lines.push(TuneReportLine::tokens("max tokens per step", &how, most));
        self.max_tokens = Some(most as u64);
    }

    /// A prompt takes prompt ÷ batch steps, and time for its tokens: prompt ÷ batch × step +
    /// prompt ÷ prefill ≤ TTFT.
    fn bound_by_ttft(&mut self, ttft: f64, prompt: f64, prefill: f64, step: f64) {
        let remaining = ttft - prompt / prefill;
        if remaining <= 0.0 {
            self.contradictions.push(format!(
                "the prefill of {prompt:.0} tokens takes {:.0} ms: a TTFT of {:.0} ms is out of \
                 reach at p95 without a cached prefix",
                prompt / prefill * 1e3,
                ttft * 1e3
            ));
            return;
        }
        let least = prompt * step / remaining;
        let how = format!(
            "{prompt:.0} prompt tokens at p95 × {:.1} ms step ÷ ({:.0} ms TTFT − {:.0} ms prefill)",
            step * 1e3,
            ttft * 1e3,
            prompt / prefill * 1e3
        );
        self.lines.push(TuneReportLine::tokens("min tokens per step", &how, least));
        self.least = Some(least.ceil() as u64);
    }
}
