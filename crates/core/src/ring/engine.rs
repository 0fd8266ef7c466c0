//! The choice between the two engines.

use super::Ring;
use super::plain::PlainRing;
use super::uring::UringRing;
use crate::clock::Clock;
use crate::error::Result;
use std::sync::Arc;

/// Which engine to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Engine {
    /// io_uring if the kernel permits it, else the plain one.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// The plain engine.
    Plain,
}

/// Make a ring for a new context.
///
/// # Errors
/// When the engine asked for cannot be had; with [`Engine::Auto`], when neither can.
pub fn open(engine: Engine, clock: Arc<dyn Clock>) -> Result<Box<dyn Ring>> {
    match engine {
        Engine::Plain => PlainRing::open(clock),
        Engine::Uring => UringRing::open(clock),
        Engine::Auto => UringRing::open(clock.clone()).or_else(|_| PlainRing::open(clock)),
    }
}
