# The project's chores. `make` alone prints them.
# Each target installs the Debian packages that it needs and says so (tools/need).

PREFIX ?= /usr/local
DESTDIR ?=
ROW ?=
NAME ?=
STATES ?= 200000
KILLS ?= 200
PROFILE ?= dev
REPLAY ?=
CASE ?=
TARGET = $(or $(CARGO_TARGET_DIR),target)
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
SONAME = libnvmed.so.0

.PHONY: help build install uninstall test fuzz model kills posix programs answers test-vm crash demo bench bench-vm clean

help:
	@echo 'nvmed: a user-space storage stack for NVMe'
	@echo
	@echo '  make demo               run the main job: unmodified SQLite on a virtual NVMe device'
	@echo '  make build              build the nvmed command, libnvmed_wrapper.so and libnvmed (release)'
	@echo '  make install PREFIX=DIR install them, nvmed.h, nvmedfs.h, nvmed.pc, man pages and nvmed.service below DIR ($(PREFIX))'
	@echo '  make uninstall PREFIX=DIR'
	@echo '  make test               the gate: formatting, lints, direction, docs, tests, licences, guest'
	@echo '  make fuzz               the tests of every parser of foreign bytes again, with sixteen times as many cases'
	@echo '  make model              the words of memory that processes share, in every order of their accesses (two minutes)'
	@echo '  make kills [KILLS=N]    kill and stop clients and servers at each point of their protocols (half an hour);'
	@echo '                          PROFILE=points in an optimised build'
	@echo '  make posix              pjdfstest, fsx and stress-ng on a mounted device, beside ext4 (root, FUSE)'
	@echo '  make programs [NAME=..] PostgreSQL, Redis, git, RocksDB and others, unmodified, on a device; part of it is in the gate'
	@echo '  make answers [CASE=..]  every call with good, bad and odd arguments, answered as on ext4 (root, else the temporary directory counts)'
	@echo '  make test-vm            the engines on QEMU'\''s NVMe controller in a guest, by VFIO and by the kernel (root)'
	@echo '  make crash [STATES=N]   cut the power after every device write of generated workloads; REPLAY=SEED:CUT:OUTCOME for one;'
	@echo '                          MEDIUM=nvm: after stores to memory and fences'
	@echo '  make bench-vm           instructions of a 4 KiB read, our driver beside the kernel'\''s, in a guest (root)'
	@echo '  make bench [ROW=NAME]   measure beside the kernel, one JSON a row in $(TARGET)/bench/; ROW=everyday. is calls and'
	@echo '                          whole jobs on small files (root)'
	@echo '  make clean              remove what was built'

build:
	@tools/need-rust
	@tools/need cc:gcc /usr/include/stdio.h:libc6-dev
	cargo build --release --locked

