//! Compares the kernels of every instruction set of this CPU with the definition ([`oracle`]).

use proptest::prelude::*;

use super::*;

/// All kernels that can run here. Missing instruction sets are printed, because their kernels are
/// not tested.
fn all() -> Vec<Parity> {
    let found: Vec<_> = Isa::ALL.into_iter().map(Parity::with).collect();
    for missing in found.iter().filter_map(|found| found.err()) {
        eprintln!("SKIPPED: {missing}");
    }
    found.into_iter().flatten().collect()
}

/// Buffers of one length, each at an offset of its own in its memory.
#[derive(Debug, Clone)]
struct Buffers {
    length: usize,
    memory: Vec<Vec<u8>>,
    shift: Vec<usize>,
}

impl Buffers {
    /// `count` buffers with random bytes, length and offsets.
    fn any(count: impl Into<proptest::collection::SizeRange>) -> impl Strategy<Value = Self> {
        let shifts = proptest::collection::vec(0..64usize, count);
        (1..=8192 / BLOCK_BYTES, shifts, any::<u64>()).prop_map(|(blocks, shift, seed)| {
            let length = blocks * BLOCK_BYTES;
            let mut state = seed | 1;
            let memory = shift.iter().map(|shift| random_bytes(&mut state, shift + length));
            Buffers { length, memory: memory.collect(), shift }
        })
    }

    fn get(&self, n: usize) -> &[u8] {
        &self.memory[n][self.shift[n]..]
    }

    fn slices(&self) -> Vec<&[u8]> {
        (0..self.memory.len()).map(|n| self.get(n)).collect()
    }

    /// A copy of buffer `n` with the same offset in its memory, and that offset.
    fn copy(&self, n: usize) -> (Vec<u8>, usize) {
        (self.memory[n].clone(), self.shift[n])
    }
}

/// Xorshift, because proptest is slow at making megabytes.
fn random_bytes(state: &mut u64, count: usize) -> Vec<u8> {
    let mut next = || {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state >> 32) as u8
    };
    (0..count).map(|_| next()).collect()
}

/// Distinct powers; in half of the cases those of an md layout come first.
fn powers(count: usize) -> impl Strategy<Value = Vec<u8>> {
    let falling = Just((0..count as u8).rev().collect::<Vec<_>>());
    let gaps = proptest::sample::subsequence((0..=254u8).rev().collect::<Vec<_>>(), count);
    let mixed = Just((0..=254u8).collect::<Vec<_>>()).prop_shuffle().prop_map(move |mut all| {
        all.truncate(count);
        all
    });
    prop_oneof![2 => falling, 1 => gaps, 1 => mixed]
}

/// Buffers of sources with powers, and two more buffers for results.
fn sources_with_powers() -> impl Strategy<Value = (Buffers, Vec<u8>)> {
    (1..=64usize).prop_flat_map(|count| (Buffers::any(count + 2), powers(count)))
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(96))]

    #[test]
    fn xor_is_the_sum_of_all_sources(buffers in Buffers::any(1..=65)) {
        let mut expected = vec![0; buffers.length];
        for source in &buffers.slices()[1..] {
            oracle::mul_into(&mut expected, 1, source);
        }
        for parity in all() {
            let (mut memory, at) = buffers.copy(0);
            parity.xor_of(&mut memory[at..], &buffers.slices()[1..]);
            prop_assert_eq!(&memory[at..], &expected, "{:?}", parity);
            prop_assert_eq!(&memory[..at], &buffers.memory[0][..at], "{:?}", parity);

            let (mut memory, at) = buffers.copy(0);
            parity.xor_into(&mut memory[at..], &buffers.slices()[1..]);
            oracle::mul_into(&mut memory[at..], 1, &expected);
            prop_assert_eq!(&memory[at..], buffers.get(0), "{:?}", parity);
        }
    }

    #[test]
    fn p_and_q_are_those_of_the_definition((buffers, powers) in sources_with_powers()) {
        let slices = buffers.slices();
        let sources: Vec<_> = powers.into_iter().zip(slices[2..].iter().copied()).collect();
        let expected = oracle::pq_of(buffers.length, &sources);
        for parity in all() {
            let ((mut p, p_at), (mut q, q_at)) = (buffers.copy(0), buffers.copy(1));
            parity.pq_of(&mut p[p_at..], &mut q[q_at..], &sources);
            prop_assert_eq!(&p[p_at..], &expected.0, "{:?}", parity);
            prop_assert_eq!(&q[q_at..], &expected.1, "{:?}", parity);
        }
    }

    #[test]
    fn products_are_added_and_undone(buffers in Buffers::any(3), power in 0..=254u8) {
        let coefficient = oracle::power(power);
        let mut expected = buffers.get(0).to_vec();
        oracle::mul_into(&mut expected, coefficient, buffers.get(1));
        for parity in all() {
            let (mut memory, at) = buffers.copy(0);
            parity.q_add(&mut memory[at..], power, buffers.get(1));
            prop_assert_eq!(&memory[at..], &expected, "{:?}", parity);
            parity.mul_into(&mut memory[at..], coefficient, buffers.get(1));
            prop_assert_eq!(&memory[at..], buffers.get(0), "{:?}", parity);

            parity.xor_of(&mut memory[at..], &[]);
            parity.q_add(&mut memory[at..], power, buffers.get(1));
            let (mut back, back_at) = buffers.copy(2);
            parity.one_data_from_q(&mut back[back_at..], power, &memory[at..]);
            prop_assert_eq!(&back[back_at..], buffers.get(1), "{:?}", parity);
        }
    }

    #[test]
    fn coefficients_of_all_values_multiply(buffers in Buffers::any(1), coefficient in 0..=255u8) {
        for parity in all() {
            let mut product = vec![0; buffers.length];
            parity.mul_into(&mut product, coefficient, buffers.get(0));
            for (product, value) in product.iter().zip(buffers.get(0)) {
                prop_assert_eq!(*product, oracle::mul(coefficient, *value), "{:?}", parity);
            }
        }
    }
}

