//! Bounds of the number of tokens per engine step (`max_num_batched_tokens`). A step takes the duration of a
//! step without prompts plus the time for its prompt tokens. The more prompt tokens a step has, the longer it
//! delays the next tokens of the running requests. The fewer it has, the more steps the prefill of a prompt
//! takes.

use super::report::TuneReportLine;
use super::request::TuneRequest;

/// Bounds of `max_num_batched_tokens` that follow from the latency targets.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StepBounds {
    /// Upper bound in tokens, from the target for the time between tokens. `None`: nothing limits the number
    /// from above.
    pub(super) max_tokens: Option<u64>,
    /// Lower bound in tokens, from the target for the TTFT. `None`: nothing limits the number from below.
    pub(super) min_tokens: Option<u64>,
    pub(super) lines: Vec<TuneReportLine>,
    /// Warnings about targets that contradict each other, and about targets that no setting reaches.
    pub(super) contradictions: Vec<String>,
}

impl StepBounds {
    /// Computes the bounds from the targets and the speed of the engine. Without the prefill rate
    /// and the step duration there are no bounds.
    pub(super) fn from_targets(request: &TuneRequest) -> Self {
        let mut bounds = Self {
            max_tokens: None,
            min_tokens: None,
            lines: Vec::new(),
            contradictions: Vec::new(),
        };
        let (Some(prefill), Some(step)) = (request.speed.prefill, request.speed.step) else {
            return bounds;
        };
        if let Some(tbt) = request.targets.tbt {
            bounds.bound_by_tbt(tbt, prefill, step);
        }
        if let Some(ttft) = request.targets.ttft {
            bounds.bound_by_ttft(ttft, request.prompt.p95, prefill, step);
        }
        if let (Some(min), Some(max)) = (bounds.min_tokens, bounds.max_tokens)
            && min > max
        {
            bounds.contradictions.push(format!(
                "the TTFT needs steps of at least {min} tokens and the TBT of at most {max}: \
                 while long prompts arrive, one of both is missed"
            ));
        }
        bounds
    }

    /// Adds the upper bound from the condition step + tokens ÷ prefill ≤ TBT. Times are in seconds, `prefill`
    /// is in tokens per second.
    fn bound_by_tbt(&mut self, tbt: f64, prefill: f64, step: f64) {
        let max_tokens = ((tbt - step) * prefill).floor();
        if max_tokens < 1.0 {
            self.contradictions.push(format!(
                "a step without prompts takes {:.1} ms: a TBT of {:.1} ms is out of reach",
                step * 1e3,
                tbt * 1e3
            ));
            return;
        }
        let formula = format!(
            "({:.1} ms TBT − {:.1} ms step) × {prefill:.0} prompt tokens/s",
            tbt * 1e3,
            step * 1e3
        );
        self.lines.push(TuneReportLine::tokens(
            "max tokens per step",
            &formula,
            max_tokens,
        ));
        self.max_tokens = Some(max_tokens as u64);
    }

    /// Adds the lower bound. A prompt is computed in `prompt ÷ batch` steps, and its tokens take
    /// additional time: prompt ÷ batch × step + prompt ÷ prefill ≤ TTFT. Times are in seconds,
    /// `prompt` is in tokens, and `prefill` is in tokens per second.
    fn bound_by_ttft(&mut self, ttft: f64, prompt: f64, prefill: f64, step: f64) {
        let time_for_steps = ttft - prompt / prefill;
        if time_for_steps <= 0.0 {
            self.contradictions.push(format!(
                "the prefill of {prompt:.0} tokens takes {:.0} ms: a TTFT of {:.0} ms is out of \
                 reach at p95 without a cached prefix",
                prompt / prefill * 1e3,
                ttft * 1e3
            ));
            return;
        }
        let min_tokens = (prompt * step / time_for_steps).ceil();
        let formula = format!(
            "{prompt:.0} prompt tokens at p95 × {:.1} ms step ÷ ({:.0} ms TTFT − {:.0} ms prefill)",
            step * 1e3,
            ttft * 1e3,
            prompt / prefill * 1e3
        );
        self.lines.push(TuneReportLine::tokens(
            "min tokens per step",
            &formula,
            min_tokens,
        ));
        self.min_tokens = Some(min_tokens as u64);
    }
}
