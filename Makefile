# train.c -- `make` builds ./train; `make help` lists the targets. Needs gcc, make, pkg-config and cJSON.
#
# Variables: DEBUG=1, CJSON_PREFIX=/path (a cJSON outside pkg-config's reach), CC, BUILD (folder of a flavour's objects).

SHELL    := /bin/bash
ifeq ($(origin CC),default)
CC       := gcc
endif
PKG_CONFIG ?= pkg-config
FLAVOUR  ?= release
BUILD    ?= build/$(FLAVOUR)

# ---- what is there ---------------------------------------------------------------------------------------------------
ifdef CJSON_PREFIX
CJSON_CFLAGS := -I$(CJSON_PREFIX)/include -I$(CJSON_PREFIX)/include/cjson
CJSON_LIBS   := -L$(CJSON_PREFIX)/lib -Wl,-rpath,$(CJSON_PREFIX)/lib -lcjson
HAVE_CJSON   := yes
else
HAVE_CJSON   := $(shell $(PKG_CONFIG) --exists libcjson 2>/dev/null && echo yes)
CJSON_CFLAGS := $(shell $(PKG_CONFIG) --cflags libcjson 2>/dev/null)
CJSON_LIBS   := $(shell $(PKG_CONFIG) --libs libcjson 2>/dev/null)
endif
# Commands are shown with V=1; otherwise a word per file.
Q        := $(if $(V),,@)
HAVE_CMOCKA  := $(shell $(PKG_CONFIG) --exists cmocka 2>/dev/null && echo yes)
CMOCKA_LIBS  := $(shell $(PKG_CONFIG) --libs cmocka 2>/dev/null)
COMMIT       := $(shell git describe --always --dirty --abbrev=10 2>/dev/null || echo unknown)

# ---- flags -----------------------------------------------------------------------------------------------------------
WARN     := -Wall -Wextra -Wshadow -Wstrict-prototypes -Werror
CPPFLAGS := -I. -D_GNU_SOURCE $(CJSON_CFLAGS)
OPT      := $(if $(DEBUG),-O0 -g,-O2 -g)
KOPT     := $(if $(DEBUG),-O0 -g,-O3 -g -fno-math-errno -fno-trapping-math)
SAN      :=
ifeq ($(FLAVOUR),asan)
SAN      := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
OPT      := -O1 -g
KOPT     := -O1 -g -fno-math-errno -fno-trapping-math
endif
ifeq ($(FLAVOUR),tsan)
SAN      := -fsanitize=thread
OPT      := -O1 -g
KOPT     := -O1 -g -fno-math-errno -fno-trapping-math
endif
CFLAGS   := -std=c11 $(OPT) $(WARN) $(SAN)
LDLIBS   := $(CJSON_LIBS) -ldl -lpthread -lm

