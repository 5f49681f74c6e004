//! The head sampler.

/// The head sampler, as `OTEL_TRACES_SAMPLER` configures it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampler {
    /// Follow the client's decision if there is one.
    pub is_parent_based: bool,
    /// Share of traces from 0 to 1, selected by trace id.
    pub ratio: f64,
}

impl Sampler {
    /// Whether to sample a trace, given the decision of its parent.
    pub fn should_sample(self, parent: Option<bool>, trace_id: u128) -> bool {
        if let (true, Some(decision)) = (self.is_parent_based, parent) {
            return decision;
        }
        // The rule of the OpenTelemetry SDKs: compare the low 63 bits of the id with the ratio.
        let low = (trace_id as u64) >> 1;
        self.ratio >= 1.0 || (low as f64) < self.ratio * 2f64.powi(63)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sampling_ratio_is_respected() {
        let always = Sampler { is_parent_based: true, ratio: 1.0 };
        assert!(always.should_sample(None, u128::MAX));
        let quarter = Sampler { is_parent_based: true, ratio: 0.25 };
        let mut random = fastrand::Rng::with_seed(1);
        let ids = std::iter::repeat_with(|| random.u128(..)).take(20_000);
        let sampled = ids.filter(|id| quarter.should_sample(None, *id)).count();
        assert!((4_700..5_300).contains(&sampled), "{sampled}");
    }
}
