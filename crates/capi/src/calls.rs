//! The functions of `include/drystone.h`. Each only makes Rust of its arguments, within
//! [`guarded`]; the header says what it does and which thread may call it.
//!
//! Invariants:
//! - A `drystone_stack *` of C is an `Arc<Stack>` that was released, and a `drystone_context *` a
//!   `Box<Cell>`; they are taken back by the closing functions alone.
//! - The queue of a cell is touched only by the one thread at a time that may call functions on a
//!   context; its waker by any.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, OnceLock};

use crate::abi::{ABI_VERSION, Completion, Info, Io};
use crate::failure::{self, Failure, Result, guarded};
use crate::fork::{self, Maker};
use crate::queue::{Queue, Wake};
use crate::stack::Stack;

/// The target of a `drystone_context *`.
pub struct Cell {
    /// Only a call that has raised `entered` may refer to it.
    queue: UnsafeCell<Queue>,
    /// A call is inside, or was left by a panic.
    entered: AtomicBool,
    wake: Arc<Wake>,
    maker: Maker,
}

/// The library's version, with the 0 that C needs.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn drystone_abi_version() -> u32 {
    ABI_VERSION
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn drystone_version() -> *const c_char {
    VERSION.as_ptr().cast()
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn drystone_last_error() -> *const c_char {
    failure::last()
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn drystone_stack_open_file(
    abi: u32,
    path: *const c_char,
    threads: u32,
    stack: *mut *const Stack,
) -> c_int {
    number(|| {
        // SAFETY: C gives texts that end, and a place for the result.
        unsafe {
            let path = Path::new(text(path, "path")?);
            give(stack, || {
                watch_forks()?;
                Stack::open_file(abi, path, threads).map(Arc::into_raw)
            })
        }
    })
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn drystone_stack_open_text(
    abi: u32,
    toml: *const c_char,
    folder: *const c_char,
    threads: u32,
    stack: *mut *const Stack,
) -> c_int {
    number(|| {
        // SAFETY: C gives texts that end, and a place for the result.
        unsafe {
            let folder = if folder.is_null() { "." } else { text(folder, "folder")? };
            let toml = text(toml, "text")?;
            give(stack, || {
                watch_forks()?;
                Stack::open_text(abi, toml, Path::new(folder), threads).map(Arc::into_raw)
            })
        }
    })
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn drystone_stack_close(stack: *const Stack) -> c_int {
    number(|| {
        if stack.is_null() {
            return Ok(0);
        }
        // SAFETY: a stack that was opened and not closed.
        let open = unsafe { on_stack(stack)? };
        let closed = open.close();
        if !closed.as_ref().is_err_and(|failure| failure.errno == libc::EBUSY) {
            // SAFETY: as it was given to C; the program uses it no more.
            drop(unsafe { Arc::from_raw(stack) });
        }
        closed.map(|()| 0)
    })
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn drystone_stack_control(
    stack: *const Stack,
    request: *const c_char,
    answer: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: C gives a stack, a text that ends and room for `size` bytes.
    number(|| unsafe {
        let said = on_stack(stack)?.control(text(request, "request")?);
        Ok(put(&said, answer, size))
    })
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn drystone_device_info(
    stack: *const Stack,
    device: *const c_char,
    info: *mut Info,
) -> c_int {
    // SAFETY: C gives a stack, a text that ends and a place for the result.
    number(|| unsafe {
        let device = text(device, "device")?;
        let stack = on_stack(stack)?;
        give(info, || stack.device_info(device))
    })
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn drystone_attribute_get(
    stack: *const Stack,
    device: *const c_char,
    attribute: *const c_char,
    value: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: C gives a stack, texts that end and room for `size` bytes.
    number(|| unsafe {
        let (device, attribute) = (text(device, "device")?, text(attribute, "attribute")?);
        Ok(put(&on_stack(stack)?.attribute(device, attribute)?, value, size))
    })
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn drystone_attribute_set(
    stack: *const Stack,
    device: *const c_char,
    attribute: *const c_char,
    value: *const c_char,
) -> c_int {
    // SAFETY: C gives a stack and texts that end.
    number(|| unsafe {
        let (device, attribute) = (text(device, "device")?, text(attribute, "attribute")?);
        on_stack(stack)?.set_attribute(device, attribute, text(value, "value")?).map(|()| 0)
    })
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn drystone_context_open(
    stack: *const Stack,
    context: *mut *mut Cell,
) -> c_int {
    number(|| {
        // SAFETY: a stack as it was given to C, of which this is one user more.
        let stack = unsafe {
            on_stack(stack)?;
            Arc::increment_strong_count(stack);
            Arc::from_raw(stack)
        };
        let open = || {
            let queue = Queue::open(&stack)?;
            let (wake, maker) = (queue.waker(), Maker::this());
            let (queue, entered) = (UnsafeCell::new(queue), AtomicBool::new(false));
            let cell = Cell { queue, entered, wake, maker };
            Ok(Box::into_raw(Box::new(cell)))
        };
        // SAFETY: a place for the result.
        unsafe { give(context, open) }
    })
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn drystone_context_close(context: *mut Cell, timeout: u64) -> c_int {
    if context.is_null() {
        return 0;
    }
    // SAFETY: a context that was opened and not closed, used by this thread alone.
    let closed = unsafe { inside(context, |queue| queue.close(timeout).map(|()| 0)) };
    if closed == 0 {
        // SAFETY: as it was given to C; nothing of it is in flight, and the program uses it no
        // more.
        return number(|| unsafe {
            drop(Box::from_raw(context));
            Ok(0)
        });
    }
    closed as c_int
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn drystone_context_device(
    context: *mut Cell,
    device: *const c_char,
) -> c_int {
    // SAFETY: C gives a context that this thread alone uses, and a text that ends.
    let given =
        unsafe { inside(context, |queue| Ok(i64::from(queue.device(text(device, "device")?)?))) };
    given as c_int
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn drystone_context_group(context: *mut Cell, path: *const c_char) -> c_int {
    // SAFETY: C gives a context that this thread alone uses, and a text that ends.
    unsafe { inside(context, |queue| queue.group(text(path, "path")?).map(|()| 0)) as c_int }
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn drystone_context_memory(
    context: *mut Cell,
    size: usize,
    memory: *mut *mut c_void,
) -> c_int {
    // SAFETY: C gives a context that this thread alone uses, and a place for the result.
    let given = unsafe {
        inside(context, |queue| {
            let mut is_known = false;
            give(memory, || {
                let (start, known) = queue.memory(size)?;
                is_known = known;
                Ok(start.cast())
            })?;
            Ok(i64::from(!is_known))
        })
    };
    given as c_int
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn drystone_submit(
    context: *mut Cell,
    ios: *const Io,
    count: usize,
) -> c_int {
    // SAFETY: C gives a context that this thread alone uses, `count` I/Os, and their memory until
    // they were reaped.
    let given = unsafe {
        inside(context, |queue| {
            let ios = array(ios.cast_mut(), count, "ios")?;
            Ok(queue.submit(ios)? as i64)
        })
    };
    given as c_int
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn drystone_reap(
    context: *mut Cell,
    completions: *mut MaybeUninit<Completion>,
    count: usize,
) -> c_int {
    // SAFETY: C gives a context that this thread alone uses, and room for `count` completions.
    let given = unsafe {
        inside(context, |queue| Ok(queue.reap(array(completions, count, "completions")?) as i64))
    };
    given as c_int
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn drystone_poll(
    context: *mut Cell,
    completions: *mut MaybeUninit<Completion>,
    count: usize,
) -> c_int {
    // SAFETY: C gives a context that this thread alone uses, and room for `count` completions.
    let given = unsafe {
        inside(context, |queue| Ok(queue.poll(array(completions, count, "completions")?) as i64))
    };
    given as c_int
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn drystone_wait(
    context: *mut Cell,
    completions: *mut MaybeUninit<Completion>,
    count: usize,
    least: usize,
    timeout: u64,
) -> c_int {
    // SAFETY: C gives a context that this thread alone uses, and room for `count` completions.
    let given = unsafe {
        inside(context, |queue| {
            Ok(queue.wait(array(completions, count, "completions")?, least, timeout) as i64)
        })
    };
    given as c_int
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn drystone_context_wake(context: *mut Cell) -> c_int {
    number(|| {
        // SAFETY: a context that is open. The queue inside, which its thread may be using, is not
        // touched.
        let cell = unsafe { context.as_ref() }.ok_or_else(null_context)?;
        cell.maker.check()?;
        cell.wake.wake();
        Ok(0)
    })
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn drystone_outstanding(context: *mut Cell) -> i64 {
    // SAFETY: C gives a context that this thread alone uses.
    unsafe { inside(context, |queue| Ok(queue.outstanding() as i64)) }
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn drystone_context_event(context: *mut Cell) -> c_int {
    // SAFETY: C gives a context that this thread alone uses.
    unsafe { inside(context, |queue| queue.event().map(i64::from)) as c_int }
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn drystone_context_clear(context: *mut Cell) -> c_int {
    // SAFETY: C gives a context that this thread alone uses.
    let given = unsafe {
        inside(context, |queue| {
            queue.clear();
            Ok(0)
        })
    };
    given as c_int
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn drystone_context_timeout(context: *mut Cell) -> i64 {
    // SAFETY: C gives a context that this thread alone uses.
    unsafe { inside(context, |queue| Ok(queue.timeout())) }
}

fn number(call: impl FnOnce() -> Result<i64>) -> c_int {
    guarded(call) as c_int
}

fn null_context() -> Failure {
    Failure::invalid("the context is NULL")
}

/// Makes a call on a context.
///
/// # Safety
/// A context that is open and that this thread alone uses, or NULL.
unsafe fn inside(context: *mut Cell, call: impl FnOnce(&mut Queue) -> Result<i64>) -> i64 {
    guarded(|| {
        // SAFETY: as this function's.
        let cell = unsafe { context.as_ref() }.ok_or_else(null_context)?;
        cell.maker.check()?;
        // Acquire: what the last call did, on whatever thread.
        if cell.entered.swap(true, Acquire) {
            let message = "another thread is in a call on this context, or one of its calls \
                           failed inside of the library";
            return Err(Failure::new(libc::ENOTRECOVERABLE, message));
        }
        // SAFETY: the queue is touched by calls on the context alone, and this is the only one.
        let outcome = call(unsafe { &mut *cell.queue.get() });
        // Release: what this one did. A panic leaves it closed.
        cell.entered.store(false, Release);
        outcome
    })
}

/// # Safety
/// A stack that is open, or NULL.
unsafe fn on_stack<'a>(stack: *const Stack) -> Result<&'a Stack> {
    // SAFETY: as this function's.
    let open = unsafe { stack.as_ref() }.ok_or_else(|| Failure::invalid("the stack is NULL"))?;
    open.maker.check()?;
    Ok(open)
}

/// Has forks counted from now on. Before the first stack there is nothing that a child must not
/// use.
fn watch_forks() -> Result<()> {
    static WATCHED: OnceLock<c_int> = OnceLock::new();
    // SAFETY: the handler takes nothing, adds to a counter, and stays: the library is never
    // unloaded.
    let watch = || unsafe { libc::pthread_atfork(None, None, Some(fork::in_child)) };
    match *WATCHED.get_or_init(watch) {
        0 => Ok(()),
        errno => Err(Failure::new(errno, "forks of the program cannot be watched")),
    }
}

/// # Safety
/// A text that ends with a 0 and stays during the call, or NULL.
unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str> {
    if text.is_null() {
        return Err(Failure::invalid(format!("{what} is NULL")));
    }
    // SAFETY: as this function's.
    let bytes = unsafe { CStr::from_ptr(text) };
    bytes.to_str().map_err(|error| {
        let at = error.valid_up_to();
        Failure::invalid(format!("{what} is no UTF-8 text: see its byte {at}"))
    })
}

/// # Safety
/// Room for `count` values that this call alone uses, or NULL.
unsafe fn array<'a, T>(start: *mut T, count: usize, what: &str) -> Result<&'a mut [T]> {
    if count == 0 {
        return Ok(&mut []);
    }
    if start.is_null() || !start.is_aligned() || count > c_int::MAX as usize {
        return Err(Failure::invalid(format!("{what} is NULL, out of line, or too long")));
    }
    // SAFETY: as this function's.
    Ok(unsafe { std::slice::from_raw_parts_mut(start, count) })
}

/// Makes a value for C. Without a place to put it nothing is made: nobody could close it.
///
/// # Safety
/// A place for the value, or NULL.
unsafe fn give<T>(place: *mut T, make: impl FnOnce() -> Result<T>) -> Result<i64> {
    if place.is_null() || !place.is_aligned() {
        return Err(Failure::invalid("the place for the result is NULL or out of line"));
    }
    // SAFETY: as this function's; what was there is no value of ours.
    unsafe { place.write(make()?) };
    Ok(0)
}

/// Puts a text and its final 0, cut to `size` bytes; gives its whole length.
///
/// # Safety
/// Room for `size` bytes.
unsafe fn put(text: &str, place: *mut c_char, size: usize) -> i64 {
    if !place.is_null() && size > 0 {
        let length = text.len().min(size - 1);
        // SAFETY: as this function's.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), place.cast(), length);
            place.add(length).write(0);
        }
    }
    text.len() as i64
}
