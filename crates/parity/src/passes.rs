//! The loops over buffers that the vector kernels share.
//!
//! Several blocks of 64 bytes go through a pass together, so that the loop over the sources costs
//! little; the remaining blocks go one by one. The number of blocks was measured
//! (docs/design/0013-raid-speed.md): as many as leave enough registers for other values.

/// Defines `xor` and `pq` of a module with these CPU features, from its `load`, `store`, `zero`,
/// `add` and `pq_pass`, with this number of blocks in each pass.
///
/// This is a macro, because a function has the features of one instruction set only.
macro_rules! define_passes {
    ($features:literal, xor $xor_blocks:literal, pq $pq_blocks:literal) => {
        #[target_feature(enable = $features)]
        pub(super) fn xor(dst: &mut [u8], keep: bool, sources: &[&[u8]]) {
            let (passes, rest) = blocks(dst).as_chunks_mut::<$xor_blocks>();
            let done = passes.len() * $xor_blocks;
            for (n, pass) in passes.iter_mut().enumerate() {
                xor_pass(pass, n * $xor_blocks, keep, sources);
            }
            for (n, block) in rest.iter_mut().enumerate() {
                xor_pass(std::array::from_mut(block), done + n, keep, sources);
            }
        }

        /// The blocks from the `at`th on.
        #[target_feature(enable = $features)]
        #[inline]
        fn xor_pass<const N: usize>(
            dst: &mut [[u8; BLOCK_BYTES]; N],
            at: usize,
            keep: bool,
            sources: &[&[u8]],
        ) {
            let mut sums = [zero(); N];
            if keep {
                sums.iter_mut().zip(&*dst).for_each(|(sum, dst)| *sum = load(dst));
            }
            for source in sources {
                let data: &[_; N] = block_at(source, at);
                sums.iter_mut().zip(data).for_each(|(sum, data)| *sum = add(*sum, load(data)));
            }
            dst.iter_mut().zip(sums).for_each(|(dst, sum)| store(dst, sum));
        }

        #[target_feature(enable = $features)]
        pub(super) fn pq(p: &mut [u8], q: &mut [u8], sources: &[Source<'_>]) {
            let (p_passes, p_rest) = blocks(p).as_chunks_mut::<$pq_blocks>();
            let (q_passes, q_rest) = blocks(q).as_chunks_mut::<$pq_blocks>();
            let done = p_passes.len() * $pq_blocks;
            for (n, (p, q)) in p_passes.iter_mut().zip(q_passes).enumerate() {
                pq_pass(p, q, n * $pq_blocks, sources);
            }
            for (n, (p, q)) in p_rest.iter_mut().zip(q_rest).enumerate() {
                pq_pass(std::array::from_mut(p), std::array::from_mut(q), done + n, sources);
            }
        }
    };
}

pub(super) use define_passes;
