# Makefile of train.c -- `make` builds ./train; `make help` lists the targets. Needs gcc, make and cJSON; tests also need
# cmocka, and the CUDA backend needs nvcc.
#
# Variables:
#   DEBUG=1, CC            build for debugging; the C compiler
#   BUILD=folder           the folder of the objects
#   CJSON_PREFIX=/path     where cJSON is installed, if neither pkg-config nor the compiler finds it
#   CMOCKA_PREFIX=/path    the same for cmocka
#   CCACHE=ccache          runs gcc, g++ and nvcc when they compile; scripts/test.sh sets it if ccache is installed
#   FLAVOUR=release        optimized build (default); asan: with AddressSanitizer and UBSan; tsan: with ThreadSanitizer
#   CUDA=0|1|emu           0: without the CUDA backend; 1: with it (default if nvcc is in $CUDA_HOME/bin, PATH or
#                          /usr/local/cuda); emu: with it, its kernels executed on the CPU by tests/emu, for tests
#   ARCH="80 90a 100"      the GPU architectures that kernels are compiled for, in addition to PTX of compute capability 8.0 for
#                          all other GPUs (default: this machine's GPUs; without a GPU all that are named here and that nvcc
#                          supports). PTX= leaves the PTX out, for a program that runs on these GPUs only.

# Disable make's built-in rules: searching them for hundreds of files takes seconds. SHELL stays /bin/sh, because make starts
# plain commands of recipes by itself then.
MAKEFLAGS += --no-builtin-rules
comma    := ,
space    := $(subst ,, )
ifeq ($(origin CC),default)
CC       := gcc
endif
PKG_CONFIG ?= pkg-config
FLAVOUR  ?= release
# Runs the compiler $(1) through CCACHE, unless it is a ccache wrapper already.
cached    = $(if $(findstring ccache,$(1)),,$(CCACHE)) $(1)
# For nvcc, ccache uses the list of headers that nvcc writes: nvcc's preprocessor output lacks the code for other GPUs.
cached_nvcc = $(if $(CCACHE),CCACHE_DEPEND=1 $(CCACHE)) $(NVCC)

# ---- libraries -------------------------------------------------------------------------------------------------------
# If pkg-config is missing or does not know a library, the compiler searches its header: $(call header,cjson/cJSON.h) gives the
# path of that file, or nothing.
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
# V=1 prints the full commands; otherwise one short line per file is printed.
Q        := $(if $(V),,@)
COMMIT       := $(shell git describe --always --dirty --abbrev=10 2>/dev/null || echo unknown)

# ---- CUDA ------------------------------------------------------------------------------------------------------------
NVCC     := $(shell bash -c ". scripts/cuda_lib.sh && CUDA_HOME='$(CUDA_HOME)' find_nvcc")
# By default sanitizer builds have no CUDA backend: sanitizers can check kernels only in the emulator (CUDA=emu), not on a GPU.
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
# The architectures that nvcc supports, from compute capability 8.0 on, the first with bf16 products and asynchronous copies.
NVCC_KNOWS := $(filter-out 5% 6% 7%,$(patsubst compute_%,%,$(shell $(NVCC) --list-gpu-arch 2>/dev/null)))
GPU_FOUND := $(shell bash -c ". scripts/cuda_lib.sh && gpu_capabilities '$(CUDA_ROOT)'")
# 90 is replaced by 90a: only this name enables Hopper's special instructions.
ARCH     ?= $(patsubst 90,90a,$(or $(filter $(NVCC_KNOWS),$(GPU_FOUND)),$(filter $(NVCC_KNOWS),80 90 100)))
# Kernels for plain architectures (80, 100) need no more than compute capability 8.0, so they are all compiled from the same
# PTX. This PTX is also embedded, and the driver compiles it at the first start on any other GPU. Architectures with a letter
# (90a) have special instructions and are compiled separately.
ARCH_OWN := $(filter %a %f,$(ARCH))
PTX      ?= compute_80
CODE_80  := $(strip $(patsubst %,sm_%,$(filter-out $(ARCH_OWN),$(ARCH))) $(PTX))
CUDA_CODE := $(if $(CODE_80),-gencode arch=compute_80$(comma)code=[$(subst $(space),$(comma),$(CODE_80))]) \
             $(foreach a,$(ARCH_OWN),-gencode arch=compute_$(a),code=sm_$(a))
