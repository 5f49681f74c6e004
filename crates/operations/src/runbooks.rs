//! The page of runbooks: for each alert what it means, how to see that it is true, and what to do.

use super::alerts::{self, Alert};
use std::fmt::Write;

const HEAD: &str = "\
<!-- Printed by `tokenweir generate runbooks`. Change it there. -->

# Runbooks

One for each alert. `page`: somebody has to look now, because users are being failed. `ticket`: in
working hours. The dashboard is *tokenweir*; `GATEWAY:9090` is the admin port. What is the matter with
a replica, by name, is told by [`tokenweir diagnose`](diagnose.md#the-verdicts).

";

/// The page.
pub(super) fn print() -> String {
    let alerts = alerts::all();
    let mut page = HEAD.to_owned();
    page.push_str(&table("", &alerts));
    for alert in &alerts {
        section(&mut page, alert);
    }
    page
}

/// The table of alerts, which the README has too. `page` is where the runbooks are from there.
pub fn table(page: &str, alerts: &[Alert]) -> String {
    let mut table = String::from("| alert | severity | after | fires when |\n|---|---|---|---|\n");
    for alert in alerts {
        let (name, severity) = (alert.name, alert.severity.as_str());
        // Writing to a string cannot fail.
        let _ = writeln!(
            table,
            "| [`{name}`]({page}#{}) | {severity} | {} | {} |",
            alert.anchor(),
            alert.holds_for,
            alert.when,
        );
    }
    table
}

fn section(page: &mut String, alert: &Alert) {
    let Alert { name, meaning, confirm, action, holds_for, expr, .. } = alert;
    let severity = alert.severity.as_str();
    // Writing to a string cannot fail.
    let _ = write!(
        page,
        "\n## {name}\n\n*{severity}, after {holds_for}.* {meaning}\n\n\
         **Is it true?** {confirm}\n\n**What to do.** {action}\n\n"
    );
    let silenced: Vec<String> =
        alert.silences.iter().map(|silence| format!("`{}`", silence.alert)).collect();
    if !silenced.is_empty() {
        let _ = write!(page, "While it fires, it silences {}.\n\n", silenced.join(", "));
    }
    let _ = write!(page, "```promql\n{expr}\n```\n");
}
