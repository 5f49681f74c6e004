//! JSON bodies that servers can read in different ways. Each class of bodies has one kind of difficulty.

use super::Case;
use fastrand::Rng;

/// The model names that the bodies contain. One of them has a character that is not ASCII.
pub(super) const MODELS: [&str; 5] = ["base", "secret-lora", "org/model-7b", "mod\u{e9}l", "model"];

type Make = fn(&mut Rng) -> Vec<u8>;

/// The classes of JSON bodies: the name of each class, and the function that builds a body. The bodies of the
/// first class are those of common clients.
pub(super) const CLASSES: &[(&str, Make)] = &[
    ("json: plain", |rng| members(rng, &[]).into()),
    ("json: no model", |rng| {
        let value = *choose(
            rng,
            &[
                "null",
                "\"\"",
                "7",
                "false",
                "[\"base\"]",
                "{\"model\":\"base\"}",
            ],
        );
        members(rng, &[("\"model\"", value.into())]).into()
    }),
    ("json: two models", |rng| {
        let keys = [
            "\"model\"",
            "\"mod\\u0065l\"",
            "\"\\u006dodel\"",
            "\"model\\u0000\"",
        ];
        let both = [
            (*choose(rng, &keys), name(rng)),
            (*choose(rng, &keys), name(rng)),
        ];
        members(rng, &both).into()
    }),
    ("json: escaped name", |rng| {
        let key = *choose(
            rng,
            &[
                "\"mod\\u0065l\"",
                "\"\\u006Dodel\"",
                "\"m\\u006fde\\u006c\"",
            ],
        );
        let model = format!("\"\\u{:04x}ecret-lora\"", u32::from('s'));
        members(rng, &[(key, model)]).into()
    }),
    ("json: other case", |rng| {
        let key = *choose(
            rng,
            &[
                "\"Model\"",
                "\"MODEL\"",
                "\" model\"",
                "\"model \"",
                "\"mode\\u013a\"",
            ],
        );
        let model = name(rng);
        members(rng, &[(key, model)]).into()
    }),
    ("json: surrogates", |rng| {
        let halves: [&[u8]; 6] = [
            b"\\ud800",
            b"\\udc00x",
            b"\\ud83d\\ude00",
            b"\\ud83d\\u0041",
            b"\xed\xa0\x80",
            b"\xf0\x9f\x98\x80",
        ];
        let half = *choose(rng, &halves);
        [&b"{\"model\":\"a"[..], half, b"\",\"n\":1}"].concat()
    }),
    ("json: NaN", |rng| {
        let number = *choose(
            rng,
            &[
                "NaN",
                "Infinity",
                "-Infinity",
                "1e999",
                "-0",
                "00",
                "0x1",
                "+1",
                ".5",
                "5.",
            ],
        );
        let value = if rng.bool() {
            number.into()
        } else {
            format!("[{{\"a\":{number}}}]")
        };
        let model = name(rng);
        members(rng, &[("\"x\"", value), ("\"model\"", model)]).into()
    }),
    ("json: big number", |rng| {
        let digits = rng.usize(10..6_000);
        members(rng, &[("\"n\"", "9".repeat(digits))]).into()
    }),
    ("json: byte order mark", |rng| {
        format!("\u{feff}{}", members(rng, &[])).into()
    }),
    ("json: UTF-16", |rng| {
        let text = marked(rng);
        let bytes = if rng.bool() {
            u16::to_le_bytes
        } else {
            u16::to_be_bytes
        };
        text.encode_utf16().flat_map(bytes).collect()
    }),
    ("json: UTF-32", |rng| {
        let text = marked(rng);
        let bytes = if rng.bool() {
            u32::to_le_bytes
        } else {
            u32::to_be_bytes
        };
        text.chars().flat_map(|char| bytes(char.into())).collect()
    }),
    ("json: cut or longer", |rng| {
        let text = members(rng, &[]).into_bytes();
        let behind: [&[u8]; 7] = [
            b"x",
            b"{}",
            b"// model",
            b"/* */",
            b"\0",
            b"\xc2\xa0",
            b",{\"model\":\"secret-lora\"}",
        ];
        match rng.usize(0..3) {
            0 => text[..rng.usize(0..text.len())].to_vec(),
            1 => [*choose(rng, &behind), &text].concat(),
            _ => [&text, *choose(rng, &behind)].concat(),
        }
    }),
    ("json: not quite", |rng| {
        let model = name(rng);
        let text = [
            format!("{{'model':{model}}}"),
            format!("{{model:{model}}}"),
            format!("{{\"model\":{model},}}"),
            format!("{{/* */\"model\":{model}}}"),
            format!("{{\"model\"\u{b}:{model}}}"),
            format!("{{\"model\":{model}\u{2028}}}"),
            "{\"model\":\"a\nb\"}".to_owned(),
            "{\"model\":\"a\\x62\"}".to_owned(),
            format!("{{\"model\":{model} \"n\":1}}"),
            format!("[{{\"model\":{model}}}]"),
            format!("{{\"x\":[}}],\"model\":{model}}}"),
            format!("{{\"x\":{{]}},\"model\":{model}}}"),
            format!("{{\"x\":\"\\\",\"model\":{model}}}"),
            format!("{{\"x\":\"\\\\\",\"model\":{model}}}"),
        ];
        choose(rng, &text).clone().into()
    }),
    ("json: deep", |rng| {
        let depth = rng.usize(1..300);
        let inner = format!(
            "{}{}{}",
            "{\"model\":".repeat(depth),
            "\"base\"",
            "}".repeat(depth)
        );
        let arrays = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let model = name(rng);
        members(
            rng,
            &[
                ("\"x\"", inner),
                ("\"messages\"", arrays),
                ("\"model\"", model),
            ],
        )
        .into()
    }),
    ("json: not UTF-8", |rng| {
        let byte = *choose(rng, &[0xff, 0xe9, 0xc0, 0x80]);
        let place: [&[u8]; 2] = [b"{\"model\":\"a?\"}", b"{\"x\":\"?\",\"model\":\"base\"}"];
        choose(rng, &place)
            .iter()
            .map(|&old| if old == b'?' { byte } else { old })
            .collect()
    }),
    ("json: mutated", |rng| {
        let text = members(rng, &[]).into_bytes();
        mutated(rng, text)
    }),
];

