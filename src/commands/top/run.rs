//! Polls the admin listener of a running gateway, draws its state in the terminal, and performs the actions of
//! the operator (drain, undrain, show a decision).

use super::args::TopArgs;
use crate::app::process::signals;
use crate::commands::admin_client::{AdminClient, percent_encode};
use crate::commands::{EXIT_FAILURE, report_error, report_problem, variable};
use ratatui::DefaultTerminal;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::widgets::Widget;
use std::io::{self, IsTerminal, Write};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_api::GatewaySnapshot;
use tokenweir_top::{FrameOptions, TopFrame, TopState, UserAction, explanation};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

/// Interval at which the thread that reads terminal events checks whether its channel is closed.
const EVENT_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Width of the text output in columns, if neither the terminal nor `COLUMNS` gives one.
const DEFAULT_COLUMNS: u16 = 120;
/// Minimum width of the text output. A smaller value of `COLUMNS` is raised to it.
const MIN_COLUMNS: u16 = 30;
/// Maximum width of the text output. A larger value of `COLUMNS` is lowered to it.
const MAX_COLUMNS: u16 = 1_000;

pub(crate) async fn run(top: TopArgs) -> ExitCode {
    let client = match AdminClient::new(&top.admin, top.token_file.clone(), top.timeout) {
        Ok(client) => client,
        Err(error) => return report_error(&error),
    };
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    if top.once || !is_terminal || !has_cursor_control(variable("TERM").as_deref()) {
        return print_once(&client).await;
    }
    // `try_init` also installs a panic hook that restores the terminal.
    let terminal = match ratatui::try_init() {
        Ok(terminal) => terminal,
        Err(error) => return report_error(&error),
    };
    let result = run_interactive(terminal, &client, &top).await;
    ratatui::restore();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report_error(&error),
    }
}

/// Prints one frame of `tokenweir top` as text.
async fn print_once(client: &AdminClient) -> ExitCode {
    let mut state = TopState::new();
    match fetch_snapshot(client).await {
        Ok(document) => state.on_document(document),
        Err(problem) => return report_problem(problem, EXIT_FAILURE),
    }
    let width = if io::stdout().is_terminal() {
        terminal_columns()
    } else {
        requested_columns()
    };
    // A closed pipe is not an error.
    let _ = io::stdout().write_all(render_text(&state, width).as_bytes());
    ExitCode::SUCCESS
}

fn terminal_columns() -> u16 {
    u16::try_from(textwrap::termwidth()).unwrap_or(DEFAULT_COLUMNS)
}

/// Returns the width of the text output from the environment variable `COLUMNS`, or the default.
fn requested_columns() -> u16 {
    let columns = variable("COLUMNS").and_then(|text| text.trim().parse().ok());
    columns.map_or(DEFAULT_COLUMNS, |columns: u16| {
        columns.clamp(MIN_COLUMNS, MAX_COLUMNS)
    })
}

/// Renders one frame of `tokenweir top` as lines of text without trailing spaces.
fn render_text(state: &TopState, width: u16) -> String {
    let frame = TopFrame {
        state,
        options: FrameOptions {
            has_colour: false,
            has_keys: false,
        },
    };
    let area = Rect::new(0, 0, width, frame.height(width));
    let mut buffer = Buffer::empty(area);
    frame.render(area, &mut buffer);
    let lines = buffer.content().chunks(usize::from(width.max(1)));
    let lines = lines.map(|line| {
        let line: String = line.iter().map(ratatui::buffer::Cell::symbol).collect();
        format!("{}\n", line.trim_end())
    });
    let text: String = lines.collect();
    format!("{}\n", text.trim_end())
}

/// Draws frames in the terminal until the user quits, a shutdown signal arrives or the terminal is
/// closed.
async fn run_interactive(
    mut terminal: DefaultTerminal,
    client: &AdminClient,
    top: &TopArgs,
) -> io::Result<()> {
    let has_colour = is_colour_enabled(variable("NO_COLOR").as_deref());
    let options = FrameOptions {
        has_colour,
        has_keys: true,
    };
    let (event_sender, mut events) = mpsc::channel(64);
    let reader = std::thread::spawn(move || read_events(&event_sender));
    let (snapshot_sender, mut snapshots) = mpsc::channel(1);
    let refresh = Arc::<Notify>::default();
    let mut poller = JoinSet::new();
    poller.spawn(poll_gateway(
        client.clone(),
        top.interval,
        snapshot_sender,
        refresh.clone(),
    ));
    let mut stop = pin!(signals::wait_for_shutdown());
    let mut state = TopState::new();
    loop {
        let frame = TopFrame {
            state: &state,
            options,
        };
        terminal.draw(|screen| screen.render_widget(frame, screen.area()))?;
        tokio::select! {
            () = &mut stop => break,
            Some(snapshot) = snapshots.recv() => match snapshot {
                Ok(document) => state.on_document(document),
                Err(problem) => state.on_problem(problem),
            },
            event = events.recv() => match event.map(|event| handle_event(&event, &mut state)) {
                // The terminal was closed, or the user has quit.
                None | Some(Some(UserAction::Quit)) => break,
                Some(None) => {}
                Some(Some(action)) => {
                    perform_action(action, client, &mut state).await;
                    refresh.notify_one();
                }
            },
        }
    }
    drop(events);
    // The reader thread ends when it detects that the channel is closed.
    drop(reader.join());
    Ok(())
}

