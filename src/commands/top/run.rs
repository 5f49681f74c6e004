//! Shows what a running gateway does, again and again, and does what its operator wishes.

use super::args::Top;
use crate::app::signals;
use crate::commands::{failed, variable};
use crate::config::{Secret, SecretError};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use ratatui::DefaultTerminal;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::widgets::Widget;
use std::io::{self, IsTerminal, Write};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_api::Document;
use tokenweir_doctor::facts::{Key as Token, Silence};
use tokenweir_doctor::gather::{Asker, Plan, Target};
use tokenweir_net::tls::{Alpn, Outbound};
use tokenweir_top::{Frame, Key, Look, State, Wish, explanation};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

/// The token of an admin port.
const ADMIN_TOKEN: &str = "TOKENWEIR_ADMIN_TOKEN";
/// How often it is looked whether nobody waits for keys any more.
const KEYS: Duration = Duration::from_millis(200);
/// Columns of text for a pipe.
const WIDTH: u16 = 120;
/// The narrowest and the widest that a pipe may ask for.
const NARROWEST: u16 = 30;
const WIDEST: u16 = 1_000;

/// What happens while it is shown.
enum Happening {
    Key(Key),
    /// Ctrl-C.
    Interrupt,
    Resized,
    /// The terminal is gone.
    Gone,
}

