//! Renders the cache map, which shows the groups of prompts that fill the prefix caches, as lines of text.

use super::formatting::{number, seconds, text};
use tokenweir_api::{CacheMapDocument, GroupAtBackend, PrefixGroup};

/// Number of backends that are shown for each group of prompts.
const MAX_SHOWN_BACKENDS: usize = 4;

/// The lines of text about the prefix caches: the backends, and the groups of prompts that fill them.
pub fn cache_map_lines(document: &CacheMapDocument) -> Vec<String> {
    let mut lines = vec![format!(
        "{:<18} {:<12} {:>7} {:>7} {:>7} {:>8} {:>10}",
        "BACKEND", "SOURCE", "GROUPS", "TOKENS", "OTHER", "EVICTED", "RECOMPUTED"
    )];
    lines.extend(document.backends.iter().map(|cache| {
        format!(
            "{:<18} {:<12} {:>7} {:>7} {:>7} {:>8} {:>10}",
            text(Some(&cache.backend)),
            text(Some(&cache.source)),
            cache.groups,
            tokens(cache.tokens),
            tokens(cache.other_tokens),
            tokens(cache.evicted_tokens),
            tokens(cache.recomputed_tokens),
        )
    }));
    lines.extend([
        String::new(),
        format!(
            "{:<16} {:<12} {:>7} {:>8} {:>7} {:>7} {:>7}",
            "GROUP", "TENANT", "TOKENS", "REQUESTS", "REUSED", "LAST", "AGE"
        ),
    ]);
    if document.groups.is_empty() {
        lines.push("no prompt of 512 bytes was sent".to_owned());
    }
    lines.extend(document.groups.iter().flat_map(group_lines));
    if document.omitted_groups > 0 {
        lines.push(format!("{} smaller groups", document.omitted_groups));
    }
    lines
}

/// The line about a group of prompts, and a line for each of the first backends that have it in the cache.
fn group_lines(group: &PrefixGroup) -> Vec<String> {
    let mut lines = vec![format!(
        "{:<16} {:<12} {:>7} {:>8} {:>7} {:>7} {:>7}",
        text(Some(&group.id)),
        text(group.tenant.as_deref()),
        tokens(group.tokens),
        tokens(group.requests),
        tokens(group.reused_requests),
        seconds(group.idle_seconds),
        seconds(group.age_seconds),
    )];
    lines.extend(group.by_backend.iter().take(MAX_SHOWN_BACKENDS).map(backend_line));
    lines.extend(more_backends(group));
    lines
}

fn backend_line(here: &GroupAtBackend) -> String {
    let evictor = here.evicted_by.as_ref().map(|evictor| {
        let id = evictor.id.as_deref().unwrap_or("other prompts");
        format!(", {} of them by {}", tokens(evictor.tokens), text(Some(id)))
    });
    format!(
        "  {}: {} tokens, {} evicted{}, {} computed again",
        text(Some(&here.backend)),
        tokens(here.tokens),
        tokens(here.evicted_tokens),
        evictor.unwrap_or_default(),
        tokens(here.recomputed_tokens),
    )
}

fn more_backends(group: &PrefixGroup) -> Option<String> {
    let more = group.backends.checked_sub(MAX_SHOWN_BACKENDS).filter(|more| *more > 0)?;
    Some(format!("  {more} more backends"))
}

fn tokens(count: u64) -> String {
    number(Some(count as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_api::{CacheSummary, GroupEvictor};

    #[test]
    fn a_group_of_prompts_is_shown_with_its_backends_and_the_group_that_evicted_it() {
        let here = |number: u64| GroupAtBackend {
            backend: format!("gpu-{number}"),
            tokens: 1_000,
            evicted_tokens: 300,
            recomputed_tokens: 200,
            evicted_by: (number == 0)
                .then(|| GroupEvictor { id: Some("beef".into()), tokens: 250 }),
            ..GroupAtBackend::default()
        };
        let lines = cache_map_lines(&CacheMapDocument {
            backends: vec![CacheSummary { source: "exact".into(), ..CacheSummary::default() }],
            groups: vec![PrefixGroup {
                id: "cafe".into(),
                tenant: Some("red\u{1b}[31m".into()),
                backends: 6,
                by_backend: (0..6).map(here).collect(),
                ..PrefixGroup::default()
            }],
            omitted_groups: 3,
            ..CacheMapDocument::default()
        });
        let text = lines.join("\n");
        assert!(
            text.contains(
                "gpu-0: 1000 tokens, 300 evicted, 250 of them by beef, 200 computed again"
            )
        );
        assert!(text.contains("gpu-3: 1000 tokens, 300 evicted, 200 computed again"), "{text}");
        assert!(text.contains("2 more backends") && text.ends_with("3 smaller groups"), "{text}");
        assert!(!text.contains('\u{1b}') && !text.contains("gpu-4"), "{text}");
    }

    #[test]
    fn an_empty_cache_map_shows_that_no_long_prompt_was_sent() {
        let lines = cache_map_lines(&CacheMapDocument::default());
        assert_eq!(lines.last().unwrap(), "no prompt of 512 bytes was sent");
    }
}
