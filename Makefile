# train.c -- `make` builds ./train; `make help` lists the targets. Needs gcc, make and cJSON; for tests cmocka, for GPUs nvcc.
#
# Variables: DEBUG=1, CJSON_PREFIX=/path and CMOCKA_PREFIX=/path (where neither pkg-config nor the compiler finds them), CC,
# BUILD (folder of a flavour's objects).
# CCACHE=ccache: what gcc, g++ and nvcc are run by when they compile; scripts/test.sh sets it where ccache is installed.
# CUDA=0|1|emu: without the CUDA backend; with it (what is chosen where there is an nvcc: $CUDA_HOME/bin, PATH,
# /usr/local/cuda); with it, its kernels executed on the CPU by tests/emu, for tests. ARCH="80 90a 100": what kernels are
# compiled for, besides PTX of compute capability 8.0 for every other GPU (default: this machine's GPUs; without one "80 90a
# 100", less what nvcc does not know).

SHELL    := /bin/bash
# No rules of make's own: searching them for each of hundreds of files took seconds.
MAKEFLAGS += --no-builtin-rules
comma    := ,
space    := $(subst ,, )
ifeq ($(origin CC),default)
CC       := gcc
endif
PKG_CONFIG ?= pkg-config
FLAVOUR  ?= release
# A CC that is ccache's already does not go through it twice.
cached    = $(if $(findstring ccache,$(1)),,$(CCACHE)) $(1)
# For nvcc it reads the list of headers that nvcc writes: what nvcc's preprocessor prints lacks the code for other GPUs.
cached_nvcc = $(if $(CCACHE),CCACHE_DEPEND=1 $(CCACHE)) $(NVCC)

# ---- what is there ---------------------------------------------------------------------------------------------------
# Where pkg-config is missing or does not know a library, its header is asked of the compiler: $(call header,cjson/cJSON.h) is
# that file's path, or nothing.
header   = $(filter %/$(1),$(shell printf '\043include <$(1)>' | $(CC) -M -x c - 2>/dev/null))
knows    = $(shell $(PKG_CONFIG) --exists $(1) 2>/dev/null && echo yes)
ifdef CJSON_PREFIX
HAVE_CJSON   := yes
CJSON_CFLAGS := -I$(CJSON_PREFIX)/include -I$(CJSON_PREFIX)/include/cjson
CJSON_LIBS   := -L$(CJSON_PREFIX)/lib -Wl,-rpath,$(CJSON_PREFIX)/lib -lcjson
else ifeq ($(call knows,libcjson),yes)
HAVE_CJSON   := yes
CJSON_CFLAGS := $(shell $(PKG_CONFIG) --cflags libcjson)
CJSON_LIBS   := $(shell $(PKG_CONFIG) --libs libcjson)
else
CJSON_HEADER := $(firstword $(call header,cjson/cJSON.h) $(call header,cJSON.h))
HAVE_CJSON   := $(if $(CJSON_HEADER),yes)
CJSON_CFLAGS := $(addprefix -I,$(patsubst %/,%,$(dir $(CJSON_HEADER))))
CJSON_LIBS   := -lcjson
endif
ifdef CMOCKA_PREFIX
HAVE_CMOCKA  := yes
CMOCKA_CFLAGS := -I$(CMOCKA_PREFIX)/include
CMOCKA_LIBS  := -L$(CMOCKA_PREFIX)/lib -Wl,-rpath,$(CMOCKA_PREFIX)/lib -lcmocka
else ifeq ($(call knows,cmocka),yes)
HAVE_CMOCKA  := yes
CMOCKA_CFLAGS := $(shell $(PKG_CONFIG) --cflags cmocka)
CMOCKA_LIBS  := $(shell $(PKG_CONFIG) --libs cmocka)
else
HAVE_CMOCKA  := $(if $(call header,cmocka.h),yes)
CMOCKA_LIBS  := -lcmocka
endif
# Commands are shown with V=1; otherwise a word per file.
Q        := $(if $(V),,@)
COMMIT       := $(shell git describe --always --dirty --abbrev=10 2>/dev/null || echo unknown)

