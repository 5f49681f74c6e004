//! What is being looked at, and how keys change it.

use super::columns::{Row, columns, rows};
use super::rates::Rates;
use tokenweir_api::Document;

/// What is being looked at.
#[derive(Debug, Clone, Default)]
pub struct State {
    pub(super) document: Option<Document>,
    /// Why there is nothing newer.
    pub(super) problem: Option<String>,
    pub(super) rates: Rates,
    pub(super) pane: Pane,
    views: [View; 3],
    pub(super) filter: String,
    pub(super) mode: Mode,
    /// What came of the last wish.
    pub(super) said: Option<String>,
    pub(super) is_paused: bool,
}

/// A list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pane {
    /// Of the replicas.
    #[default]
    Replicas,
    /// Of the streams that are open.
    Streams,
    /// Of the requests that ended.
    Ended,
}

/// What keys are for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Mode {
    /// Walking through the lists.
    #[default]
    Watching,
    /// Writing the filter.
    Filtering,
    /// Answering whether a replica is to be drained, or no longer.
    Confirming {
        /// Its name.
        replica: String,
        /// Whether it is to be drained.
        is_drained: bool,
    },
    /// Reading.
    Reading {
        /// What it is.
        title: String,
        /// Its lines.
        lines: Vec<String>,
        /// The first of them that is shown.
        first: usize,
    },
}

/// A key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// A character.
    Char(char),
    /// Enter.
    Enter,
    /// Escape.
    Escape,
    /// Backspace.
    Backspace,
    /// Tab.
    Tab,
    /// Tab with Shift.
    BackTab,
    /// By so many lines down, or up if negative.
    Move(i16),
    /// To the first line.
    Home,
    /// To the last line.
    End,
}

/// What a key asks for beyond the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// To end.
    Quit,
    /// To take a replica out of service, or back.
    Drain {
        /// Its name.
        replica: String,
        /// Whether it is to be drained.
        is_drained: bool,
    },
    /// To know why a request went where it went.
    Explain {
        /// Its id.
        request_id: String,
    },
}

/// How one list is looked at.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct View {
    pub(super) selected: usize,
    pub(super) column: usize,
    pub(super) is_down: bool,
}

const HELP: [&str; 11] = [
    "Tab, 1 2 3   go to another list",
    "↑ ↓ j k      walk through it",
    "s            sort by the next column",
    "r            the other way round",
    "/            filter all lists; Esc clears it",
    "d            drain the replica, or end that",
    "Enter        why did the request go there?",
    "p            pause, or go on",
    "?            this",
    "q            quit",
    "Esc          back",
];

// === impl Pane ===

impl Pane {
    /// All of them, in their order.
    pub const ALL: [Self; 3] = [Self::Replicas, Self::Streams, Self::Ended];

    const fn index(self) -> usize {
        match self {
            Self::Replicas => 0,
            Self::Streams => 1,
            Self::Ended => 2,
        }
    }

    const fn after(self, steps: usize) -> Self {
        Self::ALL[(self.index() + steps) % 3]
    }
}

// === impl State ===

impl State {
    /// Nothing is known yet. Replicas are sorted by name, streams and requests by age.
    pub fn new() -> Self {
        let by = |column, is_down| View { column, is_down, ..View::default() };
        Self { views: [by(0, false), by(2, true), by(6, false)], ..Self::default() }
    }

    /// The gateway says this now.
    pub fn on_document(&mut self, document: Document) {
        self.problem = None;
        if !self.is_paused {
            self.rates.on_document(&document);
            self.document = Some(document);
        }
    }

    /// The gateway says nothing, for this reason.
    pub fn on_problem(&mut self, problem: impl Into<String>) {
        self.problem = Some(problem.into());
    }

    /// What came of a wish, in a line.
    pub fn on_said(&mut self, said: impl Into<String>) {
        self.said = Some(said.into());
    }

    /// What came of a wish, to be read.
    pub fn on_text(&mut self, title: impl Into<String>, lines: Vec<String>) {
        self.mode = Mode::Reading { title: title.into(), lines, first: 0 };
    }

