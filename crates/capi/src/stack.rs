//! A stack as C programs have it: opened, asked and told, closed.
//!
//! Invariant: a stack is closed only while no context of it is open. Contexts are counted in
//! `contexts`, from before they are opened until they have been dropped.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::time::Duration;

use drystone_core::clock::{Ns, SystemClock};
use drystone_stack::control::{self, Control, ServerInfo};
use drystone_stack::live::{LiveDevice, LiveRuntime, LiveStack, OpenEnv};
use drystone_stack::{LoadError, Source, StackSpec, check, load};
use serde_json::Value;

use crate::abi::{ABI_VERSION, Info};
use crate::failure::{Failure, Result};
use crate::fork::Maker;

/// The name of a stack that was given as text, in messages.
const TEXT_NAME: &str = "stack";

/// An open stack. Any thread may use it.
pub struct Stack {
    pub(crate) live: LiveStack,
    runtime: LiveRuntime,
    info: ServerInfo,
    pub(crate) contexts: AtomicUsize,
    pub(crate) maker: Maker,
}

impl Stack {
    /// Opens the stack that the file at `path` describes, for `threads` threads (0: as many as
    /// cores).
    ///
    /// # Errors
    /// EPROTO if `abi` is another version; what is wrong with the file or its devices.
    pub fn open_file(abi: u32, path: &Path, threads: u32) -> Result<Arc<Stack>> {
        check_version(abi)?;
        Self::open(&load(path).map_err(refused)?, threads)
    }

    /// The same with the text of a stack file, whose relative paths start at `folder`.
    ///
    /// # Errors
    /// As for [`Stack::open_file`].
    pub fn open_text(abi: u32, text: &str, folder: &Path, threads: u32) -> Result<Arc<Stack>> {
        check_version(abi)?;
        let folder = std::path::absolute(folder).map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
            Failure::new(errno, format!("the folder {}: {error}", folder.display()))
        })?;
        let source = Source { name: TEXT_NAME.to_owned(), text: text.to_owned() };
        let spec = check(TEXT_NAME, source, &folder).map_err(|r| Failure::invalid(r.render(false)));
        Self::open(&spec?, threads)
    }

    fn open(spec: &StackSpec, threads: u32) -> Result<Arc<Stack>> {
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32),
            threads => threads,
        };
        let at = OpenEnv::new(threads, SystemClock::new());
        let live = LiveStack::open(spec, &at).map_err(|r| Failure::invalid(r.render(false)))?;
        let runtime = live.runtime(Box::new(rest));
        let info = ServerInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            stack: spec.name.clone(),
        };
        let (contexts, maker) = (AtomicUsize::new(0), Maker::this());
        Ok(Arc::new(Stack { live, runtime, info, contexts, maker }))
    }

    /// Ends the stack: flushes every device, stops arrays. Waits for as long as that takes.
    ///
    /// # Errors
    /// EBUSY while contexts are open: then nothing was done. EIO for what could not be done; the
    /// stack is over all the same.
    pub fn close(&self) -> Result<()> {
        match self.contexts.load(Acquire) {
            0 => {}
            1 => return Err(Failure::new(libc::EBUSY, "a context of the stack is open")),
            open => {
                let message = format!("{open} contexts of the stack are open");
                return Err(Failure::new(libc::EBUSY, message));
            }
        }
        self.live.stop();
        self.live.finish(&(Box::new(rest) as _)).map_err(|why| Failure::new(libc::EIO, why))
    }

    /// Answers a line of the control protocol.
    pub fn control(&self, request: &str) -> String {
        if request.len() > control::MAX_LINE_BYTES {
            return control::too_long();
        }
        Control::new(&self.runtime, &self.info).handle(request)
    }

    fn command(&self, command: &str, arguments: &[(&str, &str)]) -> Result<Value> {
        let answer = self.control(&control::request(command, arguments));
        control::response(&answer).map_err(|error| {
            let errno = match error.code.as_str() {
                "not-found" => libc::ENOENT,
                "out-of-range" => libc::ERANGE,
                "unsupported" => libc::EOPNOTSUPP,
                "failed" => libc::EIO,
                "timed-out" => libc::ETIMEDOUT,
                "busy" | "in-use" => libc::EBUSY,
                _ => libc::EINVAL,
            };
            Failure::new(errno, error.message)
        })
    }

    /// The device of that name.
    ///
    /// # Errors
    /// ENOENT if there is none.
    pub fn device(&self, name: &str) -> Result<Arc<LiveDevice>> {
        match self.live.devices().into_iter().find(|live| live.name == name) {
            Some(live) => Ok(live),
            None => Err(self.no_device(name)),
        }
    }

    /// Says which name is near, if one is.
    fn no_device(&self, name: &str) -> Failure {
        let said = self.command("show", &[("device", name)]).err();
        let message = said.map_or_else(|| format!("there is no device `{name}`"), |f| f.message);
        Failure::new(libc::ENOENT, message)
    }

    /// Describes a device.
    ///
    /// # Errors
    /// ENOENT if there is none of that name.
    pub fn device_info(&self, name: &str) -> Result<Info> {
        Ok(Info::from(&self.device(name)?.device.info()))
    }

    /// The value of an attribute.
    ///
    /// # Errors
    /// ENOENT if there is no such device, or it has no such attribute.
    pub fn attribute(&self, device: &str, attribute: &str) -> Result<String> {
        self.device(device)?;
        let shown = self.command("show", &[("device", device)])?;
        let value = shown["attributes"][attribute].as_str();
        value.map(str::to_owned).ok_or_else(|| {
            let message = format!("`{device}` has no attribute `{attribute}`");
            Failure::new(libc::ENOENT, message)
        })
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// See `drystone_attribute_set`; then nothing has changed.
    pub fn set_attribute(&self, device: &str, attribute: &str, value: &str) -> Result<()> {
        self.device(device)?;
        let arguments = [("device", device), ("attribute", attribute), ("value", value)];
        self.command("set", &arguments).map(drop)
    }
}

fn check_version(abi: u32) -> Result<()> {
    if abi == ABI_VERSION {
        return Ok(());
    }
    let message = format!(
        "the program was built for version {abi} of libdrystone's interface, the library has \
         version {ABI_VERSION}: build the program with the library's own drystone.h"
    );
    Err(Failure::new(libc::EPROTO, message))
}

fn refused(error: LoadError) -> Failure {
    let errno = match &error {
        LoadError::Unreadable { error, .. } => error.raw_os_error().unwrap_or(libc::EIO),
        LoadError::NotText { .. } | LoadError::Invalid(_) => libc::EINVAL,
    };
    match error {
        LoadError::Invalid(report) => Failure::new(errno, report.render(false)),
        error => Failure::new(errno, error.to_string()),
    }
}

/// Lets the calling thread rest.
fn rest(ns: Ns) {
    std::thread::sleep(Duration::from_nanos(ns));
}
