//! The section `webhooks`: webhooks that get the start and the end of verdicts as JSON with a `text`, as Slack expects
//! it.

use crate::settings::{RetryTimes, WebhookSettings};
use tokenweir_settings::{
    CheckResult, ConfigSection, Environment, ReceiverConfig, ReceiverError, ReloadClass,
    SecretList, violation_at,
};

/// The section `webhooks`.
pub struct Section;

/// Maximum number of webhooks, because each has its own task and connection.
const MAX_WEBHOOKS: usize = 10;

impl<C> ConfigSection<C> for Section {
    type Values = Vec<ReceiverConfig>;
    const RELOAD: ReloadClass = ReloadClass::AtOnce;

    fn check(webhooks: &Vec<ReceiverConfig>, _: &C) -> CheckResult {
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

    fn list_secrets<'a>(webhooks: &'a Vec<ReceiverConfig>, list: &mut SecretList<'a>) {
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

impl WebhookSettings {
    /// The settings of these webhooks. `gateway`: the name of this gateway in messages. `runbooks`: the URL of the
    /// page of runbooks.
    pub fn new(
        webhooks: &[ReceiverConfig],
        gateway: String,
        runbooks: String,
        env: impl Environment,
    ) -> Result<Self, ReceiverError> {
        let webhooks = webhooks.iter().enumerate();
        let endpoints =
            webhooks.map(|(index, webhook)| webhook.receiver(&format!("webhooks[{index}]"), &env));
        Ok(Self {
            endpoints: endpoints.collect::<Result<_, _>>()?,
            gateway,
            runbooks,
            retries: RetryTimes::default(),
        })
    }
}
