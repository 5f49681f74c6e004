//! Checks the webhooks for `tokenweir doctor`.

use serde_json::Value;
use tokenweir_api::Remark;

/// The remarks about webhooks that accept no messages. `status`: the document of `GET /status`.
pub fn check(status: &Value) -> Vec<Remark> {
    let webhooks = status["webhooks"].as_array().into_iter().flatten();
    webhooks.filter_map(webhook_remark).collect()
}

fn webhook_remark(webhook: &Value) -> Option<Remark> {
    let name = webhook["webhook"].as_str()?;
    let error = webhook["error"].as_str()?;
    let observation = format!("the webhook {name} has not accepted the last message: {error}");
    let reason = "The webhook does not get the start and the end of verdicts.";
    let remedy = "check the URL and the token in `webhooks`";
    Some(Remark::warning(observation).because(reason).remedy(remedy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_api::FindingSeverity;

    #[test]
    fn a_webhook_that_refuses_messages_is_reported() {
        let reported = |error: Option<&str>| {
            check(&serde_json::json!({ "webhooks": [{ "webhook": "hook:80", "error": error }] }))
        };
        assert_eq!(reported(None), []);
        let remarks = reported(Some("cannot connect: refused"));
        assert_eq!(remarks[0].severity, FindingSeverity::Warning);
        let text = "the webhook hook:80 has not accepted";
        assert!(remarks[0].observation.contains(text), "{remarks:?}");
    }
}
