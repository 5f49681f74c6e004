//! A state becomes a frame of characters, in whatever room there is.

use super::columns::{Column, Row, Tone, columns};
use super::state::{Mode, Pane, State, View};
use super::words::{number, percent, seconds, span, text};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph, Widget, Wrap};
use tokenweir_api::Document;
use tokenweir_api::Quantiles;
use tokenweir_diagnose::{Severity, Verdict};

/// How it is drawn.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// With colours.
    pub has_colour: bool,
    /// For a person at a terminal, who has keys; else whole, as text.
    pub has_keys: bool,
}

/// A state, to be drawn.
#[derive(Debug)]
pub struct Frame<'a> {
    /// The state.
    pub state: &'a State,
    /// How.
    pub look: Look,
}

/// The room that a screen must have to show anything of use.
const LEAST: (u16, u16) = (30, 8);
/// With fewer columns, what is not news is left out.
const ROOMY: u16 = 60;
/// With fewer lines for lists, only one of them is shown.
const ALL_PANES: u16 = 14;

impl Widget for Frame<'_> {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        if area.width < LEAST.0 || area.height < LEAST.1 {
            let (width, height) = LEAST;
            let problem = format!("too small: {width} columns and {height} lines are needed");
            return Paragraph::new(problem).wrap(Wrap { trim: true }).render(area, buffer);
        }
        let top = self.top(area.width);
        let height = (top.len() as u16).min(area.height - 4);
        let keys = u16::from(self.look.has_keys);
        Paragraph::new(top).render(Rect { height, ..area }, buffer);
        let lists = Rect { y: area.y + height, height: area.height - height - keys, ..area };
        self.lists(lists, buffer);
        if self.look.has_keys {
            let bottom = Rect { y: area.bottom() - 1, height: 1, ..area };
            Paragraph::new(self.bottom(area.width)).render(bottom, buffer);
        }
        if let Mode::Reading { title, lines, first } = &self.state.mode {
            reading(title, lines.get(*first..).unwrap_or_default(), lists, buffer);
        }
    }
}