# ---- CUDA ------------------------------------------------------------------------------------------------------------
NVCC     := $(shell . scripts/cuda_lib.sh && CUDA_HOME='$(CUDA_HOME)' find_nvcc)
# Sanitizers see through the emulator only, and nvcc's objects would be all that is new in their programs.
CUDA     ?= $(if $(filter release,$(FLAVOUR)),$(if $(NVCC),1,0),0)
ifeq ($(filter 0 1 emu,$(CUDA)),)
$(error CUDA is 0, 1 or emu, not "$(CUDA)")
endif
ifeq ($(CUDA),emu)
BUILD    ?= build/emu$(if $(filter release,$(FLAVOUR)),,_$(FLAVOUR))
else
BUILD    ?= build/$(FLAVOUR)
endif

ifeq ($(CUDA),1)
ifeq ($(NVCC),)
$(error CUDA=1 asks for nvcc, which is not in $$CUDA_HOME/bin, PATH or /usr/local/cuda/bin)
endif
CUDA_ROOT := $(patsubst %/bin/nvcc,%,$(NVCC))
# Of what nvcc knows, all from compute capability 8.0 on: bf16 products and asynchronous copies begin there.
NVCC_KNOWS := $(filter-out 5% 6% 7%,$(patsubst compute_%,%,$(shell $(NVCC) --list-gpu-arch 2>/dev/null)))
GPU_FOUND := $(shell . scripts/cuda_lib.sh && gpu_capabilities '$(CUDA_ROOT)')
# 9.0 -> 90a: Hopper's own instructions are had under that name alone.
ARCH     ?= $(patsubst 90,90a,$(or $(filter $(NVCC_KNOWS),$(GPU_FOUND)),$(filter $(NVCC_KNOWS),80 90 100)))
# No kernel asks for more than compute capability 8.0: one pass of the front end makes the PTX from which come all plain
# names, and which is embedded; a GPU that no name fits translates it at the first start. Names with a letter have
# instructions of their own and a pass of their own.
ARCH_OWN := $(filter %a %f,$(ARCH))
CUDA_CODE := -gencode arch=compute_80,code=[$(subst $(space),$(comma),$(strip $(patsubst %,sm_%,$(filter-out $(ARCH_OWN),$(ARCH))) compute_80))] \
             $(foreach a,$(ARCH_OWN),-gencode arch=compute_$(a),code=sm_$(a))
# On the generations that kernels are tuned for, registers in memory are an error.
CUDA_STRICT := $(if $(filter-out 80 90a 100,$(ARCH)),,--ptxas-options=--warn-on-spills$(comma)--warn-on-local-memory-usage$(comma)--warning-as-error)
CUDA_CPPFLAGS := -isystem $(CUDA_ROOT)/include
CUDA_LIBS := -L$(CUDA_ROOT)/lib64 -L$(CUDA_ROOT)/lib -lcudart_static -lrt
CUDA_TEXT := 1 ($(NVCC), code for $(ARCH:%=sm_%), PTX compute_80)
endif
ifeq ($(CUDA),emu)
# The emulator's folder comes first: it has files of the toolkit's and of the backend's names.
CUDA_CPPFLAGS := -Itests/emu/include
# Programs export what libraries may ask of the emulator, and find the stand-in for NCCL in the build's folder before any other:
# by DT_RPATH, which comes before LD_LIBRARY_PATH. $(call find_in,folder) is the folder from the program's.
CUDA_LIBS := -lstdc++ -Wl,--dynamic-list=tests/emu/device/door.list -Wl,--disable-new-dtags
find_in   = -Wl,-rpath,'$$ORIGIN$(1)'
CUDA_TEXT := emu (kernels run on the CPU)
endif
ifeq ($(CUDA),0)
CUDA_TEXT := 0$(if $(NVCC),, (no nvcc))
endif

