//! How the engine is set up, as far as its metrics tell.

use crate::facts::{Facts, Replica};
use crate::finding::{Remark, Severity};
use crate::sight::Version;
use tokenweir_core::routing::PolicyKind;

/// The first version that can refuse what finds no place in its queue.
const REFUSES_SINCE: Version = Version(0, 32);

pub(super) fn sleep(replica: &Replica, _: &Facts) -> Vec<Remark> {
    if replica.load().and_then(|load| load.is_asleep()) != Some(true) {
        return Vec::new();
    }
    let remark = Remark::warning("its engine sleeps: its weights are not on the GPU");
    let why = "The gateway sends it nothing until it is awake.";
    let wake = format!("curl -X POST {}/wake_up", replica.url);
    vec![remark.because(why).change(wake)]
}

pub(super) fn prefix_caching(replica: &Replica, facts: &Facts) -> Vec<Remark> {
    if replica.cache_setting("enable_prefix_caching").as_deref() != Some("False") {
        return Vec::new();
    }
    let uses_prefixes =
        matches!(facts.config.policy, PolicyKind::KvAware | PolicyKind::PrefixAffinity);
    let severity = if uses_prefixes { Severity::Warning } else { Severity::Note };
    let remark = Remark::new(severity, "prefix caching is off");
    let why = "Every prompt is computed whole, also one that begins like the last; sending it \
               where its beginning was sent before helps nothing.";
    vec![remark.because(why).change("vllm serve --enable-prefix-caching")]
}

/// vLLM does not tell its limit, only what it has refused.
pub(super) fn queue_limit(replica: &Replica, facts: &Facts) -> Vec<Remark> {
    let Some(version) = replica.version_number() else { return Vec::new() };
    if version < REFUSES_SINCE || replica.has_refused() != Some(false) {
        return Vec::new();
    }
    let seen = "it has refused no request; whether its queue has a limit cannot be seen";
    let gateway = match facts.config.max_waiting {
        Some(most) => {
            format!("The gateway holds requests back while {most} wait there, others do not.")
        }
        None => "The gateway does not hold requests back either (admission).".to_owned(),
    };
    let why = format!("By default vLLM queues without end and never answers 503. {gateway}");
    vec![Remark::note(seen).because(why).change("vllm serve --max-num-queued-reqs 64")]
}

impl Replica {
    /// A setting of the KV cache, which vLLM tells as a label.
    pub(crate) fn cache_setting(&self, name: &str) -> Option<String> {
        let page = std::str::from_utf8(self.page()?).ok()?;
        let mut lines = page.lines();
        let line = lines.find(|line| line.starts_with("vllm:cache_config_info{"))?;
        let at =
            |before: &str| line.find(&format!("{before}{name}=\"")).map(|at| at + before.len());
        let rest = line.get(at(",").or_else(|| at("{"))? + name.len() + 2..)?;
        Some(rest.split('"').next()?.to_owned())
    }

    /// Whether it has turned a request away because of a limit of its queue. `None`: it does not
    /// tell.
    pub(crate) fn has_refused(&self) -> Option<bool> {
        let page = std::str::from_utf8(self.page()?).ok()?;
        let series =
            page.lines().filter(|line| line.starts_with("vllm:admission_rejections_total{"));
        let values = series.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.map(|value| value > 0.0).reduce(|some, other| some || other)
    }
}
