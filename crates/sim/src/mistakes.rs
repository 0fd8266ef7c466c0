//! Mistakes that the code can be told to make, to prove that the simulator would find them. Each is
//! a place in the code that asks [`drystone_core::sim::broken`].

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Its name.
    pub name: &'static str,
    /// What is wrong then.
    pub what: &'static str,
}

/// All of them.
pub const MISTAKES: [Mistake; 0] = [];

/// The mistake of that name.
pub fn mistake(name: &str) -> Option<&'static Mistake> {
    MISTAKES.iter().find(|mistake| mistake.name == name)
}