/// Fetches the state of the gateway after each interval and at each notification of `refresh`, and sends the
/// state to the channel. A separate task, so that keys work while the gateway does not respond.
async fn poll_gateway(
    client: AdminClient,
    interval: Duration,
    snapshots: mpsc::Sender<Result<GatewaySnapshot, String>>,
    refresh: Arc<Notify>,
) {
    while snapshots.send(fetch_snapshot(&client).await).await.is_ok() {
        // The wait ends after the interval, or when an action has requested a new snapshot.
        let _ = tokio::time::timeout(interval, refresh.notified()).await;
    }
}

/// Whether the terminal supports cursor movement. A terminal with `TERM=dumb` does not, and would show the
/// control sequences as text.
fn has_cursor_control(term: Option<&str>) -> bool {
    term != Some("dumb")
}

/// Whether the output has colours. A non-empty `NO_COLOR` disables them: see <https://no-color.org>.
fn is_colour_enabled(no_color: Option<&str>) -> bool {
    no_color.is_none_or(str::is_empty)
}

async fn fetch_snapshot(client: &AdminClient) -> Result<GatewaySnapshot, String> {
    let body = client.get("/streams").await?;
    serde_json::from_slice(&body).map_err(|_| {
        "the response is not a /streams document: this is no gateway of this version".to_owned()
    })
}

/// Performs an action of the operator and shows the result.
async fn perform_action(action: UserAction, client: &AdminClient, state: &mut TopState) {
    match action {
        UserAction::Quit => {}
        UserAction::Drain {
            backend,
            is_drained,
        } => {
            let effect = if is_drained {
                "gets no new requests"
            } else {
                "gets requests again"
            };
            state.set_notice(match client.set_drained(&backend, is_drained).await {
                Ok(_) => format!("{backend} {effect}"),
                Err(problem) => problem,
            });
        }
        UserAction::ShowDecision { request_id } => {
            let result = client
                .get(&format!("/decisions/{}", percent_encode(&request_id)))
                .await;
            match result {
                Ok(body) => {
                    let decision = serde_json::from_slice(&body).unwrap_or_default();
                    state.on_text("Routing decision", explanation(&decision));
                }
                Err(problem) => state.on_text("Routing decision", vec![problem]),
            }
        }
    }
}

/// Reads terminal events and sends them, until the receiver is dropped or the terminal is closed.
fn read_events(sender: &mpsc::Sender<Event>) {
    while let Ok(has_event) = event::poll(EVENT_POLL_INTERVAL)
        && !sender.is_closed()
    {
        if has_event {
            let Ok(event) = event::read() else { return };
            // If the channel is closed, the next pass detects it.
            let _ = sender.blocking_send(event);
        }
    }
}

/// Handles a terminal event. Returns the action that the caller must perform. `None`: no action.
fn handle_event(event: &Event, state: &mut TopState) -> Option<UserAction> {
    use KeyCode::{
        BackTab, Backspace, Char, Down, End, Enter, Esc, Home, PageDown, PageUp, Tab, Up,
    };
    let key = event
        .as_key_event()
        .filter(|key| key.kind != KeyEventKind::Release)?;
    match key.code {
        Char(letter) if key.modifiers.contains(KeyModifiers::CONTROL) => {
            matches!(letter, 'c' | 'd').then_some(UserAction::Quit)
        }
        Char(_) | Enter | Esc | Backspace | Tab | BackTab | Up | Down | PageUp | PageDown
        | Home | End => state.on_key(key.code),
        // Other keys have no function.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_no_color_disables_colours() {
        assert!(
            is_colour_enabled(None) && is_colour_enabled(Some("")) && !is_colour_enabled(Some("1"))
        );
    }

    #[test]
    fn a_dumb_terminal_has_no_cursor_control() {
        assert!(
            has_cursor_control(None)
                && has_cursor_control(Some("xterm-256color"))
                && !has_cursor_control(Some("dumb"))
        );
    }

    #[test]
    fn text_output_has_no_trailing_spaces() {
        let mut state = TopState::new();
        state.on_document(GatewaySnapshot::default());
        let text = render_text(&state, 80);
        assert!(
            text.ends_with('\n') && text.lines().all(|line| !line.ends_with(' ')),
            "{text}"
        );
    }
}