# ---- flags -----------------------------------------------------------------------------------------------------------
WARN     := -Wall -Wextra -Wshadow -Wstrict-prototypes -Werror
CPPFLAGS := -I. -D_GNU_SOURCE $(strip $(CJSON_CFLAGS) $(CMOCKA_CFLAGS))
# Of what debuggers ask for, profiles and reports need the lines alone (-g1), which cost the compiler half as much: so it is for
# kernels, of which each file is compiled six times, and under sanitizers.
OPT      := $(if $(DEBUG),-O0 -g,-O2 -g)
KOPT     := $(if $(DEBUG),-O0 -g,-O3 -g1 -fno-math-errno -fno-trapping-math)
SAN      :=
ifneq ($(filter asan tsan,$(FLAVOUR)),)
OPT      := -O1 -g1
KOPT     := -O2 -g1 -fno-math-errno -fno-trapping-math
SAN      := $(if $(filter tsan,$(FLAVOUR)),-fsanitize=thread,-fsanitize=address$(comma)undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
endif
KCC      := $(CC)
KSAN     := $(SAN)
# clang, for its fuzzer; `make fuzz` sets CC. Kernels are gcc's, which has the vectors that they are written in. clang 14 has
# no _Float16 on x86, but a type that is as good for conversions.
ifeq ($(FLAVOUR),fuzz)
SAN      := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
OPT      := -O1 -g $(shell echo '_Float16 x;' | $(CC) -fsyntax-only -x c - 2>/dev/null || echo -D_Float16=__fp16 -mf16c)
WARN     := -w
KCC      := $(FUZZ_KERNEL_CC)
KSAN     :=
endif
CFLAGS   := -std=c11 $(OPT) $(WARN) $(SAN)
LDLIBS   := $(CJSON_LIBS) $(CUDA_LIBS) -ldl -lpthread -lm
CXX_WARN := -Wall -Wextra -Wno-missing-field-initializers -Wno-unknown-pragmas
# C with templates needs no C++ library: the program links none, and starts where there is none.
CXX_BARE := -fno-exceptions -fno-rtti -fno-threadsafe-statics
NVFLAGS  := -I. -D_GNU_SOURCE$(addprefix $() ,$(CMOCKA_CFLAGS)) -std=c++17 $(if $(DEBUG),-O1 -g,-O3) -lineinfo $(CUDA_CODE) -Werror all-warnings \
            $(CUDA_STRICT) -Xcompiler $(subst $(space),$(comma),$(CXX_WARN) $(CXX_BARE))
EMUFLAGS := -Itests/emu/include -I. -D_GNU_SOURCE $(CMOCKA_CFLAGS) -std=c++17 $(if $(DEBUG),-O0 -g,$(if $(SAN),-O1 -g1,-O2 -g1)) -ffp-contract=off \
            $(CXX_WARN) -Wno-maybe-uninitialized -Wno-enum-compare -Werror \
            $(or $(SAN),-fsanitize=alignment -fsanitize-undefined-trap-on-error) # a GPU refuses what is not aligned

# ---- sources ---------------------------------------------------------------------------------------------------------
KERNELS  := $(wildcard model/kernels/cpu/*.c)
SOURCES  := $(filter-out $(KERNELS),$(wildcard train.c $(foreach r,configs data model optim parallel,$(r)/*.c $(r)/*/*.c) parallel/*/*/*.c))
# A level is what the compiler makes of one and the same source: sanitizers, which watch the source's accesses, get one.
LEVELS   := baseline $(if $(SAN),,v3 v4)
FLAGS_baseline :=
FLAGS_v3 := -march=x86-64-v3
FLAGS_v4 := -march=x86-64-v4 -mprefer-vector-width=512
ifneq ($(CUDA),0)
CUDA_C   := $(wildcard model/kernels/cuda/*.c)
CUDA_CU  := $(wildcard model/kernels/cuda/*.cu)
endif
EMU_TESTS := $(wildcard tests/emu/*/test_*.c tests/emu/*/test_*.cc)
ifeq ($(CUDA),emu)
EMULATOR := $(filter-out $(EMU_TESTS),$(wildcard tests/emu/device/*.cc tests/emu/lt/*.cc))
# Opened at run time: what a program needs beside its objects.
NCCL     := $(BUILD)/libnccl.so.2
NCCL_OBJECTS := $(patsubst %.cc,$(BUILD)/%.o,$(filter-out $(EMU_TESTS),$(wildcard tests/emu/nccl/*.cc)))
DOOR     := tests/emu/device/door.list
endif
CUDA_C_OBJECTS := $(CUDA_C:%.c=$(BUILD)/%.o)
CUDA_OBJECTS := $(CUDA_C_OBJECTS) $(CUDA_CU:%.cu=$(BUILD)/%.cu.o) $(EMULATOR:%.cc=$(BUILD)/%.o)
# What does not know of CUDA is the same object with and without it, compiled once for each flavour.
COMMON   := $(if $(filter emu,$(CUDA)),build/$(FLAVOUR),$(BUILD))
OBJECTS  := $(SOURCES:%.c=$(COMMON)/%.o) $(CUDA_OBJECTS)
KOBJECTS := $(foreach l,$(LEVELS),$(foreach r,f32 f64,$(KERNELS:%.c=$(COMMON)/%.$(l).$(r).o)))
PROGRAM_OBJECTS := $(OBJECTS) $(KOBJECTS)
LIB_OBJECTS := $(filter-out $(COMMON)/train.o,$(PROGRAM_OBJECTS))

# A test lies in the folder of its subject. Those of the emulator are built where it is, those of tests/cuda where the backend is.
CUDA_TESTS := $(wildcard tests/cuda/test_*.c tests/cuda/test_*.cu)
TEST_SOURCES := $(filter-out $(EMU_TESTS) $(CUDA_TESTS),$(wildcard tests/*/test_*.c tests/*/*/test_*.c)) $(if $(filter emu,$(CUDA)),$(EMU_TESTS)) \
                $(if $(filter-out 0,$(CUDA)),$(CUDA_TESTS))
