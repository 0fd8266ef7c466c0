//! Shared parts of the tests' fake files.

/// The methods of a [`super::Backing`] that is all data and does not grow, to stand in its `impl`.
macro_rules! all_data {
    () => {
        fn extend(&self, _bytes: u64) -> std::io::Result<()> {
            Err(std::io::ErrorKind::Unsupported.into())
        }

        fn next_data(&self, from: u64, _end: u64) -> std::io::Result<u64> {
            Ok(from)
        }

        fn next_hole(&self, _from: u64, end: u64) -> std::io::Result<u64> {
            Ok(end)
        }
    };
}

pub(super) use all_data;
