//! Handles that close what they opened, and stacks to try.
//!
//! Every unsafe block here is a call into the C face: texts and places are locals that outlive the
//! call, handles are open, and buffers outlive their context, which is closed before them or waits
//! for them when it is dropped.

#![allow(dead_code, reason = "each file of tests uses some of it")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "argued above, once for all")]

use std::ffi::{CStr, CString};
use std::path::Path;
use std::ptr::null_mut;

use drystone_capi::abi::{ABI_VERSION, Completion, FOREVER, Info, Io};
use drystone_capi::calls::*;

pub const WRITE: u16 = 1;
pub const FLUSH: u16 = 2;
pub const DISCARD: u16 = 3;
pub const WRITE_ZEROES: u16 = 9;

pub const RAM: &str = "[device.d]\ntype = \"ram\"\nsize = \"1MiB\"\n\
    [device.ro]\ntype = \"ram\"\nsize = \"1MiB\"\nread_only = true\n";
pub const LINEAR: &str = "[device.r]\ntype = \"ram\"\nsize = \"1MiB\"\n\
    [device.v]\ntable = \"0 2048 linear r 0\"\n";
pub const SLOW: &str = "[device.slow]\ntype = \"null\"\nirqmode = \"timer\"\n\
    completion_nsec = \"100ms\"\n";
pub const POLLED: &str =
    "[device.n]\ntype = \"null\"\npoll_queues = 1\nqueue = { io_poll = true }\n";
pub const GROUP: &str = "[device.d]\ntype = \"ram\"\nsize = \"1MiB\"\n\
    [group.tenants]\n[group.\"tenants/a\"]\nio.max = [\"d riops=1000\"]\n";

/// A file device `f` with further keys.
pub fn file(keys: &str) -> String {
    format!("[device.f]\ntype = \"file\"\npath = \"f.img\"\nsize = \"1MiB\"\n{keys}\n")
}

/// An array of three files.
pub fn array() -> String {
    let file =
        |n| format!("[device.m{n}]\ntype = \"file\"\npath = \"m{n}.img\"\nsize = \"8MiB\"\n");
    let files: String = (0..3).map(file).collect();
    format!("{files}[device.array]\ntype = \"raid5\"\nmembers = [\"m0\", \"m1\", \"m2\"]\n")
}

/// A read of the whole of `memory` from device 0.
pub fn io(tag: u64, offset: u64, memory: &mut [u8]) -> Io {
    Io {
        tag,
        offset,
        length: memory.len() as u64,
        buffer: memory.as_mut_ptr().cast(),
        device: 0,
        vectors: 0,
        op: 0,
        flags: 0,
        priority_class: 0,
        priority_level: 0,
        reserved: 0,
    }
}

pub fn piece(memory: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() }
}

pub fn last_error() -> String {
    unsafe { CStr::from_ptr(drystone_last_error()) }.to_str().unwrap().to_owned()
}

/// Opens a stack from its text, or gives the negative errno.
pub fn try_open(text: &str, folder: impl AsRef<Path>) -> Result<Stack, i32> {
    let text = CString::new(text).unwrap();
    let folder = CString::new(folder.as_ref().to_str().unwrap()).unwrap();
    let mut raw = std::ptr::null();
    let given = unsafe {
        drystone_stack_open_text(ABI_VERSION, text.as_ptr(), folder.as_ptr(), 2, &raw mut raw)
    };
    if given == 0 { Ok(Stack { raw }) } else { Err(given) }
}

/// An open stack, closed in the end.
#[derive(Debug, PartialEq)]
pub struct Stack {
    pub raw: *const drystone_capi::stack::Stack,
}

impl Stack {
    pub fn open(text: &str) -> Stack {
        Self::open_in(text, Path::new("."))
    }

    pub fn open_in(text: &str, folder: &Path) -> Stack {
        try_open(text, folder).unwrap_or_else(|errno| panic!("{errno}: {}", last_error()))
    }

    pub fn context(&self) -> Context {
        Context::of(self.raw)
    }

    pub fn info(&self, device: &str) -> Result<Info, i32> {
        let device = CString::new(device).unwrap();
        let mut info = Info::default();
        match unsafe { drystone_device_info(self.raw, device.as_ptr(), &raw mut info) } {
            0 => Ok(info),
            errno => Err(errno),
        }
    }

