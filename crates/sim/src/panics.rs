//! Panics of fibers: they print nothing, and the scheduler asks for the place.

use crate::fiber;
use std::cell::RefCell;
use std::panic;

thread_local! {
    /// The place of the last panic of a fiber of this thread.
    static PANICKED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Panics of fibers are failures that are reported later: they print nothing. Once a process.
pub fn quiet_panics() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !fiber::is_inside() {
            return before(info);
        }
        let place = info.location().map_or_else(String::new, ToString::to_string);
        PANICKED.set(Some(place));
    }));
}

/// The place of the last panic of a fiber of this thread; forgets it.
pub(crate) fn panic_place() -> Option<String> {
    PANICKED.take()
}
