//! Adds to the causes of verdicts how the engine of a backend differs from its peers: by its weights, context
//! length, KV cache or version.

use super::observation::FleetBackend;
use crate::rule::prelude::*;
use crate::verdict::VerdictScope;

/// Adds to the cause of each verdict about an engine how the backend differs from all peers that serve the same
/// models.
pub(crate) fn name_differences(verdicts: &mut [Verdict], backends: &[FleetBackend]) {
    for verdict in verdicts {
        let is_about_engine = verdict.scope == VerdictScope::Backend
            && verdict.severity > VerdictSeverity::Info
            && !verdict.is_about_state();
        let is_it = |it: &&FleetBackend| it.id.as_str() == verdict.backend;
        let own = backends.iter().find(is_it);
        if let Some(own) = own
            && is_about_engine
            && !own.models.is_empty()
        {
            for clause in differences(own, backends) {
                verdict.add_to_cause(&clause);
            }
        }
    }
}

fn differences(own: &FleetBackend, backends: &[FleetBackend]) -> Vec<String> {
    let is_peer = |other: &&FleetBackend| other.id != own.id && other.models == own.models;
    let of_fact = |(name, value): &(&'static str, String)| {
        let peers = backends.iter().filter(is_peer);
        let mut values = peers.filter_map(|peer| peer.fact(name));
        let usual = values.next()?;
        let is_common = values.all(|other| other == usual);
        (is_common && usual != value)
            .then(|| format!("its {name} is {value}, that of its peers {usual}"))
    };
    own.facts.iter().filter_map(of_fact).collect()
}

impl FleetBackend {
    fn fact(&self, name: &str) -> Option<&str> {
        let fact = self.facts.iter().find(|(known, _)| *known == name)?;
        Some(&fact.1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::observation;
    use super::*;
    use tokenweir_routing::resilience::Availability;

    fn backend(name: &str, root: &str) -> FleetBackend {
        FleetBackend {
            models: vec!["llama".into()],
            facts: vec![("root", root.to_owned()), ("version", "0.11".to_owned())],
            ..observation::tests::backend(name, Availability::Available)
        }
    }

    fn cause(roots: &[&str]) -> String {
        let backends: Vec<FleetBackend> = roots
            .iter()
            .enumerate()
            .map(|(number, root)| backend(&format!("gpu-{number}"), root))
            .collect();
        let mut verdicts = [Verdict {
            verdict: "unusual_responses".into(),
            backend: "gpu-0".into(),
            cause: Some("other answers".into()),
            ..Verdict::default()
        }];
        name_differences(&mut verdicts, &backends);
        verdicts[0].cause.as_deref().unwrap_or_default().to_owned()
    }

    #[test]
    fn only_what_differs_from_all_peers_is_named() {
        let expected = "other answers; its root is 8b, that of its peers 70b";
        assert_eq!(cause(&["8b", "70b", "70b"]), expected);
        for roots in [&["8b", "8b", "8b"][..], &["8b", "70b", "13b"], &["8b"]] {
            assert_eq!(cause(roots), "other answers", "{roots:?}");
        }
    }
}