# On the architectures that kernels are tuned for, spilled registers and use of local memory are errors.
CUDA_STRICT := $(if $(filter-out 80 90a 100,$(ARCH)),,--ptxas-options=--warn-on-spills$(comma)--warn-on-local-memory-usage$(comma)--warning-as-error)
CUDA_CPPFLAGS := -isystem $(CUDA_ROOT)/include
CUDA_LIBS := -L$(CUDA_ROOT)/lib64 -L$(CUDA_ROOT)/lib -lcudart_static -lrt
CUDA_TEXT := 1 ($(NVCC), code for $(ARCH:%=sm_%), PTX $(or $(PTX),for no other))
endif
ifeq ($(CUDA),emu)
# The emulator's folder comes first: it replaces headers of the CUDA toolkit and of the backend.
CUDA_CPPFLAGS := -Itests/emu/include
# Programs export the emulator's functions that libraries call. They must load the emulated libnccl from the build folder, not
# an installed one: DT_RPATH is searched before LD_LIBRARY_PATH. $(call find_in,folder) adds a folder relative to the program's.
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
# Profiles and sanitizer reports need only line numbers (-g1), which take less time to compile than all of -g; debuggers get all
# with DEBUG=1. With -Og instead of -O1, sanitizer builds compile in four fifths of the time, and check no less. GCC then
# estimates the lengths of formatted texts worse than in a release build.
OPT      := $(if $(DEBUG),-O0 -g,-O2 -g1)
KOPT     := $(if $(DEBUG),-O0 -g,-O3 -g1 -fno-math-errno -fno-trapping-math)
SAN      :=
ifneq ($(filter asan tsan,$(FLAVOUR)),)
OPT      := -Og -g1
KOPT     := -O2 -g1 -fno-math-errno -fno-trapping-math
WARN     += -Wno-format-truncation
SAN      := $(if $(filter tsan,$(FLAVOUR)),-fsanitize=thread,-fsanitize=address$(comma)undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
endif
# Tests are compiled with -O1, or -Og with sanitizers, which takes a third less time, and run hardly longer.
TEST_OPT := $(if $(DEBUG),-O0 -g,$(if $(SAN),-Og,-O1) -g1)
KCC      := $(CC)
# AddressSanitizer finds invalid pointers; without UBSan's checks of them kernels and tests compile in two thirds of the time.
UNCHECKED := $(if $(filter asan,$(FLAVOUR)),-fno-sanitize=null$(comma)pointer-overflow$(comma)object-size)
KSAN     := $(SAN) $(UNCHECKED)
# Fuzzing uses clang for its libFuzzer; `make fuzz` sets CC. Kernels are compiled by gcc, whose vector extensions they use.
# clang 14 has no _Float16 on x86; __fp16 replaces it, as only conversions are needed.
ifeq ($(FLAVOUR),fuzz)
SAN      := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
OPT      := -O1 -g $(shell echo '_Float16 x;' | $(CC) -fsyntax-only -x c - 2>/dev/null || echo -D_Float16=__fp16 -mf16c)
TEST_OPT := $(OPT)
WARN     := -w
KCC      := $(FUZZ_KERNEL_CC)
KSAN     :=
endif
CFLAGS    = -std=c11 $(OPT) $(WARN) $(SAN)
LDLIBS   := $(CJSON_LIBS) $(CUDA_LIBS) -ldl -lpthread -lm
CXX_WARN := -Wall -Wextra -Wno-missing-field-initializers -Wno-unknown-pragmas
# The CUDA sources use templates but no C++ library, so the program runs on machines without libstdc++.
CXX_BARE := -fno-exceptions -fno-rtti -fno-threadsafe-statics
NVFLAGS  := -I. -D_GNU_SOURCE$(addprefix $() ,$(CMOCKA_CFLAGS)) -std=c++17 $(if $(DEBUG),-O1 -g,-O3) -lineinfo -Werror all-warnings \
            $(CUDA_STRICT) -Xcompiler $(subst $(space),$(comma),$(CXX_WARN) $(CXX_BARE))
# With -Og instead of -O1 kernels compile in half the time, and run a seventh longer.
EMUFLAGS := -Itests/emu/include -I. -D_GNU_SOURCE $(CMOCKA_CFLAGS) -std=c++17 $(if $(DEBUG),-O0 -g,$(if $(SAN),-Og -g1,-O2 -g1)) -ffp-contract=off \
            $(CXX_WARN) -Wno-maybe-uninitialized -Wno-enum-compare -Werror \
            $(if $(SAN),$(SAN) $(UNCHECKED),-fsanitize=alignment -fsanitize-undefined-trap-on-error) # a GPU rejects misaligned accesses

# ---- sources ---------------------------------------------------------------------------------------------------------
KERNELS  := $(wildcard model/kernels/cpu/*.c)
SOURCES  := $(filter-out $(KERNELS),$(wildcard train.c $(foreach r,configs data model optim parallel,$(r)/*.c $(r)/*/*.c) parallel/*/*/*.c))
# CPU levels: the same kernel sources, compiled for different instruction sets. Sanitizer builds have only one level, because
# the memory accesses of the source are the same at every level.
LEVELS   := baseline $(if $(SAN),,v3 v4)
FLAGS_baseline :=
FLAGS_v3 := -march=x86-64-v3
FLAGS_v4 := -march=x86-64-v4 -mprefer-vector-width=512
ifneq ($(CUDA),0)
# The attention kernels for Hopper are compiled for sm_90a alone. Without 90a in ARCH, hopper_absent.c takes their place.
HOPPER   := $(filter-out %/hopper_absent.c,$(wildcard model/kernels/cuda/hopper_*.c model/kernels/cuda/hopper_*.cu))
LEFT_OUT := $(if $(filter emu 90a,$(CUDA) $(ARCH)),%/hopper_absent.c,$(HOPPER))
CUDA_C   := $(filter-out $(LEFT_OUT),$(wildcard model/kernels/cuda/*.c))
CUDA_CU  := $(filter-out $(LEFT_OUT),$(wildcard model/kernels/cuda/*.cu))
endif
EMU_TESTS := $(wildcard tests/emu/*/test_*.c tests/emu/*/test_*.cc)
ifeq ($(CUDA),emu)
EMULATOR := $(filter-out $(EMU_TESTS),$(wildcard tests/emu/device/*.cc tests/emu/lt/*.cc))
# The emulated NCCL, a shared library that programs load at run time.
NCCL     := $(BUILD)/libnccl.so.2
NCCL_OBJECTS := $(patsubst %.cc,$(BUILD)/%.o,$(filter-out $(EMU_TESTS),$(wildcard tests/emu/nccl/*.cc)))
DOOR     := tests/emu/device/door.list
endif
CUDA_C_OBJECTS := $(CUDA_C:%.c=$(BUILD)/%.o)
CUDA_OBJECTS := $(CUDA_C_OBJECTS) $(CUDA_CU:%.cu=$(BUILD)/%.cu.o) $(EMULATOR:%.cc=$(BUILD)/%.o)
# Sources that do not depend on CUDA are compiled once per flavour, into COMMON, and shared by builds with and without CUDA.
COMMON   := $(if $(filter emu,$(CUDA)),build/$(FLAVOUR),$(BUILD))
# The presets of machine files, as the C file that the rule below writes.
MACHINES := $(sort $(wildcard configs/machines/*.json))
EMBEDDED := $(COMMON)/configs/machine_file/embedded
OBJECTS  := $(SOURCES:%.c=$(COMMON)/%.o) $(EMBEDDED).o $(CUDA_OBJECTS)
KOBJECTS := $(foreach l,$(LEVELS),$(foreach r,f32 f64,$(KERNELS:%.c=$(COMMON)/%.$(l).$(r).o)))
PROGRAM_OBJECTS := $(OBJECTS) $(KOBJECTS)
LIB_OBJECTS := $(filter-out $(COMMON)/train.o,$(PROGRAM_OBJECTS))

# A test is in the folder of its subject. The emulator's tests are built only with CUDA=emu, and tests/cuda only with the
# backend.
CUDA_TESTS := $(wildcard tests/cuda/test_*.c tests/cuda/test_*.cu)
TEST_SOURCES := $(filter-out $(EMU_TESTS) $(CUDA_TESTS),$(wildcard tests/*/test_*.c tests/*/*/test_*.c)) $(if $(filter emu,$(CUDA)),$(EMU_TESTS)) \
                $(if $(filter-out 0,$(CUDA)),$(CUDA_TESTS))
