//! What gets into the file, and what never does.

use super::hook::Hook;
use super::redact::redact;
use super::settings::MARGIN;
use super::treatment::{Texts, cut};
use super::*;
use std::fs;
use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use tokenweir_core::record::TextFor;
use tokenweir_core::record::sample::streamed;

/// Long enough for a busy machine, short enough for a test that waits for it.
const BRIEFLY: Duration = Duration::from_millis(200);

fn file(name: &str) -> PathBuf {
    let name = format!("tokenweir-{}-content-{name}.jsonl", std::process::id());
    let file = std::env::temp_dir().join(name);
    let _ = fs::remove_file(&file);
    file
}

fn excerpt(text: &str, room: usize) -> Excerpt {
    let mut excerpt = Excerpt::new(room);
    excerpt.push(text.as_bytes());
    excerpt
}

/// What is written of these requests, and what became of them.
fn written(settings: &Settings, texts: &[(&str, &str)]) -> (Vec<serde_json::Value>, Counts) {
    let (content, running) = Content::start(settings).unwrap().unwrap();
    for (prompt, answer) in texts {
        let mut record = streamed();
        record.prompt = Some(excerpt(prompt, settings.room()));
        record.text_for.log = true;
        record.observed.text = Some(excerpt(answer, settings.room()));
        content.finished(&record);
    }
    drop(running);
    let text = fs::read_to_string(settings.file.as_ref().unwrap()).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    fs::remove_file(settings.file.as_ref().unwrap()).unwrap();
    (lines, content.counter().counts())
}

fn settings(name: &str) -> Settings {
    Settings { file: Some(file(name)), ..Settings::default() }
}

#[test]
fn a_line_has_the_request_and_its_texts_without_what_is_private() {
    let prompt = r#"[{"role":"user","content":"I am bob@example.com\nCall +1 415 555 0123."}]"#;
    let (lines, counts) = written(&settings("line"), &[(prompt, "Hello \u{1b}[1mBob")]);
    let line = &lines[0];
    let expected = r#"[{"role":"user","content":"I am [email]\nCall [phone]."}]"#;
    assert_eq!(line["prompt"], expected);
    assert_eq!(line["answer"], "Hello \u{1b}[1mBob");
    assert_eq!((&line["request_id"], &line["model"]), (&"r-1".into(), &"tiny".into()));
    assert_eq!(line["trace_id"], "0af7651916cd43dd8448eb211c80319c");
    assert_eq!((&line["prompt_cut"], &line["answer_cut"]), (&false.into(), &false.into()));
    assert_eq!(line["redacted"], 2);
    assert_eq!(counts, Counts { written: 1, dropped: 0, redactor_failed: 0 });
}

#[test]
fn no_half_of_a_secret_is_left_at_a_cut() {
    let secrets = ["roberta.longname@subdomain.example.com", "4111 1111 1111 1111"];
    let key = ["sk-", &"abcdefgh01234567".repeat(8)].concat();
    for secret in secrets.into_iter().chain([key.as_str()]) {
        let mut texts = Vec::new();
        // Across the end of what is written, and across the end of what is kept.
        for end in [200, 200 + MARGIN] {
            texts.extend(
                (end - secret.len()..end + 2).map(|start| {
                    format!("{} {secret} {}", "x ".repeat(start / 2), "y ".repeat(600))
                }),
            );
        }
        let texts: Vec<(&str, &str)> = texts.iter().map(|text| (text.as_str(), "")).collect();
        // No more than the queue has room for.
        for texts in texts.chunks(100) {
            let settings = Settings { max_bytes: 200, ..settings("cut") };
            let (lines, counts) = written(&settings, texts);
            assert_eq!(counts.written as usize, texts.len());
            for line in lines {
                let prompt = line["prompt"].as_str().unwrap();
                assert!(prompt.len() <= 200 && line["prompt_cut"] == true);
                assert!(!prompt.contains(&secret[..4]), "{prompt}");
            }
        }
    }
}

