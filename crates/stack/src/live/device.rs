//! Opens one device of a checked stack.

use std::cell::OnceCell;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;

use drystone_core::clock::Clock;
use drystone_core::device::TypedDevice;
use drystone_core::ring::{self, Engine};
use drystone_core::sync::LockRegistry;
use drystone_core::{ContextSet, Device, Error};
use drystone_drivers::file::{File, FileOptions};
use drystone_drivers::null::{Completion, CompletionThread, Null, NullOptions};
use drystone_drivers::ram::Ram;
use drystone_queue::queue::{QueueOptions, default_scheduler, most_requests};
use drystone_queue::scheduler::{MqDeadline, Scheduler};
use drystone_queue::{Driver, RequestQueue};
use drystone_throttle::{DeviceThrottle, Groups, Throttle, Throttled};

use super::open_env::{OpenEnv, OpenError, Platform};
use super::shape::{Shape, Shaped};
use super::table::open_volume;
use crate::events::Events;
use crate::spec::{Create, DeviceKind, DeviceSpec, FileSpec, NullSpec, RamSpec};

impl OpenEnv {
    /// The environment of `threads` data threads on `clock`, with a lock registry of its own.
    pub fn new(threads: u32, clock: Arc<dyn Clock>) -> Self {
        let locks = LockRegistry::new(clock.clone());
        let groups = Groups::new(clock.clone(), &locks);
        let open = open_with::<MqDeadline, DeviceThrottle>;
        let events = Events::new(clock.clone(), locks.counters());
        let null_thread = OnceCell::new();
        let contexts = ContextSet::counted_by(locks.clone());
        let platform = Platform::default();
        OpenEnv {
            threads,
            locks,
            clock,
            open,
            groups,
            null_thread,
            files: None,
            contexts,
            platform,
            events,
        }
    }
}

/// Opens the device that `spec` describes, behind its request queue.
///
/// # Errors
/// [`OpenError`]; then nothing stays open, and a file that was made is removed again.
pub fn open_device(spec: &DeviceSpec, at: &OpenEnv) -> Result<Arc<dyn Device>, OpenError> {
    (at.open)(spec, at)
}

/// Opens a device, with `S` in the place of the scheduler `mq-deadline`, behind the throttle `T`.
///
/// # Errors
/// As for [`open_device`].
pub fn open_with<S: Scheduler, T: Throttle>(
    spec: &DeviceSpec,
    at: &OpenEnv,
) -> Result<Arc<dyn Device>, OpenError> {
    let opening = Opening { spec, at, variant: PhantomData::<(S, T)> };
    match &spec.kind {
        DeviceKind::File(file) => opening.file(file),
        DeviceKind::Ram(ram) => opening.ram(ram),
        DeviceKind::Null(null) => opening.null(null),
        // Only devices without members can be opened here.
        DeviceKind::Volume(volume) => {
            Ok(Arc::new(opening.throttled(open_volume(spec, volume, &|_| None, at)?)) as _)
        }
        DeviceKind::Raid(_) => {
            Err(opening.error("members", "an array is opened with its members", ""))
        }
    }
}

/// The ring's engine that a device asks for.
///
/// # Errors
/// When it must be io_uring and the kernel does not permit it.
pub fn engine_of(spec: &DeviceSpec, clock: &Arc<dyn Clock>) -> Result<Engine, OpenError> {
    let DeviceKind::File(file) = &spec.kind else { return Ok(Engine::Auto) };
    if file.engine == Engine::Uring
        && let Err(error) = ring::open(Engine::Uring, clock.clone())
    {
        return Err(OpenError {
            device: spec.name.clone(),
            key: "engine",
            message: error.message,
            hint: "engine = \"auto\" takes io_uring only where it is permitted".to_owned(),
        });
    }
    Ok(file.engine)
}

/// The file that opening the device would make.
pub(super) fn file_to_make<'a>(spec: &'a DeviceSpec, at: &OpenEnv) -> Option<&'a Path> {
    let DeviceKind::File(file) = &spec.kind else { return None };
    let makes = match &at.files {
        Some(files) => (files.makes)(file),
        None => !file.options.path.exists(),
    };
    makes.then_some(&file.options.path)
}

/// Removes the file of a device that was created and then not used: the file to which the path
/// leads, not a link that was there before. The device is still open, so no other user has begun to
/// use the file.
pub(super) fn remove_file(path: &Path) {
    // If it cannot be removed, an empty sparse file stays behind; the start has failed anyway.
    let _ = std::fs::canonicalize(path).and_then(std::fs::remove_file);
}

struct Opening<'a, S, T> {
    spec: &'a DeviceSpec,
    at: &'a OpenEnv,
    variant: PhantomData<(S, T)>,
}

