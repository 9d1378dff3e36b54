use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent};

use super::*;
use crate::top::window::tests::{scene, window_of};

const SECOND: u64 = 1_000_000_000;

fn drawn(picture: &Picture, choice: &mut Choice) -> String {
    let mut terminal = Terminal::new(TestBackend::new(100, 14)).unwrap();
    terminal.draw(|frame| draw(frame, picture, choice)).unwrap();
    terminal.backend().to_string()
}

fn picture() -> Picture {
    window_of(&scene(), 60 * SECOND).picture(9 * SECOND)
}

fn press(choice: &mut Choice, keys: &[KeyCode]) {
    for key in keys {
        choice.key(KeyEvent::from(*key));
    }
}

#[test]
fn methods_then_threads_then_help() {
    let (picture, mut choice) = (picture(), Choice::default());
    insta::assert_snapshot!("methods", drawn(&picture, &mut choice));
    press(&mut choice, &[KeyCode::Tab]);
    insta::assert_snapshot!("threads", drawn(&picture, &mut choice));
    press(&mut choice, &[KeyCode::Char('?')]);
    insta::assert_snapshot!("help", drawn(&picture, &mut choice));
}

#[test]
fn nothing_yet() {
    insta::assert_snapshot!(drawn(&Picture::default(), &mut Choice::default()));
}

#[test]
fn a_hostile_name_does_not_reach_the_terminal() {
    let mut picture = picture();
    for row in &mut picture.methods {
        row.name = "Evil\u{1b}[2J\u{7}\u{202e}name".to_owned();
    }
    picture.processes = vec!["1 \u{1b}]0;owned\u{7}".to_owned()];
    let shown = drawn(&picture, &mut Choice::default());
    let raw = shown
        .chars()
        .filter(|c| c.is_control() && *c != '\n')
        .count();
    assert_eq!(raw, 0, "{shown}");
    assert!(!shown.contains('\u{202e}'), "{shown}");
}

#[test]
fn the_last_row_can_be_reached_and_no_further() {
    let (mut picture, mut choice) = (picture(), Choice::default());
    let row = picture.methods.first().cloned().unwrap();
    picture.methods = (0..50)
        .map(|index| MethodRow {
            name: format!("Method{index:02}"),
            ..row.clone()
        })
        .collect();
    press(&mut choice, &[KeyCode::End]);
    assert!(drawn(&picture, &mut choice).contains("Method49"));
    press(&mut choice, &[KeyCode::Down]);
    drawn(&picture, &mut choice);
    press(&mut choice, &[KeyCode::Up]);
    drawn(&picture, &mut choice);
    assert_eq!(choice.selected, 48);
}
