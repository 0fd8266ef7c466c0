//! The baseline of the RAM device's figure: a bare loop that copies random 4 KiB blocks of 1 GiB
//! to a buffer, 32 buffers in turn, as `drystone bench --device ram,size=1GiB --bs 4k` does with
//! a block layer between. Prints one JSON object. Argument: seconds to measure (default 3).

#![allow(unsafe_code, reason = "reads the CPU clock of its thread")]

use std::time::{Duration, Instant};

const BLOCK: usize = 4096;
const SIZE: usize = 1 << 30;
const BATCH: usize = 32;

fn thread_cpu_ns() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|s| s.parse().ok()).unwrap_or(3.0);
    let memory = vec![1u8; SIZE];
    let mut buffers = vec![vec![0u8; BLOCK]; BATCH];
    let blocks = (SIZE / BLOCK) as u128;
    let mut random = 88_172_645_463_325_252_u64;
    let (start, cpu) = (Instant::now(), thread_cpu_ns());
    let mut copies = 0u64;
    while start.elapsed() < Duration::from_secs_f64(seconds) {
        for _ in 0..100 {
            for buffer in &mut buffers {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let at = ((u128::from(random) * blocks) >> 64) as usize * BLOCK;
                buffer.copy_from_slice(&memory[at..at + BLOCK]);
            }
            copies += BATCH as u64;
        }
    }
    std::hint::black_box(&buffers);
    let cpu = thread_cpu_ns() - cpu;
    let iops = copies as f64 / start.elapsed().as_secs_f64();
    println!("{{\"iops\": {iops:.0}, \"cpu_ns_per_io\": {:.3}}}", cpu as f64 / copies as f64);
}
