//! Tests of caps: which requests are refused, and which defaults are set.

use super::*;
use tokenweir_protocol::json::JsonText;

fn text(url: &str) -> JsonText<'_> {
    JsonText::new(url.as_bytes(), url.len())
}

fn caps() -> RequestCaps {
    RequestCaps {
        max_tokens: Some(100),
        n: Some(4),
        prompt_tokens: Some(500),
        ..RequestCaps::default()
    }
}

/// Checks a body. Returns the edited body, or the refused field.
fn check(
    api: Api,
    caps: &RequestCaps,
    priority: Option<i32>,
    body: &str,
) -> Result<String, &'static str> {
    let route = (api == Api::Other).then_some(CHAT_BATCH);
    check_at(route, api, caps, priority, body)
}

fn check_at(
    route: Option<&'static str>,
    api: Api,
    caps: &RequestCaps,
    priority: Option<i32>,
    body: &str,
) -> Result<String, &'static str> {
    let fields = RequestFields::parse(body.as_bytes()).unwrap();
    let request = CappedRequest {
        tenant: Some(caps),
        model: None,
        api: Some(api),
        route,
        fields: &fields,
        prompt: PromptBytes::of_json(&fields.prompt, body.as_bytes()),
        body: body.as_bytes(),
        priority,
    };
    match request.check() {
        Ok(CapEdits { edits, .. }) => {
            let edited = Splice::apply(edits.iter().map(|edit| &edit.splice), body.as_bytes());
            Ok(String::from_utf8(edited.to_vec()).unwrap())
        }
        Err(GatewayError::RequestCap { field, .. }) => Err(field),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn sizes_beyond_a_cap_are_refused() {
    for (api, member, field) in [
        (Api::Chat, r#""max_tokens":101"#, "max_tokens"),
        (
            Api::Chat,
            r#""max_tokens":1,"max_completion_tokens":101"#,
            "max_completion_tokens",
        ),
        (
            Api::Chat,
            r#""max_completion_tokens":1,"max_tokens":101"#,
            "max_tokens",
        ),
        (Api::Chat, r#""m\u0061x_tokens":101"#, "max_tokens"),
        (Api::Chat, r#""max_tokens":"101""#, "max_tokens"),
        (Api::Chat, r#""max_tokens":1.01e2"#, "max_tokens"),
        (Api::Chat, r#""max_tokens":1e400"#, "max_tokens"),
        (Api::Chat, r#""max_tokens":-1"#, "max_tokens"),
        (
            Api::Chat,
            r#""max_tokens":18446744073709551616"#,
            "max_tokens",
        ),
        (
            Api::Chat,
            r#""max_completion_tokens":0"#,
            "max_completion_tokens",
        ),
        (Api::Chat, r#""n":5"#, "n"),
        (Api::Chat, r#""n":"5""#, "n"),
        (Api::Completions, r#""best_of":5"#, "best_of"),
        (
            Api::Completions,
            r#""prompt":["a","b","c"],"n":2"#,
            "prompt",
        ),
        (
            Api::Completions,
            r#""prompt":[[1],[2],[3],[4],[5]]"#,
            "prompt",
        ),
        (Api::Messages, r#""max_tokens":101"#, "max_tokens"),
        (
            Api::Responses,
            r#""max_output_tokens":101"#,
            "max_output_tokens",
        ),
        (
            Api::Other,
            r#""token_ids":[1],"sampling_params":{"max_tokens":101}"#,
            "max_tokens",
        ),
        (
            Api::Other,
            r#""sampling_params":{"n":1},"sampling_params":{"n":5}"#,
            "n",
        ),
        (Api::Other, r#""n_predict":-1"#, "n_predict"),
        (Api::Other, r#""sampling_params":[{"n":1},{"n":5}]"#, "n"),
        (Api::Other, r#""messages":[[{}],[{}],[{}]],"n":2"#, "prompt"),
    ] {
        let refused = check(api, &caps(), None, &format!("{{\"model\":\"m\",{member}}}"));
        assert_eq!(refused, Err(field), "{member}");
    }
}

#[test]
fn long_prompts_are_refused_and_token_ids_count() {
    let check = |api, body: String| check(api, &caps(), None, &body);
    let ids = |count: usize| vec!["12345"; count].join(", ");
    for (count, is_allowed) in [(500, true), (501, false)] {
        let body = format!("{{\"max_tokens\":1,\"prompt\":[{}]}}", ids(count));
        assert_eq!(check(Api::Completions, body).is_ok(), is_allowed, "{count}");
        let body = format!(
            "{{\"sampling_params\":{{}},\"token_ids\":[{}]}}",
            ids(count)
        );
        assert_eq!(check(Api::Other, body).is_ok(), is_allowed, "{count}");
    }
    for (bytes, is_allowed) in [(1_900, true), (2_100, false)] {
        for field in ["messages", "documents"] {
            let bytes = if field == "documents" {
                bytes + 1_024
            } else {
                bytes
            };
            let text = "a ".repeat(bytes / 2);
            let body = format!("{{\"max_tokens\":1,\"{field}\":[\"{text}\"]}}");
            assert_eq!(
                check(Api::Chat, body).is_ok(),
                is_allowed,
                "{bytes} {field}"
            );
        }
    }
}

#[test]
fn requests_within_the_caps_stay_unchanged() {
    for (api, member) in [
        (Api::Chat, r#""max_tokens":100,"n":4"#),
        (
            Api::Chat,
            r#""max_completion_tokens":1e2,"max_tokens":null,"n":null"#,
        ),
        (Api::Completions, r#""prompt":["a","b"],"n":2"#),
        (Api::Completions, r#""prompt":"a","max_tokens":0"#),
        (Api::Completions, r#""prompt":[1,2,3,4,5,6]"#),
        (Api::Messages, r#""max_tokens":100"#),
        (
            Api::Responses,
            r#""max_output_tokens":1,"unknown":{"max_tokens":101,"n":5}"#,
        ),
        (
            Api::Other,
            r#""max_tokens":1,"input":["a","b","c","d","e"]"#,
        ),
        (
            Api::Chat,
            r#""max_tokens":1,"messages":[{},{},{},{},{}],"n":4"#,
        ),
    ] {
        let body = format!("{{\"model\":\"m\",{member}}}");
        assert_eq!(
            check(api, &caps(), None, &body),
            Ok(body.clone()),
            "{member}"
        );
    }
}

#[test]
fn a_missing_limit_becomes_the_default() {
    let with_default = RequestCaps {
        default_max_tokens: Some(50),
        ..caps()
    };
    let only_default = RequestCaps {
        max_tokens: None,
        ..with_default.clone()
    };
    for (api, caps, body, expected) in [
        (
            Api::Chat,
            &caps(),
            r#"{"n":1}"#,
            r#"{"max_tokens":100,"n":1}"#,
        ),
        (
            Api::Chat,
            &with_default,
            r#"{"n":1}"#,
            r#"{"max_tokens":50,"n":1}"#,
        ),
        (
            Api::Chat,
            &only_default,
            r#"{"n":1}"#,
            r#"{"max_tokens":50,"n":1}"#,
        ),
        (
            Api::Chat,
            &only_default,
            r#"{"max_tokens":999}"#,
            r#"{"max_tokens":999}"#,
        ),
        (
            Api::Chat,
            &with_default,
            r#"{"m\u0061x_tokens": null ,"max_completion_tokens":null}"#,
            r#"{"m\u0061x_tokens": 50 ,"max_completion_tokens":null}"#,
        ),
        // This API does not read the field.
        (
            Api::Chat,
            &with_default,
            r#"{"max_output_tokens":5}"#,
            r#"{"max_tokens":50,"max_output_tokens":5}"#,
        ),
        (
            Api::Responses,
            &with_default,
            r#"{"max_tokens":5}"#,
            r#"{"max_output_tokens":50,"max_tokens":5}"#,
        ),
        (Api::Completions, &with_default, r#"{"n":1}"#, r#"{"n":1}"#),
        (
            Api::Other,
            &with_default,
            r#"{"n":1}"#,
            r#"{"max_tokens":50,"n":1}"#,
        ),
        (Api::Messages, &with_default, r#"{"n":1}"#, r#"{"n":1}"#),
        (Api::Chat, &with_default, "{ }", "{ }"),
        // Chat completions ignore the object `sampling_params`.
        (
            Api::Chat,
            &with_default,
            r#"{"sampling_params":{"max_tokens":5}}"#,
            r#"{"max_tokens":50,"sampling_params":{"max_tokens":5}}"#,
        ),
        // Engines do not apply their small default to `null`.
        (
            Api::Completions,
            &with_default,
            r#"{"max_tokens":null}"#,
            r#"{"max_tokens":50}"#,
        ),
    ] {
        assert_eq!(
            check(api, caps, None, body).as_deref(),
            Ok(expected),
            "{body}"
        );
    }
}

#[test]
fn a_repeated_field_takes_no_memory() {
    let repeated = |member: &str| format!("{{{}}}", vec![member; 10_000].join(","));
    let body = format!(
        "{{\"sampling_params\":{},\"best_of\":3,\"best_of\":2,\"n\":\"1\",\"n\":9}}",
        repeated(r#""max_tokens":1,"n_predict":2,"priority":3"#)
    );
    let sizes = StatedSizes::read(body.as_bytes());
    assert!(sizes.max_tokens.capacity() < 10);
    let counts: Vec<Option<u64>> = sizes.choices.iter().map(|size| size.count).collect();
    assert_eq!(counts, [Some(3), None]);
}

#[test]
fn token_prompts_get_the_default_in_their_parameters() {
    for (body, expected) in [
        (
            r#"{"max_tokens":5,"sampling_params": {"n":1}}"#,
            r#"{"max_tokens":5,"sampling_params": {"max_tokens":100,"n":1}}"#,
        ),
        (
            r#"{"sampling_params":{ }}"#,
            r#"{"sampling_params":{ "max_tokens":100}}"#,
        ),
        (
            r#"{"sampling_params":{"max_tokens":5,"max_tokens":null}}"#,
            r#"{"sampling_params":{"max_tokens":5,"max_tokens":100}}"#,
        ),
        (
            r#"{"sampling_params":{"max_tokens":5},"sampling_params":{"n":1}}"#,
            r#"{"sampling_params":{"max_tokens":5},"sampling_params":{"max_tokens":100,"n":1}}"#,
        ),
        (
            r#"{"sampling_params":{"max_tokens":5}}"#,
            r#"{"sampling_params":{"max_tokens":5}}"#,
        ),
        (r#"{"sampling_params":null}"#, r#"{"sampling_params":null}"#),
    ] {
        let checked = check_at(Some(GENERATE), Api::Completions, &caps(), None, body);
        assert_eq!(checked.as_deref(), Ok(expected), "{body}");
    }
}

#[test]
fn a_tier_sets_an_unstated_priority() {
    let none = RequestCaps::default();
    for (api, body, expected) in [
        (Api::Chat, r#"{"n":1}"#, r#"{"priority":-3,"n":1}"#),
        (
            Api::Responses,
            r#"{"priority":0,"n":1}"#,
            r#"{"priority":-3,"n":1}"#,
        ),
        (
            Api::Completions,
            r#"{"pri\u006frity":null}"#,
            r#"{"pri\u006frity":-3}"#,
        ),
        (Api::Chat, r#"{"priority":7}"#, r#"{"priority":7}"#),
        (Api::Messages, r#"{"n":1}"#, r#"{"n":1}"#),
        (Api::Other, r#"{"n":1}"#, r#"{"n":1}"#),
    ] {
        assert_eq!(
            check(api, &none, Some(-3), body).as_deref(),
            Ok(expected),
            "{body}"
        );
    }
}

#[test]
fn without_a_list_only_public_hosts_are_allowed() {
    for url in [
        "http://example.com/a.png",
        "HTTPS://Example.COM:8443/a?b=http://127.0.0.1/#c",
        "http://example.com./a\\\\@127.0.0.1",
        "http://8.8.8.8/",
        "http://[2606:4700::1111]:80/",
        "data:image/png;base64,AAAA",
        "DATA:,a",
    ] {
        assert_eq!(check_url(text(url), None), Ok(()), "{url}");
    }
    let escaped = [
        "\\u0068ttp://10.0.0.1/",
        "http:\\/\\/localhost/",
        "http://a.b\\u0009/",
    ];
    let private = [
        "http://127.0.0.1/",
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0177.0.0.1/",
        "http://10.0.0.1",
        "http://172.16.0.1/",
        "http://192.168.0.1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://100.100.100.200/",
        "http://0.0.0.0:8000/",
        "http://224.0.0.1/",
        "http://[::1]/",
        "http://[::]/",
        "http://[::ffff:10.0.0.1]/",
        "http://[fe80::1]/",
        "http://[fd00:ec2::254]/",
        "http://[64:ff9b::a00:1]/",
        "http://[2002:a00:1::]/",
        "http://localhost/",
        "http://LOCALHOST./",
        "http://a.localhost/",
        "http://vllm/",
        "http://vllm.default.svc/",
        "http://metadata.google.internal/",
        "http://example.com@127.0.0.1/",
        "http://example.com:80@127.0.0.1/",
        "http://127.0.0.1\\\\@example.com/",
        "http://example.com:x/",
        "http://exa mple.com/",
        "http://ex\u{e4}mple.com/",
        "http://\u{ff11}27.0.0.1/",
        "http:///127.0.0.1/",
        "http://.example.com/",
        "http://[::1/",
        "//example.com/",
        " http://example.com/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "/etc/passwd",
        "",
    ];
    for url in private.into_iter().chain(escaped) {
        assert!(check_url(text(url), None).is_err(), "{url}");
    }
    let long = format!("http://example.com/{}", "a".repeat(9_000));
    assert!(check_url(text(&long), None).is_err());
    let data = format!("data:image/png;base64,{}", "A".repeat(1 << 20));
    assert_eq!(check_url(text(&data), None), Ok(()));
}

#[test]
fn a_list_decides_alone_which_hosts_are_allowed() {
    let hosts = ["images.example.com", "*.cdn.example.com", "10.0.0.9"].map(str::to_owned);
    for (url, is_allowed) in [
        ("http://images.example.com/a", true),
        ("http://a.cdn.example.com/a", true),
        ("http://10.0.0.9:9000/a", true),
        ("http://cdn.example.com/a", false),
        ("http://images.example.com.evil.org/a", false),
        ("http://evilcdn.example.com/a", false),
        ("http://10.0.0.99/a", false),
        ("http://example.com/a", false),
        ("data:,a", true),
    ] {
        assert_eq!(
            check_url(text(url), Some(&hosts)).is_ok(),
            is_allowed,
            "{url}"
        );
    }
    assert!(check_url(text("http://example.com"), Some(&[])).is_err());
    let all = ["*".to_owned()];
    assert_eq!(check_url(text("http://127.0.0.1/"), Some(&all)), Ok(()));
    assert!(check_url(text("file:///etc/passwd"), Some(&all)).is_err());
}

#[test]
fn joined_caps_allow_what_both_allow() {
    let hosts = |hosts: &[&str]| RequestCaps {
        media_hosts: Some(hosts.iter().map(|host| (*host).to_owned()).collect()),
        ..RequestCaps::default()
    };
    let one = RequestCaps {
        max_tokens: Some(10),
        ..hosts(&["a.b", "c.d"])
    };
    let joined = caps().and(&one);
    assert_eq!((joined.max_tokens, joined.n), (Some(10), Some(4)));
    assert_eq!(joined.media_hosts, Some(Vec::new()));
    assert_eq!(
        one.and(&hosts(&["c.d"])).media_hosts,
        hosts(&["c.d"]).media_hosts
    );
    assert_eq!(caps().and(&caps()), caps());
}

#[test]
fn invalid_caps_are_named() {
    let hosts = |host: &str| RequestCaps {
        media_hosts: Some(vec!["a.b".to_owned(), host.to_owned()]),
        ..RequestCaps::default()
    };
    assert_eq!(caps().check(), Ok(()));
    for host in ["*", "*.a.b", "10.0.0.1", "::1", "localhost"] {
        assert_eq!(hosts(host).check(), Ok(()), "{host}");
    }
    for host in [
        "", "A.b", "http://a", "a:80", "a/b", "*a.b", "a.*", "127.1", "a..b",
    ] {
        assert_eq!(
            hosts(host).check().unwrap_err().0,
            "media_hosts.1",
            "{host}"
        );
    }
    let zero = RequestCaps {
        n: Some(0),
        ..caps()
    };
    assert_eq!(zero.check().unwrap_err().0, "n");
    let above = RequestCaps {
        default_max_tokens: Some(101),
        ..caps()
    };
    assert_eq!(above.check().unwrap_err().0, "default_max_tokens");
}
