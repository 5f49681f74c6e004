//! The lines above the panes: the state of the gateway, its main numbers, its clients and its verdicts.

use super::history::history_lines;
use super::style::{FrameOptions, WIDE_COLUMNS, bold_style};
use crate::columns::CellTone;
use crate::formatting::{format_quantiles, number, percent, seconds, span, text};
use crate::state::TopState;
use crate::summary::{answers, changes, main_clients};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use tokenweir_api::{GatewaySnapshot, GatewayState, HarmLevel, condition_counts};
use tokenweir_diagnose::{Verdict, VerdictGroup, VerdictSeverity};

/// Maximum number of groups of verdicts that are shown above the panes of a wide terminal.
const MAX_TERMINAL_VERDICTS: usize = 3;

/// The text of one number, such as `12 in flight`, and its tone, which determines the colour.
type Figure = (String, CellTone);

/// The lines above the panes of a frame that is `width` columns wide.
pub(super) fn lines(state: &TopState, options: FrameOptions, width: u16) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    if let Some(problem) = &state.problem {
        let words = format!("no update: {}", text(problem));
        lines.extend(wrap_lines(&words, width, options.tone_style(CellTone::Bad)));
    }
    let Some(document) = &state.document else {
        if lines.is_empty() {
            lines.push(Line::from("connecting to the gateway …"));
        }
        return lines;
    };
    let tone = options.tone_style(state_tone(document.state));
    lines.push(title_line(state, options, document, width));
    if !document.state_reasons.is_empty() {
        let reasons = text(&document.state_reasons.join("; "));
        lines.extend(wrap_lines(&reasons, width, tone));
    }
    for figures in [rates(state, document), latencies(document)] {
        lines.extend(flow_figures(options, figures, width));
    }
    lines.extend(history_lines(&document.history, width));
    lines.push(Line::from(format!(
        "backends: {}",
        text(&condition_counts(&document.backends))
    )));
    if let Some(clients) = main_clients(&document.clients) {
        lines.extend(wrap_lines(&clients, width, Style::new()));
    }
    if let Some(changes) = changes(document) {
        lines.extend(wrap_lines(&changes, width, Style::new()));
    }
    push_verdicts(options, &document.verdicts, width, &mut lines);
    lines
}

fn state_tone(state: GatewayState) -> CellTone {
    match state {
        GatewayState::Ready => CellTone::Good,
        GatewayState::Changed | GatewayState::Degraded | GatewayState::ShuttingDown => {
            CellTone::Warning
        }
        GatewayState::Slow
        | GatewayState::Refusing
        | GatewayState::Failing
        | GatewayState::Down => CellTone::Bad,
    }
}

fn title_line(
    state: &TopState,
    options: FrameOptions,
    document: &GatewaySnapshot,
    width: u16,
) -> Line<'static> {
    let tone = options.tone_style(state_tone(document.state));
    let mut title = vec![
        Span::styled(
            format!("tokenweir {}  ", text(&document.version)),
            bold_style(),
        ),
        Span::styled(document.state.label(), tone),
    ];
    let good = answers(&document.last_minute.answers);
    if !good.is_empty() {
        let tone = options.tone_style(harm_tone(document.harm.answers.level));
        title.push(Span::styled(format!("  {}", good.trim_end()), tone));
    }
    if width >= WIDE_COLUMNS {
        title.push(Span::raw(format!("  {}", text(&document.policy))));
    }
    title.push(Span::raw(format!("  up {}", span(document.uptime_seconds))));
    if state.is_paused {
        title.push(Span::styled(
            "  paused",
            options.tone_style(CellTone::Warning),
        ));
    }
    Line::from(title)
}

/// Appends the lines about the groups of verdicts. On a terminal, only the first groups are shown, to leave
/// space for the panes.
fn push_verdicts(
    options: FrameOptions,
    verdicts: &[Verdict],
    width: u16,
    lines: &mut Vec<Line<'static>>,
) {
    let groups = VerdictGroup::fold(verdicts);
    let limit = match options.has_keys {
        true if width < WIDE_COLUMNS => 1,
        true => MAX_TERMINAL_VERDICTS,
        false => groups.len(),
    };
    for group in groups.iter().take(limit) {
        let verdict = group.first;
        let tone = match verdict.severity {
            VerdictSeverity::Critical => CellTone::Bad,
            VerdictSeverity::Warning => CellTone::Warning,
            VerdictSeverity::Info => CellTone::Quiet,
        };
        let style = options.tone_style(tone);
        lines.extend(wrap_lines(&format_verdicts(group), width, style));
        let remedy = format!("  -> {}", text(&verdict.remedy));
        lines.extend(wrap_lines(&remedy, width, style));
    }
    let more: usize = groups.iter().skip(limit).map(|group| group.count).sum();
    if more > 0 {
        let hint = format!("{more} more verdicts: tokenweir diagnose");
        lines.push(Line::from(hint));
    }
}

