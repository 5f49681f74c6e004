//! Checks that compare the gateway's configuration with the gathered facts.

use crate::configuration::{ConfiguredModel, GatewaySettings};
use crate::facts::{BackendFacts, DoctorFacts};
use crate::finding::Remark;

/// Reports configured model names that are mapped to a model that no backend serves, and objectives for such a
/// model.
pub(super) fn named_models(facts: &DoctorFacts) -> Vec<Remark> {
    let mut backends = facts.backends.iter();
    let has_all_lists = backends.all(|backend| backend.served().is_some());
    // A backend whose model list is unknown may serve the model, so nothing is reported.
    if !has_all_lists || facts.backends.is_empty() {
        return Vec::new();
    }
    let mut remarks = Vec::new();
    for named in &facts.config.models {
        let wanted = named.served_as.as_ref().unwrap_or(&named.name);
        let is_allowed = |backend: &BackendFacts| match &named.backends {
            None => true,
            Some(backends) => backends.contains(&backend.id),
        };
        let mut allowed = facts.backends.iter().filter(|backend| is_allowed(backend));
        if !allowed.any(|backend| serves(backend, wanted)) {
            remarks.push(unserved_name(named, wanted));
        }
    }
    for (name, model) in &facts.config.objective_models {
        let is_named = facts.config.models.iter().any(|named| named.name == *model);
        if !is_named && !facts.backends.iter().any(|backend| serves(backend, model)) {
            remarks.push(
                Remark::warning(format!(
                    "the objective {name} is for {model}, which no backend serves"
                ))
                .because("No request counts for this objective.")
                .remedy("correct `model` in `slos`"),
            );
        }
    }
    remarks
}

fn serves(backend: &BackendFacts, model: &str) -> bool {
    let served = backend.served().unwrap_or_default();
    served.iter().any(|found| *found.id == *model)
}

fn unserved_name(named: &ConfiguredModel, wanted: &str) -> Remark {
    let servers = match &named.backends {
        None => "no backend".to_owned(),
        Some(backends) => format!("none of {}", backends.join(", ")),
    };
    let name = &named.name;
    Remark::error(format!(
        "the name {name} leads to {wanted}, which {servers} serves"
    ))
    .because("The gateway answers every request for this name with 404.")
    .remedy(format!(
        "correct `served_as` in `models`, or vllm serve --served-model-name {wanted}"
    ))
}

/// Reports the problems that prevent a gateway from starting with the configuration file on this machine.
pub(super) fn start(facts: &DoctorFacts) -> Vec<Remark> {
    let remark = |problem: &String| {
        Remark::error(problem)
            .because("A gateway does not start with this configuration on this machine.")
            .remedy("tokenweir check lists all such problems")
    };
    facts.start_problems.iter().map(remark).collect()
}

/// Reports listeners that other machines can reach without a key or token. Also reports backends to which the
/// gateway sends keys without TLS.
pub(super) fn open_ports(facts: &DoctorFacts) -> Vec<Remark> {
    let GatewaySettings { listen, admin, .. } = &facts.config;
    let mut remarks = Vec::new();
    if !listen.ip().is_loopback() && !facts.config.has_keys {
        remarks.push(
            Remark::warning(format!("clients are served on {listen} without keys"))
                .because("Any client that reaches this address can use the backends.")
                .remedy("access.keys_file; `tokenweir keygen` creates keys"),
        );
    }
    if !admin.ip().is_loopback() && !facts.config.has_admin_token {
        remarks.push(
            Remark::warning(format!("the admin listener {admin} requires no token"))
                .because(
                    "Any client that reaches this listener can read the configuration, the names of \
                     tenants and the addresses of the backends. Drain, undrain and reload are refused.",
                )
                .remedy("access.admin_token, or listen on 127.0.0.1"),
        );
    }
    let is_local = |host: &str| {
        let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    };
    let mut without_tls = Vec::new();
    for backend in &facts.config.backends {
        let (host, _) = backend.url.host_and_port();
        if backend.has_key && !backend.url.is_https() && !is_local(&host) {
            without_tls.push(backend.id.as_str());
        }
    }
    if !without_tls.is_empty() {
        let backends = without_tls.join(", ");
        remarks.push(
            Remark::note(format!("keys are sent without TLS to {backends}"))
                .because("Anyone who can read the network traffic can read the keys.")
                .remedy("use https:// URLs, see docs/guides/tls.md"),
        );
    }
    remarks
}
