//! What the configuration says beside what was found.

use crate::configuration::{Configuration, Model};
use crate::facts::Facts;
use crate::finding::Remark;

/// Names of the configuration that lead to no model.
pub(super) fn named_models(facts: &Facts) -> Vec<Remark> {
    let is_known = facts.replicas.iter().all(|replica| replica.served().is_some());
    // One that has not told its models may have any.
    if !is_known || facts.replicas.is_empty() {
        return Vec::new();
    }
    let leads_nowhere = |named: &&Model| {
        let wanted = named.served_as.as_ref().unwrap_or(&named.name);
        let mut serving = facts.replicas.iter().filter(|replica| {
            let served = replica.served();
            served.is_some_and(|served| served.iter().any(|model| *model.id == **wanted))
        });
        !serving.any(|replica| {
            named.backends.as_ref().is_none_or(|backends| backends.contains(&replica.id))
        })
    };
    let remark = |named: &Model| {
        let wanted = named.served_as.as_ref().unwrap_or(&named.name);
        let whose = named
            .backends
            .as_ref()
            .map_or("no replica".to_owned(), |backends| format!("none of {}", backends.join(", ")));
        let remark = Remark::error(format!(
            "the name {} leads to {wanted}, which {whose} serves",
            named.name
        ));
        let change =
            format!("correct `served_as` in `models`, or vllm serve --served-model-name {wanted}");
        remark.because("Every request for it is answered 404.").change(change)
    };
    facts.config.models.iter().filter(leads_nowhere).map(remark).collect()
}

/// Ports that more than this machine can reach, with nothing that guards them.
pub(super) fn open_ports(facts: &Facts) -> Vec<Remark> {
    if !facts.is_configured {
        return Vec::new();
    }
    let Configuration { listen, admin, backends, .. } = &facts.config;
    let mut remarks = Vec::new();
    if !listen.ip().is_loopback() && !facts.config.has_keys {
        let remark = Remark::warning(format!("clients are served on {listen} without keys"));
        let why = "Whoever reaches this address may use the replicas.";
        remarks.push(remark.because(why).change("access.keys_file; `tokenweir key` makes keys"));
    }
    if !admin.ip().is_loopback() && !facts.config.has_admin_token {
        let remark = Remark::warning(format!("the admin port {admin} wants no token"));
        let why = "Whoever reaches it sees the configuration, the names of tenants and where the \
                   replicas are, and can have the configuration read again.";
        remarks.push(remark.because(why).change("access.admin_token, or listen on 127.0.0.1"));
    }
    let is_here = |host: &str| {
        let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    };
    let in_clear = backends.iter().filter(|backend| {
        backend.has_key && !backend.url.is_https() && !is_here(&backend.url.host_and_port().0)
    });
    let in_clear: Vec<String> = in_clear.map(|backend| backend.id.clone()).collect();
    if !in_clear.is_empty() {
        let remark = Remark::note(format!("keys go without TLS to {}", in_clear.join(", ")));
        let why = "Whoever sees that network has them.";
        remarks.push(remark.because(why).change("write https:// and see docs/tls.md"));
    }
    remarks
}
