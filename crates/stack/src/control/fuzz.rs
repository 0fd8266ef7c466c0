//! The entry point of the fuzz target `control_line`.

use super::fake::Fake;
use super::{CODES, Control, Line, LineBuffer, ServerInfo, response};
use serde_json::Value;

/// Feeds bytes as from a client. The first byte gives the size of the pieces in which they arrive.
///
/// # Panics
/// If a response is not one object with either a result or an error of a known code, or has another
/// `id` than its request; or if the lines differ when the bytes arrive at once.
pub fn fuzz_control(data: &[u8]) {
    let Some((piece, bytes)) = data.split_first() else { return };
    let (runtime, server) =
        (Fake::new(), ServerInfo { version: "0".to_owned(), pid: 1, stack: "s".to_owned() });
    let control = Control::new(&runtime, &server);
    let mut buffer = LineBuffer::default();
    let pieces = bytes.chunks(usize::from(*piece).max(1));
    let lines: Vec<Line> = pieces.flat_map(|piece| buffer.push(piece)).collect();
    assert_eq!(lines, LineBuffer::default().push(bytes));
    for line in lines {
        if let Line::Whole(line) = line {
            check_answer(&line, &control.handle(&line));
        }
    }
}

fn check_answer(line: &str, answer: &str) {
    assert!(!answer.contains('\n'), "{answer:?}");
    let object: Value = serde_json::from_str(answer).expect("an answer is JSON");
    let object = object.as_object().expect("an answer is an object");
    assert!(object.contains_key("result") != object.contains_key("error"), "{answer}");
    if let Err(error) = response(answer) {
        assert!(CODES.iter().any(|(code, _)| *code == error.code), "{answer}");
    }
    // Numbers of any length must come back unchanged, which this JSON parser cannot check.
    if let Ok(Value::Object(request)) = serde_json::from_str(line)
        && let (Some(id @ Value::String(_)), Some(back)) = (request.get("id"), object.get("id"))
    {
        assert_eq!(id, back);
    }
}
