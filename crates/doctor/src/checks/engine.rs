//! Checks of the engine settings that a metrics page shows.

use crate::facts::{BackendFacts, DoctorFacts};
use crate::finding::{FindingSeverity, Remark};
use crate::interpretation::VllmVersion;
use tokenweir_routing::PolicyKind;

/// The first version of vLLM that can limit the queue of its engine.
const QUEUE_LIMIT_SINCE: VllmVersion = VllmVersion(0, 32);

pub(super) fn sleep(backend: &BackendFacts, _: &DoctorFacts) -> Option<Remark> {
    if backend.load()?.is_asleep() != Some(true) {
        return None;
    }
    Some(
        Remark::warning("its engine sleeps: its weights are not on the GPU")
            .because("The gateway sends no requests to it until it is awake.")
            .remedy(format!("curl -X POST {}/wake_up", backend.url)),
    )
}

pub(super) fn prefix_caching(backend: &BackendFacts, facts: &DoctorFacts) -> Option<Remark> {
    if backend.cache_setting("enable_prefix_caching")? != "False" {
        return None;
    }
    let severity = match facts.config.policy {
        PolicyKind::KvAware | PolicyKind::PrefixAffinity => FindingSeverity::Warning,
        _ => FindingSeverity::Note,
    };
    Some(
        Remark::new(severity, "prefix caching is off")
            .because(
                "Every prompt is computed completely, even if it shares a prefix with an earlier \
                 one. Routing by prefix then has no effect.",
            )
            .remedy("vllm serve --enable-prefix-caching"),
    )
}

/// Reports that the queue of the engine may have no limit. vLLM shows a limit only by the number of requests
/// that it has rejected because of the limit, and this number is 0.
pub(super) fn queue_limit(backend: &BackendFacts, facts: &DoctorFacts) -> Option<Remark> {
    if backend.version_number()? < QUEUE_LIMIT_SINCE || backend.has_rejected_requests()? {
        return None;
    }
    let gateway = match facts.config.max_waiting {
        Some(max_waiting) => format!(
            "The gateway holds requests back while {max_waiting} wait at every backend, other clients do not."
        ),
        None => "The gateway does not hold requests back either (admission).".to_owned(),
    };
    Some(
        Remark::note("it has refused no request; whether its queue has a limit cannot be seen")
            .because(format!(
                "By default vLLM queues without a limit and never answers 503. {gateway}"
            ))
            .remedy("vllm serve --max-num-queued-reqs 64"),
    )
}

impl BackendFacts {
    /// A setting of the KV cache, from the labels of `vllm:cache_config_info`. `None`: the page does not show
    /// the setting.
    fn cache_setting(&self, name: &str) -> Option<&str> {
        let mut lines = self.page_lines("vllm:cache_config_info{");
        let labels = lines.next()?.split(['{', ',']);
        let mut values = labels.filter_map(|label| label.strip_prefix(name)?.strip_prefix("=\""));
        values.next()?.split('"').next()
    }

    /// Whether the engine has rejected a request because its queue was full. `None`: the metrics page lacks the
    /// counter.
    fn has_rejected_requests(&self) -> Option<bool> {
        let lines = self.page_lines("vllm:admission_rejections_total{");
        let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        Some(values.reduce(f64::max)? > 0.0)
    }

    /// The lines of the metrics page that begin with `prefix`.
    fn page_lines(&self, prefix: &str) -> impl Iterator<Item = &str> {
        let page = self.page().and_then(|page| str::from_utf8(page).ok());
        let lines = page.unwrap_or_default().lines();
        lines.filter(move |line| line.starts_with(prefix))
    }
}
