//! The live table, drawn.
//!
//! Not the sums (`window`) and not the terminal (`mod`): a function of a picture and of what the
//! user chose, so that a test can look at what is shown. Invariant: what came from the program is
//! cleaned before it reaches the terminal.

use formats::visible;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table, TableState};

use super::choice::{Choice, Order, Table as Shown};
use super::window::{Kind, MethodRow, Picture, ThreadRow};
use crate::units;

/// One core, nanoseconds of CPU time a second.
const CORE: f64 = 1e9;

/// The keys and their effects.
const HELP: [(&str, &str); 11] = [
    ("Tab", "methods or threads"),
    ("s", "sort by self time"),
    ("t", "sort by total time, with what it calls"),
    ("a", "sort by memory allocated"),
    ("n", "sort by name"),
    (
        "/",
        "only rows that have this text; Enter ends, Esc drops it",
    ),
    ("↑ ↓ PgUp PgDn Home End", "move"),
    ("Space", "hold the picture; recording goes on"),
    ("w", "keep the recording when this ends"),
    ("q, Ctrl-C", "end and leave the program"),
    ("?, h", "this help"),
];

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, picture: &Picture, choice: &mut Choice) {
    let [head, body, foot] = Layout::vertical([
        Constraint::Length(4),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(header(picture, choice)), head);
    match choice.table {
        Shown::Methods => methods(frame, body, picture, choice),
        Shown::Threads => threads(frame, body, picture, choice),
    }
    frame.render_widget(Paragraph::new(footer(choice)), foot);
    if choice.shows_help {
        help(frame);
    }
}

fn header(picture: &Picture, choice: &Choice) -> Vec<Line<'static>> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let program = if picture.processes.is_empty() {
        "waiting for the program …".to_owned()
    } else {
        visible(&picture.processes.join("   ")).into_owned()
    };
    let mut runtimes = picture.runtimes.clone();
    runtimes.dedup();
    let runtimes = match runtimes.as_slice() {
        [] => String::new(),
        versions => format!("   .NET {}", visible(&versions.join(", "))),
    };
    let held = if choice.is_held { "   HELD" } else { "" };
    #[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
    let share = |ns: u64| ns as f64 * 100.0 / CORE;
    vec![
        Line::from(vec![
            Span::styled(program, bold),
            Span::raw(runtimes),
            Span::styled(held, Style::new().fg(Color::Yellow)),
        ]),
        Line::from(format!(
            "CPU {:.1} %   allocated {}/s   collections {} ({:.2} % stopped)   lock waits {} ({:.1} %)   exceptions {}",
            share(picture.cpu),
            units::bytes(picture.allocated),
            picture.collections,
            share(picture.paused),
            picture.waits,
            share(picture.waited),
            picture.exceptions,
        )),
        Line::from(format!(
            "the last {}: {} samples, {} broken",
            units::seconds(std::time::Duration::from_nanos(picture.span_ns)),
            picture.samples,
            picture.broken,
        )),
        Line::default(),
    ]
}

fn footer(choice: &Choice) -> Line<'static> {
    if choice.is_typing {
        return Line::from(format!("/{}▏", visible(&choice.filter)));
    }
    let mut said = String::new();
    if !choice.filter.is_empty() {
        said.push_str(&format!("rows with \"{}\"   ", visible(&choice.filter)));
    }
    if let Some(word) = &choice.said {
        said.push_str(&visible(word));
        said.push_str("   ");
    }
    said.push_str("Tab threads/methods  s self  t total  a allocated  / filter  Space hold  w keep  ? help  q quit");
    Line::from(said)
}

fn marked(title: &'static str, is_order: bool) -> String {
    if is_order {
        format!("{title}▾")
    } else {
        title.to_owned()
    }
}

fn percent(ns: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
    let share = ns as f64 * 100.0 / CORE;
    format!("{share:>7.1}")
}

