//! Deliberate faults in the product's code, which prove that the simulator would find them. Each is
//! a place in the code that asks [`drystone_core::mistake!`]. Only builds for the simulator contain
//! them.

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Its name.
    pub name: &'static str,
    /// The behaviour that is wrong then.
    pub what: &'static str,
    /// The scenarios that find it.
    pub scenarios: &'static [&'static str],
    /// The mistake shows only if another context runs between two points inside one call.
    pub within_a_call: bool,
}

const fn plain(name: &'static str, what: &'static str) -> Mistake {
    Mistake { name, what, scenarios: &["mixed"], within_a_call: false }
}

const fn of_arrays(name: &'static str, what: &'static str) -> Mistake {
    Mistake { scenarios: &["raid", "raid-crash"], ..plain(name, what) }
}

const fn of_crashes(name: &'static str, what: &'static str) -> Mistake {
    Mistake { scenarios: &["raid-crash"], ..plain(name, what) }
}

const fn within(name: &'static str, what: &'static str) -> Mistake {
    Mistake { within_a_call: true, ..plain(name, what) }
}

/// All of them.
pub const MISTAKES: [Mistake; 22] = [
    plain("completion_lost", "of three requests that end together one is forgotten"),
    plain("failure_kept", "a file that is opened again fails flushes as it did before"),
    plain("flush_failure_forgotten", "a file flushes again after a flush of it has failed"),
    plain("flush_not_forwarded", "a volume flushes all its members but the first"),
    plain("fua_forgotten", "a file takes a FUA write for an ordinary one"),
    Mistake {
        scenarios: &["bad-sectors"],
        ..plain("merge_fails_whole", "a sector that is bad fails all that was merged with it")
    },
    plain("plug_goes_on", "what follows from the flush of a plug is held in it again"),
    plain(
        "quiesced_in_flight",
        "a volume's table is changed while I/O by the old one is in flight",
    ),
    plain("split_off_by_one", "the second part of a bio that is cut goes one sector too far"),
    Mistake {
        scenarios: &["nbd"],
        ..plain("edges_not_locked", "others write a block while a part of it is written")
    },
    Mistake {
        scenarios: &["nbd"],
        ..plain(
            "short_move_is_all",
            "a pipe that got a part of a read's pages is sent as all of it",
        )
    },
    of_arrays(
        "dirty_too_late",
        "an array is written before its superblocks say that it may be out of step",
    ),
    of_crashes("intent_too_late", "a block is written before its bit of the bitmap is set"),
    of_arrays("log_too_late", "a stripe is written without its partial parity log"),
    of_arrays(
        "failure_off_record",
        "a write ends before it is on record that a member did not take it",
    ),
    // The few I/Os of a seed of `raid-crash` seldom meet this mistake.
    Mistake {
        scenarios: &["raid"],
        ..plain(
            "repair_races_writes",
            "a stripe is synchronised while others write to it, each with a cache of its own",
        )
    },
    Mistake {
        scenarios: &["shrinks"],
        ..plain(
            "read_beside_cut",
            "a context that has written nothing does not look whether a file was cut off",
        )
    },
    Mistake {
        scenarios: &["raid", "raid-crash", "raid-metadata"],
        ..plain("stale_member_read", "a member is taken back that has missed writes")
    },
    Mistake {
        scenarios: &["raid"],
        ..plain("row_failure_forgotten", "a write of whole rows ends although a member failed it")
    },
    of_arrays("stripe_acknowledged_early", "a write to an array ends before its members have it"),
    plain("wake_up_dropped", "a message is left for a context that sleeps, and nobody wakes it"),
    within("take_in_two_steps", "a list that others add to is read first, and emptied then"),
];

/// The mistake of that name.
pub fn mistake(name: &str) -> Option<&'static Mistake> {
    MISTAKES.iter().find(|mistake| mistake.name == name)
}
