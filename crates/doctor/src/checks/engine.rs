//! Checks of the engine settings that a metrics page shows.

use crate::facts::{BackendFacts, DoctorFacts};
use crate::finding::{FindingSeverity, Remark};
use crate::interpretation::VllmVersion;
use tokenweir_routing::PolicyKind;

/// The first version of vLLM that can limit the queue of its engine.
const QUEUE_LIMIT_SINCE: VllmVersion = VllmVersion(0, 32);

pub(super) fn sleep(backend: &BackendFacts, _: &DoctorFacts) -> Option<Remark> {
    if backend.load().and_then(|load| load.is_asleep()) != Some(true) {
        return None;
    }
    let remark = Remark::warning("its engine sleeps: its weights are not on the GPU");
    let reason = "The gateway sends no requests to it until it is awake.";
    let wake = format!("curl -X POST {}/wake_up", backend.url);
    Some(remark.because(reason).remedy(wake))
}

pub(super) fn prefix_caching(backend: &BackendFacts, facts: &DoctorFacts) -> Option<Remark> {
    if backend.cache_setting("enable_prefix_caching").as_deref() != Some("False") {
        return None;
    }
    let uses_prefixes = matches!(
        facts.config.policy,
        PolicyKind::KvAware | PolicyKind::PrefixAffinity
    );
    let severity = if uses_prefixes {
        FindingSeverity::Warning
    } else {
        FindingSeverity::Note
    };
    let remark = Remark::new(severity, "prefix caching is off");
    let reason = "Every prompt is computed completely, even if it shares a prefix with an earlier \
                  one. Routing by prefix then has no effect.";
    Some(
        remark
            .because(reason)
            .remedy("vllm serve --enable-prefix-caching"),
    )
}

/// Reports that the queue of the engine may have no limit. vLLM shows a limit only by the number of requests
/// that it has rejected because of the limit, and this number is 0.
pub(super) fn queue_limit(backend: &BackendFacts, facts: &DoctorFacts) -> Option<Remark> {
    let version = backend.version_number()?;
    if version < QUEUE_LIMIT_SINCE || backend.has_rejected_requests() != Some(false) {
        return None;
    }
    let observation = "it has refused no request; whether its queue has a limit cannot be seen";
    let gateway = match facts.config.max_waiting {
        Some(max_waiting) => format!(
            "The gateway holds requests back while {max_waiting} wait at every backend, other clients do not."
        ),
        None => "The gateway does not hold requests back either (admission).".to_owned(),
    };
    let reason = format!("By default vLLM queues without a limit and never answers 503. {gateway}");
    Some(
        Remark::note(observation)
            .because(reason)
            .remedy("vllm serve --max-num-queued-reqs 64"),
    )
}

impl BackendFacts {
    /// A setting of the KV cache, from the labels of `vllm:cache_config_info`. `None`: the page does not show
    /// the setting.
    pub(crate) fn cache_setting(&self, name: &str) -> Option<String> {
        let page = std::str::from_utf8(self.page()?).ok()?;
        let mut lines = page.lines();
        let line = lines.find(|line| line.starts_with("vllm:cache_config_info{"))?;
        let label_start = |separator: &str| {
            line.find(&format!("{separator}{name}=\""))
                .map(|start| start + separator.len())
        };
        let label_start = label_start(",").or_else(|| label_start("{"))?;
        let value = line.get(label_start + name.len() + 2..)?;
        Some(value.split('"').next()?.to_owned())
    }

    /// Whether the engine has rejected a request because its queue was full. `None`: the metrics page lacks the
    /// counter.
    pub(crate) fn has_rejected_requests(&self) -> Option<bool> {
        let page = std::str::from_utf8(self.page()?).ok()?;
        let series = page
            .lines()
            .filter(|line| line.starts_with("vllm:admission_rejections_total{"));
        let values = series.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values
            .map(|value| value > 0.0)
            .reduce(|first, second| first || second)
    }
}