TEST_HELPERS := $(wildcard tests/support/*.c tests/support/*/*.c tests/fuzz/fuzz_*.c)
# BUILD_TESTS="core/test_x ..." builds only these test programs. test_run_machines uses the clocks of test_clocks.
ifdef BUILD_TESTS
TEST_NAMES := $(BUILD_TESTS) $(if $(filter %/test_run_machines,$(BUILD_TESTS)),parallel/run/test_clocks)
TEST_SOURCES := $(filter $(foreach suffix,.c .cc .cu,$(TEST_NAMES:%=tests/%$(suffix))),$(TEST_SOURCES))
endif
TESTS    := $(patsubst tests/%,$(BUILD)/tests/%,$(basename $(TEST_SOURCES)))
TEST_ROOMS := $(sort $(patsubst tests/%/,%,$(dir $(TEST_SOURCES))))
TEST_HELPER_OBJECTS := $(TEST_HELPERS:%.c=$(COMMON)/%.o)
# The object files of the test sources $(1): in BUILD if they depend on CUDA, else in COMMON.
test_objects = $(patsubst %.c,$(if $(filter tests/emu/% tests/cuda/%,$(1)),$(BUILD),$(COMMON))/%.o,$(filter %.c,$(1))) \
               $(patsubst %.cc,$(BUILD)/%.o,$(filter %.cc,$(1))) $(patsubst %.cu,$(BUILD)/%.cu.o,$(filter %.cu,$(1)))

