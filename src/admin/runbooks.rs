//! `GET /runbooks`: the runbooks of the alerts and the descriptions of the verdicts as a page. Alerts
//! and the live page link to it, so it needs no access to the documentation. It contains no data of the gateway and needs no token.

use super::page::static_html;
use axum::response::Response;
use std::fmt::Write;
use std::sync::LazyLock;

/// The runbooks in Markdown, which `tokenweir generate runbooks` prints.
const RUNBOOKS: &str = include_str!("../../docs/operate/runbooks.md");

/// The documentation of the diagnosis. Its last part has one section for each verdict.
const DIAGNOSIS: &str = include_str!("../../docs/operate/diagnose.md");

/// The path of the page of runbooks on the admin listener.
pub(super) const RUNBOOKS_PATH: &str = "/runbooks";

pub(super) async fn get_runbooks() -> Response {
    static PAGE: LazyLock<String> = LazyLock::new(|| render(RUNBOOKS, DIAGNOSIS));
    static_html(&PAGE)
}

/// Renders the runbooks and the verdicts as HTML. Each alert and each verdict has its name in lower
/// case as its anchor, as in the Markdown pages.
fn render(runbooks: &str, diagnosis: &str) -> String {
    let mut page = String::from(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>Runbooks</title><link rel=\"stylesheet\" href=\"/page/page.css\">\
         <main><h1>Runbooks</h1>",
    );
    let verdicts = diagnosis.split_once("## The verdicts").map_or("", |(_, verdicts)| verdicts);
    for (title, text, heading) in [("Alerts", runbooks, "\n## "), ("Verdicts", verdicts, "\n### ")]
    {
        render_sections(&mut page, title, &text.split(heading).skip(1).collect::<Vec<_>>());
    }
    page + "</main></html>"
}

/// Appends a list of links to the sections, and the sections. The first line of a section is its
/// name.
fn render_sections(page: &mut String, title: &str, sections: &[&str]) {
    let name_of = |section: &str| section.lines().next().unwrap_or_default().to_owned();
    // Writing to a string cannot fail.
    let _ = write!(page, "<h2>{title}</h2><ul>");
    for name in sections.iter().map(|section| name_of(section)) {
        let _ = write!(page, "<li><a href=\"#{}\">{name}</a>", name.to_lowercase());
    }
    page.push_str("</ul>");
    for section in sections {
        let name = name_of(section);
        let _ = write!(page, "<h3 id=\"{}\">{name}</h3>", name.to_lowercase());
        for block in section.split("\n\n").skip(1) {
            let block = block.trim();
            let _ = match block.strip_prefix("```promql\n") {
                Some(code) => write!(page, "<pre>{}</pre>", escape(code.trim_end_matches("\n```"))),
                None => write!(page, "<p>{}</p>", with_code(block)),
            };
        }
    }
}

/// A paragraph as HTML: text between backticks is code, other marks of Markdown are left out.
fn with_code(text: &str) -> String {
    let parts = text.split('`').enumerate().map(|(index, part)| match index % 2 {
        0 => escape(&part.replace(['*'], "")),
        _ => format!("<code>{}</code>", escape(part)),
    });
    parts.collect()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_alert_and_each_verdict_has_an_anchor_and_each_alert_its_query() {
        let page = render(RUNBOOKS, DIAGNOSIS);
        let alerts = RUNBOOKS.matches("\n## ").count();
        assert_eq!(page.matches("<h3 id=\"tokenweir").count(), alerts);
        assert_eq!(page.matches("<pre>").count(), alerts);
        assert!(page.contains("<h3 id=\"tokenweirnobackend\">TokenweirNoBackend</h3>"));
        let names = tokenweir_diagnose::FLEET_RULES.iter().map(|rule| rule.name);
        let engine_names = tokenweir_diagnose::RULES.iter().map(|rule| rule.name);
        for name in names.chain(engine_names) {
            assert!(page.contains(&format!("<h3 id=\"{name}\">")), "{name}");
        }
        assert!(!page.contains("**") && !page.contains("```"), "no Markdown is left");
    }
}