    pub fn get(&self, device: &str, attribute: &str) -> Result<String, i32> {
        let (device, name) = (CString::new(device).unwrap(), CString::new(attribute).unwrap());
        let mut value = [0 as libc::c_char; 4096];
        let (place, size) = (value.as_mut_ptr(), value.len());
        let length = unsafe {
            drystone_attribute_get(self.raw, device.as_ptr(), name.as_ptr(), place, size)
        };
        if length < 0 {
            return Err(length);
        }
        let text = unsafe { CStr::from_ptr(value.as_ptr()) }.to_str().unwrap();
        assert_eq!(text.len(), length as usize);
        Ok(text.to_owned())
    }

    pub fn set(&self, device: &str, attribute: &str, value: &str) -> i32 {
        let [device, attribute, value] =
            [device, attribute, value].map(|text| CString::new(text).unwrap());
        let (device, attribute) = (device.as_ptr(), attribute.as_ptr());
        unsafe { drystone_attribute_set(self.raw, device, attribute, value.as_ptr()) }
    }

    pub fn control(&self, request: &str) -> String {
        let request = CString::new(request).unwrap();
        let mut answer = vec![0 as libc::c_char; 65536];
        let (place, size) = (answer.as_mut_ptr(), answer.len());
        let length = unsafe { drystone_stack_control(self.raw, request.as_ptr(), place, size) };
        assert!((1..65536).contains(&length));
        unsafe { CStr::from_ptr(answer.as_ptr()) }.to_str().unwrap().to_owned()
    }

    /// The result of closing.
    pub fn close(self) -> i32 {
        let raw = self.raw;
        std::mem::forget(self);
        unsafe { drystone_stack_close(raw) }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        let given = unsafe { drystone_stack_close(self.raw) };
        assert!(given == 0 || std::thread::panicking(), "{given}: {}", last_error());
    }
}

/// An open context, closed in the end.
pub struct Context {
    pub raw: *mut Cell,
}

impl Context {
    pub fn of(stack: *const drystone_capi::stack::Stack) -> Context {
        let mut raw = null_mut();
        assert_eq!(unsafe { drystone_context_open(stack, &raw mut raw) }, 0, "{}", last_error());
        Context { raw }
    }

    pub fn device(&mut self, name: &str) -> u32 {
        let name = CString::new(name).unwrap();
        let given = unsafe { drystone_context_device(self.raw, name.as_ptr()) };
        assert!(given >= 0, "{given}: {}", last_error());
        given as u32
    }

    pub fn group(&mut self, path: &str) -> i32 {
        let path = CString::new(path).unwrap();
        unsafe { drystone_context_group(self.raw, path.as_ptr()) }
    }

    pub fn submit(&mut self, ios: &[Io]) -> i32 {
        unsafe { drystone_submit(self.raw, ios.as_ptr(), ios.len()) }
    }

    /// Tags and results of at most `most` completions.
    pub fn reap(&mut self, most: usize) -> Vec<(u64, i32)> {
        let mut done = vec![Completion::default(); most];
        let came = unsafe { drystone_reap(self.raw, done.as_mut_ptr().cast(), most) };
        done[..came as usize].iter().map(|c| (c.tag, c.result)).collect()
    }

    pub fn wait(&mut self, least: usize, timeout: u64) -> Vec<(u64, i32)> {
        let mut done = [Completion::default(); 16];
        let place = done.as_mut_ptr().cast();
        let came = unsafe { drystone_wait(self.raw, place, done.len(), least, timeout) };
        done[..came as usize].iter().map(|c| (c.tag, c.result)).collect()
    }

    /// Submits and waits for all.
    pub fn run(&mut self, ios: &[Io]) -> Vec<(u64, i32)> {
        assert_eq!(self.submit(ios), ios.len() as i32, "{}", last_error());
        self.wait(ios.len(), FOREVER)
    }

    pub fn outstanding(&mut self) -> usize {
        unsafe { drystone_outstanding(self.raw) as usize }
    }

    /// The result of closing; it is tried again in the end.
    pub fn close(&mut self, timeout: u64) -> i32 {
        let given = unsafe { drystone_context_close(self.raw, timeout) };
        if given == 0 {
            self.raw = null_mut();
        }
        given
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let given = self.close(FOREVER);
        assert!(given == 0 || std::thread::panicking(), "{given}: {}", last_error());
    }
}

/// Sleeps until the descriptor is readable or the time has passed; false if neither came in 20 s.
pub fn sleep_on(fd: i32, timeout: i64) -> bool {
    let ms = if timeout < 0 { 20_000 } else { (timeout as u64).div_ceil(1_000_000) as i32 };
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let came = unsafe { libc::poll(&raw mut poll, 1, ms) };
    came == 1 || timeout >= 0
}