.PHONY: force all test test-programs test-list check asan tsan emu hopper grid fuzz fuzz-programs bench size clean help format print-config missing
.DELETE_ON_ERROR:
.SECONDARY:

all: print-config train

# ./train is a link to the release program; the programs of other flavours stay in their folders.
train: $(BUILD)/train
	@[ $(BUILD) != build/release ] || ln -sf $< $@

# Under ASan, where scripts start it often, the program starts in four fifths of the time if UBSan's tables need no relocation.
NO_PIE   := $(if $(filter asan0 asan1,$(FLAVOUR)$(CUDA)),-no-pie)
# With a sanitizer, a fork waits until the other threads sleep.
FORKS    := $(if $(SAN),$(COMMON)/tests/support/sleeping_threads.o)
$(BUILD)/train: $(PROGRAM_OBJECTS) $(FORKS) $(BUILD)/cuda $(NCCL) $(DOOR)
	@echo "  LINK  $@"
	$(Q)$(CC) $(SAN) $(NO_PIE) -o $@ $(PROGRAM_OBJECTS) $(FORKS) $(LDLIBS) $(call find_in)

CJSON_MISSING := cJSON is missing: apt-get install libcjson-dev, or make CJSON_PREFIX=/where/it/is
CMOCKA_MISSING := cmocka is missing: apt-get install libcmocka-dev, or make CMOCKA_PREFIX=/where/it/is
# Prints in one line which libraries the program and its tests lack.
missing:
	@echo "$(if $(HAVE_CJSON),,$(CJSON_MISSING))$(if $(HAVE_CJSON)$(HAVE_CMOCKA),,; )$(if $(HAVE_CMOCKA),,$(CMOCKA_MISSING))"

print-config:
	@[ "$(HAVE_CJSON)" = yes ] || { echo "$(CJSON_MISSING)"; exit 1; }
	@echo "build $(BUILD): $(CC) $$($(CC) -dumpversion), cJSON $$($(PKG_CONFIG) --modversion libcjson 2>/dev/null || echo from $(or $(CJSON_PREFIX),$(CJSON_HEADER))), cmocka $(or $(HAVE_CMOCKA),no), CPU levels $(LEVELS)"
	@echo "CUDA $(CUDA_TEXT)"

# Renames main() of a test to test_NAME_main(), because all tests of a folder are linked into one program.
OBJCOPY  ?= objcopy
NAME_MAIN = $(if $(filter test_%,$(@F)),$(Q)$(OBJCOPY) --redefine-sym main=$(firstword $(subst ., ,$(@F)))_main $@)