/// The request rates, the queue, and the shares of failed and of refused requests.
fn rates(state: &TopState, document: &GatewaySnapshot) -> Vec<Figure> {
    let rates = state.rates.per_second(document);
    let minute = &document.last_minute;
    let harm = &document.harm;
    let waiting: usize = document.queue.iter().map(|class| class.waiting).sum();
    let longest = match document.longest_wait_seconds {
        Some(wait) => format!(" (longest {})", seconds(Some(wait))),
        None => String::new(),
    };
    let share = |count: u64| (minute.requests > 0).then(|| count as f64 / minute.requests as f64);
    let plain = |words: String| (words, CellTone::Plain);
    let held = document.held_because.as_deref();
    let held = held.map_or_else(String::new, |why| format!(", {}", text(why)));
    let [failed, refused] = [minute.failed, minute.refused].map(|count| percent(share(count)));
    let client_errors = percent(harm.client_errors.share);
    vec![
        plain(format!(
            "{} req/s",
            number(rates.map(|rates| rates.requests))
        )),
        plain(format!(
            "{} tok/s",
            number(rates.map(|rates| rates.output_tokens))
        )),
        plain(format!("{} in flight", document.requests_in_flight)),
        plain(format!("{waiting} waiting{longest}{held}")),
        (format!("{failed} failed"), harm_tone(harm.failed.level)),
        (
            format!("{client_errors} 4xx"),
            harm_tone(harm.client_errors.level),
        ),
        (format!("{refused} refused"), harm_tone(harm.refused.level)),
    ]
}

fn latencies(document: &GatewaySnapshot) -> Vec<Figure> {
    let minute = &document.last_minute;
    let harm = &document.harm;
    let first_output = harm_tone(harm.slow_first_output.level);
    let mut figures = vec![(format_quantiles("TTFT", minute.ttft), first_output)];
    if minute.first_answer.is_some() {
        let first_answer = harm_tone(harm.slow_first_answer.level);
        figures.push((
            format_quantiles("first answer", minute.first_answer),
            first_answer,
        ));
    }
    figures.push((
        format_quantiles("ITL", minute.itl),
        harm_tone(harm.slow_output.level),
    ));
    figures.push((format_quantiles("E2E", minute.e2e), CellTone::Plain));
    figures
}

fn harm_tone(level: HarmLevel) -> CellTone {
    match level {
        HarmLevel::None => CellTone::Plain,
        HarmLevel::Warning => CellTone::Warning,
        HarmLevel::Critical => CellTone::Bad,
    }
}

/// Formats a group of verdicts of one rule: their severity, backends, meaning, cause and name.
fn format_verdicts(group: &VerdictGroup<'_>) -> String {
    let Verdict {
        verdict: name,
        severity,
        meaning,
        cause,
        ..
    } = group.first;
    let subject = group.subject();
    let [name, subject, meaning] = [&**name, &*subject, &**meaning].map(text);
    let cause = cause
        .as_deref()
        .map(|cause| format!(" Cause: {}.", text(cause)));
    let cause = cause.unwrap_or_default();
    format!(
        "{}  {subject}: {meaning}{cause}  [{name}]",
        severity.as_str()
    )
}

/// Wraps text into lines of at most `width` columns.
fn wrap_lines(words: &str, width: u16, style: Style) -> Vec<Line<'static>> {
    // A flag such as `--max-num-seqs` is not split at its hyphens.
    let options = textwrap::Options::new(usize::from(width))
        .subsequent_indent("  ")
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    let lines = textwrap::wrap(words, options);
    lines
        .into_iter()
        .map(|line| Line::styled(line.into_owned(), style))
        .collect()
}

/// Joins figures into lines of at most `width` columns. A figure is never split between two lines.
fn flow_figures(options: FrameOptions, figures: Vec<Figure>, width: u16) -> Vec<Line<'static>> {
    let mut lines: Vec<Line<'static>> = Vec::new();
    for (words, tone) in figures {
        let needed = 3 + words.chars().count();
        let figure = Span::styled(words, options.tone_style(tone));
        match lines.last_mut() {
            Some(line) if line.width() + needed <= width.into() => {
                line.push_span("   ");
                line.push_span(figure);
            }
            _ => lines.push(Line::from(figure)),
        }
    }
    lines
}