#[test]
fn a_text_that_many_secrets_made_shorter_still_ends_before_its_margin() {
    // Every secret is longer than what stands for it, so the end of what is kept moves forward.
    let mail = format!("{}@example.com ", "m".repeat(100));
    let prompt = format!("{}{}", mail.repeat(5), "sk-abcdefghijklmnop1234567890");
    for room in 500..600 {
        let settings = Settings { max_bytes: room - MARGIN.min(room - 1), ..settings("shorter") };
        let mut clean = redact(
            &String::from_utf8_lossy(excerpt(&prompt, settings.room()).bytes()),
            &settings.redact,
        );
        cut(&mut clean.0, true, 10_000);
        assert!(!clean.0.contains("mmm") && !clean.0.contains("sk-"), "{}", clean.0);
    }
}

#[test]
fn a_queue_that_is_full_costs_records_which_are_counted() {
    let jobs = Arc::new(Gatherer::new(TOGETHER, 1));
    let content = Content { jobs, tallies: Arc::default() };
    let text_for = TextFor { log: true, quality: false };
    let record = RequestRecord { prompt: Some(Excerpt::new(8)), text_for, ..streamed() };
    (0..3).for_each(|_| content.finished(&record));
    content.finished(&streamed());
    let text_for = TextFor { log: false, quality: true };
    content.finished(&RequestRecord { text_for, ..record });
    assert_eq!(content.counter().counts().dropped, 2, "and who is not in the sample is not meant");
}

fn texts(prompt: &str) -> Texts {
    Texts { prompt: prompt.into(), answer: "answer".into() }
}

#[test]
fn what_a_command_did_not_treat_is_not_written() {
    let command = Some(vec!["false".to_owned()]);
    let settings = Settings { command, ..settings("failed") };
    let (lines, counts) = written(&settings, &[("one", "two"), ("three", "four")]);
    assert_eq!((lines.len(), counts.written, counts.redactor_failed), (0, 0, 2));
}

/// A server that answers one request with this, and gives what it was asked.
fn server(answer: &'static str) -> (SocketAddr, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let serving = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = Vec::new();
        let mut piece = [0; 1_024];
        while !asked.ends_with(b"}") {
            let length = stream.read(&mut piece).unwrap();
            asked.extend_from_slice(&piece[..length]);
        }
        stream.write_all(answer.as_bytes()).unwrap();
        // A server that says nothing goes on saying nothing.
        let _ = stream.read(&mut piece);
        String::from_utf8(asked).unwrap()
    });
    (addr, serving)
}

#[test]
fn a_server_gets_the_texts_and_its_answer_is_used() {
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 38\r\n\r\n{\"prompt\":\"shown\",\"answer\":\"answer\"}\r\n";
    let (addr, serving) = server(answer);
    let hook = Hook::new(&format!("http://{addr}/redact")).unwrap();
    let treated = hook.treat(&texts("hidden"), Duration::from_secs(20));
    assert_eq!(treated, Some(texts("shown")));
    drop(hook);
    let asked = serving.join().unwrap();
    assert!(asked.starts_with("POST /redact HTTP/1.1\r\n"), "{asked}");
    assert!(asked.ends_with(r#"{"prompt":"hidden","answer":"answer"}"#), "{asked}");
}

#[test]
fn a_server_that_refuses_babbles_or_says_nothing_gives_nothing() {
    for answer in [
        "HTTP/1.1 500 No\r\ncontent-length: 38\r\n\r\n{\"prompt\":\"shown\",\"answer\":\"answer\"}\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\ncontent-length: 200\r\n\r\n{",
        "",
    ] {
        let (addr, serving) = server(answer);
        let hook = Hook::new(&format!("http://{addr}")).unwrap();
        assert_eq!(hook.treat(&texts("hidden"), BRIEFLY), None, "{answer}");
        drop(hook);
        serving.join().unwrap();
    }
    let nobody = Hook::new("http://127.0.0.1:9/").unwrap();
    assert_eq!(nobody.treat(&texts("hidden"), BRIEFLY), None);
}
