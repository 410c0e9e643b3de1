# Two commands on a fresh machine: `make demo` and `make test`. All real work is CMake's.
BUILD ?= build
JOBS ?= $(shell nproc)

.PHONY: all packages configure demo test test-sanitize format tidy clean install

all: configure
	cmake --build $(BUILD) -j$(JOBS)

# Installs what is missing from Debian's packages, through sudo if not root.
packages:
	@sh cmake/packages.sh

configure: packages
	@cmake -S . -B $(BUILD) -DCMAKE_BUILD_TYPE=RelWithDebInfo $(CMAKE_ARGUMENTS)

demo: all
	@sh examples/demo.sh $(BUILD)

# Everything: the tests as built, then the host tests again under AddressSanitizer and UndefinedBehaviorSanitizer.
test: all
	ctest --test-dir $(BUILD) --output-on-failure -j$(JOBS)
	$(MAKE) test-sanitize

test-sanitize: packages
	cmake -S . -B $(BUILD)/sanitize -DROTA_SANITIZE=ON -DROTA_FUZZ=ON -DCMAKE_BUILD_TYPE=Debug
	cmake --build $(BUILD)/sanitize -j$(JOBS)
	ctest --test-dir $(BUILD)/sanitize --output-on-failure -j$(JOBS) -L 'host|fuzz' -LE 'slow|golden|style'

format:
	clang-format -i $$(git ls-files '*.c' '*.h')

tidy: configure
	clang-tidy -p $(BUILD) --quiet $$(git ls-files 'generator/*.c' 'runtime/*.c' 'command/*.c')

install: all
	cmake --install $(BUILD)

clean:
	rm -rf $(BUILD)
