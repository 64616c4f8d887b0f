# The short way in. meson does the work; `make help` lists the targets.
BUILD ?= build
PREFIX ?= /usr/local
NINJA_FLAGS ?=

.PHONY: all help bootstrap demo test bench check format install clean

all: $(BUILD)/build.ninja
	@tools/build-web
	@ninja -C $(BUILD) $(NINJA_FLAGS)
	@tools/link-programs $(BUILD)

help:
	@echo 'make          build; programs land in $(BUILD)/bin'
	@echo 'make demo     install what is missing, build, run a first command on a cloud of one machine'
	@echo 'make test     install what is missing, build, run every suite this machine can run'
	@echo 'make bench    measure against the peers that are installed; one JSON object a line'
	@echo 'make check    format, layers, second compiler, static analysis, thread sanitizer'
	@echo 'make format   rewrite the C files in house format'
	@echo 'make install  install below $$DESTDIR$(PREFIX)'
	@echo 'make clean    remove every build folder'

$(BUILD)/build.ninja:
	@command -v meson >/dev/null || { echo 'meson is missing: run tools/bootstrap build (as root) first' >&2; exit 1; }
	meson setup $(BUILD) --prefix=$(PREFIX)

bootstrap:
	@tools/bootstrap build

demo: bootstrap
	@$(MAKE) --no-print-directory all
	@tools/demo $(BUILD)/bin

test:
	@tools/bootstrap build test
	@tools/run-tests

bench: bootstrap all
	@tools/bootstrap bench
	@for what in $$(bench/run --list); do bench/run $$what || exit 1; done

check:
	@tools/bootstrap build test check
	@tools/run-tests --check

format:
	clang-format -i $$(git ls-files '*.c' '*.h')

install: all
	@meson install -C $(BUILD) --no-rebuild

clean:
	rm -rf build build-asan build-tsan build-clang build-fuzz build-analyze build-tools web/dist
