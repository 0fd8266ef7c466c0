//! Measures parity beside crates of others, on stripes of 4 KiB, in one thread.
//!
//! Prints Markdown: gigabytes of data (sources only) a second of CPU time of the thread, median and
//! range. The variants take turns, so that other load of the machine affects all alike. The data is
//! either one stripe, which fits the core's own caches, or 512 MiB, which fits no cache: in memory
//! order, or with scattered pages. Argument: rounds (default 7).

use std::time::Duration;

use drystone_parity::{Isa, Parity, Source};
use reed_solomon_erasure::galois_8::ReedSolomon;
use reed_solomon_simd::ReedSolomonEncoder;
use rustix::time::{ClockId, clock_gettime};

const PAGE: usize = 4096;
/// Most sources of a stripe.
const SOURCES_MAX: usize = 16;
const FAR_BYTES: usize = 512 << 20;
/// Least CPU time of a sample: a few time slices of the scheduler.
const SAMPLE: Duration = Duration::from_millis(60);

/// Memory of a stripe's block, aligned as the product's buffers are.
#[derive(Clone)]
#[repr(align(4096))]
struct Page([u8; PAGE]);

impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsMut<[u8]> for Page {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// Stripes of data, and buffers for the parity of one.
struct Stripes {
    data: Vec<Page>,
    /// Pages in the order in which they are used.
    order: Vec<u32>,
    parity: Vec<Page>,
    sources: usize,
    next: usize,
}

impl Stripes {
    fn new(stripes: usize, sources: usize, parity: usize, scattered: bool) -> Self {
        let mut state = 88_172_645_463_325_252_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state >> 32
        };
        let one = Page(std::array::from_fn(|_| random() as u8));
        let data = (0..stripes * sources).map(|n| {
            let mut page = one.clone();
            page.0.rotate_left(n % PAGE);
            page
        });
        let data: Vec<Page> = data.collect();
        let mut order: Vec<u32> = (0..data.len() as u32).collect();
        for n in (1..order.len()).filter(|_| scattered) {
            order.swap(n, random() as usize % (n + 1));
        }
        let parity = vec![Page([1; PAGE]); parity];
        Stripes { data, order, parity, sources, next: 0 }
    }

    /// The data of the next stripe, of which only the first `sources` count, and where its parity
    /// goes.
    fn turn(&mut self) -> ([&Page; SOURCES_MAX], &mut [Page]) {
        let at = self.next;
        self.next = if at + self.sources == self.data.len() { 0 } else { at + self.sources };
        let mut pages = [&self.data[0]; SOURCES_MAX];
        for (page, number) in pages.iter_mut().zip(&self.order[at..at + self.sources]) {
            *page = &self.data[*number as usize];
        }
        (pages, &mut self.parity)
    }
}

/// Computes the parity of data.
type Run = Box<dyn FnMut(&[&Page], &mut [Page])>;

/// A way to compute the parity of one stripe.
struct Variant {
    name: String,
    run: Run,
}

fn ours(isa: Isa) -> Option<Variant> {
    let parity = Parity::with(isa).ok()?;
    let run = move |data: &[&Page], out: &mut [Page]| match out {
        [p] => {
            let mut sources: [&[u8]; 16] = [&[]; SOURCES_MAX];
            sources.iter_mut().zip(data).for_each(|(slot, page)| *slot = &page.0);
            parity.xor_of(&mut p.0, &sources[..data.len()]);
        }
        [p, q] => {
            let mut sources: [Source<'_>; 16] = [(0, &[]); SOURCES_MAX];
            for (slot, (n, page)) in sources.iter_mut().zip(data.iter().enumerate().rev()) {
                *slot = (n as u8, &page.0);
            }
            parity.pq_of(&mut p.0, &mut q.0, &sources[..data.len()]);
        }
        _ => unreachable!("one parity or two"),
    };
    Some(Variant { name: format!("Drystone, {isa}"), run: Box::new(run) })
}

fn erasure(sources: usize, parity: usize) -> Variant {
    let code = ReedSolomon::new(sources, parity).expect("numbers that it takes");
    let run = move |data: &[&Page], out: &mut [Page]| {
        code.encode_sep(data, out).expect("lengths that it takes");
    };
    Variant { name: "reed-solomon-erasure 6.0.0 (simd-accel)".into(), run: Box::new(run) }
}

fn simd(sources: usize, parity: usize) -> Variant {
    let mut encoder = ReedSolomonEncoder::new(sources, parity, PAGE).expect("numbers it takes");
    let run = move |data: &[&Page], out: &mut [Page]| {
        for page in data {
            encoder.add_original_shard(*page).expect("a shard that it takes");
        }
        let result = encoder.encode().expect("all shards were added");
        for (out, page) in out.iter_mut().zip(result.recovery_iter()) {
            out.0.copy_from_slice(page);
        }
    };
    Variant { name: "reed-solomon-simd 3.1.0".into(), run: Box::new(run) }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Gigabytes of data a second.
fn sample(variant: &mut Variant, stripes: &mut Stripes) -> f64 {
    let (start, mut bytes) = (cpu_time(), 0);
    loop {
        for _ in 0..64 {
            let sources = stripes.sources;
            let (data, parity) = stripes.turn();
            (variant.run)(std::hint::black_box(&data[..sources]), parity);
            std::hint::black_box(parity);
        }
        bytes += 64 * stripes.sources * PAGE;
        let spent = cpu_time() - start;
        if spent >= SAMPLE {
            return bytes as f64 / spent.as_secs_f64() / 1e9;
        }
    }
}

fn median_and_range(mut samples: Vec<f64>) -> String {
    samples.sort_by(f64::total_cmp);
    let (least, most) = (samples[0], samples[samples.len() - 1]);
    format!("{:.1} ({least:.1} to {most:.1})", samples[samples.len() / 2])
}

/// All variants for one shape of stripe, a column for near and one for far data.
fn compare(rounds: usize, sources: usize, parity: usize) {
    let mut variants: Vec<_> = Isa::ALL.into_iter().filter_map(ours).collect();
    variants.extend([erasure(sources, parity), simd(sources, parity)]);
    let far = FAR_BYTES / PAGE / sources;
    let mut places = [(1, false), (far, false), (far, true)]
        .map(|(stripes, scattered)| Stripes::new(stripes, sources, parity, scattered));
    let mut samples = vec![[const { Vec::new() }; 3]; variants.len()];
    for _ in 0..rounds {
        for (variant, samples) in variants.iter_mut().zip(&mut samples) {
            for (place, samples) in places.iter_mut().zip(samples) {
                samples.push(sample(variant, place));
            }
        }
    }
    for (variant, samples) in variants.iter().zip(samples) {
        let [near, ordered, scattered] = samples.map(median_and_range);
        let name = &variant.name;
        println!("| {sources}+{parity} | {name} | {near} | {ordered} | {scattered} |");
    }
}

fn main() {
    let rounds = std::env::args().nth(1).map_or(7, |rounds| rounds.parse().expect("a number"));
    println!("| stripe | code | GB/s, one stripe | 512 MiB in order | 512 MiB scattered |");
    println!("|---|---|---|---|---|");
    for (sources, parity) in [(4, 1), (8, 1), (4, 2), (8, 2), (10, 2)] {
        compare(rounds, sources, parity);
    }
}
