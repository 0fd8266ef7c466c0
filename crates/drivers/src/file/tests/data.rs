//! Tests of data: reads return what was written, and a freed range is a hole.

use super::*;

#[test]
fn data_comes_back_and_is_in_the_file() {
    everywhere(|mut rig, dir| {
        let data = pattern(65536, 1);
        assert_eq!(rig.write(8192, &data, NONE), Status::Ok);
        assert_eq!(rig.read(8192, 65536).unwrap(), data);
        assert_eq!(rig.read(8192 + 512, 1024).unwrap(), data[512..1536]);
        assert_eq!(rig.flush(), Status::Ok);
        let on_disk = std::fs::read(dir.join("disk.img")).unwrap();
        assert_eq!((on_disk.len() as u64, &on_disk[8192..73728]), (4 * MIB, &data[..]));
        assert_eq!(rig.write(512, &data[..1024], BioFlags::FUA), Status::Ok);
        assert_eq!(rig.read(512, 1024).unwrap(), data[..1024]);
    });
}

#[test]
fn vectored_and_misaligned_memory() {
    for dir in places() {
        for (engine, direct) in ENGINES.into_iter().zip([Direct::Auto, Direct::No]) {
            let options = FileOptions { direct, ..options(dir.path(), Some(MIB)) };
            let mut rig = Rig::new(File::open(&options).unwrap(), engine);
            // Pieces of odd lengths at odd addresses, 4096 bytes in all.
            let data = pattern(4096, 9);
            let pieces = |fill: bool| {
                let mut at = 0;
                [1usize, 511, 700, 2884].map(|len| {
                    let mut buf = IoBuf::zeroed(len + 3);
                    if fill {
                        buf[3..].copy_from_slice(&data[at..at + len]);
                    }
                    at += len;
                    (buf, 3..len + 3)
                })
            };
            let bio = rig.one(Bio::vectored(Op::Write, Sector(3), pieces(true)));
            assert_eq!(bio.status, Status::Ok);
            assert_eq!(rig.read(3 * 512, 4096).unwrap(), data);
            let bio = rig.one(Bio::vectored(Op::Read, Sector(3), pieces(false)));
            assert_eq!(bio.status, Status::Ok);
            let back: Vec<u8> = bio.bufs().iter().flat_map(|b| b[3..].to_vec()).collect();
            assert_eq!(back, data);
            assert!(bio.bufs().iter().all(|b| b[..3] == [0; 3]), "before the pieces");
            let mut bio = Bio::read(Sector(0), IoBuf::zeroed(512));
            bio.set_buf(IoBuf::zeroed(4096 + 512), Some(1..1025));
            bio.sector = Sector(3);
            let bio = rig.one(bio);
            assert_eq!((bio.status, &bio.buf().unwrap()[1..1025]), (Status::Ok, &data[..1024]));
        }
    }
}

#[test]
fn neighbours_of_one_call_are_one_request() {
    everywhere(|mut rig, _| {
        let data = pattern(16384, 5);
        let write = |i: usize| {
            let buf = IoBuf::from_slice(&data[i * 4096..(i + 1) * 4096]);
            Bio::write(Sector(i as u64 * 8), buf)
        };
        rig.submit((0..4).map(write));
        assert!(rig.drain().iter().all(|b| b.status.is_ok()));
        assert_eq!(rig.device.stats().fields()[4..6], [1, 3], "one request, three merges");
        assert_eq!(rig.read(0, 16384).unwrap(), data);
    });
}

#[test]
fn many_at_once_end_once_each() {
    everywhere(|mut rig, _| {
        let bio = |i: u64| {
            let mut bio = Bio::write(Sector(i * 16), IoBuf::from_slice(&pattern(4096, i as u8)));
            (bio.user_data, bio.flags) = (i, BioFlags::NOMERGE);
            bio
        };
        rig.submit((0..500).map(bio));
        let mut ids: Vec<_> = rig.drain().iter().map(|b| (b.user_data, b.status)).collect();
        ids.sort_unstable_by_key(|(id, _)| *id);
        assert!(ids.iter().enumerate().all(|(i, id)| *id == (i as u64, Status::Ok)));
        assert_eq!(ids.len(), 500);
        for i in [0, 77, 499] {
            assert_eq!(rig.read(i * 8192, 4096).unwrap(), pattern(4096, i as u8));
        }
    });
}

#[test]
fn discard_and_write_zeroes_make_real_holes() {
    everywhere(|mut rig, _| {
        assert_eq!(rig.allocation(4 * MIB), [(4 * MIB, false)], "made sparse");
        rig.write(0, &pattern(MIB as usize, 2), NONE);
        assert_eq!(rig.allocation(4 * MIB), [(MIB, true), (3 * MIB, false)]);
        assert_eq!(rig.range(Op::Discard, 0, 65536, NONE), Status::Ok);
        assert_eq!(rig.range(Op::WriteZeroes, 131072, 65536, NONE), Status::Ok);
        let map = [(65536, false), (65536, true), (65536, false), (MIB - 196608, true)];
        assert_eq!(rig.allocation(4 * MIB)[..4], map);
        assert_eq!(rig.read(0, 65536).unwrap(), [0; 65536]);
        assert_eq!(rig.read(65536, 65536).unwrap(), pattern(MIB as usize, 2)[65536..131072]);
        assert_eq!(rig.read(131072, 65536).unwrap(), [0; 65536]);
    });
}

