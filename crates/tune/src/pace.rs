//! How many tokens a step may compute. A step takes as long as one without prompts and what its
//! prompt tokens take: more of them make the gaps of answers longer, and fewer make a prompt take
//! more steps.

use super::report::Line;
use super::request::Request;

/// Bounds of `max_num_batched_tokens`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Pace {
    /// From the time between tokens: no more.
    pub(super) most: Option<u64>,
    /// From the time to first token: no fewer.
    pub(super) least: Option<u64>,
    pub(super) lines: Vec<Line>,
    /// Targets that no setting reaches.
    pub(super) contradictions: Vec<String>,
}

impl Pace {
    /// From measured speeds and targets. Nothing without them.
    pub(super) fn of(request: &Request) -> Self {
        let mut pace =
            Self { most: None, least: None, lines: Vec::new(), contradictions: Vec::new() };
        let (Some(prefill), Some(step)) = (request.speed.prefill, request.speed.step) else {
            return pace;
        };
        if let Some(tbt) = request.targets.tbt {
            pace.bound_by_tbt(tbt, prefill, step);
        }
        if let Some(ttft) = request.targets.ttft {
            pace.bound_by_ttft(ttft, request.prompt.p95, prefill, step);
        }
        if let (Some(least), Some(most)) = (pace.least, pace.most)
            && least > most
        {
            pace.contradictions.push(format!(
                "TTFT asks for steps of at least {least} tokens and TBT for at most {most}: one of \
                 both will be missed while long prompts arrive"
            ));
        }
        pace
    }

    fn bound_by_tbt(&mut self, tbt: f64, prefill: f64, step: f64) {
        let most = (tbt - step) * prefill;
        if most < 1.0 {
            self.contradictions.push(format!(
                "a step takes {:.1} ms without any prompt: TBT of {:.1} ms is out of reach",
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
        self.lines.push(Line::tokens("a step computes at most", &how, most));
        self.most = Some(most as u64);
    }

    /// A prompt takes prompt ÷ batch steps and what its tokens take: prompt ÷ batch × step +
    /// prompt ÷ prefill ≤ TTFT.
    fn bound_by_ttft(&mut self, ttft: f64, prompt: f64, prefill: f64, step: f64) {
        let left = ttft - prompt / prefill;
        if left <= 0.0 {
            self.contradictions.push(format!(
                "a prompt of {prompt:.0} tokens alone takes {:.0} ms: TTFT of {:.0} ms is out of \
                 reach at p95 without a cached prefix",
                prompt / prefill * 1e3,
                ttft * 1e3
            ));
            return;
        }
        let least = prompt * step / left;
        let how = format!(
            "{prompt:.0} tokens of prompt at p95 × {:.1} ms step ÷ ({:.0} ms TTFT − {:.0} ms of prefill)",
            step * 1e3,
            ttft * 1e3,
            prompt / prefill * 1e3
        );
        self.lines.push(Line::tokens("a step computes at least", &how, least));
        self.least = Some(least.ceil() as u64);
    }
}