TEST_HELPERS := $(wildcard tests/support/*.c tests/support/*/*.c tests/fuzz/fuzz_*.c)
TESTS    := $(patsubst tests/%,$(BUILD)/tests/%,$(basename $(TEST_SOURCES)))
TEST_ROOMS := $(sort $(patsubst tests/%/,%,$(dir $(TEST_SOURCES))))
TEST_HELPER_OBJECTS := $(TEST_HELPERS:%.c=$(COMMON)/%.o)
# The objects of these sources: what knows of CUDA lies where the backend is, the rest is the same with and without it.
test_objects = $(patsubst %.c,$(if $(filter tests/emu/% tests/cuda/%,$(1)),$(BUILD),$(COMMON))/%.o,$(filter %.c,$(1))) \
               $(patsubst %.cc,$(BUILD)/%.o,$(filter %.cc,$(1))) $(patsubst %.cu,$(BUILD)/%.cu.o,$(filter %.cu,$(1)))

.PHONY: force all test test-programs test-list check asan tsan emu grid fuzz fuzz-programs bench size clean help format print-config missing
.DELETE_ON_ERROR:
.SECONDARY:

all: print-config train

# ./train is the release program; other flavours stay in their folders.
train: $(BUILD)/train
	@[ $(BUILD) != build/release ] || ln -sf $< $@

$(BUILD)/train: $(PROGRAM_OBJECTS) $(BUILD)/cuda $(NCCL) $(DOOR)
	@echo "  LINK  $@"
	$(Q)$(CC) $(SAN) -o $@ $(PROGRAM_OBJECTS) $(LDLIBS) $(call find_in)

CJSON_MISSING := cJSON is missing: apt-get install libcjson-dev, or make CJSON_PREFIX=/where/it/is
CMOCKA_MISSING := cmocka is missing: apt-get install libcmocka-dev, or make CMOCKA_PREFIX=/where/it/is
# What the program and its tests lack, in a line
missing:
	@echo "$(if $(HAVE_CJSON),,$(CJSON_MISSING))$(if $(HAVE_CJSON)$(HAVE_CMOCKA),,; )$(if $(HAVE_CMOCKA),,$(CMOCKA_MISSING))"

print-config:
	@[ "$(HAVE_CJSON)" = yes ] || { echo "$(CJSON_MISSING)"; exit 1; }
	@echo "build $(BUILD): $(CC) $$($(CC) -dumpversion), cJSON $$($(PKG_CONFIG) --modversion libcjson 2>/dev/null || echo from $(or $(CJSON_PREFIX),$(CJSON_HEADER))), cmocka $(or $(HAVE_CMOCKA),no), CPU levels $(LEVELS)"
	@echo "CUDA $(CUDA_TEXT)"

# main() of a test program: test_NAME_main() from here on, beside others in the program of a room.
OBJCOPY  ?= objcopy
NAME_MAIN = $(if $(filter test_%,$(@F)),$(Q)$(OBJCOPY) --redefine-sym main=$(firstword $(subst ., ,$(@F)))_main $@)

