//! The environment that a program provides to open devices, and the errors of opening.

use std::cell::OnceCell;
use std::sync::Arc;

use drystone_core::clock::{Clock, Ns};
use drystone_core::ring::Engine;
use drystone_core::sync::LockRegistry;
use drystone_core::{Context, ContextSet, Device, signals, threads};
use drystone_drivers::file::File;
use drystone_drivers::null::CompletionThread;
use drystone_raid::array::WallClock;
use drystone_throttle::Groups;

use crate::events::Events;
use crate::spec::{DeviceSpec, FileSpec};

/// Why a device could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("device `{device}`: {message}")]
pub struct OpenError {
    /// The device.
    pub device: String,
    /// The key of its section that the error is about, as `queue/nr_requests`.
    pub key: &'static str,
    /// The fault, in one sentence.
    pub message: String,
    /// The right form; empty if the message says it all.
    pub hint: String,
}

/// The environment in which devices are opened: the program fills it in.
pub struct OpenEnv {
    /// The number of data threads, which is the default number of hardware queues of a null device.
    pub threads: u32,
    /// The clock of the contexts that will use the device.
    pub clock: Arc<dyn Clock>,
    /// The lock registry of the contexts and the devices.
    pub locks: Arc<LockRegistry>,
    /// The function that opens devices; a benchmark may put another scheduler into them.
    pub open: OpenDevice,
    /// The groups that devices' bios belong to.
    pub groups: Arc<Groups>,
    /// The thread that completes for null devices whose requests take time, once there is one.
    pub null_thread: OnceCell<CompletionThread>,
    /// The source of files, if not the system: a simulator has its own files.
    pub files: Option<Files>,
    /// The contexts that use the devices.
    pub contexts: Arc<ContextSet>,
    /// How arrays are hosted.
    pub platform: Platform,
    /// The queue for events of the devices.
    pub events: Arc<Events>,
}

/// Opens the file of a `file` device.
pub type OpenFile = Box<dyn Fn(&FileSpec) -> drystone_core::Result<File>>;

/// Files that are not the system's.
pub struct Files {
    /// Opens the file of a `file` device.
    pub open: OpenFile,
    /// True if opening it makes it.
    pub makes: Box<dyn Fn(&FileSpec) -> bool>,
}

/// Opens one device.
pub type OpenDevice = fn(&DeviceSpec, &OpenEnv) -> Result<Arc<dyn Device>, OpenError>;

/// Lets the caller's thread rest for so many nanoseconds.
pub type SleepFn = Box<dyn Fn(Ns) + Send + Sync>;

/// Finds an open device by its name.
pub type Find<'a> = &'a dyn Fn(&str) -> Option<Arc<dyn Device>>;

/// Opens a context on a ring of the engine.
pub type OpenContext = Box<dyn Fn(&Arc<ContextSet>, Engine) -> drystone_core::Result<Context>>;
/// Starts a named thread with the given work.
pub type Spawn = Box<dyn Fn(&str, Box<dyn FnOnce() + Send>) -> std::io::Result<()>>;

/// The services that a program provides to arrays.
pub struct Platform {
    /// The way a manager gets its context.
    pub open_context: OpenContext,
    /// The way a manager gets its thread.
    pub spawn: Spawn,
    /// Seconds since 1970.
    pub wall_clock: WallClock,
    /// A number that is not in use.
    pub random: Box<dyn Fn() -> [u8; 16]>,
}

impl Default for Platform {
    /// Threads, clock and random numbers of the system.
    fn default() -> Self {
        Platform {
            open_context: Box::new(|set, engine| set.open(engine)),
            spawn: Box::new(|name, work| signals::blocked(|| threads::start(name, work)).map(drop)),
            wall_clock: Arc::new(seconds_now),
            random: Box::new(random),
        }
    }
}

fn seconds_now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// A random number of the system, or else one from the time, which is good enough for a UUID.
fn random() -> [u8; 16] {
    use std::io::Read;
    let mut bytes = [0; 16];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    if read.is_err() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        bytes = now.map_or(0, |now| now.as_nanos()).to_le_bytes();
    }
    bytes
}
