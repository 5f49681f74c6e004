//! Assigns the GPUs of an exporter's page to backends: by the rules of the configuration, or without rules by
//! the pod or by the host.

use super::dcgm_page::GpuReading;
use super::gpu_values::GpuIndex;
use std::net::IpAddr;
use std::sync::Arc;
use tokenweir_protocol::settings_entry;

/// A backend to which GPUs can belong.
#[derive(Debug, Clone)]
pub struct GpuBackend<'a> {
    /// The name of the backend.
    pub id: &'a str,
    /// The host in the URL of the backend.
    pub host: Arc<str>,
    /// The name of the Kubernetes pod of the backend. `None`: not known.
    pub pod: Option<Arc<str>>,
}

settings_entry! {
    /// A rule that assigns GPUs to one backend. A GPU must satisfy all conditions of the rule.
    #[derive(Eq)]
    pub struct GpuRule {
        /// Name of the backend.
        #[serde(rename = "name")]
        pub backend: String,
        /// Indexes of the GPUs, as in `CUDA_VISIBLE_DEVICES`; `0.2` is MIG instance 2 of GPU 0. `None`:
        /// all GPUs.
        pub gpus: Option<Vec<GpuIndex>>,
        /// Kubernetes pod that uses the GPU. `None`: any.
        pub pod: Option<String>,
        /// Value of the label `Hostname` of the page. `None`: any.
        #[serde(default, rename = "hostname")]
        pub host_name: Option<String>,
    }
}

/// The host of a GPU exporter's page, and the rules that assign the GPUs of the page to backends.
#[derive(Debug, Clone, Copy)]
pub struct GpuSourcePlace<'a> {
    /// The host in the URL of the exporter.
    pub host: &'a str,
    /// The configured rules. Empty: GPUs are assigned by pod or by host.
    pub rules: &'a [GpuRule],
}

/// The backends to which a GPU belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuOwners {
    /// The indexes of the backends that use the GPU.
    Backends(Vec<usize>),
    /// The GPU belongs to no backend.
    None,
    /// Several backends have the host of the GPU, and no rule states which of them uses the GPU.
    Ambiguous,
}

impl GpuSourcePlace<'_> {
    /// The backends that own a GPU of the page.
    ///
    /// With rules, these are the backends of all rules whose conditions hold. Without rules, a backend owns
    /// the GPU if the name of a pod of the GPU equals one of these: the pod that Kubernetes discovery found
    /// for the backend, the name of the backend, or the first label of its host name (as for a
    /// `StatefulSet`). If no backend matches, the GPU belongs to the only backend with the host of the page
    /// or with the host in the label `Hostname`.
    pub fn owners(&self, gpu: &GpuReading, backends: &[GpuBackend<'_>]) -> GpuOwners {
        let matching = |is_owner: &dyn Fn(&GpuBackend<'_>) -> bool| -> Vec<usize> {
            let owners = backends
                .iter()
                .enumerate()
                .filter(|(_, backend)| is_owner(backend));
            owners.map(|(index, _)| index).collect()
        };
        if !self.rules.is_empty() {
            let has_rule = |backend: &GpuBackend<'_>| {
                self.rules
                    .iter()
                    .any(|rule| rule.backend == backend.id && rule.holds(gpu))
            };
            return GpuOwners::from_indexes(matching(&has_rule));
        }
        let has_pod = |backend: &GpuBackend<'_>| {
            let names = [
                backend.pod.as_deref().unwrap_or_default(),
                backend.id,
                first_label(&backend.host),
            ];
            gpu.pods
                .iter()
                .any(|pod| !pod.is_empty() && names.contains(&&**pod))
        };
        let by_pod = matching(&has_pod);
        if !by_pod.is_empty() {
            return GpuOwners::Backends(by_pod);
        }
        let has_host = |backend: &GpuBackend<'_>| {
            is_same_host(&backend.host, self.host)
                || gpu
                    .host_name
                    .as_deref()
                    .is_some_and(|name| is_same_host(&backend.host, name))
        };
        match matching(&has_host) {
            by_host if by_host.len() > 1 => GpuOwners::Ambiguous,
            by_host => GpuOwners::from_indexes(by_host),
        }
    }
}

impl GpuOwners {
    fn from_indexes(indexes: Vec<usize>) -> Self {
        if indexes.is_empty() {
            Self::None
        } else {
            Self::Backends(indexes)
        }
    }
}

impl GpuRule {
    fn holds(&self, gpu: &GpuReading) -> bool {
        let includes = |index: &GpuIndex| {
            index.gpu == gpu.index.gpu
                && (index.instance.is_none() || index.instance == gpu.index.instance)
        };
        self.gpus
            .as_ref()
            .is_none_or(|gpus| gpus.iter().any(includes))
            && self
                .pod
                .as_ref()
                .is_none_or(|pod| gpu.pods.iter().any(|other| **other == **pod))
            && self
                .host_name
                .as_ref()
                .is_none_or(|name| gpu.host_name.as_deref() == Some(name))
    }
}