# The static library alone keeps the whole of the dependencies; its debugging symbols stay out of an installation.
install: build
	install -D -m 755 $(TARGET)/release/nvmed $(DESTDIR)$(PREFIX)/bin/nvmed
	install -D -m 755 $(TARGET)/release/libnvmed_wrapper.so $(DESTDIR)$(PREFIX)/lib/libnvmed_wrapper.so
	install -D -m 644 include/nvmed.h $(DESTDIR)$(PREFIX)/include/nvmed.h
	install -D -m 644 include/nvmedfs.h $(DESTDIR)$(PREFIX)/include/nvmedfs.h
	install -D -m 755 $(TARGET)/release/libnvmed.so $(DESTDIR)$(PREFIX)/lib/libnvmed.so.$(VERSION)
	ln -sf libnvmed.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/$(SONAME)
	ln -sf $(SONAME) $(DESTDIR)$(PREFIX)/lib/libnvmed.so
	install -D -m 644 $(TARGET)/release/libnvmed.a $(DESTDIR)$(PREFIX)/lib/libnvmed.a
	strip --strip-debug $(DESTDIR)$(PREFIX)/lib/libnvmed.a
	install -d $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/man/man3
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' nvmed.pc.in \
		>$(DESTDIR)$(PREFIX)/lib/pkgconfig/nvmed.pc
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	sed -e 's|@PREFIX@|$(PREFIX)|' systemd/nvmed.service.in >$(DESTDIR)$(PREFIX)/lib/systemd/system/nvmed.service
	install -m 644 man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1/
	install -m 644 man/*.3 $(DESTDIR)$(PREFIX)/share/man/man3/
	tools/man-links man $(DESTDIR)$(PREFIX)/share/man/man3 3

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/nvmed $(DESTDIR)$(PREFIX)/lib/libnvmed_wrapper.so \
		$(DESTDIR)$(PREFIX)/include/nvmed.h $(DESTDIR)$(PREFIX)/include/nvmedfs.h $(DESTDIR)$(PREFIX)/lib/libnvmed.so* $(DESTDIR)$(PREFIX)/lib/libnvmed.a \
		$(DESTDIR)$(PREFIX)/lib/pkgconfig/nvmed.pc $(DESTDIR)$(PREFIX)/lib/systemd/system/nvmed.service \
		$(DESTDIR)$(PREFIX)/share/man/man1/nvmed.1 \
		$(DESTDIR)$(PREFIX)/share/man/man3/nvmed.3 $(DESTDIR)$(PREFIX)/share/man/man3/nvmed_*.3 $(DESTDIR)$(PREFIX)/share/man/man3/nvmedfs*.3

test:
	@tools/need-rust
	@tools/need cc:gcc /usr/include/stdio.h:libc6-dev git:git sqlite3:sqlite3 fio:fio python3:python3 tar:tar \
		stress-ng:stress-ng mkfs.ext4:e2fsprogs db_bench:rocksdb-tools mdb_load:lmdb-utils \
		/usr/share/unicode/UnicodeData.txt:unicode-data
	cargo xtask gate

fuzz:
	@tools/need-rust
	@tools/need cc:gcc /usr/include/stdio.h:libc6-dev
	cargo xtask gate fuzz

# What each model is: docs/spec/models.md.
model:
	@tools/need-rust
	@tools/need cc:gcc /usr/include/stdio.h:libc6-dev
	cargo xtask gate model

# What each point is: docs/spec/points.md. A few kills at each are in the gate.
kills:
	@tools/need-rust
	@tools/need cc:gcc /usr/include/stdio.h:libc6-dev
	cargo build --locked --profile $(PROFILE) -p nvmed-wrapper -p nvmed-cli
	NVMED_KILLS=$(KILLS) cargo test --locked --profile $(PROFILE) -p nvmed-cli --test it points:: -- --show-output

# A part of it is the gate's step `posix`. OPS=n, SECONDS_EACH=n, DEVICE=device and WORDS=options are passed on.
posix: build
	@tools/posix

# The small ones are the gate's step `programs`. NAME="git redis" runs those alone.
programs: build
	@tools/programs $(NAME)
	$(if $(NAME),,NVMED_KILLS=5000 cargo test --release --locked -p nvmed-server --test kills)

# The cases of one argument are in the gate. CASE='open(file, RDONLY, 640)' shows one.
answers: build
	@tools/need mkfs.ext4:e2fsprogs
	NVMED_ANSWERS='$(or $(CASE),all)' cargo test --release --locked -p nvmed-wrapper --test it answers:: -- --nocapture

# Also the gate's step `vm`.
test-vm:
	@tools/need-rust
	@tools/need cc:gcc /usr/include/stdio.h:libc6-dev
	tools/test-vm

# 200,000 crash states by default; the gate examines 5,000. The last line is a summary. What is stored to memory is
# recorded by builds with debug assertions alone: MEDIUM=nvm takes one of those.
crash: SIM_PROFILE := $(if $(MEDIUM),points,release)
crash:
	@tools/need-rust
	cargo build --profile $(SIM_PROFILE) --locked -p nvmed-sim --features schedule
	$(TARGET)/$(SIM_PROFILE)/nvmed-sim $(if $(MEDIUM),--medium $(MEDIUM)) --states $(STATES) \
		$(if $(REPLAY),--replay $(REPLAY))

demo: build
	@tools/need sqlite3:sqlite3 /usr/share/unicode/UnicodeData.txt:unicode-data
	@demo/main-job $(TARGET)/release $(TARGET)/demo

bench: build
	@tools/need sqlite3:sqlite3 fio:fio mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs git:git make:make db_bench:rocksdb-tools blkparse:blktrace \
		/usr/lib/postgresql/15/bin/initdb:postgresql-15
	cargo build --release --locked -p nvmed-bench
	$(TARGET)/release/nvmed-bench $(ROW)

bench-vm:
	@tools/need-rust
	@tools/need cc:gcc /usr/include/stdio.h:libc6-dev
	tools/bench-vm

clean:
	cargo clean
