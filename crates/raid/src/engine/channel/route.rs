//! Where a bio goes: to a member as it is, to the shards in parts, or to all members.

use super::ArrayChannel;
use crate::engine::region::{REGION_SECTORS, shard_of};
use crate::ids::Role;
use crate::layout::{Layout, MemberAddress};
use drystone_core::check::is_plain;
use drystone_core::{Bio, BioFlags, BioList, Env, Op, SECTOR_SIZE, Sector, Status};

/// Why this channel has a hook on a part; stored in the part's `user_data`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hooked {
    /// The part is a flush of a member.
    Flush,
    /// The part is a read of a member, for this sector of the array.
    Read(u64),
}

/// Marks reads among hooked parts.
const READ: u64 = 1 << 63;

impl Hooked {
    fn of(bio: &Bio) -> Self {
        match bio.user_data {
            read if read & READ != 0 => Hooked::Read(read & !READ),
            _ => Hooked::Flush,
        }
    }
}

/// Flags of bios that take the long way through `start`, which also ends polling.
const NOT_PLAIN: BioFlags = BioFlags::PREFLUSH.union(BioFlags::POLLED).union(BioFlags::FUA);

/// The place of an array sector on its member, and the bytes left from there to the end of its
/// chunk.
#[inline]
fn piece(layout: &Layout, sector: u64) -> (MemberAddress, u64) {
    let left = layout.chunk_sectors() - (sector & (layout.chunk_sectors() - 1));
    (layout.map_sector(sector), left * SECTOR_SIZE)
}

impl ArrayChannel {
    pub(super) fn route(&mut self, env: &mut Env, bio: Box<Bio>) {
        match bio.op {
            Op::Flush => self.flush(env, bio),
            Op::Read => self.read(env, bio),
            _ if bio.flags.contains(BioFlags::PREFLUSH) => self.flush(env, bio),
            _ => self.bring(env, bio),
        }
    }

    /// A part that this channel has a hook on has ended.
    pub(super) fn hooked_ended(&mut self, env: &mut Env, bio: Box<Bio>) {
        match Hooked::of(&bio) {
            Hooked::Flush => self.member_flushed(env, bio),
            Hooked::Read(sector) => self.read_ended(env, sector, bio),
        }
    }

    /// Pass the reads at the beginning of `bios` on to their members: each read lies in one chunk,
    /// and its member can be read everywhere. Such a read is only remapped; it comes back if the
    /// member cannot read it ([`ArrayChannel::retry_on_error`]). Returns how many reads went on.
    #[inline]
    pub(super) fn move_reads(&mut self, env: &mut Env, bios: &mut BioList) -> usize {
        let (conf, mut moved) = (self.membership.conf(), 0);
        while let Some(bio) = bios.front_mut() {
            if bio.op != Op::Read || !is_plain(bio, &conf.limits, conf.size_bytes, NOT_PLAIN) {
                break;
            }
            let (address, bytes) = piece(&conf.layout, bio.sector.0);
            let Some(member) = conf.plain_member(address.role) else { break };
            if bio.bytes > bytes || !bio.begin_remap_with_retry(self.id) {
                break;
            }
            bio.sector = Sector(member.data_offset + address.sector);
            moved += 1;
            let Some(bio) = bios.pop() else { break };
            env.send_down(self.membership.channel(address.role, false), bio);
        }
        moved
    }

    /// A remapped read has failed, and has its array sector again. It becomes an item now, unless
    /// its context was dropped.
    pub(super) fn retry_on_error(&mut self, env: &mut Env, bio: Box<Bio>) {
        match bio.status {
            Status::Cancelled => env.end_bio(bio),
            _ => self.bring(env, bio),
        }
    }

    fn read(&mut self, env: &mut Env, bio: Box<Bio>) {
        let mut parts = env.divide(bio);
        while parts.left() > 0 {
            let (address, bytes) = piece(&self.conf().layout, parts.sector().0);
            let bytes = bytes.min(parts.left());
            let part = parts.next(env, bytes);
            match self.conf().plain_member(address.role) {
                Some(member) => {
                    let sector = member.data_offset + address.sector;
                    self.read_member(env, address.role, sector, part);
                }
                None => self.bring(env, part),
            }
        }
        env.divided(parts);
    }

    /// Read a block from its member: that needs no stripe, unless the member cannot read it.
    fn read_member(&self, env: &mut Env, role: Role, sector: u64, mut part: Box<Bio>) {
        part.user_data = READ | part.sector.0;
        part.sector = Sector(sector);
        part.set_end_io(self.id);
        env.send_down(self.membership.channel(role, false), part);
    }

    fn read_ended(&mut self, env: &mut Env, sector: u64, mut part: Box<Bio>) {
        if part.status.is_ok() || part.status == Status::Cancelled {
            return env.end_bio(part);
        }
        (part.sector, part.status) = (Sector(sector), Status::Ok);
        self.bring(env, part);
    }

    /// Bring a bio to the shards of its regions.
    pub(super) fn bring(&mut self, env: &mut Env, bio: Box<Bio>) {
        let (shard, bytes) = self.region(bio.sector.0);
        if bytes >= bio.bytes {
            return self.bring_item(env, shard, bio);
        }
        let mut parts = env.divide(bio);
        while parts.left() > 0 {
            let (shard, bytes) = self.region(parts.sector().0);
            let bytes = bytes.min(parts.left());
            let part = parts.next(env, bytes);
            self.bring_item(env, shard, part);
        }
        env.divided(parts);
    }

    /// The shard of a sector, and the bytes left from there to the end of its region.
    fn region(&self, sector: u64) -> (usize, u64) {
        let layout = &self.conf().layout;
        if self.peers.is_sync() {
            return (shard_of(sector), (REGION_SECTORS - sector % REGION_SECTORS) * SECTOR_SIZE);
        }
        let address = layout.map_sector(sector);
        let sectors = match layout.chunk_sectors() >= REGION_SECTORS {
            true => REGION_SECTORS - address.sector % REGION_SECTORS,
            // A region holds this many sectors of the array: all its rows, with all their data.
            false => {
                let whole = REGION_SECTORS * u64::from(layout.data_disks());
                whole - sector % whole
            }
        };
        (shard_of(address.sector), sectors * SECTOR_SIZE)
    }
}