# ---- sources ---------------------------------------------------------------------------------------------------------
KERNELS  := $(wildcard model/kernels/cpu/*.c)
SOURCES  := $(filter-out $(KERNELS),$(wildcard train.c configs/*.c model/*.c model/*/*.c parallel/*.c parallel/*/*.c optim/*.c data/*.c))
LEVELS   := baseline v3 v4
FLAGS_baseline :=
FLAGS_v3 := -march=x86-64-v3
FLAGS_v4 := -march=x86-64-v4 -mprefer-vector-width=512
OBJECTS  := $(SOURCES:%.c=$(BUILD)/%.o)
KOBJECTS := $(foreach l,$(LEVELS),$(foreach r,f32 f64,$(KERNELS:%.c=$(BUILD)/%.$(l).$(r).o)))
PROGRAM_OBJECTS := $(OBJECTS) $(KOBJECTS)
LIB_OBJECTS := $(filter-out $(BUILD)/train.o,$(PROGRAM_OBJECTS))

TEST_SOURCES := $(wildcard tests/test_*.c)
TEST_HELPERS := $(filter-out $(TEST_SOURCES),$(wildcard tests/*.c)) $(wildcard tests/fuzz/*.c)
TESTS    := $(TEST_SOURCES:tests/%.c=$(BUILD)/tests/%)
TEST_HELPER_OBJECTS := $(TEST_HELPERS:%.c=$(BUILD)/%.o)

.PHONY: force all test test-programs check asan tsan bench size clean help format print-config
.DELETE_ON_ERROR:
.SECONDARY:

all: print-config train

# ./train is the release program; other flavours stay in their folders.
train: $(BUILD)/train
	@[ $(FLAVOUR) != release ] || ln -sf $< $@

$(BUILD)/train: $(PROGRAM_OBJECTS)
	@echo "  LINK  $@"
	$(Q)$(CC) $(SAN) -o $@ $^ $(LDLIBS)

print-config:
	@[ "$(HAVE_CJSON)" = yes ] || { echo "cJSON is missing: apt-get install libcjson-dev, or make CJSON_PREFIX=/where/it/is"; exit 1; }
	@echo "build $(BUILD): $(CC) $$($(CC) -dumpversion), cJSON $$($(PKG_CONFIG) --modversion libcjson 2>/dev/null || echo from $(CJSON_PREFIX)), cmocka $(or $(HAVE_CMOCKA),no), CPU levels $(LEVELS)"

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	@echo "  CC    $<"
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

# The commit is part of the program's answer to --version and of every run folder: one file is compiled again when it moves.
$(BUILD)/commit: force
	@mkdir -p $(@D)
	@echo '$(COMMIT)' | cmp -s - $@ || echo '$(COMMIT)' > $@
force:
$(BUILD)/parallel/version.o: $(BUILD)/commit
$(BUILD)/parallel/version.o: CPPFLAGS += -DPROGRAM_COMMIT='"$(COMMIT)"'

define KERNEL_RULES
$(BUILD)/%.$(1).f32.o: %.c
	@mkdir -p $$(@D)
	@echo "  CC    $$< $(1) f32"
	$(Q)$(CC) $(CPPFLAGS) -std=c11 $(KOPT) $(WARN) $(SAN) $(FLAGS_$(1)) -DCPU_LEVEL=$(1) -DREAL=float -DREAL_DTYPE=F32 -DREAL_SUFFIX=f32 -MMD -MP -c -o $$@ $$<
$(BUILD)/%.$(1).f64.o: %.c
	@mkdir -p $$(@D)
	@echo "  CC    $$< $(1) f64"
	$(Q)$(CC) $(CPPFLAGS) -std=c11 $(KOPT) $(WARN) $(SAN) $(FLAGS_$(1)) -DCPU_LEVEL=$(1) -DREAL=double -DREAL_DTYPE=F64 -DREAL_SUFFIX=f64 -MMD -MP -c -o $$@ $$<
endef
$(foreach l,$(LEVELS),$(eval $(call KERNEL_RULES,$(l))))

# ---- tests -----------------------------------------------------------------------------------------------------------
$(BUILD)/tests/%: $(BUILD)/tests/%.o $(TEST_HELPER_OBJECTS) $(LIB_OBJECTS)
	@echo "  LINK  $@"
	$(Q)$(CC) $(SAN) -o $@ $^ $(LDLIBS) $(CMOCKA_LIBS)

test-programs: $(TESTS)

test: all test-programs
	BUILD=$(BUILD) scripts/run_tests.sh $(TESTS)

asan:
	$(MAKE) FLAVOUR=asan all test

tsan:
	$(MAKE) FLAVOUR=tsan all test

# ---- habits ----------------------------------------------------------------------------------------------------------
bench: all
	scripts/bench.sh

check:
	scripts/check.sh

format:
	clang-format -i $$(git ls-files '*.c' '*.h')

size:
	@scripts/size.sh

compile_commands.json: Makefile
	@$(MAKE) --no-print-directory -Bn all test-programs | scripts/compile_commands.sh > $@

clean:
	rm -rf build train compile_commands.json

help:
	@echo "make            build ./train"
	@echo "make test       build and run all tests (release)"
	@echo "make asan tsan  the same under AddressSanitizer + UBSan, under ThreadSanitizer"
	@echo "make check      format, clang-tidy, layers, stray conditionals, file and function sizes"
	@echo "make bench      op table and step benchmark"
	@echo "make size       lines per room"
	@echo "make compile_commands.json"
	@echo "make clean"

-include $(PROGRAM_OBJECTS:.o=.d) $(TEST_HELPER_OBJECTS:.o=.d) $(TESTS:=.d)