#[test]
fn zeroes_that_must_stay_allocated() {
    everywhere(|mut rig, dir| {
        rig.write(0, &pattern(MIB as usize, 2), NONE);
        assert_eq!(rig.range(Op::WriteZeroes, 0, 65536, BioFlags::NOUNMAP), Status::Ok);
        assert_eq!(rig.read(0, 131072).unwrap()[..65536], [0; 65536]);
        assert_eq!(rig.range(Op::WriteZeroes, 512, 1024, BioFlags::FUA), Status::Ok);
        let fast = rig.range(Op::WriteZeroes, 0, 65536, BioFlags::FAST_ZERO);
        assert_eq!(fast, Status::Ok, "a hole is quick here");
        let both = BioFlags::FAST_ZERO | BioFlags::NOUNMAP;
        let quick = rig.range(Op::WriteZeroes, 131072, 65536, both);
        let zeroed = rig.read(131072, 65536).unwrap().iter().all(|b| *b == 0);
        match dir.starts_with("/dev/shm") {
            // tmpfs cannot zero a range in place: it would have to be written.
            true => assert_eq!((quick, zeroed), (Status::NotSupported, false)),
            false => assert_eq!((quick, zeroed), (Status::Ok, true)),
        }
    });
}

#[test]
fn zeroes_by_hand_where_the_file_system_cannot() {
    for engine in ENGINES {
        let dir = tempfile::tempdir().unwrap();
        let driver = file(dir.path(), 4 * MIB);
        let shared = driver.shared.opened();
        shared.punch_hole.store(false, Relaxed);
        shared.zero_range.store(false, Relaxed);
        let mut rig = Rig::new(driver, engine);
        rig.write(0, &pattern(4 * MIB as usize, 2), NONE);
        // More than one chunk of zeroes.
        let bytes = 2 * MIB + 512;
        assert_eq!(rig.range(Op::WriteZeroes, 512, bytes, NONE), Status::Ok);
        let data = rig.read(0, 3 * MIB as usize).unwrap();
        let end = (512 + bytes) as usize;
        assert!(data[512..end].iter().all(|b| *b == 0));
        assert!(data[..512].iter().chain(&data[end..]).all(|b| *b != 0));
        assert_eq!(rig.range(Op::WriteZeroes, 0, 512, BioFlags::FAST_ZERO), Status::NotSupported);
        assert_eq!(rig.allocation(4 * MIB), [(4 * MIB, true)]);
    }
}

#[test]
fn a_size_may_be_less_than_the_file() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("disk.img"), pattern(MIB as usize, 4)).unwrap();
    let mut rig = Rig::new(file(dir.path(), 8192), Engine::Auto);
    assert_eq!(rig.read(4096, 4096).unwrap(), pattern(MIB as usize, 4)[4096..8192]);
    assert_eq!(rig.read(8192, 512), Err(Status::IoError));
    assert_eq!(rig.allocation(8192), [(8192, true)]);
}

#[test]
fn it_grows_and_never_shrinks() {
    everywhere(|mut rig, dir| {
        assert_eq!(rig.write(4 * MIB, &[1; 512], NONE), Status::IoError);
        rig.device.set_attribute("size_bytes", &(8 * MIB).to_string()).unwrap();
        assert_eq!(rig.device.info().size_bytes, 8 * MIB);
        assert_eq!(std::fs::metadata(dir.join("disk.img")).unwrap().len(), 8 * MIB);
        assert_eq!(rig.write(8 * MIB - 512, &[1; 512], NONE), Status::Ok);
        for bad in [(4 * MIB).to_string(), (8 * MIB + 1).to_string(), "big".into(), "".into()] {
            let error = rig.device.set_attribute("size_bytes", &bad).unwrap_err().to_string();
            assert!(error.contains("size") && error.contains(&bad), "{error}");
        }
        let error = rig.device.set_attribute("size_bytes", "18446744073709551104").err();
        assert!(error.is_some_and(|e| e.to_string().contains("disk.img")));
        assert_eq!(rig.device.info().size_bytes, 8 * MIB, "a refused value changes nothing");
        // The device takes over a length that another program has extended, and does not cut it.
        let disk = std::fs::OpenOptions::new().write(true).open(dir.join("disk.img")).unwrap();
        disk.set_len(16 * MIB).unwrap();
        rig.device.set_attribute("size_bytes", &(12 * MIB).to_string()).unwrap();
        assert_eq!(disk.metadata().unwrap().len(), 16 * MIB);
        assert_eq!(rig.write(12 * MIB - 512, &[1; 512], NONE), Status::Ok);
    });
}
