//! The head sampler, which decides at the start of a trace whether the trace is recorded.

/// The head sampler, as `OTEL_TRACES_SAMPLER` configures it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampler {
    /// Whether the sampler follows the client's decision if there is one.
    pub is_parent_based: bool,
    /// Share of traces to sample, from 0 to 1. The trace id decides, so all parts of a trace get one decision.
    pub ratio: f64,
}

impl Sampler {
    /// Whether to sample a trace. `parent`: the decision of the client that started the trace. `None`: the
    /// client sent no decision.
    pub fn should_sample(self, parent: Option<bool>, trace_id: u128) -> bool {
        if let (true, Some(decision)) = (self.is_parent_based, parent) {
            return decision;
        }
        // Bits 1 to 63 of the id, as a fraction, are compared with the ratio. The OpenTelemetry SDKs use this
        // rule.
        let id_bits = (trace_id as u64) >> 1;
        self.ratio >= 1.0 || (id_bits as f64) < self.ratio * 2f64.powi(63)
    }
}
