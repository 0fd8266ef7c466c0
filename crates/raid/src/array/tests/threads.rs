//! Several threads use one array whose members are slow at times, so that each thread works on
//! items of others.

use super::stand::{Memory, Stand};
use super::*;
use crate::layout::Level;
use crate::metadata::create::Policy;
use drystone_core::clock::{Clock, SystemClock};
use drystone_core::primitive::{AtomicU64, Ordering::*};
use drystone_core::ring::Engine;
use drystone_core::{Bio, BioList, Context, ContextSet, Device, IoBuf, Op, Sector};
use std::sync::Arc;

const USERS: u64 = 3;
const BLOCKS: u64 = 600;
const ROUNDS: u64 = 60;
const SECOND_NS: u64 = 1_000_000_000;

/// A user of the array: it alone writes every third block.
struct User {
    number: u64,
    ctx: Context,
    random: u64,
    /// The contents of the user's blocks.
    model: Vec<u8>,
}

impl User {
    fn next(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1);
        (self.random >> 33) % below
    }

    fn bio(&mut self) -> Box<Bio> {
        let n = self.next(BLOCKS / USERS);
        let sector = Sector((n * USERS + self.number) * 8);
        let value = (self.next(255) + 1) as u8;
        let mut bio = match self.next(3) {
            0 => Bio::read(sector, IoBuf::zeroed(4096)),
            _ => Bio::write(sector, IoBuf::from_slice(&[value; 4096])),
        };
        bio.user_data = n;
        bio
    }

    /// Several bios at once, of different blocks.
    fn round(&mut self, array: drystone_core::ChannelId) {
        let (mut list, mut taken) = (BioList::new(), Vec::new());
        for _ in 0..6 {
            let bio = self.bio();
            if !taken.contains(&bio.user_data) {
                taken.push(bio.user_data);
                list.push(bio);
            }
        }
        self.ctx.submit(array, &mut list);
        // If a wake-up is lost, nothing else replaces it.
        let deadline = self.ctx.set().clock().now() + 30 * SECOND_NS;
        let mut left = taken.len();
        while left > 0 {
            let mut done = BioList::new();
            self.ctx.reap(&mut done);
            while let Some(bio) = done.pop() {
                self.ended(&bio);
                left -= 1;
            }
            if left > 0 {
                assert!(self.ctx.set().clock().now() < deadline, "{left} bios do not end");
                self.ctx.wait(Some(deadline));
            }
        }
    }

    fn ended(&mut self, bio: &Bio) {
        assert!(bio.status.is_ok());
        let mut data = vec![0; 4096];
        bio.copy_data_to(&mut data);
        let value = &mut self.model[bio.user_data as usize];
        match bio.op {
            Op::Write => *value = data[0],
            _ => assert!(data.iter().all(|byte| byte == value), "block {}", bio.user_data),
        }
    }
}

/// Hold up the data of one member after another, until all users are done.
fn make_slow(memories: &[Arc<Memory>], users: &AtomicU64) {
    for memory in memories.iter().cycle() {
        memory.hold();
        std::thread::yield_now();
        std::thread::sleep(std::time::Duration::from_micros(300));
        memory.release();
        if users.load(Acquire) == 0 {
            return;
        }
    }
}

fn hammer(policy: Policy, is_slow: bool) {
    let clock = SystemClock::new();
    let mut stand = Stand::new(4);
    stand.set = ContextSet::new(clock as Arc<dyn Clock>);
    let chunk = (policy == Policy::Bitmap).then_some(64 << 10);
    stand.create_with(Level::Raid5, true, Some(policy), chunk);
    let Opened { array, manager } = stand.open();
    let (set, memories) = (&stand.set, &stand.memories);
    let left = &AtomicU64::new(USERS);
    std::thread::scope(|scope| {
        scope.spawn(|| manager.run());
        for number in 0..USERS {
            let array: Arc<dyn Device> = Arc::new(array.clone());
            scope.spawn(move || {
                let ctx = set.open(Engine::Plain).unwrap();
                let model = vec![0; (BLOCKS / USERS) as usize];
                let mut user = User { number, ctx, random: number + 1, model };
                let index = user.ctx.open(&array).unwrap();
                (0..ROUNDS).for_each(|_| user.round(index));
                left.fetch_sub(1, AcqRel);
            });
        }
        match is_slow {
            true => make_slow(memories, left),
            false => {
                while left.load(Acquire) > 0 {
                    std::thread::yield_now();
                }
            }
        }
        array.request(Command::Stop);
    });
    assert!(stand.memories.iter().all(|memory| memory.superblock().is_clean()));
    let mut stand = Stand::of(stand.memories.iter().map(|memory| memory.image()).collect());
    stand.start();
    stand.command(Command::Sync(SyncAction::Check)).unwrap();
    assert_eq!(stand.until("check", super::stand::is_idle).mismatch_cnt, 0);
}

#[test]
fn threads_that_share_stripes() {
    [false, true].into_iter().for_each(|is_slow| hammer(Policy::Resync, is_slow));
}

#[test]
fn threads_that_wait_for_bits() {
    [false, true].into_iter().for_each(|is_slow| hammer(Policy::Bitmap, is_slow));
}

#[test]
fn threads_that_share_logs() {
    [false, true].into_iter().for_each(|is_slow| hammer(Policy::Ppl, is_slow));
}