define C_RULE
$(1)/%.o: %.c
	@mkdir -p $$(@D)
	$$(info $$()  CC    $$<)
	$$(Q)$$(call cached,$$(CC)) $$(CPPFLAGS) $$(CFLAGS) -MMD -MP -c -o $$@ $$<
	$$(NAME_MAIN)
endef
$(foreach folder,$(sort $(COMMON) $(BUILD)),$(eval $(call C_RULE,$(folder))))

# The commit is printed by --version and stored in every run folder. Only version.c is compiled again when the commit changes.
$(COMMON)/commit: force
	@mkdir -p $(@D)
	@echo '$(COMMIT)' | cmp -s - $@ || echo '$(COMMIT)' > $@
force:
$(COMMON)/model/core/version.o: $(COMMON)/commit
$(COMMON)/model/core/version.o: CPPFLAGS += -DPROGRAM_COMMIT='"$(COMMIT)"'

# Each line of a file becomes a string.
$(EMBEDDED).c: Makefile configs/machines $(MACHINES)
	@mkdir -p $(@D)
	$(info $()  MAKE  $@)
	$(Q)awk 'BEGIN { print "#include \"configs/machine_file/embedded.h\"\nconst EmbeddedFile embedded_machine[] = {" } \
	    FNR == 1 { name = FILENAME; sub(/.*\//, "", name); sub(/\.json$$/, "", name); print (NR > 1 ? "}," : "") "{\"" name "\"," } \
	    { gsub(/[\\"]/, "\\\\&"); print "\"" $$0 "\\n\"" } \
	    END { print "}};\nconst int embedded_machines = sizeof embedded_machine / sizeof *embedded_machine;" }' $(MACHINES) > $@
$(EMBEDDED).o: $(EMBEDDED).c
	$(info $()  CC    $<)
	$(Q)$(call cached,$(CC)) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

define KERNEL_RULES
$(COMMON)/%.$(1).f32.o: %.c
	@mkdir -p $$(@D)
	$$(info $$()  CC    $$< $(1) f32)
	$(Q)$(call cached,$(KCC)) $(CPPFLAGS) -std=c11 $(KOPT) $(WARN) $(KSAN) $(FLAGS_$(1)) -DCPU_LEVEL=$(1) -DREAL=float -DREAL_DTYPE=F32 -DREAL_SUFFIX=f32 -MMD -MP -c -o $$@ $$<
$(COMMON)/%.$(1).f64.o: %.c
	@mkdir -p $$(@D)
	$$(info $$()  CC    $$< $(1) f64)
	$(Q)$(call cached,$(KCC)) $(CPPFLAGS) -std=c11 $(KOPT) $(WARN) $(KSAN) $(FLAGS_$(1)) -DCPU_LEVEL=$(1) -DREAL=double -DREAL_DTYPE=F64 -DREAL_SUFFIX=f64 -MMD -MP -c -o $$@ $$<
endef
$(foreach l,$(LEVELS),$(eval $(call KERNEL_RULES,$(l))))

# ---- CUDA objects ----------------------------------------------------------------------------------------------------
# $(BUILD)/cuda holds the CUDA settings of the last build. If they change, the file changes, and objects and programs are
# rebuilt. nvcc's for Hopper are removed, because scripts/sass_report.sh would read them though they may be left out now; all
# objects of nvcc depend on this file, so they are compiled after that.
CUDA_ANSWERS := $(CUDA) $(if $(filter 1,$(CUDA)),$(NVFLAGS) $(CUDA_CODE))
$(BUILD)/cuda: force
	@mkdir -p $(@D)
	@echo '$(CUDA_ANSWERS)' | cmp -s - $@ || { $(if $(filter 1,$(CUDA)),rm -f $(BUILD)/model/kernels/cuda/hopper_*.cu.*;) echo '$(CUDA_ANSWERS)' > $@; }

$(COMMON)/tests/%.o $(BUILD)/tests/%.o: OPT := $(TEST_OPT)
$(COMMON)/tests/%.o $(BUILD)/tests/%.o: SAN := $(SAN) $(UNCHECKED)
$(CUDA_C_OBJECTS) $(BUILD)/tests/emu/%.o $(BUILD)/tests/cuda/%.o: CPPFLAGS := $(CUDA_CPPFLAGS) $(CPPFLAGS)