fn rate(bytes: u64) -> String {
    if bytes == 0 {
        String::new()
    } else {
        format!("{}/s", units::bytes(bytes))
    }
}

fn methods(frame: &mut Frame<'_>, area: Rect, picture: &Picture, choice: &mut Choice) {
    let rows = choice.methods(picture);
    let order = choice.order;
    let header = Row::new(vec![
        marked("self %", order == Order::Own),
        marked("total %", order == Order::Total),
        marked("allocated", order == Order::Allocated),
        marked("method", order == Order::Name),
    ]);
    let body = rows.iter().map(|row: &&MethodRow| {
        let colour = match row.kind {
            Kind::Managed => Color::Green,
            Kind::Runtime => Color::Blue,
            Kind::Native => Color::Yellow,
            Kind::Other => Color::DarkGray,
        };
        let allocated = if order == Order::Allocated {
            row.allocated
        } else {
            row.own_allocated
        };
        Row::new(vec![
            Line::from(percent(row.own)).right_aligned(),
            Line::from(percent(row.total)).right_aligned(),
            Line::from(rate(allocated)).right_aligned(),
            Line::styled(visible(&row.name).into_owned(), Style::new().fg(colour)),
        ])
    });
    let widths = [
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(12),
        Constraint::Min(20),
    ];
    let count = rows.len();
    let table = Table::new(body, widths);
    show(frame, area, table, header, count, choice);
}

fn threads(frame: &mut Frame<'_>, area: Rect, picture: &Picture, choice: &mut Choice) {
    let rows = choice.threads(picture);
    let order = choice.order;
    let header = Row::new(vec![
        "tid".to_owned(),
        marked("CPU %", matches!(order, Order::Own | Order::Total)),
        marked("allocated", order == Order::Allocated),
        "locks %".to_owned(),
        marked("thread", order == Order::Name),
        "mostly in".to_owned(),
    ]);
    let body = rows.iter().map(|row: &&ThreadRow| {
        Row::new(vec![
            Line::from(row.tid.to_string()).right_aligned(),
            Line::from(percent(row.cpu)).right_aligned(),
            Line::from(rate(row.allocated)).right_aligned(),
            Line::from(percent(row.waited)).right_aligned(),
            Line::from(visible(&row.name).into_owned()),
            Line::from(visible(&row.hottest).into_owned()),
        ])
    });
    let widths = [
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(12),
        Constraint::Length(8),
        Constraint::Length(24),
        Constraint::Min(20),
    ];
    let count = rows.len();
    let table = Table::new(body, widths);
    show(frame, area, table, header, count, choice);
}

fn show(
    frame: &mut Frame<'_>,
    area: Rect,
    table: Table<'_>,
    header: Row<'_>,
    count: usize,
    choice: &mut Choice,
) {
    choice.page = usize::from(area.height.saturating_sub(1)).max(1);
    choice.selected = choice.selected.min(count.saturating_sub(1));
    let mut state = TableState::default().with_selected((count > 0).then_some(choice.selected));
    let table = table
        .header(header.style(Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    frame.render_stateful_widget(table, area, &mut state);
}

fn help(frame: &mut Frame<'_>) {
    let lines: Vec<Line<'_>> = HELP
        .iter()
        .map(|(key, what)| Line::from(format!(" {key:<24} {what} ")))
        .collect();
    let whole = frame.area();
    let height = u16::try_from(HELP.len() + 2).unwrap_or(u16::MAX);
    let [area] = Layout::vertical([Constraint::Length(height)])
        .flex(ratatui::layout::Flex::Center)
        .areas(whole);
    let [area] = Layout::horizontal([Constraint::Max(86)])
        .flex(ratatui::layout::Flex::Center)
        .areas(area);
    frame.render_widget(Clear, area);
    frame.render_widget(
        Paragraph::new(lines).block(Block::bordered().title(" sidewalk top ")),
        area,
    );
}

#[cfg(test)]
mod tests;
