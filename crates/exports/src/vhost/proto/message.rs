//! Messages of the front end: read from a frame, with all checks that need no state.
//!
//! Which payload and how many descriptors belong to a message stands in "Front-end message types"
//! of the protocol text.

use super::features::{Features, ProtocolFeatures};
use super::malformed::Malformed;
use super::parser::Frame;
use super::region::{GuestAddress, Region, UserAddress};
use super::request::Request;
use super::wire::{self, CONFIG_BYTES_MAX, DESCRIPTORS_MAX};
use zerocopy::FromBytes;

/// The queue in the payload of `SET_VRING_KICK`, `_CALL` and `_ERR`.
const VRING_INDEX_BITS: u64 = 0xff;
/// The flag there that no descriptor came.
const NO_DESCRIPTOR: u64 = 1 << 8;
/// The address flag that writes to the used ring are logged.
const LOG_USED_RING: u32 = 1;

/// A region of memory with the descriptor of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedRegion<F> {
    /// The region.
    pub region: Region,
    /// The file.
    pub file: F,
}

/// The addresses of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VringAddresses {
    /// The descriptor table, or the packed ring.
    pub descriptors: UserAddress,
    /// The available ring, or the driver's event area of a packed ring.
    pub available: UserAddress,
    /// The used ring, or the device's event area of a packed ring.
    pub used: UserAddress,
    /// The guest address under which writes to the used ring are logged; `None` if they are not.
    pub log: Option<GuestAddress>,
}

/// The area of a file that is the log of a migration: a bit for each 4096 bytes of guest addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogArea {
    /// Its length, bytes.
    pub bytes: u64,
    /// Its place in the file, bytes.
    pub offset: u64,
}

/// A description of an in-flight region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inflight {
    /// Its length, bytes. A message that asks for a region has any number here.
    pub bytes: u64,
    /// Its place in the file, bytes, likewise.
    pub offset: u64,
    /// Number of queues.
    pub queues: u16,
    /// Entries of each queue.
    pub queue_size: u16,
    /// True if four bytes of padding follow, which belong to a reply then, too.
    pub padded: bool,
}

/// A part of the configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigRange {
    /// First byte.
    pub offset: u32,
    /// Number of bytes, at least 1. All lie in the first [`CONFIG_BYTES_MAX`].
    pub size: u32,
    /// 0: fields that the guest may write; 1: a migration.
    pub flags: u32,
}

/// A message of the front end. `queue` is a number that nobody has compared with the queues yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<F> {
    /// Tell the features of the device.
    GetFeatures,
    /// The driver's choice.
    SetFeatures(Features),
    /// Tell the features of the protocol.
    GetProtocolFeatures,
    /// The front end's choice.
    SetProtocolFeatures(ProtocolFeatures),
    /// A session begins.
    SetOwner,
    /// Reset the device, as old front ends say it.
    ResetOwner,
    /// All regions of memory.
    SetMemTable(Vec<MappedRegion<F>>),
    /// One region more.
    AddMemReg(MappedRegion<F>),
    /// One region less.
    RemMemReg(Region),
    /// Tell the most regions.
    GetMaxMemSlots,
    /// The log of a migration.
    SetLogBase(LogArea, F),
    /// The descriptor that may be signalled after a change of the log.
    SetLogFd(F),
    /// The size of a queue, entries.
    SetVringNum {
        /// Which.
        queue: u32,
        /// Entries.
        size: u32,
    },
    /// The addresses of a queue.
    SetVringAddr {
        /// Which.
        queue: u32,
        /// The addresses.
        addresses: VringAddresses,
    },
    /// The index from which on a queue is served.
    SetVringBase {
        /// Which.
        queue: u32,
        /// Split: the available index. Packed: available index and wrap counter in the lower 16
        /// bits, used ones in the upper.
        base: u32,
    },
    /// Stop a queue and tell that index.
    GetVringBase {
        /// Which.
        queue: u32,
    },
    /// The descriptor by which the guest tells of requests; `None`: the back end shall poll.
    SetVringKick {
        /// Which.
        queue: u32,
        /// The descriptor.
        kick: Option<F>,
    },
    /// The descriptor by which the guest is told of ended requests; `None`: it polls.
    SetVringCall {
        /// Which.
        queue: u32,
        /// The descriptor.
        call: Option<F>,
    },
    /// The descriptor by which the front end is told of a broken queue.
    SetVringErr {
        /// Which.
        queue: u32,
        /// The descriptor.
        err: Option<F>,
    },
    /// Enable or disable a queue.
    SetVringEnable {
        /// Which.
        queue: u32,
        /// 1 or 0, or a mistake.
        enable: u32,
    },
    /// Tell the most queues.
    GetQueueNum,
    /// The channel for requests of the back end.
    SetBackendReqFd(F),
    /// Read the configuration space.
    GetConfig(ConfigRange),
    /// Write the configuration space.
    SetConfig(ConfigRange, Vec<u8>),
    /// Make an in-flight region.
    GetInflightFd(Inflight),
    /// The in-flight region.
    SetInflightFd(Inflight, F),
    /// Reset the device.
    ResetDevice,
    /// The device status.
    SetStatus(u64),
    /// Tell the device status.
    GetStatus,
}

