# The project's chores. `make` alone prints them.
# Each target installs the Debian packages that it needs and says so (tools/need).

PREFIX ?= /usr/local
DESTDIR ?=
ROW ?=
TARGET = $(or $(CARGO_TARGET_DIR),target)

.PHONY: help build install uninstall test demo bench clean

help:
	@echo 'nvmed: a user-space storage stack for NVMe'
	@echo
	@echo '  make demo               run the main job: unmodified SQLite on a virtual NVMe device'
	@echo '  make build              build the nvmed command and libnvmed_wrapper.so (release)'
	@echo '  make install PREFIX=DIR install them below DIR ($(PREFIX))'
	@echo '  make uninstall PREFIX=DIR'
	@echo '  make test               the gate: formatting, lints, direction, docs, tests, fuzz smoke, licences'
	@echo '  make bench [ROW=NAME]   measure beside the kernel, one JSON a row in $(TARGET)/bench/'
	@echo '  make clean              remove what was built'

build:
	@tools/need-rust
	@tools/need cc:gcc /usr/include/stdio.h:libc6-dev
	cargo build --release --locked

install: build
	install -D -m 755 $(TARGET)/release/nvmed $(DESTDIR)$(PREFIX)/bin/nvmed
	install -D -m 755 $(TARGET)/release/libnvmed_wrapper.so $(DESTDIR)$(PREFIX)/lib/libnvmed_wrapper.so

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/nvmed $(DESTDIR)$(PREFIX)/lib/libnvmed_wrapper.so

test:
	@tools/need-rust
	@tools/need cc:gcc /usr/include/stdio.h:libc6-dev git:git sqlite3:sqlite3 fio:fio python3:python3 tar:tar \
		/usr/share/unicode/UnicodeData.txt:unicode-data
	cargo xtask gate

demo: build
	@tools/need sqlite3:sqlite3 /usr/share/unicode/UnicodeData.txt:unicode-data
	@demo/main-job $(TARGET)/release $(TARGET)/demo

bench: build
	@tools/need sqlite3:sqlite3 fio:fio mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs
	cargo build --release --locked -p nvmed-bench
	$(TARGET)/release/nvmed-bench $(ROW)

clean:
	cargo clean
