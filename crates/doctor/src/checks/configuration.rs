//! Checks that compare the gateway's configuration with the gathered facts.

use crate::configuration::{ConfiguredModel, GatewaySettings};
use crate::facts::{BackendFacts, DoctorFacts};
use crate::finding::Remark;

/// Reports configured model names that are mapped to a model that no backend serves, and objectives for such a
/// model.
pub(super) fn named_models(facts: &DoctorFacts) -> Vec<Remark> {
    let has_all_lists = facts
        .backends
        .iter()
        .all(|backend| backend.served().is_some());
    // A backend whose model list is unknown may serve the model, so nothing is reported.
    if !has_all_lists || facts.backends.is_empty() {
        return Vec::new();
    }
    let mut remarks = Vec::new();
    for named in &facts.config.models {
        let wanted = named.served_as.as_ref().unwrap_or(&named.name);
        if !is_served_as_configured(facts, named, wanted) {
            remarks.push(unserved_name(named, wanted));
        }
    }
    for (name, model) in &facts.config.objective_models {
        let is_named = facts.config.models.iter().any(|named| named.name == *model);
        if !is_named && !facts.backends.iter().any(|backend| serves(backend, model)) {
            remarks.push(unserved_objective(name, model));
        }
    }
    remarks
}

/// Whether one of the backends that the configuration allows for a name serves the model `wanted`.
fn is_served_as_configured(facts: &DoctorFacts, named: &ConfiguredModel, wanted: &str) -> bool {
    facts.backends.iter().any(|backend| {
        let is_allowed = named
            .backends
            .as_ref()
            .is_none_or(|backends| backends.contains(&backend.id));
        is_allowed && serves(backend, wanted)
    })
}

fn serves(backend: &BackendFacts, model: &str) -> bool {
    backend
        .served()
        .is_some_and(|served| served.iter().any(|found| *found.id == *model))
}

fn unserved_name(named: &ConfiguredModel, wanted: &str) -> Remark {
    let servers = match &named.backends {
        None => "no backend".to_owned(),
        Some(backends) => format!("none of {}", backends.join(", ")),
    };
    let name = &named.name;
    let remark = Remark::error(format!(
        "the name {name} leads to {wanted}, which {servers} serves"
    ));
    let remedy =
        format!("correct `served_as` in `models`, or vllm serve --served-model-name {wanted}");
    remark
        .because("The gateway answers every request for this name with 404.")
        .remedy(remedy)
}

fn unserved_objective(name: &str, model: &str) -> Remark {
    Remark::warning(format!(
        "the objective {name} is for {model}, which no backend serves"
    ))
    .because("No request counts for this objective.")
    .remedy("correct `model` in `slos`")
}

/// Reports the problems that prevent a gateway from starting with the configuration file on this machine.
pub(super) fn start(facts: &DoctorFacts) -> Vec<Remark> {
    let remark = |problem: &String| {
        let reason = "A gateway does not start with this configuration on this machine.";
        Remark::error(problem)
            .because(reason)
            .remedy("tokenweir check lists all such problems")
    };
    facts.start_problems.iter().map(remark).collect()
}

/// Reports listeners that other machines can reach without a key or token. Also reports backends to which the
/// gateway sends keys without TLS.
pub(super) fn open_ports(facts: &DoctorFacts) -> Vec<Remark> {
    let GatewaySettings {
        listen,
        admin,
        backends,
        ..
    } = &facts.config;
    let mut remarks = Vec::new();
    if !listen.ip().is_loopback() && !facts.config.has_keys {
        let remark = Remark::warning(format!("clients are served on {listen} without keys"));
        let reason = "Any client that reaches this address can use the backends.";
        let remedy = "access.keys_file; `tokenweir keygen` creates keys";
        remarks.push(remark.because(reason).remedy(remedy));
    }
    if !admin.ip().is_loopback() && !facts.config.has_admin_token {
        let remark = Remark::warning(format!("the admin listener {admin} requires no token"));
        let reason = "Any client that reaches this listener can read the configuration, the names of \
                      tenants and the addresses of the backends. Drain, undrain and reload are refused.";
        remarks.push(
            remark
                .because(reason)
                .remedy("access.admin_token, or listen on 127.0.0.1"),
        );
    }
    let is_local = |host: &str| {
        let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    };
    let without_tls = backends.iter().filter(|backend| {
        backend.has_key && !backend.url.is_https() && !is_local(&backend.url.host_and_port().0)
    });
    let without_tls: Vec<String> = without_tls.map(|backend| backend.id.clone()).collect();
    if !without_tls.is_empty() {
        let backends = without_tls.join(", ");
        let remark = Remark::note(format!("keys are sent without TLS to {backends}"));
        let reason = "Anyone who can read the network traffic can read the keys.";
        remarks.push(
            remark
                .because(reason)
                .remedy("use https:// URLs, see docs/guides/tls.md"),
        );
    }
    remarks
}
