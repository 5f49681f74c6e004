//! `GET /runbooks`: a page with the runbooks of the alerts and the descriptions of the verdicts. Alerts and the
//! live page link to it, so operators need no access to the documentation. The page contains no data of the
//! gateway, so it needs no token.

use super::page::static_html;
use axum::response::Response;
use std::fmt::Write;
use std::sync::LazyLock;

/// The documentation page with the runbooks, which `tokenweir generate runbooks` prints. It has a
/// section for each alert and each verdict.
const PAGE: &str = include_str!("../../docs/operate/diagnose.md");

/// The path of the runbooks page on the admin listener.
pub(super) const RUNBOOKS_PATH: &str = "/runbooks";

pub(super) async fn get_runbooks() -> Response {
    static HTML: LazyLock<String> = LazyLock::new(|| render(PAGE));
    static_html(&HTML)
}

/// Renders the sections of alerts and verdicts as HTML. The anchor of a section is its name in lower
/// case, as in the Markdown page.
fn render(text: &str) -> String {
    let mut page = String::from(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>Runbooks</title><link rel=\"stylesheet\" href=\"/page/page.css\">\
         <main><h1>Runbooks</h1>",
    );
    for chapter in text.split("\n## ").skip(1) {
        let title = chapter.lines().next().unwrap_or_default();
        let sections: Vec<&str> = chapter.split("\n### ").skip(1).collect();
        if !sections.is_empty() {
            render_sections(&mut page, title, &sections);
        }
    }
    page + "</main></html>"
}

/// Appends the title, a list of links to the sections, and the sections. The first line of a section is
/// its name.
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
            let _ = write!(page, "<p>{}</p>", with_code(block.trim()));
        }
    }
}

/// Converts a Markdown paragraph to HTML. Text between backticks becomes code, and asterisks are removed.
fn with_code(text: &str) -> String {
    let parts = text
        .split('`')
        .enumerate()
        .map(|(index, part)| match index % 2 {
            0 => escape(&part.replace(['*'], "")),
            _ => format!("<code>{}</code>", escape(part)),
        });
    parts.collect()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_alert_and_verdict_has_an_anchor() {
        let page = render(PAGE);
        assert_eq!(
            page.matches("<h3 id=").count(),
            PAGE.matches("\n### ").count()
        );
        assert!(page.contains("<h3 id=\"tokenweirdown\">TokenweirDown</h3>"));
        for verdict in tokenweir_diagnose::verdict_descriptions() {
            assert!(
                page.contains(&format!("<h3 id=\"{}\">", verdict.name)),
                "{}",
                verdict.name
            );
        }
        assert!(
            !page.contains("**") && !page.contains("```"),
            "no Markdown is left"
        );
    }
}