impl<S: Scheduler, T: Throttle> Opening<'_, S, T> {
    fn error(
        &self,
        key: &'static str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> OpenError {
        OpenError {
            device: self.spec.name.clone(),
            key,
            message: message.into(),
            hint: hint.into(),
        }
    }

    fn refused(&self, key: &'static str) -> impl Fn(Error) -> OpenError + '_ {
        move |error| self.error(key, error.message, "")
    }

    fn file(&self, file: &FileSpec) -> Result<Arc<dyn Device>, OpenError> {
        match &self.at.files {
            Some(files) => {
                self.queue((files.open)(file).map_err(self.refused("path"))?, self.shape())
            }
            None => self.file_of_the_system(file),
        }
    }

    fn file_of_the_system(&self, file: &FileSpec) -> Result<Arc<dyn Device>, OpenError> {
        let existed = file.options.path.exists();
        let shown = file.options.path.display();
        match file.create {
            Create::New if existed => {
                let hint = "remove create = \"new\", or name another file";
                return Err(self.error("path", format!("{shown} exists"), hint));
            }
            Create::Never if !existed => {
                let message = format!("{shown} does not exist, and create is \"never\"");
                return Err(self.error("path", message, "name a file that exists"));
            }
            _ => {}
        }
        let options = FileOptions {
            logical_block_size: self.spec.logical_block_size,
            read_only: self.spec.read_only,
            ..file.options.clone()
        };
        let driver = File::open(&options).map_err(self.refused("path"))?;
        let queued = self.queue(driver, self.shape());
        if queued.is_err() && !existed {
            remove_file(&file.options.path);
        }
        queued
    }

    fn ram(&self, ram: &RamSpec) -> Result<Arc<dyn Device>, OpenError> {
        let driver = Ram::new(ram.size, ram.discard).map_err(self.refused("size"))?;
        self.queue(driver, self.shape())
    }

    fn null(&self, spec: &NullSpec) -> Result<Arc<dyn Device>, OpenError> {
        let queues = spec.submit_queues.or(self.spec.hw_queues);
        let by_itself =
            if spec.options.seek.is_some() { 1 } else { self.at.threads.clamp(1, 1024) };
        let options = NullOptions {
            blocksize: self.spec.logical_block_size.unwrap_or(spec.options.blocksize),
            submit_queues: queues.unwrap_or(by_itself),
            ..spec.options.clone()
        };
        let thread = self.thread(&options)?;
        let driver = Null::on_thread(options, thread).map_err(self.refused("type"))?;
        self.queue(driver, Shape { hw_queues: None, ..self.shape() })
    }

    /// One thread completes for all null devices whose requests take time.
    fn thread(&self, null: &NullOptions) -> Result<Option<CompletionThread>, OpenError> {
        let takes_time = null.latency.as_ref().is_some_and(|latency| !latency.is_zero());
        if null.irqmode != Completion::Thread || !takes_time {
            return Ok(None);
        }
        if self.at.null_thread.get().is_none() {
            let thread = CompletionThread::start().map_err(self.refused("irqmode"))?;
            let _ = self.at.null_thread.set(thread);
        }
        Ok(self.at.null_thread.get().cloned())
    }

    fn shape(&self) -> Shape {
        Shape {
            logical_block_size: self.spec.logical_block_size,
            physical_block_size: self.spec.physical_block_size,
            hw_queues: self.spec.hw_queues,
        }
    }

    fn queue<D: Driver>(&self, driver: D, shape: Shape) -> Result<Arc<dyn Device>, OpenError> {
        let driver = Shaped::new(driver, shape);
        self.check_depth(&driver)?;
        self.check_size(driver.size_bytes(), driver.limits().logical_block_size)?;
        let polls = driver.hw_queues().poll > 0;
        if self.spec.queue.io_poll == Some(true) && !polls {
            let message = format!("a {} device has no queues to poll", driver.kind());
            return Err(self.error("queue/io_poll", message, "remove io_poll"));
        }
        let locks = self.at.locks.counters();
        let options = QueueOptions { read_only: self.spec.read_only, ..self.spec.queue.clone() };
        let queue = RequestQueue::<_, S>::with_scheduler(&self.spec.name, driver, &options, locks);
        Ok(Arc::new(self.throttled(queue.map_err(self.refused("queue"))?)))
    }

    fn throttled<D: TypedDevice>(&self, device: D) -> Throttled<D, T> {
        Throttled::new(device, T::over(self.at.groups.attach(&self.spec.name)))
    }

    fn check_depth(&self, driver: &impl Driver) -> Result<(), OpenError> {
        let scheduler = self.spec.queue.scheduler.unwrap_or_else(|| default_scheduler(driver));
        let most = most_requests(driver, scheduler);
        match self.spec.queue.nr_requests {
            Some(requests) if requests > most => {
                let message = format!("`nr_requests` is {requests}, but at most {most} can be had");
                let hint = format!("with the scheduler {} at most {most}", scheduler.name());
                Err(self.error("queue/nr_requests", message, hint))
            }
            _ => Ok(()),
        }
    }

    /// Checks the size of a file, which is known only now; other sizes were checked with the stack
    /// file.
    fn check_size(&self, size: u64, block: u32) -> Result<(), OpenError> {
        if size.is_multiple_of(block.into()) {
            return Ok(());
        }
        let message = format!("{size} bytes are not a whole number of blocks of {block}");
        let hint = format!("give a `size` that is a multiple of {block}");
        Err(self.error("logical_block_size", message, hint))
    }
}