impl<F> Message<F> {
    /// Reads the message of a frame.
    ///
    /// # Errors
    /// When payload or descriptors do not belong to the message, or it is unknown. The stream is
    /// still in step then. The descriptors are dropped.
    pub fn read(frame: Frame<'_, F>) -> Result<Self, Malformed> {
        let unknown = Malformed::Unknown { request: frame.number() };
        let request = frame.request().ok_or(unknown)?;
        let payload = Payload { request, bytes: frame.payload() };
        let mut descriptors = Descriptors { request, all: frame.into_descriptors() };
        let message = read_message(request, payload, &mut descriptors)?;
        descriptors.expect(0).map(|()| message)
    }
}

/// Reads a message and takes its descriptors.
fn read_message<F>(
    request: Request,
    payload: Payload<'_>,
    descriptors: &mut Descriptors<F>,
) -> Result<Message<F>, Malformed> {
    Ok(match request {
        Request::GetFeatures => payload.empty(Message::GetFeatures)?,
        Request::SetFeatures => Message::SetFeatures(Features::from_bits_retain(payload.number()?)),
        Request::GetProtocolFeatures => payload.empty(Message::GetProtocolFeatures)?,
        Request::SetProtocolFeatures => {
            let bits = payload.number()?;
            Message::SetProtocolFeatures(ProtocolFeatures::from_bits_retain(bits))
        }
        Request::SetOwner => payload.empty(Message::SetOwner)?,
        Request::ResetOwner => payload.empty(Message::ResetOwner)?,
        Request::SetMemTable => Message::SetMemTable(payload.regions(descriptors)?),
        Request::AddMemReg => {
            let region = payload.region()?;
            Message::AddMemReg(MappedRegion { region, file: descriptors.one()? })
        }
        Request::RemMemReg => Message::RemMemReg(payload.removed_region(descriptors)?),
        Request::GetMaxMemSlots => payload.empty(Message::GetMaxMemSlots)?,
        Request::SetLogBase => Message::SetLogBase(payload.log()?, descriptors.one()?),
        Request::SetLogFd => Message::SetLogFd(payload.empty(()).and_then(|()| descriptors.one())?),
        Request::SetVringNum => {
            let (queue, size) = payload.vring_state()?;
            Message::SetVringNum { queue, size }
        }
        Request::SetVringAddr => {
            let (queue, addresses) = payload.vring_addresses()?;
            Message::SetVringAddr { queue, addresses }
        }
        Request::SetVringBase => {
            let (queue, base) = payload.vring_state()?;
            Message::SetVringBase { queue, base }
        }
        Request::GetVringBase => Message::GetVringBase { queue: payload.vring_state()?.0 },
        Request::SetVringKick => {
            let (queue, kick) = payload.vring_descriptor(descriptors)?;
            Message::SetVringKick { queue, kick }
        }
        Request::SetVringCall => {
            let (queue, call) = payload.vring_descriptor(descriptors)?;
            Message::SetVringCall { queue, call }
        }
        Request::SetVringErr => {
            let (queue, err) = payload.vring_descriptor(descriptors)?;
            Message::SetVringErr { queue, err }
        }
        Request::SetVringEnable => {
            let (queue, enable) = payload.vring_state()?;
            Message::SetVringEnable { queue, enable }
        }
        Request::GetQueueNum => payload.empty(Message::GetQueueNum)?,
        Request::SetBackendReqFd => {
            Message::SetBackendReqFd(payload.empty(()).and_then(|()| descriptors.one())?)
        }
        Request::GetConfig => Message::GetConfig(payload.config_range()?.0),
        Request::SetConfig => payload.written_config()?,
        Request::GetInflightFd => Message::GetInflightFd(payload.inflight()?),
        Request::SetInflightFd => {
            Message::SetInflightFd(payload.inflight_area()?, descriptors.one()?)
        }
        Request::ResetDevice => payload.empty(Message::ResetDevice)?,
        Request::SetStatus => Message::SetStatus(payload.number()?),
        Request::GetStatus => payload.empty(Message::GetStatus)?,
    })
}

