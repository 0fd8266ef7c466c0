//! Drystone: core.