# These kernels must give the same bits as the CPU, so multiply and add must not be contracted to a fused multiply-add.
UNCONTRACTED := $(BUILD)/model/kernels/cuda/init.cu.o $(BUILD)/model/kernels/cuda/optimizer.cu.o
ifeq ($(CUDA),1)
$(UNCONTRACTED): NVFLAGS += -fmad=false
$(patsubst %.cu,$(BUILD)/%.cu.o,$(filter %.cu,$(HOPPER))): CUDA_CODE := -gencode arch=compute_90a$(comma)code=sm_90a
$(BUILD)/%.cu.o: %.cu $(BUILD)/cuda
	@mkdir -p $(@D)
	$(info $()  NVCC  $<)
	$(Q)$(cached_nvcc) $(NVFLAGS) $(CUDA_CODE) -Xptxas=-v -MMD -MP -MF $(@:.o=.d) -c -o $@ $< >$@.log 2>&1 || { cat $@.log; exit 1; }
	$(NAME_MAIN)
endif
ifeq ($(CUDA),emu)
$(BUILD)/%.cu.o: %.cu
	@mkdir -p $(@D)
	$(info $()  EMU   $<)
	$(Q)$(call cached,g++) $(EMUFLAGS) -include tests/emu/include/cuda_runtime.h -MMD -MP -c -o $@ -x c++ $<
	$(NAME_MAIN)

# GCC ignores nvcc's requests to unroll loops, in which these kernels spend their time. With -fpeel-loops it unrolls them.
$(patsubst %,$(BUILD)/model/kernels/cuda/%.cu.o,attention_forward attention_backward): EMUFLAGS += $(if $(DEBUG)$(SAN),,-fpeel-loops)
# These kernels take tensor maps by value, and GCC remarks that it passed their alignment differently before version 4.6.
$(BUILD)/model/kernels/cuda/hopper_%.cu.o $(patsubst %,$(BUILD)/tests/emu/device/test_emu_%.o,tma maps): EMUFLAGS += -Wno-psabi
# The emulator itself is compiled with -O3, because it takes most of the tests' time, and without the alignment check, which is
# meant for kernels.
$(EMULATOR:%.cc=$(BUILD)/%.o): EMUFLAGS := $(if $(DEBUG),$(EMUFLAGS),$(patsubst -O%,-O3,$(if $(SAN),$(EMUFLAGS),$(filter-out -fsanitize%,$(EMUFLAGS)))))
$(BUILD)/%.o: %.cc
	@mkdir -p $(@D)
	$(info $()  C++   $<)
	$(Q)$(call cached,g++) $(EMUFLAGS) -MMD -MP -c -o $@ $<
	$(NAME_MAIN)

$(patsubst %.cc,$(BUILD)/%.o,$(filter %.cc,$(EMU_TESTS))): EMUFLAGS := $(patsubst -O2,-O1,$(EMUFLAGS))

$(NCCL_OBJECTS): EMUFLAGS += -fPIC -fvisibility=hidden
$(NCCL): $(NCCL_OBJECTS)
	@echo "  LINK  $@"
	$(Q)g++ $(SAN) -shared -Wl,-soname,libnccl.so.2 -o $@ $^ -lpthread

# The program as it is without 90a in ARCH, for tests/program/device.sh: it refuses attention for Hopper.
ABSENT   := $(BUILD)/model/kernels/cuda/hopper_absent.o
WITHOUT_90A := $(ABSENT) $(filter-out $(BUILD)/model/kernels/cuda/hopper_%,$(PROGRAM_OBJECTS))
$(ABSENT): CPPFLAGS := $(CUDA_CPPFLAGS) $(CPPFLAGS)
$(BUILD)/train_without_90a: $(WITHOUT_90A) $(BUILD)/cuda $(NCCL) $(DOOR)
	@echo "  LINK  $@"
	$(Q)$(CC) $(SAN) -o $@ $(WITHOUT_90A) $(LDLIBS) $(call find_in)
-include $(ABSENT:.o=.d)
endif