impl Frame<'_> {
    /// Lines that it takes to show everything.
    pub fn height(&self, width: u16) -> u16 {
        let lists = Pane::ALL.map(|pane| self.state.rows(pane).len().max(1) + 2);
        let lines = self.top(width).len() + lists.iter().sum::<usize>();
        u16::try_from(lines).unwrap_or(u16::MAX).max(LEAST.1)
    }

    /// The gateway, its figures, and what is wrong.
    fn top(&self, width: u16) -> Vec<Line<'static>> {
        let mut lines = Vec::new();
        if let Some(problem) = &self.state.problem {
            let words = format!("no news: {}", text(Some(problem)));
            lines.extend(wrapped(&words, width, self.style(Tone::Bad)));
        }
        let Some(document) = &self.state.document else {
            if lines.is_empty() {
                lines.push(Line::from("asking the gateway …"));
            }
            return lines;
        };
        let (ready, tone) = match document {
            Document { draining: true, .. } => ("shutting down".into(), Tone::Warning),
            Document { ready: true, panic: true, .. } => {
                ("ready, panic mode".into(), Tone::Warning)
            }
            Document { ready: true, .. } => ("ready".into(), Tone::Good),
            Document { unready: Some(why), .. } => {
                (format!("not ready: {}", text(Some(why))), Tone::Bad)
            }
            _ => (String::from("not ready"), Tone::Bad),
        };
        let mut title = vec![
            Span::styled(format!("tokenweir {}  ", text(Some(&document.version))), bold()),
            Span::styled(ready, self.style(tone)),
        ];
        if width >= ROOMY {
            title.push(Span::raw(format!("  {}", text(Some(&document.policy)))));
        }
        title.push(Span::raw(format!("  up {}", span(document.uptime_seconds))));
        if self.state.is_paused {
            title.push(Span::styled("  paused", self.style(Tone::Warning)));
        }
        lines.push(Line::from(title));
        lines.extend(flowed(self.figures(document), width));
        lines.extend(document.verdicts.iter().flat_map(|one| {
            let tone = match one.severity {
                Severity::Critical => Tone::Bad,
                Severity::Warning => Tone::Warning,
            };
            wrapped(&verdict(one), width, self.style(tone))
        }));
        lines
    }

    fn figures(&self, document: &Document) -> Vec<String> {
        let [requests, tokens] = self.state.rates.of(document);
        let minute = &document.last_minute;
        let waiting: usize = document.queue.iter().map(|class| class.waiting).sum();
        let failed = (minute.requests > 0).then(|| minute.failed as f64 / minute.requests as f64);
        vec![
            format!("{} req/s", number(requests)),
            format!("{} tok/s", number(tokens)),
            format!("{} in flight", document.requests_in_flight),
            format!("{waiting} waiting"),
            format!("{} failed", percent(failed)),
            quantiles("TTFT", minute.ttft),
            quantiles("ITL", minute.itl),
            quantiles("E2E", minute.e2e),
        ]
    }

    /// All lists, one below the other, or the one that is looked at.
    fn lists(&self, area: Rect, buffer: &mut Buffer) {
        if self.look.has_keys && area.height < ALL_PANES {
            return self.list(self.state.pane, area, buffer);
        }
        let wanted = Pane::ALL.map(|pane| self.state.rows(pane).len().max(1) as u16 + 2);
        let mut rest = area;
        for (pane, height) in Pane::ALL.into_iter().zip(heights(wanted, area.height)) {
            self.list(pane, Rect { height, ..rest }, buffer);
            rest = Rect { y: rest.y + height, height: rest.height - height, ..rest };
        }
    }

    fn list(&self, pane: Pane, area: Rect, buffer: &mut Buffer) {
        let rows = self.state.rows(pane);
        let view = self.state.view(pane, rows.len());
        let is_current = self.look.has_keys && pane == self.state.pane;
        let shown = columns_that_fit(columns(pane), area.width);
        let mut lines = vec![head(pane, &shown, &view, is_current, area.width)];
        let room = usize::from(area.height.saturating_sub(1));
        let first = (view.selected + 1).saturating_sub(room.max(1));
        for (index, row) in rows.iter().enumerate().skip(first).take(room) {
            let line = self.line(row, &shown, columns(pane));
            let is_selected = is_current && index == view.selected;
            lines.push(if is_selected { line.patch_style(Modifier::REVERSED) } else { line });
        }
        if rows.is_empty() {
            lines.push(Line::styled(self.nothing(pane), self.style(Tone::Quiet)));
        }
        Paragraph::new(lines).render(area, buffer);
    }

    fn line(&self, row: &Row, shown: &[(usize, u16)], columns: &[Column]) -> Line<'static> {
        let mut spans = Vec::with_capacity(2 * shown.len());
        for (index, width) in shown {
            let Some(cell) = row.cells.get(*index) else { continue };
            if !spans.is_empty() {
                spans.push(Span::raw(" "));
            }
            let words = placed(&cell.text, *width, columns[*index].is_figure);
            spans.push(Span::styled(words, self.style(cell.tone)));
        }
        Line::from(spans)
    }

    fn nothing(&self, pane: Pane) -> &'static str {
        match pane {
            _ if self.state.document.is_none() => "",
            _ if !self.state.filter.is_empty() => "nothing fits the filter",
            Pane::Replicas => "there are no replicas",
            Pane::Streams => "no stream is open",
            Pane::Ended => "no request has ended",
        }
    }

    /// What is asked or said, or the keys.
    fn bottom(&self, width: u16) -> Line<'static> {
        match &self.state.mode {
            Mode::Filtering => Line::styled(format!("/{}▏", text_of(&self.state.filter)), bold()),
            Mode::Confirming { replica, is_drained } => {
                let verb = if *is_drained { "drain" } else { "undrain" };
                let words = format!("{verb} {}? y / n", text(Some(replica)));
                Line::styled(words, self.style(Tone::Warning).add_modifier(Modifier::BOLD))
            }
            Mode::Reading { .. } => Line::styled("↑ ↓ scroll  any other key: back", bold()),
            Mode::Watching => match (&self.state.said, self.state.filter.as_str()) {
                (Some(said), _) => Line::styled(text(Some(said)), self.style(Tone::Warning)),
                (None, "") if width < ROOMY => Line::from("q quit  ? keys  Tab list"),
                (None, "") => Line::from(
                    "q quit  ? keys  Tab list  / filter  s sort  d drain  Enter why  p pause",
                ),
                (None, filter) => {
                    Line::from(format!("filter: {}  (Esc clears it)", text_of(filter)))
                }
            },
        }
    }

    fn style(&self, tone: Tone) -> Style {
        if !self.look.has_colour {
            return match tone {
                Tone::Bad | Tone::Warning => bold(),
                Tone::Plain | Tone::Quiet | Tone::Good => Style::new(),
            };
        }
        match tone {
            Tone::Plain => Style::new(),
            Tone::Quiet => Style::new().fg(Color::DarkGray),
            Tone::Good => Style::new().fg(Color::Green),
            Tone::Warning => Style::new().fg(Color::Yellow),
            Tone::Bad => Style::new().fg(Color::Red),
        }
    }
}

