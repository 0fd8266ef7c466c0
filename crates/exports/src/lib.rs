//! Drystone: exports.