define C_RULE
$(1)/%.o: %.c
	@mkdir -p $$(@D)
	@echo "  CC    $$<"
	$$(Q)$$(call cached,$$(CC)) $$(CPPFLAGS) $$(CFLAGS) -MMD -MP -c -o $$@ $$<
	$$(NAME_MAIN)
endef
$(foreach folder,$(sort $(COMMON) $(BUILD)),$(eval $(call C_RULE,$(folder))))

# The commit is part of the program's answer to --version and of every run folder: one file is compiled again when it moves.
$(COMMON)/commit: force
	@mkdir -p $(@D)
	@echo '$(COMMIT)' | cmp -s - $@ || echo '$(COMMIT)' > $@
force:
$(COMMON)/model/core/version.o: $(COMMON)/commit
$(COMMON)/model/core/version.o: CPPFLAGS += -DPROGRAM_COMMIT='"$(COMMIT)"'

define KERNEL_RULES
$(COMMON)/%.$(1).f32.o: %.c
	@mkdir -p $$(@D)
	@echo "  CC    $$< $(1) f32"
	$(Q)$(call cached,$(KCC)) $(CPPFLAGS) -std=c11 $(KOPT) $(WARN) $(KSAN) $(FLAGS_$(1)) -DCPU_LEVEL=$(1) -DREAL=float -DREAL_DTYPE=F32 -DREAL_SUFFIX=f32 -MMD -MP -c -o $$@ $$<
$(COMMON)/%.$(1).f64.o: %.c
	@mkdir -p $$(@D)
	@echo "  CC    $$< $(1) f64"
	$(Q)$(call cached,$(KCC)) $(CPPFLAGS) -std=c11 $(KOPT) $(WARN) $(KSAN) $(FLAGS_$(1)) -DCPU_LEVEL=$(1) -DREAL=double -DREAL_DTYPE=F64 -DREAL_SUFFIX=f64 -MMD -MP -c -o $$@ $$<
endef
$(foreach l,$(LEVELS),$(eval $(call KERNEL_RULES,$(l))))

# ---- CUDA objects ----------------------------------------------------------------------------------------------------
# What is linked, for which GPUs and how: other answers than the last time compile and link again.
CUDA_ANSWERS := $(CUDA) $(if $(filter 1,$(CUDA)),$(NVFLAGS))
$(BUILD)/cuda: force
	@mkdir -p $(@D)
	@echo '$(CUDA_ANSWERS)' | cmp -s - $@ || echo '$(CUDA_ANSWERS)' > $@

$(CUDA_C_OBJECTS) $(BUILD)/tests/emu/%.o $(BUILD)/tests/cuda/%.o: CPPFLAGS := $(CUDA_CPPFLAGS) $(CPPFLAGS)

# Their arithmetic equals the CPU's bit for bit: no product and sum is contracted.
UNCONTRACTED := $(BUILD)/model/kernels/cuda/init.cu.o $(BUILD)/model/kernels/cuda/optimizer.cu.o
ifeq ($(CUDA),1)
$(UNCONTRACTED): NVFLAGS += -fmad=false
$(BUILD)/%.cu.o: %.cu $(BUILD)/cuda
	@mkdir -p $(@D)
	@echo "  NVCC  $<"
	$(Q)$(cached_nvcc) $(NVFLAGS) -Xptxas=-v -MMD -MP -MF $(@:.o=.d) -c -o $@ $< >$@.log 2>&1 || { cat $@.log; exit 1; }
	$(NAME_MAIN)
endif
ifeq ($(CUDA),emu)
$(BUILD)/%.cu.o: %.cu
	@mkdir -p $(@D)
	@echo "  EMU   $<"
	$(Q)$(call cached,g++) $(EMUFLAGS) -include tests/emu/include/cuda_runtime.h -MMD -MP -c -o $@ -x c++ $<
	$(NAME_MAIN)

# What plays the device is no kernel: it takes most of the tests' time, and alignment is the kernels'.
$(EMULATOR:%.cc=$(BUILD)/%.o): EMUFLAGS := $(if $(DEBUG),$(EMUFLAGS),$(patsubst -O%,-O3,$(if $(SAN),$(EMUFLAGS),$(filter-out -fsanitize%,$(EMUFLAGS)))))
$(BUILD)/%.o: %.cc
	@mkdir -p $(@D)
	@echo "  C++   $<"
	$(Q)$(call cached,g++) $(EMUFLAGS) -MMD -MP -c -o $@ $<
	$(NAME_MAIN)

