//! What a reload keeps of discovery sources, tried with sources that read files.

use super::*;
use crate::config::Overrides;
use std::fs;
use std::path::Path;

/// Long enough for a source of a file that is there.
const LONG: Duration = Duration::from_secs(10);

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("tokenweir-sources-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.0.join(file), text).unwrap();
    }

    /// A configuration whose discovery sources these are, `FOLDER` being this one.
    fn config(&self, backends: &str, discovery: &str) -> Config {
        let discovery = discovery.replace("FOLDER", self.0.to_str().unwrap());
        let text = format!("backends: [{backends}]\ndiscovery: [{discovery}]\n");
        let parsed = Config::parse(&text, Path::new("gateway.yaml"), Overrides::default());
        parsed.unwrap().config
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn urls(sources: &Sources, config: &Config) -> Vec<String> {
    sources.replicas(config).iter().map(|backend| backend.url.to_string()).collect()
}

#[tokio::test(start_paused = true)]
async fn other_settings_of_a_source_apply_at_once_to_what_it_had_found() {
    let folder = Folder::new("settings");
    folder.write("list", "[{ url: 'http://a:1' }, { url: 'http://b:1', usage: inject }]");
    let old = folder.config("", "{ file: FOLDER/list }");
    let mut sources = Sources::start(&old.discovery);
    sources.first(LONG).await;
    assert_eq!(urls(&sources, &old), ["http://a:1", "http://b:1"]);
    folder.write("list", "a mistake");
    for (settings, key) in [("usage: passive", None), ("api_key: { env: KEY }", Some("KEY"))] {
        let new = folder.config("", &format!("{{ file: FOLDER/list, every: 9s, {settings} }}"));
        let mut next = sources.reconfigured(&old, &new);
        assert!(next.first_of_new(Duration::ZERO).await, "nothing is waited for");
        let backends = next.replicas(&new);
        assert_eq!(urls(&next, &new), ["http://a:1", "http://b:1"]);
        let is_passive = backends[0].usage == Some(crate::config::UsageMode::Passive);
        assert_eq!(is_passive, key.is_none(), "what was configured before is gone");
        assert_eq!(backends[1].usage, Some(crate::config::UsageMode::Inject));
        let keys = backends.iter().filter(|backend| backend.api_key.is_some()).count();
        assert_eq!(keys, if key.is_some() { 2 } else { 0 });
        sources = next;
    }
}

#[tokio::test(start_paused = true)]
async fn backends_of_a_place_that_is_replaced_stay_until_the_new_place_has_told() {
    let folder = Folder::new("replaced");
    folder.write("one", "[{ url: 'http://a:1' }]");
    let one = folder.config("", "{ file: FOLDER/one, usage: passive }");
    let two = folder.config("", "{ file: FOLDER/two }");
    let three = folder.config("", "{ file: FOLDER/two, usage: passive }");
    let four = folder.config("", "{ file: FOLDER/one }, { file: FOLDER/two }");
    let mut sources = Sources::start(&one.discovery);
    sources.first(LONG).await;
    sources = sources.reconfigured(&one, &two);
    assert!(!sources.first_of_new(LONG).await);
    assert_eq!(urls(&sources, &two), ["http://a:1"]);
    assert!(sources.replicas(&two)[0].usage.is_some(), "with the settings that it had");
    sources = sources.reconfigured(&two, &three);
    assert_eq!(urls(&sources, &three), ["http://a:1"], "over a second reload");
    let back = sources.reconfigured(&three, &four);
    assert_eq!(urls(&back, &four), ["http://a:1"]);
    assert!(
        back.replicas(&four)[0].usage.is_none(),
        "a place that comes back has its new settings"
    );
    folder.write("two", "[{ url: 'http://b:1' }]");
    sources.changed().await;
    assert_eq!(urls(&sources, &three), ["http://b:1"]);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_is_taken_away_takes_its_backends_with_it_at_once() {
    let folder = Folder::new("removed");
    folder.write("one", "[{ url: 'http://a:1' }]");
    folder.write("two", "[{ url: 'http://b:1' }]");
    let both = folder.config("", "{ file: FOLDER/one }, { file: FOLDER/two }");
    let more = folder.config("", "{ file: FOLDER/one }, { file: FOLDER/two }, { file: FOLDER/no }");
    let one = folder.config("", "{ file: FOLDER/one }, { file: FOLDER/no }");
    let none = folder.config("{ url: 'http://c:1' }", "");
    let mut sources = Sources::start(&both.discovery);
    sources.first(LONG).await;
    sources = sources.reconfigured(&both, &more);
    assert_eq!(urls(&sources, &more), ["http://a:1", "http://b:1"]);
    sources = sources.reconfigured(&more, &one);
    assert_eq!(urls(&sources, &one), ["http://a:1"], "another one that waits changes nothing");
    sources = sources.reconfigured(&one, &none);
    assert_eq!(urls(&sources, &none), ["http://c:1"]);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_a_source_replaces_stays_until_the_source_has_told() {
    let folder = Folder::new("listed");
    let list = folder.config("{ url: 'http://a:1' }", "");
    let source = folder.config("", "{ file: FOLDER/list }");
    let mut sources = Sources::start(&list.discovery);
    sources = sources.reconfigured(&list, &source);
    assert!(!sources.first_of_new(LONG).await);
    assert_eq!(urls(&sources, &source), ["http://a:1"]);
    folder.write("list", "[{ url: 'http://b:1' }]");
    sources.changed().await;
    assert_eq!(urls(&sources, &source), ["http://b:1"]);
}