pub(crate) async fn run(top: Top) -> ExitCode {
    let asker = match asker(&top) {
        Ok(asker) => asker,
        Err(error) => return failed(&error),
    };
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    if top.once || !is_terminal || !has_screen(variable("TERM").as_deref()) {
        return once(&asker).await;
    }
    // It restores the terminal when this panics, as well.
    let terminal = match ratatui::try_init() {
        Ok(terminal) => terminal,
        Err(error) => return failed(&error),
    };
    let watched = watch(terminal, &asker, &top).await;
    ratatui::restore();
    match watched {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn asker(top: &Top) -> Result<Asker, SecretError> {
    let secret = top.token_file.clone().map_or(Secret::Env(ADMIN_TOKEN.to_owned()), Secret::File);
    let key = match secret.resolve(variable) {
        Ok(token) => Token::Known(token.bearer().clone()),
        Err(SecretError::Unset(_)) => Token::None,
        Err(error) => return Err(error),
    };
    let target = Target { id: "admin".into(), url: top.admin.clone(), key };
    let outbound = Outbound::of_machine(Alpn::Http1);
    let plan = Plan { outbound, timeout: top.timeout, idle: Duration::ZERO, probe: false };
    Ok(Asker::to(&target, &plan))
}

/// One frame as text.
async fn once(asker: &Asker) -> ExitCode {
    let mut state = State::new();
    match look(asker).await {
        Ok(document) => state.on_document(document),
        Err(problem) => {
            eprintln!("error: {problem}");
            return ExitCode::FAILURE;
        }
    }
    let width = if io::stdout().is_terminal() { columns() } else { told_columns() };
    // A closed pipe is no failure.
    let _ = io::stdout().write_all(text(&state, width).as_bytes());
    ExitCode::SUCCESS
}

fn columns() -> u16 {
    u16::try_from(textwrap::termwidth()).unwrap_or(WIDTH)
}

/// As somebody says who reads a pipe.
fn told_columns() -> u16 {
    let told = variable("COLUMNS").and_then(|told| told.trim().parse().ok());
    told.map_or(WIDTH, |told: u16| told.clamp(NARROWEST, WIDEST))
}

fn text(state: &State, width: u16) -> String {
    let frame = Frame { state, look: Look { has_colour: false, has_keys: false } };
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

async fn watch(mut terminal: DefaultTerminal, asker: &Asker, top: &Top) -> io::Result<()> {
    let look_of = Look { has_colour: has_colour(variable("NO_COLOR").as_deref()), has_keys: true };
    let (sender, mut happenings) = mpsc::channel(64);
    let reading = std::thread::spawn(move || read_keys(&sender));
    let (sending, mut news) = mpsc::channel(1);
    let again = Arc::<Notify>::default();
    let mut asking = JoinSet::new();
    asking.spawn(ask_again_and_again(asker.clone(), top.interval, sending, again.clone()));
    let mut stop = pin!(signals::stop());
    let mut state = State::new();
    loop {
        let frame = Frame { state: &state, look: look_of };
        terminal.draw(|room| room.render_widget(frame, room.area()))?;
        tokio::select! {
            () = &mut stop => break,
            Some(said) = news.recv() => match said {
                Ok(document) => state.on_document(document),
                Err(problem) => state.on_problem(problem),
            },
            happening = happenings.recv() => match happening {
                None | Some(Happening::Interrupt | Happening::Gone) => break,
                Some(Happening::Resized) => {}
                Some(Happening::Key(key)) => match state.on_key(key) {
                    None => {}
                    Some(Wish::Quit) => break,
                    Some(wish) => {
                        grant(wish, asker, &mut state).await;
                        again.notify_one();
                    }
                },
            },
        }
    }
    drop(happenings);
    // It ends when it finds that nobody listens.
    drop(reading.join());
    Ok(())
}

/// Beside the keys, so that they work while the gateway does not answer.
async fn ask_again_and_again(
    asker: Asker,
    pause: Duration,
    news: mpsc::Sender<Result<Document, String>>,
    again: Arc<Notify>,
) {
    while news.send(look(&asker).await).await.is_ok() {
        // Whether the time is over or somebody wants to know at once.
        let _ = tokio::time::timeout(pause, again.notified()).await;
    }
}

/// Whether the cursor of this terminal can be moved: a dumb one shows the signs that would.
fn has_screen(term: Option<&str>) -> bool {
    term != Some("dumb")
}

/// Colours are off for whoever says so: <https://no-color.org>.
fn has_colour(no_color: Option<&str>) -> bool {
    no_color.is_none_or(str::is_empty)
}

async fn look(asker: &Asker) -> Result<Document, String> {
    let answer = told(asker.get("/live").await)?;
    serde_json::from_slice(&answer)
        .map_err(|_| "what answers there is no gateway of this version".to_owned())
}

/// The body of an answer that is no error; else what is wrong, and whose fault it is.
fn told(asked: tokenweir_doctor::facts::Asked) -> Result<bytes::Bytes, String> {
    let answer = asked.map_err(|silence| match silence {
        Silence::Connect(_) | Silence::Timeout(_) | Silence::Closed(_) => {
            format!("the gateway does not answer: {silence}")
        }
        silence => silence.to_string(),
    })?;
    if answer.status.is_success() {
        return Ok(answer.body);
    }
    let said = serde_json::from_slice::<serde_json::Value>(&answer.body).ok();
    let said = said.and_then(|said| Some(said["error"].as_str()?.to_owned()));
    Err(match (answer.status.as_u16(), said) {
        (401, _) => format!(
            "the gateway wants its admin token (access.admin_token): put it into {ADMIN_TOKEN}, or \
             name its file with --token-file"
        ),
        (403, None) => "the gateway does not answer for this host name: use its address, add the \
                        name to access.admin_hosts, or set access.admin_token"
            .to_owned(),
        (_, Some(said)) => said,
        (404, None) => {
            "there is no /live: this is no admin port, or of an older gateway".to_owned()
        }
        (status, None) => format!("the gateway answered {status}"),
    })
}

async fn grant(wish: Wish, asker: &Asker, state: &mut State) {
    match wish {
        Wish::Quit => {}
        Wish::Drain { replica, is_drained } => {
            let verb = if is_drained { "drain" } else { "undrain" };
            let path = format!("/-/{verb}?backend={}", escaped(&replica));
            let json = HeaderValue::from_static("application/json");
            let asked = asker.ask(Method::POST, &path, Some((CONTENT_TYPE, json))).await;
            let done = if is_drained { "gets nothing new" } else { "gets requests again" };
            state.on_said(match told(asked) {
                Ok(_) => format!("{replica} {done}"),
                Err(problem) => problem,
            });
        }
        Wish::Explain { request_id } => {
            let asked = asker.get(&format!("/explain/{}", escaped(&request_id))).await;
            match told(asked) {
                Ok(body) => {
                    let why = serde_json::from_slice(&body).unwrap_or_default();
                    state.on_text("Why did it go there?", explanation(&why));
                }
                Err(problem) => state.on_text("Why did it go there?", vec![problem]),
            }
        }
    }
}

fn escaped(name: &str) -> String {
    utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()
}

/// Reads keys until nobody wants them.
fn read_keys(sender: &mpsc::Sender<Happening>) {
    while !sender.is_closed() {
        let happening = match event::poll(KEYS) {
            Ok(false) => continue,
            Ok(true) => match event::read() {
                Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => happening(key),
                Ok(Event::Resize(..)) => Some(Happening::Resized),
                Ok(_) => None,
                Err(_) => Some(Happening::Gone),
            },
            Err(_) => Some(Happening::Gone),
        };
        let is_over = matches!(happening, Some(Happening::Gone));
        let is_heard = happening.is_none_or(|one| sender.blocking_send(one).is_ok());
        if is_over || !is_heard {
            return;
        }
    }
}

fn happening(key: KeyEvent) -> Option<Happening> {
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(Happening::Key(match key.code {
        KeyCode::Char('c' | 'd') if is_control => return Some(Happening::Interrupt),
        KeyCode::Char(letter) if !is_control => Key::Char(letter),
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Tab => Key::Tab,
        KeyCode::BackTab => Key::BackTab,
        KeyCode::Up => Key::Move(-1),
        KeyCode::Down => Key::Move(1),
        KeyCode::PageUp => Key::Move(-10),
        KeyCode::PageDown => Key::Move(10),
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_off_for_whoever_says_so() {
        assert!(has_colour(None) && has_colour(Some("")) && !has_colour(Some("1")));
    }

    #[test]
    fn a_dumb_terminal_gets_text_and_no_moves_of_the_cursor() {
        assert!(
            has_screen(None) && has_screen(Some("xterm-256color")) && !has_screen(Some("dumb"))
        );
    }

    #[test]
    fn a_name_is_one_part_of_a_path_whatever_is_in_it() {
        assert_eq!(escaped("a/b?c&d#e f%"), "a%2Fb%3Fc%26d%23e%20f%25");
    }

    #[test]
    fn text_for_a_pipe_has_no_spaces_at_its_ends() {
        let mut state = State::new();
        state.on_document(Document::default());
        let text = text(&state, 80);
        assert!(text.ends_with('\n') && text.lines().all(|line| !line.ends_with(' ')), "{text}");
    }
}
