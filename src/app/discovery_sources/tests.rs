//! Tests of reloads of discovery sources, with file sources.

use super::*;
use crate::config::tests::parse;
use tokenweir_net::testing::TempFolder;

/// Time limit for the first results. A source reads an existing file in much less time.
const TEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Parses a configuration with these `backends` and `discovery` entries. `FOLDER` in an entry is
/// replaced by the path of `folder`.
fn config_in(folder: &TempFolder, backends: &str, discovery: &str) -> Config {
    let discovery = discovery.replace("FOLDER", folder.path().to_str().unwrap());
    let text = format!("backends: [{backends}]\ndiscovery: [{discovery}]\n");
    parse(&text).unwrap().config
}

fn backend_urls(sources: &DiscoverySources, config: &Config) -> Vec<String> {
    sources
        .backends(config)
        .iter()
        .map(|backend| backend.url.to_string())
        .collect()
}

#[tokio::test]
async fn an_unusable_file_keeps_the_backends() {
    let folder = TempFolder::new("sources-problem");
    folder.write("list", "[{ url: 'http://a:1' }]");
    let config = config_in(&folder, "", "{ file: FOLDER/list }");
    let mut sources = DiscoverySources::start(&config.discovery);
    sources.wait_for_all_sources(TEST_TIMEOUT).await;
    assert_eq!(sources.problem(), None);
    for (text, problem) in [
        ("a mistake", "list:1:1"),
        ("[]", "no backends"),
        ("- url: 'b:1'", ""),
    ] {
        folder.write("list", text);
        let found = loop {
            sources.changed().await;
            let found = sources.problem().unwrap_or_default();
            if found.contains(problem) && found.is_empty() == problem.is_empty() {
                break found;
            }
        };
        let urls = backend_urls(&sources, &config);
        let expected = if problem.is_empty() {
            "http://b:1"
        } else {
            "http://a:1"
        };
        assert_eq!(urls, [expected], "{found}");
    }
}

#[tokio::test(start_paused = true)]
async fn changed_settings_apply_at_once() {
    let folder = TempFolder::new("sources-settings");
    folder.write(
        "list",
        "[{ url: 'http://a:1' }, { url: 'http://b:1', usage: inject }]",
    );
    let old = config_in(&folder, "", "{ file: FOLDER/list }");
    let mut sources = DiscoverySources::start(&old.discovery);
    sources.wait_for_all_sources(TEST_TIMEOUT).await;
    assert_eq!(backend_urls(&sources, &old), ["http://a:1", "http://b:1"]);
    folder.write("list", "a mistake");
    for (settings, key) in [
        ("usage: passive", None),
        ("api_key: { env: KEY }", Some("KEY")),
    ] {
        let new = config_in(&folder, "", &format!("{{ file: FOLDER/list, {settings} }}"));
        let mut next = sources.reconfigured(&old, &new);
        assert!(
            next.wait_for_new_sources(Duration::ZERO).await,
            "no source is new"
        );
        let backends = next.backends(&new);
        assert_eq!(backend_urls(&next, &new), ["http://a:1", "http://b:1"]);
        let is_passive = backends[0].usage == Some(crate::config::UsageMode::Passive);
        assert_eq!(
            is_passive,
            key.is_none(),
            "the previous settings do not apply"
        );
        assert_eq!(backends[1].usage, Some(crate::config::UsageMode::Inject));
        let keys = backends
            .iter()
            .filter(|backend| backend.api_key.is_some())
            .count();
        assert_eq!(keys, if key.is_some() { 2 } else { 0 });
        sources = next;
    }
}

#[tokio::test(start_paused = true)]
async fn replaced_backends_stay_until_results_come() {
    let folder = TempFolder::new("sources-replaced");
    folder.write("one", "[{ url: 'http://a:1' }]");
    let one = config_in(&folder, "", "{ file: FOLDER/one, usage: passive }");
    let two = config_in(&folder, "", "{ file: FOLDER/two }");
    let three = config_in(&folder, "", "{ file: FOLDER/two, usage: passive }");
    let four = config_in(&folder, "", "{ file: FOLDER/one }, { file: FOLDER/two }");
    let mut sources = DiscoverySources::start(&one.discovery);
    sources.wait_for_all_sources(TEST_TIMEOUT).await;
    sources = sources.reconfigured(&one, &two);
    assert!(!sources.wait_for_new_sources(TEST_TIMEOUT).await);
    assert_eq!(backend_urls(&sources, &two), ["http://a:1"]);
    assert!(
        sources.backends(&two)[0].usage.is_some(),
        "replaced backends have their previous settings"
    );
    sources = sources.reconfigured(&two, &three);
    assert_eq!(
        backend_urls(&sources, &three),
        ["http://a:1"],
        "replaced backends stay after a second reload"
    );
    let restored = sources.reconfigured(&three, &four);
    assert_eq!(backend_urls(&restored, &four), ["http://a:1"]);
    assert!(
        restored.backends(&four)[0].usage.is_none(),
        "a source that is configured again has its new settings"
    );
    folder.write("two", "[{ url: 'http://b:1' }]");
    // The loop is necessary because the restored source for the file `one` also reports changes through this
    // channel.
    while backend_urls(&sources, &three) == ["http://a:1"] {
        sources.changed().await;
    }
    assert_eq!(backend_urls(&sources, &three), ["http://b:1"]);
}

#[tokio::test(start_paused = true)]
async fn a_removed_source_removes_its_backends() {
    let folder = TempFolder::new("sources-removed");
    folder.write("one", "[{ url: 'http://a:1' }]");
    folder.write("two", "[{ url: 'http://b:1' }]");
    let both = config_in(&folder, "", "{ file: FOLDER/one }, { file: FOLDER/two }");
    let more = config_in(
        &folder,
        "",
        "{ file: FOLDER/one }, { file: FOLDER/two }, { file: FOLDER/no }",
    );
    let one = config_in(&folder, "", "{ file: FOLDER/one }, { file: FOLDER/no }");
    let none = config_in(&folder, "{ url: 'http://c:1' }", "");
    let mut sources = DiscoverySources::start(&both.discovery);
    sources.wait_for_all_sources(TEST_TIMEOUT).await;
    sources = sources.reconfigured(&both, &more);
    assert_eq!(backend_urls(&sources, &more), ["http://a:1", "http://b:1"]);
    sources = sources.reconfigured(&more, &one);
    assert_eq!(
        backend_urls(&sources, &one),
        ["http://a:1"],
        "a removed source loses its backends although another source has no result"
    );
    sources = sources.reconfigured(&one, &none);
    assert_eq!(backend_urls(&sources, &none), ["http://c:1"]);
}

#[tokio::test(start_paused = true)]
async fn configured_backends_stay_until_results_come() {
    let folder = TempFolder::new("sources-listed");
    let list = config_in(&folder, "{ url: 'http://a:1' }", "");
    let source = config_in(&folder, "", "{ file: FOLDER/list }");
    let mut sources = DiscoverySources::start(&list.discovery);
    sources = sources.reconfigured(&list, &source);
    assert!(!sources.wait_for_new_sources(TEST_TIMEOUT).await);
    assert_eq!(backend_urls(&sources, &source), ["http://a:1"]);
    folder.write("list", "[{ url: 'http://b:1' }]");
    sources.changed().await;
    assert_eq!(backend_urls(&sources, &source), ["http://b:1"]);
}
