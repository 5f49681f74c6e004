//! The options that control the access of clients: tokens of issuers, and limits that all gateways share and
//! that survive restarts.

use super::BackendOptions;
use crate::app::error::{ApplicationError, in_part};
use crate::config::Config;
use std::sync::{Arc, Mutex};
use tokenweir_gateway::proxy::ProxyContext;
use tokenweir_gateway::status::StatusSource;
use tokenweir_jwt::{self as jwt, GrantContext, TokenVerifier};
use tokenweir_net::supervise::SupervisedTask;
use tokenweir_protocol::mutex::lock;
use tokenweir_shared_limits::{self as shared_limits, SharedLimits};

/// The options that decide what a client may use.
pub(super) struct AccessExtras {
    /// Checks the tokens of clients. `None`: no issuer is configured.
    tokens: Option<Arc<TokenVerifier>>,
    /// Shared limits. `None`: each gateway counts limits by itself, until it restarts.
    limits: Option<RunningLimits>,
}

/// The shared limits, and their task.
struct RunningLimits {
    limits: Arc<SharedLimits>,
    task: Mutex<Option<SupervisedTask>>,
}

impl AccessExtras {
    /// Starts the options, and attaches them to the access control.
    pub(super) fn start(
        config: &Config,
        proxy: &ProxyContext,
        backends: &BackendOptions,
    ) -> Result<Self, ApplicationError> {
        let tokens = start_tokens(config, proxy)?;
        let access = &proxy.state.access;
        let limits = SharedLimits::new(&config.shared_limits, access, backends.exchange());
        let limits = limits.map(|limits| RunningLimits {
            task: Mutex::new(Some(limits.start())),
            limits,
        });
        Ok(Self { tokens, limits })
    }

    /// Functions that add the blocks of the options to a status.
    pub(super) fn status_sources(&self) -> [StatusSource; 2] {
        let limits = self.limits.as_ref().map(|running| running.limits.clone());
        [
            jwt::rows::status_source(self.tokens.clone()),
            shared_limits::rows::status_source(limits),
        ]
    }

    /// Stores the used parts of limits, after the last request.
    pub(super) async fn shutdown(&self) {
        let Some(running) = &self.limits else { return };
        let task = lock(&running.task).take();
        if let Some(task) = task {
            task.stop().await;
        }
        running.limits.shutdown().await;
    }
}

fn start_tokens(
    config: &Config,
    proxy: &ProxyContext,
) -> Result<Option<Arc<TokenVerifier>>, ApplicationError> {
    let context = GrantContext {
        pseudonyms: proxy.settings.identities.key.clone(),
        tiers: proxy.settings.tiers.names.clone(),
    };
    let started = TokenVerifier::start(&config.jwt, &context);
    let tokens = started.map_err(in_part("cannot start the check of tokens (jwt)"))?;
    if let Some(tokens) = &tokens {
        proxy.state.access.accept_tokens(tokens.clone());
    }
    Ok(tokens)
}
