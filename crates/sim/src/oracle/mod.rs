//! What each sector of a volume may rightly hold.
