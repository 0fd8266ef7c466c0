//! The panic hook: a panic of a fiber prints nothing, and the scheduler asks for its place.

use crate::fiber;
use std::cell::RefCell;
use std::panic;

thread_local! {
    /// The place of the last panic of a fiber of this thread.
    static PANICKED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Installs the hook, once in a process. Panics of fibers print nothing, because they are failures
/// that the simulator reports later.
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

/// Takes the place of the last panic of a fiber of this thread.
pub(crate) fn panic_place() -> Option<String> {
    PANICKED.take()
}
