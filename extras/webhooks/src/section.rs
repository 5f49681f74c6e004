//! The section `webhooks`: webhooks that get the start and the end of verdicts as JSON with a `text`, as Slack expects
//! it.

use crate::settings::{RetryTimes, WebhookSettings};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokenweir_net::client::receiver::Receiver;
use tokenweir_option::{Obstacle, StartContext};
use tokenweir_settings::{
    CheckResult, ConfigSection, ReceiverConfig, ReceiverError, ReloadClass, SecretList,
    violation_at,
};

/// The webhooks, each of which gets all messages.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct WebhooksConfig(Vec<ReceiverConfig>);

/// Maximum number of webhooks, because each has its own task and connection.
const MAX_WEBHOOKS: usize = 10;

impl<C> ConfigSection<C> for WebhooksConfig {
    type Values = Self;
    const RELOAD: ReloadClass = ReloadClass::AtOnce;

    fn check(Self(webhooks): &Self, _: &C) -> CheckResult {
        if webhooks.len() > MAX_WEBHOOKS {
            return Err(violation_at(
                "webhooks",
                format!("at most {MAX_WEBHOOKS} webhooks"),
            ));
        }
        for (index, webhook) in webhooks.iter().enumerate() {
            webhook.check(&format!("webhooks.{index}.url"))?;
        }
        Ok(())
    }

    fn list_secrets<'a>(Self(webhooks): &'a Self, list: &mut SecretList<'a>) {
        for (index, webhook) in webhooks.iter().enumerate() {
            let owner = format!("webhooks[{index}]");
            list.add_reloaded(format!("webhooks.{index}.url"), webhook.url_secret(&owner));
            list.add_reloaded(
                format!("webhooks.{index}.token"),
                webhook.token_secret(&owner),
            );
        }
    }
}

impl WebhooksConfig {
    fn receivers(
        &self,
        context: &StartContext<'_>,
    ) -> impl Iterator<Item = Result<Receiver, ReceiverError>> {
        let webhooks = self.0.iter().enumerate();
        webhooks.map(move |(index, webhook)| {
            webhook.receiver(&format!("webhooks[{index}]"), context.env)
        })
    }

    /// The secret URLs that are no URLs.
    pub(crate) fn obstacles(&self, context: &StartContext<'_>) -> Vec<Obstacle> {
        let unusable = self.receivers(context).enumerate();
        let unusable = unusable.filter_map(|(index, receiver)| match receiver {
            Err(error @ ReceiverError::Url(_)) => Some(Obstacle {
                path: format!("webhooks.{index}.url"),
                error: error.into(),
            }),
            _ => None,
        });
        unusable.collect()
    }
}

impl WebhookSettings {
    pub(crate) fn read(
        webhooks: &WebhooksConfig,
        context: &StartContext<'_>,
    ) -> Result<Self, ReceiverError> {
        Ok(Self {
            endpoints: webhooks.receivers(context).collect::<Result<_, _>>()?,
            gateway: format!("{}:{}", context.host, context.admin_port),
            runbooks: format!("{}/runbooks", context.admin_url),
            retries: RetryTimes::default(),
        })
    }
}
