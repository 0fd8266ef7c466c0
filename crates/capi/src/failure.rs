//! Failures as C has them: a negative errno, and a sentence that the thread can ask for.
//!
//! Invariant: nothing unwinds out of [`guarded`].

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use drystone_core::error::ErrorKind;

/// Why a call failed.
#[derive(Debug)]
pub struct Failure {
    /// Positive.
    pub errno: i32,
    /// One sentence.
    pub message: String,
}

/// Result of a call.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A failure with its sentence.
    pub fn new(errno: i32, message: impl Into<String>) -> Self {
        Failure { errno, message: message.into() }
    }

    /// An argument is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(libc::EINVAL, message)
    }
}

impl From<drystone_core::Error> for Failure {
    fn from(error: drystone_core::Error) -> Self {
        let cause = error.source.as_ref().and_then(std::io::Error::raw_os_error);
        let errno = cause.unwrap_or(match error.kind {
            ErrorKind::Invalid => libc::EINVAL,
            ErrorKind::NotFound => libc::ENOENT,
            ErrorKind::Busy => libc::EBUSY,
            ErrorKind::NotSupported => libc::EOPNOTSUPP,
            ErrorKind::Os => libc::EIO,
        });
        Failure { errno, message: error.message }
    }
}

thread_local! {
    /// The C face has no other place for it that every caller has at hand.
    static LAST: RefCell<CString> = RefCell::default();
}

/// The sentence of the latest failure of this thread; lives until the next one.
pub fn last() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Keeps the sentence for [`last`], and gives the negative errno.
pub fn note(failure: &Failure) -> i64 {
    let text = failure.message.replace('\0', " ");
    let text = CString::new(text).unwrap_or_default();
    // A thread that is ending keeps no sentence.
    let _ = LAST.try_with(|last| last.replace(text));
    -i64::from(failure.errno)
}

/// Makes a call, and what becomes of it a number for C.
pub fn guarded(call: impl FnOnce() -> Result<i64>) -> i64 {
    let outcome = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|cause| {
        let message = format!("a fault inside of the library: {}", said(&*cause));
        // To drop what a panic carries could panic again.
        std::mem::forget(cause);
        Err(Failure::new(libc::ENOTRECOVERABLE, message))
    });
    outcome.unwrap_or_else(|failure| note(&failure))
}

fn said(cause: &(dyn Any + Send)) -> &str {
    let owned = cause.downcast_ref::<String>().map(String::as_str);
    owned.or(cause.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// The sentence of the latest failure of this thread, for users in Rust.
pub fn last_message() -> String {
    LAST.with(|last| CStr::to_string_lossy(&last.borrow()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_errno_and_a_sentence() {
        let quiet = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let given = guarded(|| panic!("on {}", "purpose"));
        std::panic::set_hook(quiet);
        assert_eq!(given, -i64::from(libc::ENOTRECOVERABLE));
        assert_eq!(last_message(), "a fault inside of the library: on purpose");
    }

    #[test]
    fn threads_have_sentences_of_their_own() {
        assert_eq!(guarded(|| Err(Failure::invalid("a\0b"))), -22);
        std::thread::scope(|s| _ = s.spawn(|| assert_eq!(last_message(), "")));
        assert_eq!(last_message(), "a b");
        assert_eq!(guarded(|| Ok(7)), 7);
        assert_eq!(last_message(), "a b", "success leaves it");
    }
}
