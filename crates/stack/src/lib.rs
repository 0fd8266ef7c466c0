//! Drystone: stack.
