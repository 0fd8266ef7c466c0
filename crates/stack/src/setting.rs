//! A checked value of an attribute, or of the key of a stack file that sets it.

/// See the module's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// A count, bytes, or nanoseconds, as the attribute's type says.
    Number(u64),
    /// A switch.
    Bool(bool),
    /// One of the type's words.
    Choice(&'static str),
}

impl Setting {
    /// The number of a setting whose type is one.
    pub(crate) fn number(self) -> u64 {
        match self {
            Setting::Number(number) => number,
            other => unreachable!("{other:?} is no number"),
        }
    }

    /// A number whose type fits 32 bits.
    pub(crate) fn number32(self) -> u32 {
        u32::try_from(self.number()).unwrap_or_else(|_| unreachable!("{self:?} fits 32 bits"))
    }

    /// The position of a switch.
    pub(crate) fn is_on(self) -> bool {
        match self {
            Setting::Bool(switch) => switch,
            other => unreachable!("{other:?} is no switch"),
        }
    }

    /// The word of a choice.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Setting::Choice(word) => word,
            other => unreachable!("{other:?} is no choice"),
        }
    }

    /// The value as devices take it.
    pub(crate) fn text(self) -> String {
        match self {
            Setting::Number(number) => number.to_string(),
            Setting::Bool(switch) => u8::from(switch).to_string(),
            Setting::Choice(word) => word.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_take_switches_as_digits() {
        let texts = [Setting::Number(12), Setting::Bool(true), Setting::Bool(false)];
        assert_eq!(texts.map(Setting::text), ["12", "1", "0"]);
        assert_eq!(Setting::Choice("write back").text(), "write back");
    }
}
