//! The paths of vLLM 0.32 and 0.33 that clients should not reach, with their risks and the settings that
//! disable them. `/inference/v1/generate` and the paths that render prompts are missing here: vLLM registers
//! them even if they are disabled, so an `OPTIONS` request cannot show whether they are enabled.

use super::finding::FindingSeverity;

/// A group of paths that one setting of vLLM enables.
pub(super) struct EndpointGroup {
    /// The purpose of the paths. The text is the subject of a sentence.
    pub(super) purpose: &'static str,
    pub(super) paths: &'static [&'static str],
    /// The severity of the finding if a path is reachable.
    pub(super) severity: FindingSeverity,
    /// The risk: the actions that a client can perform with the paths.
    pub(super) risk: &'static str,
    /// How to make the paths unreachable.
    pub(super) remedy: &'static str,
}

/// Paths that control the server or reveal internal information.
pub(super) const ENDPOINT_GROUPS: [EndpointGroup; 8] = [
    EndpointGroup {
        purpose: "developer mode",
        paths: &[
            "/collective_rpc",
            "/sleep",
            "/wake_up",
            "/release_kv_cache_memory",
            "/reset_prefix_cache",
            "/reset_mm_cache",
            "/reset_encoder_cache",
            "/is_sleeping",
            "/server_info",
            "/pause",
            "/resume",
            "/is_paused",
            "/get_world_size",
            "/init_weight_transfer_engine",
            "/shutdown_weight_transfer_engine",
            "/start_weight_update",
            "/start_draft_weight_update",
            "/update_weights",
            "/finish_weight_update",
            "/update_weight_version",
            "/weight_info",
            "/weight_checker",
        ],
        severity: FindingSeverity::Error,
        risk: "Any client that reaches this port can run methods in the workers, put the engine to \
               sleep, pause it, empty its caches or change its weights; --api-key does not protect \
               these paths.",
        remedy: "start vLLM without VLLM_SERVER_DEV_MODE=1, or let only the gateway reach its port",
    },
    EndpointGroup {
        purpose: "aborting requests",
        paths: &["/abort_requests"],
        severity: FindingSeverity::Warning,
        risk: "Any client that reaches this port can abort requests of other clients; --api-key \
               does not protect this path.",
        remedy: "start vLLM without --tokens-only and without VLLM_SERVER_DEV_MODE=1",
    },
    EndpointGroup {
        purpose: "loading LoRA adapters",
        paths: &["/v1/load_lora_adapter", "/v1/unload_lora_adapter"],
        severity: FindingSeverity::Warning,
        risk: "Any client that may send requests can load weights from any path or remove \
               adapters.",
        remedy: "start vLLM without VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, or let only the gateway \
                 reach its port: it does not forward these paths",
    },
    EndpointGroup {
        purpose: "the profiler",
        paths: &["/start_profile", "/stop_profile"],
        severity: FindingSeverity::Warning,
        risk: "A profile slows down every request and fills the disk; --api-key does not protect \
               these paths.",
        remedy: "start vLLM without --profiler-config",
    },
    EndpointGroup {
        purpose: "fault tolerance",
        paths: &["/fault_tolerance/apply", "/fault_tolerance/status"],
        severity: FindingSeverity::Warning,
        risk: "Any client that reaches this port can take engines out of service.",
        remedy: "start vLLM without --enable-fault-tolerance, or let only the gateway reach its \
                 port",
    },
    EndpointGroup {
        purpose: "elastic expert parallelism",
        paths: &["/scale_elastic_ep", "/is_scaling_elastic_ep"],
        severity: FindingSeverity::Note,
        risk: "vLLM always serves these paths, without a key: where engines are scaled with them, any \
               client that reaches this port can scale the engines.",
        remedy: "let only the gateway reach the port of vLLM: it does not forward these paths",
    },
    EndpointGroup {
        purpose: "the tokenizer and its chat template",
        paths: &["/tokenizer_info"],
        severity: FindingSeverity::Note,
        risk: "The chat template may contain instructions that are not for clients.",
        remedy: "start vLLM without --enable-tokenizer-info-endpoint",
    },
    EndpointGroup {
        purpose: "the documentation of all paths",
        paths: &["/openapi.json", "/docs"],
        severity: FindingSeverity::Note,
        risk: "It shows an attacker which paths exist.",
        remedy: "start vLLM with --disable-fastapi-docs",
    },
];

/// Paths that use the engine or its tokenizer. vLLM serves them without a key even if it was started with
/// `--api-key`.
pub(super) const UNAUTHENTICATED_PATHS: [&str; 8] = [
    "/invocations",
    "/tokenize",
    "/detokenize",
    "/pooling",
    "/classify",
    "/score",
    "/rerank",
    "/generative_scoring",
];

/// All paths that the doctor tests with `OPTIONS` requests.
pub(super) fn paths() -> impl Iterator<Item = &'static str> {
    ENDPOINT_GROUPS
        .iter()
        .flat_map(|group| group.paths)
        .copied()
        .chain(UNAUTHENTICATED_PATHS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;
    use std::collections::BTreeSet;
    use tokenweir_protocol::openai::route::{ApiRoute, RouteError};

    #[test]
    fn no_control_or_internal_path_is_forwarded() {
        for path in ENDPOINT_GROUPS.iter().flat_map(|group| group.paths) {
            for method in [Method::GET, Method::POST] {
                assert_eq!(
                    ApiRoute::lookup(&method, path),
                    Err(RouteError::NotFound),
                    "{path}"
                );
            }
        }
    }

    #[test]
    fn doctor_tests_each_sensitive_path_once() {
        let all: BTreeSet<&str> = paths().collect();
        assert_eq!(all.len(), paths().count());
        assert!(all.iter().all(|path| path.starts_with('/')));
    }
}