# ---- tests -----------------------------------------------------------------------------------------------------------
# Test programs are linked by lld or gold, where there is one, which takes a third or half of the time; those that use --wrap
# only by gold, because lld also redirects calls within a file.
TEST_LINKERS := $(foreach l,lld gold,$(if $(shell command -v ld.$(l)),-fuse-ld=$(l)))
# All tests of a folder are linked into one file, to save time for linking. Every test program is a link to this file, which
# runs the main() that belongs to the name it is called by. The file names holds these names; it changes, and programs.o is
# rebuilt, if a test is added or removed.
define ROOM_RULE
room_sources := $$(filter tests/$(1)/%,$(TEST_SOURCES))
room_names := $$(basename $$(notdir $$(room_sources)))
# Objects from an older Makefile, whose main() was not renamed, would not link; so they are rebuilt if the Makefile changes.
$$(call test_objects,$$(room_sources)): Makefile
$(BUILD)/tests/$(1)/programs.o $(BUILD)/tests/$(1)/names: PROGRAMS := $$(patsubst %,PROGRAM(%),$$(room_names))
$(BUILD)/tests/$(1)/names: force
	@mkdir -p $$(@D)
	@echo '$$(PROGRAMS)' | cmp -s - $$@ || echo '$$(PROGRAMS)' > $$@
$(BUILD)/tests/$(1)/programs.o: tests/programs.c $(BUILD)/tests/$(1)/names
	@echo "  CC    $$< ($(1))"
	$$(Q)$$(call cached,$$(CC)) $$(CPPFLAGS) '-DPROGRAMS=$$(PROGRAMS)' $$(CFLAGS) -c -o $$@ $$<

$(BUILD)/tests/$(1)/programs: $(BUILD)/tests/$(1)/programs.o $$(call test_objects,$$(room_sources)) $(TEST_HELPER_OBJECTS) $(LIB_OBJECTS) $(BUILD)/cuda $(NCCL) $(DOOR)
	@echo "  LINK  $$@"
	$$(Q)$$(CC) $$(SAN) $$(firstword $$(if $$(findstring --wrap,$$(LDLIBS)),$$(filter %gold,$$(TEST_LINKERS)),$$(TEST_LINKERS))) -o $$@ $$(filter %.o,$$^) $$(LDLIBS) $$(CMOCKA_LIBS) $$(call find_in,/../..$(if $(findstring /,$(1)),/..))

$$(addprefix $(BUILD)/tests/$(1)/,$$(room_names)): $(BUILD)/tests/$(1)/programs
	@ln -sf programs $$@
endef
$(foreach room,$(TEST_ROOMS),$(eval $(call ROOM_RULE,$(room))))

# The replay of fuzz targets finds functions by name.
$(BUILD)/tests/fuzz/programs: LDLIBS += -rdynamic
# The linker redirects calls of these functions to tests (--wrap). $(call wrap,TEST,FUNCTIONS) gives the flags if that test,
# which defines their replacements, is built. device_open: to open late devices instead of the CPU. pipeline_run: to record a
# step's actions as a graph.
wrap = $(if $(filter %/$(1).c,$(TEST_SOURCES)),$(addprefix -Wl$(comma)--wrap=,$(2)))
$(BUILD)/tests/parallel/%/programs: LDLIBS += -Wl,--wrap=device_open,--wrap=pipeline_run
# test_start counts calls; test_clocks simulates ranks with different clocks, late records and slow loaders.
$(BUILD)/tests/parallel/run/programs: LDLIBS += $(call wrap,test_start,gpt_layers_build schedule_check) $(call wrap,test_clocks,seconds_now trainer_read loader_next)
# test_hangs lets a rank hang before these calls.
$(BUILD)/tests/parallel/flight/programs: LDLIBS += $(call wrap,test_hangs,loader_next $(addprefix comm_,all_reduce reduce_scatter all_gather broadcast send receive group_begin))
# In test_async_late a thread has written a checkpoint before its rank asks.
$(BUILD)/tests/parallel/checkpoint/programs: LDLIBS += $(call wrap,test_async_late,writer_thread_busy)
# test_launch_processes lets a fork fail. In test_launcher a rank fails before it has joined the world.
$(BUILD)/tests/parallel/grid/programs: LDLIBS += $(call wrap,test_launch_processes,fork) $(call wrap,test_launcher,socket_world_join)
# test_generate_command counts the steps of stores. test_hanging_ranks makes a rank hang after capture_step.
$(BUILD)/tests/parallel/commands/programs: LDLIBS += $(call wrap,test_generate_command,zero_create) $(call wrap,test_hanging_ranks,capture_step)
# In test_meeting_fails a rank cannot listen.
$(BUILD)/tests/parallel/meeting/programs: LDLIBS += $(call wrap,test_meeting_fails,listen)
# test_nccl_streams omits waits between streams; test_nccl_grids checks the streams when optimizer_init creates master weights.
$(BUILD)/tests/cuda/programs: LDLIBS += -Wl,--wrap=device_event_wait,--wrap=device_event_record $(call wrap,test_nccl_grids,optimizer_init)

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