fn head(
    pane: Pane,
    shown: &[(usize, u16)],
    view: &View,
    is_current: bool,
    width: u16,
) -> Line<'static> {
    let title = |(index, width): &(usize, u16)| {
        let column = columns(pane)[*index];
        let arrow = match (*index == view.column, view.is_down) {
            (false, _) => "",
            (true, false) => "↑",
            (true, true) => "↓",
        };
        placed(&format!("{}{arrow}", column.title), *width, column.is_figure)
    };
    let words: Vec<String> = shown.iter().map(title).collect();
    let style = if is_current { bold().add_modifier(Modifier::UNDERLINED) } else { bold() };
    let words = words.join(" ");
    Line::styled(format!("{words:<width$}", width = usize::from(width)), style)
}

fn reading(title: &str, lines: &[String], area: Rect, buffer: &mut Buffer) {
    Clear.render(area, buffer);
    let mut shown = vec![Line::styled(title.to_owned(), bold()), Line::default()];
    shown.extend(lines.iter().map(|line| Line::from(line.clone())));
    Paragraph::new(shown).wrap(Wrap { trim: false }).render(area, buffer);
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn text_of(filter: &str) -> String {
    if filter.is_empty() { String::new() } else { text(Some(filter)) }
}

fn quantiles(name: &str, of: Option<Quantiles>) -> String {
    let [p50, p95, p99] = [of.map(|of| of.p50), of.map(|of| of.p95), of.map(|of| of.p99)];
    format!("{name} {} / {} / {}", seconds(p50), seconds(p95), seconds(p99))
}

/// A verdict: how bad, whose and what it is, and what to do.
fn verdict(told: &Verdict) -> String {
    let Verdict { verdict, backend, severity, meaning, remedy, .. } = told;
    let [name, backend, meaning, remedy] =
        [&**verdict, &**backend, &**meaning, &**remedy].map(|words| text(Some(words)));
    format!("{}  {backend}: {meaning}  [{name}]  -> {remedy}", severity.as_str())
}

/// Text on as many lines as it takes.
fn wrapped(words: &str, width: u16, style: Style) -> Vec<Line<'static>> {
    let lines = textwrap::wrap(words, usize::from(width));
    lines.into_iter().map(|line| Line::styled(line.into_owned(), style)).collect()
}

/// Parts beside each other, as many on a line as there is room for.
fn flowed(parts: Vec<String>, width: u16) -> Vec<Line<'static>> {
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 3 + part.chars().count() <= width.into() => {
                line.push_str("   ");
                line.push_str(&part);
            }
            _ => lines.push(part),
        }
    }
    lines.into_iter().map(Line::from).collect()
}

/// Each list gets what it wants, or an equal part of what is left; the last gets the rest.
fn heights(wanted: [u16; 3], room: u16) -> [u16; 3] {
    let first = wanted[0].min((room / 3).max(3)).min(room);
    let left = room - first;
    let second = wanted[1].min((left / 2).max(left.saturating_sub(wanted[2]))).min(left);
    [first, second, left - second]
}

/// The columns for which there is room, each with its width. The first takes what is left.
fn columns_that_fit(columns: &[Column], width: u16) -> Vec<(usize, u16)> {
    let mut shown: Vec<usize> = (0..columns.len()).collect();
    let needed = |shown: &[usize]| -> u16 { shown.iter().map(|one| columns[*one].width + 1).sum() };
    while needed(&shown) > width + 1 && shown.len() > 1 {
        let last = shown.iter().enumerate().max_by_key(|(_, one)| columns[**one].rank);
        let Some((place, _)) = last else { break };
        shown.remove(place);
    }
    let spare = (width + 1).saturating_sub(needed(&shown)).min(MOST_SPARE);
    let wide = |one: &usize| columns[*one].width + if *one == 0 { spare } else { 0 };
    shown.iter().map(|one| (*one, wide(one))).collect()
}

/// No name needs more room than this besides.
const MOST_SPARE: u16 = 30;

/// Text in its column: cut if it is too long.
fn placed(words: &str, width: u16, is_figure: bool) -> String {
    let width = usize::from(width);
    let mut shown: String = words.chars().take(width).collect();
    if words.chars().count() > width {
        shown = words.chars().take(width.saturating_sub(1)).chain(['…']).collect();
    }
    if is_figure { format!("{shown:>width$}") } else { format!("{shown:<width$}") }
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