/// The sources without those whose numbers are in `lost`.
fn without<'a>(sources: &[Source<'a>], lost: &[usize]) -> Vec<Source<'a>> {
    let left = sources.iter().enumerate().filter(|(n, _)| !lost.contains(n));
    left.map(|(_, source)| *source).collect()
}

/// Loses sources `x` and `y`, and recovers them from P, Q and the others.
fn lose_two(parity: Parity, sources: &[Source<'_>], x: usize, y: usize) {
    let length = sources[0].1.len();
    let (p, q) = oracle::pq_of(length, sources);
    let (mut first, mut second) = (vec![0xee; length], vec![0xdd; length]);
    parity.pq_of(&mut first, &mut second, &without(sources, &[x, y]));
    parity.xor_into(&mut first, &[&p]);
    parity.xor_into(&mut second, &[&q]);
    parity.two_data((sources[x].0, sources[y].0), &mut first, &mut second);
    assert_eq!(first, sources[x].1, "{parity:?}: {x} of {x}, {y}");
    assert_eq!(second, sources[y].1, "{parity:?}: {y} of {x}, {y}");
}

/// Loses source `x` and P, and recovers the data from Q.
fn lose_one_and_p(parity: Parity, sources: &[Source<'_>], x: usize) {
    let length = sources[0].1.len();
    let (_, q) = oracle::pq_of(length, sources);
    let (mut p, mut found) = (vec![0xee; length], vec![0xdd; length]);
    parity.pq_of(&mut p, &mut found, &without(sources, &[x]));
    parity.xor_into(&mut found, &[&q]);
    parity.one_data_in_place(sources[x].0, &mut found);
    assert_eq!(found, sources[x].1, "{parity:?}: {x}");
}

proptest! {
    #![proptest_config(config(12))]

    #[test]
    fn every_pair_of_losses_is_recovered(
        (data, powers) in (2..=12usize).prop_flat_map(|n| (Buffers::any(n), powers(n)))
    ) {
        let sources: Vec<_> = powers.into_iter().zip(data.slices()).collect();
        for parity in all() {
            for x in 0..sources.len() {
                lose_one_and_p(parity, &sources, x);
                for y in (0..sources.len()).filter(|y| *y != x) {
                    lose_two(parity, &sources, x, y);
                }
            }
        }
    }
}

/// Every pair of the 255 powers, with one block each.
#[test]
fn two_members_of_any_powers_are_recovered() {
    let mut state = 7;
    let data = Buffers {
        length: BLOCK_BYTES,
        memory: (0..2).map(|_| random_bytes(&mut state, BLOCK_BYTES)).collect(),
        shift: vec![0, 0],
    };
    let parity = Parity::detect();
    for x in 0..=254 {
        for y in (0..=254).filter(|y| *y != x) {
            let (mut first, mut second) = (vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES]);
            parity.xor_of(&mut first, &data.slices());
            parity.q_add(&mut second, x, data.get(0));
            parity.q_add(&mut second, y, data.get(1));
            parity.two_data((x, y), &mut first, &mut second);
            assert_eq!((&first[..], &second[..]), (data.get(0), data.get(1)), "{x}, {y}");
        }
    }
}

#[test]
fn nothing_and_the_most_there_can_be() {
    let mut state = 9;
    let data: Vec<_> = (0..128).map(|_| random_bytes(&mut state, 4096)).collect();
    let sources: Vec<_> = (0..128u8).rev().zip(data.iter().map(|data| &data[..])).collect();
    let expected = oracle::pq_of(4096, &sources);
    for parity in all() {
        let (mut p, mut q) = (vec![1; 4096], vec![1; 4096]);
        parity.pq_of(&mut p, &mut q, &sources);
        assert!(p == expected.0 && q == expected.1, "{parity:?}");
        parity.pq_of(&mut p, &mut q, &[]);
        assert!(p.iter().chain(&q).all(|byte| *byte == 0), "{parity:?}");
        parity.xor_of(&mut [], &[&[]]);
    }
}

#[test]
fn the_widest_is_chosen_and_what_is_missing_is_refused() {
    let best = all().last().map(|parity| parity.isa());
    assert_eq!(Some(Parity::detect().isa()), best);
    assert_eq!(Parity::with(Isa::Scalar).map(Parity::isa), Ok(Isa::Scalar));
    let message = Unsupported(Isa::Avx512).to_string();
    assert!(message.starts_with("this CPU has no avx512+gfni"), "{message}");
}

#[test]
#[should_panic(expected = "buffers of 128 and 64 bytes")]
fn buffers_of_two_lengths_are_refused() {
    Parity::detect().xor_into(&mut [0; 128], &[&[0; 128], &[0; 64]]);
}

#[test]
#[should_panic(expected = "no multiple of 64")]
fn a_buffer_of_odd_length_is_refused() {
    Parity::detect().pq_of(&mut [0; 100], &mut [0; 100], &[]);
}