$(NCCL_OBJECTS): EMUFLAGS += -fPIC -fvisibility=hidden
$(NCCL): $(NCCL_OBJECTS)
	@echo "  LINK  $@"
	$(Q)g++ $(SAN) -shared -Wl,-soname,libnccl.so.2 -o $@ $^ -lpthread
endif

# ---- tests -----------------------------------------------------------------------------------------------------------
# The test programs of a room are one file under all their names: it runs the main() of the name it is called by. Linking is
# most of what a small program costs. It changes with its folder, too: a test that comes or goes.
define ROOM_RULE
room_sources := $$(filter tests/$(1)/%,$(TEST_SOURCES))
room_names := $$(basename $$(notdir $$(room_sources)))
# Objects whose main() has no name of its own yet, from an older Makefile, would not link.
$$(call test_objects,$$(room_sources)): Makefile
$(BUILD)/tests/$(1)/programs.o: PROGRAMS := $$(patsubst %,PROGRAM(%),$$(room_names))
$(BUILD)/tests/$(1)/programs.o: tests/programs.c tests/$(1)
	@mkdir -p $$(@D)
	@echo "  CC    $$< ($(1))"
	$$(Q)$$(call cached,$$(CC)) $$(CPPFLAGS) '-DPROGRAMS=$$(PROGRAMS)' $$(CFLAGS) -c -o $$@ $$<

$(BUILD)/tests/$(1)/programs: $(BUILD)/tests/$(1)/programs.o $$(call test_objects,$$(room_sources)) $(TEST_HELPER_OBJECTS) $(LIB_OBJECTS) $(BUILD)/cuda $(NCCL) $(DOOR)
	@echo "  LINK  $$@"
	$$(Q)$$(CC) $$(SAN) -o $$@ $$(filter %.o,$$^) $$(LDLIBS) $$(CMOCKA_LIBS) $$(call find_in,/../..$(if $(findstring /,$(1)),/..))

$$(addprefix $(BUILD)/tests/$(1)/,$$(room_names)): $(BUILD)/tests/$(1)/programs
	@ln -sf programs $$@
endef
$(foreach room,$(TEST_ROOMS),$(eval $(call ROOM_RULE,$(room))))

# It asks for functions by name.
$(BUILD)/tests/fuzz/programs: LDLIBS += -rdynamic
# Calls of these go to tests: late devices in place of the CPU (device_open), the actions of a step for its graph (pipeline_run);
# test_start counts calls; test_clocks has ranks of unlike clocks, records that come late, and slow loaders; test_generate_command
# sees the steps of stores; test_hanging_ranks has a rank that hangs after capture_step.
$(BUILD)/tests/parallel/%/programs: LDLIBS += -Wl,--wrap=device_open,--wrap=pipeline_run
$(BUILD)/tests/parallel/run/programs: LDLIBS += -Wl,--wrap=gpt_layers_build,--wrap=seconds_now,--wrap=trainer_read,--wrap=loader_next,--wrap=schedule_check
$(BUILD)/tests/parallel/commands/programs: LDLIBS += -Wl,--wrap=zero_create,--wrap=capture_step
# test_nccl_streams leaves out waits; test_nccl_grids looks at streams where masters begin.
$(BUILD)/tests/cuda/programs: LDLIBS += -Wl,--wrap=device_event_wait,--wrap=device_event_record,--wrap=optimizer_init

test-programs: $(TESTS)

test-list:
	@printf '%s\n' $(TESTS)

test: all test-programs
	BUILD=$(BUILD) scripts/run_tests.sh $(TESTS)

asan:
	$(MAKE) FLAVOUR=asan all test

tsan:
	$(MAKE) FLAVOUR=tsan all test

emu:
	$(MAKE) CUDA=emu all test

# Grids of up to GRID_MOST_RANKS ranks against a single rank, drawn from all combinations for GRID_SECONDS. Another order each
# time, unless GRID_SEED says which; a case that fails is made as small as it can be. Before them schedules of up to as many stages.
GRID_SECONDS ?= 1800
GRID_MOST_RANKS ?= 64
export GRID_SEED