    /// A key was pressed.
    pub fn on_key(&mut self, key: Key) -> Option<Wish> {
        self.said = None;
        match &mut self.mode {
            Mode::Watching => self.watch(key),
            Mode::Filtering => {
                match key {
                    Key::Char(letter) => self.filter.push(letter),
                    Key::Backspace => drop(self.filter.pop()),
                    Key::Escape => {
                        self.filter.clear();
                        self.mode = Mode::Watching;
                    }
                    Key::Enter => self.mode = Mode::Watching,
                    _ => {}
                }
                None
            }
            Mode::Confirming { replica, is_drained } => {
                let (replica, is_drained) = (std::mem::take(replica), *is_drained);
                self.mode = Mode::Watching;
                let is_yes = matches!(key, Key::Char('y' | 'Y'));
                is_yes.then_some(Wish::Drain { replica, is_drained })
            }
            Mode::Reading { lines, first, .. } => {
                let last = lines.len().saturating_sub(1);
                match key {
                    Key::Move(by) => *first = moved(*first, by, last),
                    Key::Char('j') => *first = moved(*first, 1, last),
                    Key::Char('k') => *first = moved(*first, -1, last),
                    Key::Home => *first = 0,
                    Key::End => *first = last,
                    _ => self.mode = Mode::Watching,
                }
                None
            }
        }
    }

    fn watch(&mut self, key: Key) -> Option<Wish> {
        let last = self.rows(self.pane).len().saturating_sub(1);
        let columns = columns(self.pane).len();
        let view = &mut self.views[self.pane.index()];
        match key {
            Key::Char('q') => return Some(Wish::Quit),
            Key::Char('?' | 'h') => self.on_text("Keys", HELP.map(str::to_owned).to_vec()),
            Key::Char('/') => self.mode = Mode::Filtering,
            Key::Char('p') => self.is_paused = !self.is_paused,
            Key::Escape => self.filter.clear(),
            Key::Char('s') => {
                *view = View { column: (view.column + 1) % columns, is_down: false, ..*view };
            }
            Key::Char('r') => view.is_down = !view.is_down,
            Key::Char('j') => view.selected = moved(view.selected, 1, last),
            Key::Char('k') => view.selected = moved(view.selected, -1, last),
            Key::Move(by) => view.selected = moved(view.selected, by, last),
            Key::Home => view.selected = 0,
            Key::End => view.selected = last,
            Key::Tab => self.pane = self.pane.after(1),
            Key::BackTab => self.pane = self.pane.after(2),
            Key::Char(digit @ '1'..='3') => self.pane = Pane::ALL[digit as usize - '1' as usize],
            Key::Char('d') => self.ask_to_drain(),
            Key::Enter => return self.explain(),
            Key::Char(_) | Key::Backspace => {}
        }
        None
    }

    fn ask_to_drain(&mut self) {
        match self.selected() {
            Some(row) if self.pane == Pane::Replicas => {
                self.mode = Mode::Confirming { replica: row.name, is_drained: !row.is_drained };
            }
            _ => self.on_said("choose a replica: press 1, then ↑ ↓"),
        }
    }

    fn explain(&mut self) -> Option<Wish> {
        match self.selected() {
            Some(row) if self.pane != Pane::Replicas => {
                Some(Wish::Explain { request_id: row.name })
            }
            _ => {
                self.on_said("choose a request: press 2 or 3, then ↑ ↓");
                None
            }
        }
    }

    /// The rows of a pane that fit the filter, in their order.
    pub(super) fn rows(&self, pane: Pane) -> Vec<Row> {
        let Some(document) = &self.document else { return Vec::new() };
        let view = self.views[pane.index()];
        let filter = self.filter.to_lowercase();
        let mut rows = rows(pane, document);
        rows.retain(|row| row.fits(&filter));
        rows.sort_by(|one, other| one.compare(other, view.column, view.is_down));
        rows
    }

    /// How a pane is looked at, with a selected row that is there.
    pub(super) fn view(&self, pane: Pane, rows: usize) -> View {
        let view = self.views[pane.index()];
        View { selected: view.selected.min(rows.saturating_sub(1)), ..view }
    }

    fn selected(&self) -> Option<Row> {
        let mut rows = self.rows(self.pane);
        let selected = self.view(self.pane, rows.len()).selected;
        (selected < rows.len()).then(|| rows.swap_remove(selected))
    }
}

fn moved(from: usize, by: i16, last: usize) -> usize {
    from.min(last).saturating_add_signed(by.into()).min(last)
}
