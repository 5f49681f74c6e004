//! `GET /runbooks`: a page with the runbooks of the alerts and the descriptions of the verdicts. Alerts and the
//! live page link to it, so operators need no access to the documentation. The page contains no data of the
//! gateway, so it needs no token.

use super::page::static_html;
use axum::response::Response;

/// The sections of `docs/operate/diagnose.md` as HTML. `docs/check.sh --renew` writes the file.
const PAGE: &str = include_str!("runbooks.html");

/// The path of the runbooks page on the admin listener.
pub(super) const RUNBOOKS_PATH: &str = "/runbooks";

pub(super) async fn get_runbooks() -> Response {
    static_html(PAGE)
}

#[cfg(test)]
mod tests {
    use super::PAGE;

    #[test]
    fn each_section_has_an_anchor() {
        let sections = include_str!("../../docs/operate/diagnose.md").matches("\n### ");
        assert_eq!(PAGE.matches("<h3 id=").count(), sections.count());
        assert!(PAGE.contains("<h3 id=\"tokenweirdown\">TokenweirDown</h3>"));
        assert!(
            !PAGE.contains("**") && !PAGE.contains("```"),
            "no Markdown is left"
        );
    }
}
