# Drystone on Debian 12: every target installs what it lacks (as root or by sudo) and asks nothing.
# The work is done by the short scripts in scripts/.

.PHONY: build install run capi lab sim soak test test-long sim-test test-guest bench bench-peers bench-parity bench-raid clean
.NOTPARALLEL:

build:            ## build the release program: target/release/drystone
	@scripts/build.sh

install:          ## put the built programs into $(PREFIX)/bin (/usr/local)
	@built="$${CARGO_TARGET_DIR:-target}/release" bin="$${PREFIX:-/usr/local}/bin"; \
	install -D -m 755 "$$built/drystone" "$$bin/drystone" || exit; \
	for program in drystone-lab drystone-sim; do \
	    [ ! -e "$$built/$$program" ] || install -m 755 "$$built/$$program" "$$bin/$$program" || exit; \
	done

run:              ## build, then serve the embedded default stack until Ctrl-C
	@scripts/run.sh

capi:             ## build the library for C and fio's engine: target/release/libdrystone*.so*
	@scripts/capi.sh

lab:              ## build the laboratory: then `drystone lab` works
	@scripts/lab.sh

sim:              ## build the simulator: then `drystone sim` works
	@scripts/sim.sh

test-long:       ## what takes long and rarely fails: memory rules, sanitizer, instructions, no io_uring
	@scripts/test-long.sh

soak:             ## run new seeds of the simulator for MINUTES (30)
	@scripts/soak.sh

sim-test:         ## the simulator's tests alone; they are part of `test`
	@scripts/sim-test.sh

test:             ## install what the tests need and run all of them
	@scripts/test.sh

test-guest:       ## the tests inside an emulated machine with a Debian kernel
	@scripts/test-guest.sh

bench:            ## measure this machine; results go to target/bench/
	@scripts/bench.sh

bench-peers:      ## measure beside all peers: one table of one run
	@scripts/bench-peers.sh

bench-parity:     ## measure the arithmetic of RAID beside crates that others wrote
	@scripts/bench-parity.sh

bench-raid:       ## measure arrays on RAM disks beside what they are made of
	@scripts/bench-raid.sh

clean:            ## remove what was built
	@rm -rf target fuzz/target