/// Builds a random body of the class with this index.
pub(super) fn case(rng: &mut Rng, class: usize) -> Case {
    let types = [
        "application/json",
        "application/json; charset=utf-8",
        "application/json;charset=utf-16",
    ];
    let content_type = choose(rng, &types).as_bytes().to_vec();
    let (class, make) = CLASSES[class];
    Case {
        class,
        is_form: false,
        content_type,
        body: make(rng),
    }
}

/// Returns a random item of `from`.
pub(super) fn choose<'a, T>(rng: &mut Rng, from: &'a [T]) -> &'a T {
    &from[rng.usize(0..from.len())]
}

/// Returns `bytes` with one to three random changes: some bytes are changed, removed or duplicated.
pub(super) fn mutated(rng: &mut Rng, mut bytes: Vec<u8>) -> Vec<u8> {
    const LIKELY_BYTES: &[u8] = b"\"\\{}[]:,;=-\r\n \t\0\xff";
    for _ in 0..rng.usize(1..4) {
        let at = rng.usize(0..bytes.len());
        let byte = if rng.bool() {
            *choose(rng, LIKELY_BYTES)
        } else {
            rng.u8(..)
        };
        match rng.usize(0..4) {
            0 if bytes.len() > 1 => drop(bytes.remove(at)),
            1 => bytes.insert(at, byte),
            2 => {
                let end = (at + rng.usize(1..30)).min(bytes.len());
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            _ => bytes[at] = byte,
        }
    }
    bytes
}

fn name(rng: &mut Rng) -> String {
    format!("\"{}\"", choose(rng, &MODELS))
}

fn marked(rng: &mut Rng) -> String {
    let mark = if rng.bool() { "\u{feff}" } else { "" };
    format!("{mark}{}", members(rng, &[]))
}

/// Builds a JSON object with the members `given`, or with a model if none are given. Adds other members and
/// whitespace, and puts the members in random order.
fn members(rng: &mut Rng, given: &[(&str, String)]) -> String {
    let others = [
        "\"messages\":[{\"role\":\"user\",\"content\":\"{\\\"model\\\":\\\"secret-lora\\\"}\"}]",
        "\"metadata\":{\"model\":\"secret-lora\",\"a\":[1,{\"model\":\"base\"}]}",
        "\"stream\":true",
        "\"stream_options\":{\"include_usage\":false,\"model\":\"base\"}",
        "\"n\":1.5e3",
        "\"max_tokens\":null",
        "\"user\":\"\u{4e16}\\n\\u0041\"",
        "\"\":\"\"",
        "\"text\":{\"format\":{\"type\":\"model\"}}",
    ];
    let mut members: Vec<String> = given
        .iter()
        .map(|(key, value)| format!("{key}:{value}"))
        .collect();
    if given.is_empty() {
        members.push(format!("\"model\":{}", name(rng)));
    }
    let start = rng.usize(0..others.len());
    let count = rng.usize(0..4);
    members.extend(
        others
            .iter()
            .cycle()
            .skip(start)
            .take(count)
            .map(|text| (*text).to_owned()),
    );
    rng.shuffle(&mut members);
    let space = *choose(rng, &["", " ", "\r\n\t"]);
    format!(
        "{space}{{{space}{}{space}}}{space}",
        members.join(&format!("{space},{space}"))
    )
}