/// The descriptors of a message that it has not taken yet.
struct Descriptors<F> {
    request: Request,
    all: Vec<F>,
}

impl<F> Descriptors<F> {
    /// Fails if another number is here.
    fn expect(&self, expected: usize) -> Result<(), Malformed> {
        let (request, count) = (self.request, self.all.len());
        if count != expected {
            return Err(Malformed::Descriptors { request, count, expected });
        }
        Ok(())
    }

    /// Takes the only one.
    fn one(&mut self) -> Result<F, Malformed> {
        let (request, count) = (self.request, self.all.len());
        let wrong = Malformed::Descriptors { request, count, expected: 1 };
        if count > 1 { Err(wrong) } else { self.all.pop().ok_or(wrong) }
    }
}

/// The payload of a message.
#[derive(Clone, Copy)]
struct Payload<'a> {
    request: Request,
    bytes: &'a [u8],
}

impl Payload<'_> {
    fn wrong_length(self, expected: usize) -> Malformed {
        let Payload { request, bytes } = self;
        Malformed::PayloadLength { request, bytes: bytes.len(), expected }
    }

    /// The message, which has no payload.
    fn empty<M>(self, message: M) -> Result<M, Malformed> {
        if self.bytes.is_empty() { Ok(message) } else { Err(self.wrong_length(0)) }
    }

    /// A structure that is the whole payload.
    fn whole<T: FromBytes>(self) -> Result<T, Malformed> {
        wire::read_whole(self.bytes).ok_or_else(|| self.wrong_length(size_of::<T>()))
    }

    fn number(self) -> Result<u64, Malformed> {
        Ok(self.whole::<wire::Number>()?.value.get())
    }

    /// The number of a queue, and a number for it.
    fn vring_state(self) -> Result<(u32, u32), Malformed> {
        let wire::VringState { index, num } = self.whole()?;
        Ok((index.get(), num.get()))
    }

    fn vring_addresses(self) -> Result<(u32, VringAddresses), Malformed> {
        let wire::VringAddress { index, flags, descriptors, used, available, log } =
            self.whole()?;
        let flags = flags.get();
        if flags & !LOG_USED_RING != 0 {
            return Err(Malformed::VringFlags(flags));
        }
        let is_logged = flags & LOG_USED_RING != 0;
        let addresses = VringAddresses {
            descriptors: UserAddress(descriptors.get()),
            available: UserAddress(available.get()),
            used: UserAddress(used.get()),
            log: is_logged.then_some(GuestAddress(log.get())),
        };
        Ok((index.get(), addresses))
    }

    /// The number of a queue, and the descriptor unless the flag says that there is none.
    fn vring_descriptor<F>(
        self,
        descriptors: &mut Descriptors<F>,
    ) -> Result<(u32, Option<F>), Malformed> {
        let (request, value) = (self.request, self.number()?);
        if value & !(VRING_INDEX_BITS | NO_DESCRIPTOR) != 0 {
            return Err(Malformed::VringBits { request, value });
        }
        let descriptor = match value & NO_DESCRIPTOR {
            0 => Some(descriptors.one()?),
            _ => None,
        };
        Ok(((value & VRING_INDEX_BITS) as u32, descriptor))
    }

    /// The regions of a table, each with its descriptor.
    fn regions<F>(
        self,
        descriptors: &mut Descriptors<F>,
    ) -> Result<Vec<MappedRegion<F>>, Malformed> {
        let least = size_of::<wire::MemoryTable>();
        let table: wire::MemoryTable =
            wire::read(self.bytes).ok_or_else(|| self.wrong_length(least))?;
        let count = table.regions.get();
        if count as usize > DESCRIPTORS_MAX {
            return Err(Malformed::TooManyRegions(count));
        }
        let expected = least + count as usize * size_of::<wire::MemoryRegion>();
        if self.bytes.len() != expected {
            return Err(self.wrong_length(expected));
        }
        descriptors.expect(count as usize)?;
        let entries = self.bytes[least..].chunks_exact(size_of::<wire::MemoryRegion>());
        let regions: Vec<Region> =
            entries.map(|entry| self.checked_region(entry)).collect::<Result<_, _>>()?;
        let files = std::mem::take(&mut descriptors.all);
        let mapped = regions.into_iter().zip(files);
        Ok(mapped.map(|(region, file)| MappedRegion { region, file }).collect())
    }

    fn checked_region(self, bytes: &[u8]) -> Result<Region, Malformed> {
        let region: wire::MemoryRegion =
            wire::read_whole(bytes).ok_or_else(|| self.wrong_length(bytes.len()))?;
        self.region_of(&region, region.offset.get())
    }

    fn region_of(self, entry: &wire::MemoryRegion, offset: u64) -> Result<Region, Malformed> {
        let (guest, user, bytes) = (entry.guest.get(), entry.user.get(), entry.bytes.get());
        let request = self.request;
        Region::new(GuestAddress(guest), UserAddress(user), bytes, offset)
            .ok_or(Malformed::Region { request, bytes, guest, user, offset })
    }

    fn region(self) -> Result<Region, Malformed> {
        let entry = self.whole::<wire::SingleRegion>()?.region;
        self.region_of(&entry, entry.offset.get())
    }

    /// A region to remove, whose file offset means nothing. A descriptor is closed unused, as the
    /// protocol text asks for.
    fn removed_region<F>(self, descriptors: &mut Descriptors<F>) -> Result<Region, Malformed> {
        if !descriptors.all.is_empty() {
            drop(descriptors.one()?);
        }
        let entry = self.whole::<wire::SingleRegion>()?.region;
        self.region_of(&entry, 0)
    }

    fn log(self) -> Result<LogArea, Malformed> {
        let wire::Log { bytes, offset } = self.whole()?;
        let (bytes, offset) = self.area(bytes.get(), offset.get())?;
        Ok(LogArea { bytes, offset })
    }

    /// Fails unless an area of a file has bytes, and an end.
    fn area(self, bytes: u64, offset: u64) -> Result<(u64, u64), Malformed> {
        if bytes == 0 || offset.checked_add(bytes).is_none() {
            return Err(Malformed::Area { request: self.request, bytes, offset });
        }
        Ok((bytes, offset))
    }

    fn inflight(self) -> Result<Inflight, Malformed> {
        let padded = self.bytes.len() == wire::PADDED_INFLIGHT_BYTES;
        let fields =
            if padded { &self.bytes[..size_of::<wire::InflightArea>()] } else { self.bytes };
        let area: wire::InflightArea = wire::read_whole(fields)
            .ok_or_else(|| self.wrong_length(size_of::<wire::InflightArea>()))?;
        Ok(Inflight {
            bytes: area.bytes.get(),
            offset: area.offset.get(),
            queues: area.queues.get(),
            queue_size: area.queue_size.get(),
            padded,
        })
    }

    fn inflight_area(self) -> Result<Inflight, Malformed> {
        let inflight = self.inflight()?;
        self.area(inflight.bytes, inflight.offset).map(|_| inflight)
    }

    /// A part of the configuration space, and what follows its description.
    fn config_range(&self) -> Result<(ConfigRange, &[u8]), Malformed> {
        let request = self.request;
        let least = size_of::<wire::Config>();
        let config: wire::Config = wire::read(self.bytes).ok_or(self.wrong_length(least))?;
        let (offset, size, flags) = (config.offset.get(), config.size.get(), config.flags.get());
        let end = u64::from(offset) + u64::from(size);
        if size == 0 || end > CONFIG_BYTES_MAX as u64 {
            return Err(Malformed::ConfigRange { request, offset, size });
        }
        if flags > 1 {
            return Err(Malformed::ConfigFlags { request, flags });
        }
        Ok((ConfigRange { offset, size, flags }, &self.bytes[least..]))
    }

    /// A write to the configuration space: exactly as many bytes as it says.
    fn written_config<F>(self) -> Result<Message<F>, Malformed> {
        let (range, bytes) = self.config_range()?;
        if bytes.len() != range.size as usize {
            return Err(self.wrong_length(size_of::<wire::Config>() + range.size as usize));
        }
        Ok(Message::SetConfig(range, bytes.to_vec()))
    }
}
