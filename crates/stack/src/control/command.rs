//! A command of the control socket, and the check of its arguments.

use serde_json::Value;

use super::context::Control;
use super::error::ControlError;
use super::object::Object;
use crate::diagnostic::shorten;
use crate::nearest::nearest;
use crate::parse::fields::Value as Checked;
use crate::parse::node::{Node, Raw};
use crate::parse::values::parse_simple;
use crate::schema::Type;

/// A command.
#[derive(Debug, Clone, Copy)]
pub struct Command {
    /// Its name.
    pub name: &'static str,
    /// One line on what it does.
    pub doc: &'static str,
    /// Its arguments.
    pub arguments: &'static [Argument],
    /// Its result.
    pub result: Shape,
    /// Carries it out.
    pub(super) run: Handler,
}

/// Carries out a command with its checked arguments.
pub(super) type Handler = fn(&Control<'_>, &Arguments) -> Result<Value, ControlError>;

/// An argument of a command.
#[derive(Debug, Clone, Copy)]
pub struct Argument {
    /// Its key.
    pub name: &'static str,
    /// The values that it takes.
    pub ty: Type,
    /// True if it must be given.
    pub required: bool,
    /// One line on what it is.
    pub doc: &'static str,
}

pub(super) const fn required(name: &'static str, ty: Type, doc: &'static str) -> Argument {
    Argument { name, ty, required: true, doc }
}

pub(super) const fn optional(name: &'static str, ty: Type, doc: &'static str) -> Argument {
    Argument { name, ty, required: false, doc }
}

impl Argument {
    /// `NAME`, or `[NAME]` if it may be left out.
    pub(super) fn usage(&self) -> String {
        let name = self.name.to_uppercase();
        if self.required { name } else { format!("[{name}]") }
    }
}

/// The object that a command returns: its keys, each with a description of the value.
pub type Shape = &'static [(&'static str, &'static str)];

/// Refuses the first key that is not among the `known`.
pub(super) fn check_known<'k>(
    keys: impl IntoIterator<Item = &'k String>,
    known: &[&str],
) -> Result<(), ControlError> {
    let Some(unknown) = keys.into_iter().find(|key| !known.contains(&key.as_str())) else {
        return Ok(());
    };
    let hint = match nearest(unknown, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None if known.is_empty() => "it takes none".to_owned(),
        None => format!("known: {}", known.join(", ")),
    };
    let message = format!("unknown key `{}`: {hint}", shorten(unknown));
    Err(ControlError::new("bad-request", message))
}

/// The arguments of a request, checked against its command. Each is a text; a time is the text of
/// its nanoseconds. A handler asks by the names of its command's schema. Any other name is our own
/// mistake and panics; the test of all commands would find it.
pub(super) struct Arguments {
    command: &'static Command,
    /// In the order of the schema; `None` is an optional one that is missing.
    texts: Vec<Option<String>>,
}

impl Arguments {
    /// Checks the arguments that are `given` to a command.
    pub(super) fn check(
        command: &'static Command,
        given: &Object<'_>,
    ) -> Result<Self, ControlError> {
        let known: Vec<&str> = command.arguments.iter().map(|argument| argument.name).collect();
        check_known(given.keys(), &known)?;
        let texts = command.arguments.iter().map(|argument| text_of(command, argument, given));
        Ok(Arguments { command, texts: texts.collect::<Result<_, _>>()? })
    }

    /// An argument that may be left out.
    pub(super) fn text_if(&self, name: &str) -> Option<&str> {
        let at = self.command.arguments.iter().position(|argument| argument.name == name);
        let at = at.unwrap_or_else(|| unreachable!("`{}` has no `{name}`", self.command.name));
        self.texts[at].as_deref()
    }

    /// A required argument.
    pub(super) fn text(&self, name: &str) -> &str {
        self.text_if(name).unwrap_or_else(|| unreachable!("`{name}` is required"))
    }

    /// A number, or the nanoseconds of a time, that may be left out.
    pub(super) fn number_if(&self, name: &str) -> Option<u64> {
        let number = self.text_if(name)?.parse();
        Some(number.unwrap_or_else(|_| unreachable!("`{name}` was checked to be a number")))
    }

    /// A required number.
    pub(super) fn number(&self, name: &str) -> u64 {
        self.number_if(name).unwrap_or_else(|| unreachable!("`{name}` is required"))
    }

    /// A switch that may be left out.
    pub(super) fn switch_if(&self, name: &str) -> Option<bool> {
        self.text_if(name).map(|text| text == "true")
    }

    /// True if a switch is given and on.
    pub(super) fn is_on(&self, name: &str) -> bool {
        self.switch_if(name) == Some(true)
    }
}

fn text_of(
    command: &Command,
    argument: &'static Argument,
    given: &Object<'_>,
) -> Result<Option<String>, ControlError> {
    let name = argument.name;
    let wrong = |what: &str| {
        let message = format!("`{}`: argument `{name}` {what}", command.name);
        Err(ControlError::new("bad-request", message))
    };
    let Some(given) = given.get(name) else {
        return if argument.required { wrong("is missing") } else { Ok(None) };
    };
    let written = given.get();
    let text = match serde_json::from_str(written).ok() {
        Some(Value::String(text)) => text,
        Some(Value::Bool(switch)) if argument.ty == Type::Bool => switch.to_string(),
        Some(Value::Number(_) | Value::Bool(_)) if name == "value" => written.to_owned(),
        Some(Value::Number(_)) if is_number(&argument.ty) => written.to_owned(),
        _ if argument.ty == Type::Bool => return wrong("is neither true nor false"),
        _ => return wrong("is no text"),
    };
    match argument.ty {
        Type::Text { max } if text.len() > max => wrong(&format!("is longer than {max} bytes")),
        Type::Bool if text != "true" && text != "false" => wrong("is neither true nor false"),
        Type::Choice(names) if !names.contains(&text.as_str()) => {
            wrong(&format!("is `{}`, not {}", shorten(&text), argument.ty.expected()))
        }
        _ if is_number(&argument.ty) => number(&argument.ty, text).map(Some).or_else(|e| wrong(&e)),
        _ => Ok(Some(text)),
    }
}

fn is_number(ty: &Type) -> bool {
    matches!(ty, Type::Integer { .. } | Type::Duration { .. })
}

/// A number or a time that is within its range.
fn number(ty: &'static Type, text: String) -> Result<String, String> {
    let shown = shorten(&text);
    match parse_simple(ty, &Node { span: 0..0, value: Raw::Word(text) }) {
        Ok(Checked::Number(number)) => Ok(number.to_string()),
        Ok(other) => unreachable!("a number is no {other:?}"),
        Err(refusal) => Err(format!("`{shown}` {}: write {}", refusal.reason, refusal.hint)),
    }
}