SCHEDULES := $(patsubst %,$(BUILD)/tests/parallel/pipeline/test_schedule%,_played _held) $(BUILD)/tests/parallel/pipeline/test_schedule

grid: $(BUILD)/tests/equivalence/test_grid_equal $(SCHEDULES)
	for test in $(SCHEDULES); do GRID_MOST_RANKS=$(GRID_MOST_RANKS) $$test || exit 1; done
	GRID_SECONDS=$(GRID_SECONDS) GRID_MOST_RANKS=$(GRID_MOST_RANKS) $<

# ---- fuzzing ---------------------------------------------------------------------------------------------------------
# Each tests/fuzz/fuzz_NAME.c and the program's code as a libFuzzer program, run one after the other from the inputs in
# tests/fuzz/corpus/NAME; what they find stays in build/fuzz.
FUZZ_SECONDS ?= 60
FUZZ_CC  ?= clang
FUZZ_KERNEL_CC := gcc
FUZZERS  := $(patsubst tests/fuzz/%.c,$(BUILD)/%,$(wildcard tests/fuzz/fuzz_*.c))

fuzz:
	@echo 'int LLVMFuzzerTestOneInput(void); int LLVMFuzzerTestOneInput(void) { return 0; }' | \
	    $(FUZZ_CC) -fsanitize=fuzzer,address -x c -o /dev/null - 2>/dev/null || \
	    { echo "make fuzz needs clang and its runtime: apt-get install clang libclang-rt-dev, or make fuzz FUZZ_CC=/path/to/clang"; exit 1; }
	@$(MAKE) --no-print-directory FLAVOUR=fuzz CUDA=0 CC='$(FUZZ_CC)' FUZZ_KERNEL_CC='$(CC)' fuzz-programs
	@scripts/fuzz.sh $(FUZZ_SECONDS) $(patsubst tests/fuzz/%.c,build/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))

fuzz-programs: $(FUZZERS)

$(FUZZERS): $(BUILD)/%: $(COMMON)/tests/fuzz/%.o $(LIB_OBJECTS)
	@echo "  LINK  $@"
	$(Q)$(CC) $(SAN) -fsanitize=fuzzer -o $@ $^ $(LDLIBS)

# ---- habits ----------------------------------------------------------------------------------------------------------
bench: all
	scripts/bench.sh

check:
	scripts/check.sh

format:
	clang-format -i $$(git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cc')

size:
	@scripts/size.sh

compile_commands.json: Makefile
	@$(MAKE) --no-print-directory -Bn all test-programs | scripts/compile_commands.sh > $@

clean:
	rm -rf build train compile_commands.json

help:
	@echo "make            build ./train"
	@echo "make CUDA=...   0: without the CUDA backend; 1: with it; emu: with it, its kernels executed on the CPU"
	@echo "make ARCH=...   for these GPUs only: 80 (A100), 90a (H100, H200), 100 (B200); by default those found here, or all three"
	@echo "make test       build and run all test programs (release); scripts/test.sh runs those of all flavours, and tests/program"
	@echo "make asan tsan  the same under AddressSanitizer + UBSan, under ThreadSanitizer"
	@echo "make emu        the same with CUDA=emu"
	@echo "make grid       grids of ranks against a single rank, drawn anew, for GRID_SECONDS=1800"
	@echo "make fuzz       each tests/fuzz/fuzz_*.c under libFuzzer for FUZZ_SECONDS=60 (apt-get install clang libclang-rt-dev)"
	@echo "make check      format, clang-tidy, shellcheck, layers, stray conditionals, file and function sizes"
	@echo "make format     clang-format over every source file"
	@echo "make bench      op table and step benchmark"
	@echo "make size       lines per room, with its floor; files and functions over the limits"
	@echo "make compile_commands.json"
	@echo "make clean"

-include $(PROGRAM_OBJECTS:.o=.d) $(NCCL_OBJECTS:.o=.d) $(TEST_HELPER_OBJECTS:.o=.d) \
    $(foreach r,$(TEST_ROOMS),$(patsubst %.o,%.d,$(call test_objects,$(filter tests/$(r)/%,$(TEST_SOURCES)))))