/// The first label of a host name, such as `vllm-0` of `vllm-0.vllm.default.svc`. The result is empty if the
/// host is an IP address.
fn first_label(host: &str) -> &str {
    let is_address = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    if is_address {
        ""
    } else {
        host.split('.').next().unwrap_or_default()
    }
}

/// Whether two host names are equal, or one is the other plus a domain.
fn is_same_host(a: &str, b: &str) -> bool {
    let has_domain = |long: &str, short: &str| {
        long.get(..short.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(short))
            && long[short.len()..].starts_with('.')
            && first_label(long).len() == short.len()
    };
    a.eq_ignore_ascii_case(b)
        || !b.is_empty() && has_domain(a, b)
        || !a.is_empty() && has_domain(b, a)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: &str, host_name: Option<&str>, pods: &[&str]) -> GpuReading {
        GpuReading {
            index: GpuIndex::parse(index).unwrap(),
            host_name: host_name.map(Into::into),
            pods: pods.iter().map(|pod| (*pod).into()).collect(),
            ..GpuReading::default()
        }
    }

    fn backend<'a>(id: &'a str, host: &str) -> GpuBackend<'a> {
        GpuBackend {
            id,
            host: host.into(),
            pod: None,
        }
    }

    fn owners(host: &str, gpu: &GpuReading, backends: &[GpuBackend<'_>]) -> GpuOwners {
        GpuSourcePlace { host, rules: &[] }.owners(gpu, backends)
    }

    #[test]
    fn without_rules_pods_or_single_backends_own_gpus() {
        let pods = [
            backend("a", "vllm-0.vllm.default.svc"),
            backend("vllm-1", "10.0.0.7"),
        ];
        for (pod, owner) in [("vllm-0", 0), ("vllm-1", 1)] {
            let owner = GpuOwners::Backends(vec![owner]);
            assert_eq!(
                owners("10.1.1.1", &gpu("0", None, &[pod]), &pods),
                owner,
                "{pod}"
            );
        }
        let discovered = ["vllm-7c9-x", "vllm-7c9-y"].map(|pod| GpuBackend {
            pod: Some(pod.into()),
            ..backend("10.0.0.7:8000", "10.0.0.7")
        });
        let second = GpuOwners::Backends(vec![1]);
        assert_eq!(
            owners("node", &gpu("0", None, &["vllm-7c9-y"]), &discovered),
            second
        );
        assert_eq!(
            owners("10.1.1.1", &gpu("0", None, &["other"]), &pods),
            GpuOwners::None
        );
        let hosts = [backend("a", "node-1.example.com"), backend("b", "10.0.0.7")];
        let only_first = GpuOwners::Backends(vec![0]);
        assert_eq!(owners("NODE-1", &gpu("0", None, &[]), &hosts), only_first);
        assert_eq!(
            owners("x", &gpu("0", Some("node-1"), &[]), &hosts),
            only_first
        );
        assert_eq!(
            owners("10.0.0.7", &gpu("0", None, &[]), &hosts),
            GpuOwners::Backends(vec![1])
        );
        assert_eq!(
            owners("10", &gpu("0", None, &[]), &hosts),
            GpuOwners::None,
            "no domain"
        );
    }

    #[test]
    fn gpus_of_shared_hosts_need_rules() {
        let backends = [backend("a", "node-1"), backend("b", "node-1")];
        assert_eq!(
            owners("node-1", &gpu("0", None, &[]), &backends),
            GpuOwners::Ambiguous
        );
        let rule = |backend: &str, gpus: &[&str]| GpuRule {
            backend: backend.into(),
            gpus: Some(
                gpus.iter()
                    .map(|index| GpuIndex::parse(index).unwrap())
                    .collect(),
            ),
            pod: None,
            host_name: None,
        };
        let rules = [rule("a", &["0", "1"]), rule("b", &["2", "3.1"])];
        let source = GpuSourcePlace {
            host: "node-1",
            rules: &rules,
        };
        let owner_of = |index| source.owners(&gpu(index, None, &[]), &backends);
        assert_eq!(owner_of("0"), GpuOwners::Backends(vec![0]));
        assert_eq!(owner_of("2.5"), GpuOwners::Backends(vec![1]));
        assert_eq!(owner_of("3.1"), GpuOwners::Backends(vec![1]));
        assert_eq!(owner_of("3.2"), GpuOwners::None);
        assert_eq!(owner_of("7"), GpuOwners::None);
    }

    #[test]
    fn a_rule_needs_all_its_conditions() {
        let backends = [backend("a", "x")];
        let rules = [GpuRule {
            backend: "a".into(),
            gpus: None,
            pod: Some("p".into()),
            host_name: Some("h".into()),
        }];
        let source = GpuSourcePlace {
            host: "x",
            rules: &rules,
        };
        let owners_of = |host, pods| source.owners(&gpu("0", host, pods), &backends);
        assert_eq!(
            owners_of(Some("h"), &["q", "p"]),
            GpuOwners::Backends(vec![0])
        );
        assert_eq!(owners_of(Some("h"), &["q"]), GpuOwners::None);
        assert_eq!(
            owners_of(None, &["p"]),
            GpuOwners::None,
            "the host alone does not assign"
        );
    }
}
