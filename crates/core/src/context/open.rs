//! Opening a context of a set.

use super::Context;
use super::core::ContextCore;
use super::env::Env;
use super::set::ContextSet;
use crate::clock::TimeCache;
use crate::error::Result;
use crate::ring::{Engine, Ring};
use std::sync::Arc;

impl ContextSet {
    /// Open a context on `ring` for the calling thread (or one that it will be moved to).
    pub fn context(self: &Arc<Self>, ring: Box<dyn Ring>) -> Context {
        self.free_idle_orphans();
        let time = TimeCache::new(self.clock().clone());
        Context::new(self.add(ring, |ring, locks, handle, id| {
            ContextCore::new(Env::new(ring, time, locks, handle, id))
        }))
    }

    /// Open a context on a ring of `engine`.
    ///
    /// # Errors
    /// When the kernel refuses the ring.
    pub fn open(self: &Arc<Self>, engine: Engine) -> Result<Context> {
        Ok(self.context(crate::ring::open(engine, self.clock().clone())?))
    }
}
