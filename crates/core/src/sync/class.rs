//! The classes of locks.

/// The classes of lock there are. One variant a purpose, so that contention can be named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum LockClass {
    /// Waiting at a context's gate until a visitor has left.
    ContextGate,
    /// The set of contexts (opening and closing them).
    ContextSet,
    /// The turn at bios that wait for a limit of a throttle group; on the data path only ever
    /// tried.
    Throttle,
    /// The queue of contexts that wait for a tag.
    TagWaiters,
    /// The turn at a scheduler that all contexts of a device share; only ever tried.
    Scheduler,
    /// Not a lock: a context that polls a moment for bios that such a scheduler has.
    SchedulerGrant,
    /// The plain engine's job queue and completions.
    PlainRing,
    /// Helpers of the plain engine that wait for jobs: idle, not contended.
    PlainIdle,
    /// A shard of a RAM device's pages.
    RamShard,
    /// The null device's completion thread.
    NullDevice,
    /// A file device's error and reopen state.
    FileState,
    /// The turn at a shard of a RAID array's stripe cache; on the data path only ever tried.
    Stripes,
    /// The order of a `log-writes` target's log.
    WriteLog,
    /// A worker's reserve of buffers.
    Buffers,
    /// Control plane: attributes, exports, the stack.
    Control,
    /// A shard of a stripe cache: its hash and its free stripes (Linux's `hash_locks`).
    StripeHash,
    /// A stripe's pending writes.
    Stripe,
    /// An array's lists of work (Linux's `device_lock`).
    RaidDevice,
    /// The queue of threads that wait for a free stripe.
    StripeWaiters,
    /// Not a lock: threads asleep until there is a free stripe, or their I/O has ended.
    StripeIdle,
    /// Tests and tools.
    Other,
}

impl LockClass {
    /// Every class, in order.
    pub const ALL: [LockClass; 21] = [
        LockClass::ContextGate,
        LockClass::ContextSet,
        LockClass::Throttle,
        LockClass::TagWaiters,
        LockClass::Scheduler,
        LockClass::SchedulerGrant,
        LockClass::PlainRing,
        LockClass::PlainIdle,
        LockClass::RamShard,
        LockClass::NullDevice,
        LockClass::FileState,
        LockClass::Stripes,
        LockClass::WriteLog,
        LockClass::Buffers,
        LockClass::Control,
        LockClass::StripeHash,
        LockClass::Stripe,
        LockClass::RaidDevice,
        LockClass::StripeWaiters,
        LockClass::StripeIdle,
        LockClass::Other,
    ];

    /// The name in listings.
    pub const fn name(self) -> &'static str {
        match self {
            LockClass::ContextGate => "context_gate",
            LockClass::ContextSet => "context_set",
            LockClass::Throttle => "throttle",
            LockClass::TagWaiters => "tag_waiters",
            LockClass::Scheduler => "scheduler",
            LockClass::SchedulerGrant => "scheduler_grant",
            LockClass::PlainRing => "plain_ring",
            LockClass::PlainIdle => "plain_idle",
            LockClass::RamShard => "ram_shard",
            LockClass::NullDevice => "null_device",
            LockClass::FileState => "file_state",
            LockClass::Stripes => "stripes",
            LockClass::WriteLog => "write_log",
            LockClass::Buffers => "buffers",
            LockClass::Control => "control",
            LockClass::StripeHash => "stripe_hash",
            LockClass::Stripe => "stripe",
            LockClass::RaidDevice => "raid_device",
            LockClass::StripeWaiters => "stripe_waiters",
            LockClass::StripeIdle => "stripe_idle",
            LockClass::Other => "other",
        }
    }
}