# Runs attention for Hopper on all shapes, head sizes and types, and models with it, with asynchronous work as late and as early
# as possible, and with blocks and threads in three orders. `make emu` runs a few small shapes.
HOPPER_TESTS := $(addprefix build/emu/tests/cuda/test_hopper_,forward backward biases choice)
hopper:
	$(MAKE) CUDA=emu BUILD=build/emu $(HOPPER_TESTS)
	LIMIT=600 JOBS=2 scripts/run_tests.sh $(foreach when,late early,$(foreach order,forward reverse shuffled,$(foreach t,$(HOPPER_TESTS),\
	    'HOPPER_SWEEP=1 EMU_ASYNC=$(when) EMU_ORDER=$(order) $(t)')))

# Compares randomly chosen grids of up to GRID_MOST_RANKS ranks with a single rank, for GRID_SECONDS. The order differs each
# time unless GRID_SEED is set. A failing case is reduced to the smallest one that still fails. First tests pipeline schedules
# of up to GRID_MOST_RANKS stages.
GRID_SECONDS ?= 1800
GRID_MOST_RANKS ?= 64
export GRID_SEED

SCHEDULES := $(patsubst %,$(BUILD)/tests/parallel/pipeline/test_schedule%,_played _held) $(BUILD)/tests/parallel/pipeline/test_schedule

grid: $(BUILD)/tests/equivalence/test_grid_equal $(SCHEDULES)
	for test in $(SCHEDULES); do GRID_MOST_RANKS=$(GRID_MOST_RANKS) $$test || exit 1; done
	GRID_SECONDS=$(GRID_SECONDS) GRID_MOST_RANKS=$(GRID_MOST_RANKS) $<

# ---- fuzzing ---------------------------------------------------------------------------------------------------------
# Builds each tests/fuzz/fuzz_NAME.c with the program's code as a libFuzzer program, and runs them one after the other on the
# inputs in tests/fuzz/corpus/NAME. Findings are stored in build/fuzz.
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

# ---- benchmarks, checks, sizes ---------------------------------------------------------------------------------------
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
	@echo "make CUDA=...   0: without the CUDA backend; 1: with it; emu: with it, its"
	@echo "                kernels executed on the CPU"
	@echo "make ARCH=...   for these GPUs only: 80 (A100), 90a (H100, H200), 100 (B200);"
	@echo "                by default those found here, or all three"
	@echo "make test       build and run all test programs (release); scripts/test.sh runs"
	@echo "                those of all flavours, and tests/program"
	@echo "make asan tsan  the same under AddressSanitizer + UBSan, under ThreadSanitizer"
	@echo "make emu        the same with CUDA=emu"
	@echo "make hopper     attention for Hopper on many shapes, executed on the CPU in"
	@echo "                several orders; takes some minutes"
	@echo "make grid       grids of ranks against a single rank, drawn anew, for"
	@echo "                GRID_SECONDS=1800"
	@echo "make fuzz       each tests/fuzz/fuzz_*.c under libFuzzer for FUZZ_SECONDS=60"
	@echo "                (apt-get install clang libclang-rt-dev)"
	@echo "make check      format, clang-tidy, shellcheck, layers, stray conditionals,"
	@echo "                file and function sizes"
	@echo "make format     clang-format over every source file"
	@echo "make bench      op table and step benchmark"
	@echo "make size       lines per room, with its floor; files and functions over the"
	@echo "                limits"
	@echo "make compile_commands.json"
	@echo "make clean"

-include $(PROGRAM_OBJECTS:.o=.d) $(NCCL_OBJECTS:.o=.d) $(TEST_HELPER_OBJECTS:.o=.d) \
    $(foreach r,$(TEST_ROOMS),$(patsubst %.o,%.d,$(call test_objects,$(filter tests/$(r)/%,$(TEST_SOURCES)))))
