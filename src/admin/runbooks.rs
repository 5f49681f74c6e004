//! `GET /runbooks`: the runbooks of the alerts as a page. Alerts link to it, so it needs no access to
//! the documentation. It contains no data of the gateway and needs no token.

use super::page::static_html;
use axum::response::Response;
use std::fmt::Write;
use std::sync::LazyLock;

/// The runbooks in Markdown, which `tokenweir generate runbooks` prints.
const RUNBOOKS: &str = include_str!("../../docs/operate/runbooks.md");

/// The path of the page.
pub(super) const RUNBOOKS_PATH: &str = "/runbooks";

pub(super) async fn get_runbooks() -> Response {
    static PAGE: LazyLock<String> = LazyLock::new(|| render(RUNBOOKS));
    static_html(&PAGE)
}

/// Renders the runbooks as HTML. Each alert has its name in lower case as its anchor, as in the
/// Markdown page.
fn render(markdown: &str) -> String {
    let mut page = String::from(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>Runbooks</title><link rel=\"stylesheet\" href=\"/page/page.css\">\
         <main><h1>Runbooks</h1><ul>",
    );
    let sections: Vec<&str> = markdown.split("\n## ").skip(1).collect();
    let name_of = |section: &str| section.lines().next().unwrap_or_default().to_owned();
    for name in sections.iter().map(|section| name_of(section)) {
        // Writing to a string cannot fail.
        let _ = write!(page, "<li><a href=\"#{}\">{name}</a>", name.to_lowercase());
    }
    page.push_str("</ul>");
    for section in sections {
        let name = name_of(section);
        let _ = write!(page, "<h2 id=\"{}\">{name}</h2>", name.to_lowercase());
        for block in section.split("\n\n").skip(1) {
            let block = block.trim();
            let _ = match block.strip_prefix("```promql\n") {
                Some(code) => write!(page, "<pre>{}</pre>", escape(code.trim_end_matches("\n```"))),
                None => write!(page, "<p>{}</p>", with_code(block)),
            };
        }
    }
    page + "</main></html>"
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
    fn each_alert_has_an_anchor_and_its_query() {
        let page = render(RUNBOOKS);
        let headings = RUNBOOKS.matches("\n## ").count();
        assert_eq!(page.matches("<h2 id=\"tokenweir").count(), headings);
        assert_eq!(page.matches("<pre>").count(), headings);
        assert!(page.contains("<h2 id=\"tokenweirnobackend\">TokenweirNoBackend</h2>"));
        assert!(!page.contains("**") && !page.contains("```"), "no Markdown is left");
    }
}
