/* test_ops_cuda_updates.c -- tests that the optimizers' updates on CUDA have the same bits as on
 * the CPU, for one range of weights and for more ranges than fit into a launch. Skipped if there is
 * no CUDA device or the program is built without CUDA. */
#include "model/kernels/ops.h"
#include "tests/support/device/cuda_pair.h"
#include "tests/support/device/op_devices.h"
#include "tests/support/support.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- updates --------------------------------------------------------------------------------- */

typedef struct {
    Tensor tensor[5]; /* weight, gradient, master, two slots */
} Update;

static Update update_drawn(DType storage, DType grad, bool master, int slots, int64_t n)
{
    Update u = {.tensor = {pair_drawn(storage, n, 1, 1, false), pair_drawn(grad, n, 2, 1, false)}};
    if (master) u.tensor[2] = pair_drawn(F32, n, 3, 1, false);
    if (slots > 0) u.tensor[3] = pair_drawn(F32, n, 4, 0.1, false);
    if (slots > 1) u.tensor[4] = pair_drawn(F32, n, 5, 0.01, true);
    return u;
}

static void update_run(Device *dev, const Update *u, const StepDecision *decision, int rule)
{
    const Tensor *t = u->tensor;
    AdamW adamw = {.beta1 = 0.9,
                   .beta2 = rule == 0 ? 0.95 : 0.999,
                   .epsilon = 1e-8,
                   .weight_decay = 0.1,
                   .decoupled = rule == 0,
                   .bias_correction = true};
    Sgd sgd = {.momentum = rule == 2 ? 0 : 0.9,
               .dampening = rule == 3 ? 0.25 : 0,
               .weight_decay = 0.01,
               .nesterov = rule == 4};
    UpdateRange range = {.weight = t[0], .grad = t[1], .master = t[2], .slot = {t[3], t[4]}};
    if (rule < 2)
        op_adamw(dev, &range, 1, decision, &adamw);
    else
        op_sgd(dev, &range, 1, decision, &sgd);
}

/* Rules 0 and 1 are AdamW and Adam with L2; rules 2, 3 and 4 are SGD: plain, with momentum and
 * dampening, and with Nesterov momentum. */
static void check_update(DType storage, DType grad, bool master, int rule, int64_t n,
                         int64_t update)
{
    char name[160];
    snprintf(name, sizeof name, "rule %d %s grad %s master %d n %lld update %lld", rule,
             dtype_name(storage), dtype_name(grad), master, (long long)n, (long long)update);
    StepDecision decision = {.apply = 1, .update = update, .lr = 6e-4, .grad_scale = 0.37};
    Update there, here = update_drawn(storage, grad, master, rule < 2 ? 2 : rule > 2, n), back;
    for (int i = 0; i < 5; i++) {
        back.tensor[i] = pair_copy(here.tensor[i]);
        there.tensor[i] = device_put(&pair_cuda, here.tensor[i]);
    }
    StepDecision *on_device = device_put_bytes(&pair_cuda, &decision, sizeof decision);
    update_run(&pair_cpu, &here, &decision, rule);
    update_run(&pair_cuda, &there, on_device, rule);
    device_take_bytes(&pair_cuda, &decision, on_device, sizeof decision);
    for (int i = 0; i < 5; i++) {
        device_take(&pair_cuda, back.tensor[i], there.tensor[i]);
        pair_same_bits(here.tensor[i], back.tensor[i], name);
        free(here.tensor[i].data);
        free(back.tensor[i].data);
    }
}

static void test_optimizer_updates_match_the_cpu_bit_for_bit(void **state)
{
    (void)state;
    pair_needed();
    const int64_t count[] = {1, 67, 1028}, update[] = {1, 2, 1000, 98765};
    for (DType storage = F32; storage <= F16; storage++)
        for (int wide = 0; wide < (storage == F32 ? 1 : 2); wide++)
            for (int master = 0; master < 2; master++)
                for (int rule = 0; rule < 5; rule++)
                    for (int k = 0; k < 3; k++)
                        check_update(storage, wide ? F32 : storage, master, rule, count[k],
                                     update[(k + rule) % 4]);
}

/* One tensor at a time is not aligned for packs. Then no tensor may be read in packs. */
static void test_updates_with_one_unaligned_tensor_match_the_cpu_bit_for_bit(void **state)
{
    enum { N = 1028 };
    (void)state;
    pair_needed();
    for (int k = 0; k < 5; k++) {
        StepDecision decision = {.apply = 1, .update = 3, .lr = 6e-4, .grad_scale = 0.37};
        Update here = update_drawn(BF16, F32, true, 2, N + 1), there, mine = here, theirs, back;
        for (int i = 0; i < 5; i++) {
            back.tensor[i] = pair_copy(here.tensor[i]);
            there.tensor[i] = device_put(&pair_cuda, here.tensor[i]);
            mine.tensor[i] = tensor_slice_rows(here.tensor[i], i == k, N);
            theirs.tensor[i] = tensor_slice_rows(there.tensor[i], i == k, N);
        }
        StepDecision *far = device_put_bytes(&pair_cuda, &decision, sizeof decision);
        update_run(&pair_cpu, &mine, &decision, 0);
        update_run(&pair_cuda, &theirs, far, 0);
        device_take_bytes(&pair_cuda, &decision, far, sizeof decision);
        for (int i = 0; i < 5; i++) {
            device_take(&pair_cuda, back.tensor[i], there.tensor[i]);
            pair_same_bits(here.tensor[i], back.tensor[i], "an unaligned tensor");
            free(here.tensor[i].data);
            free(back.tensor[i].data);
        }
    }
}

/* ---- many ranges ------------------------------------------------------------------------------
 */

/* More ranges than fit into the parameters of a launch. */
enum { RANGES = 170 };

/* Cuts flat tensors of an update into ranges of different lengths, some of several tiles, and gives
 * them alternating groups. With `step` 4 all lengths are multiples of 4, as packs need. Returns the
 * number of elements. */
static int64_t cut_ranges(const Update *u, UpdateRange *range, int64_t step)
{
    int64_t at = 0, n;
    for (int i = 0; i < RANGES; i++, at += n) {
        n = step * (i % 57 == 20 ? 2100 : 1 + i % 40);
        for (int k = 0; u && k < 5; k++) {
            Tensor *part[] = {&range[i].weight, &range[i].grad, &range[i].master, &range[i].slot[0],
                              &range[i].slot[1]};
            *part[k] = tensor_slice_rows(u->tensor[k], at, n);
        }
        if (u) range[i].group = i % 3 == 1;
    }
    return at;
}

/* Updates the ranges and returns the squared norm of their gradients in *sum. */
static void ranges_run(Device *dev, const Update *u, const StepDecision *decision, double *sum,
                       int64_t step)
{
    UpdateRange range[RANGES] = {{.group = 0}};
    Tensor grad[RANGES];
    AdamW hyper[UPDATE_GROUPS] = {{.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .decoupled = true},
                                  {.beta1 = 0.8, .beta2 = 0.9, .weight_decay = 0.5}};
    cut_ranges(u, range, step);
    for (int i = 0; i < RANGES; i++)
        grad[i] = range[i].grad;
    op_sq_norm(dev, tensor_1d(sum, F64, 1), grad, RANGES);
    op_adamw(dev, range, RANGES, decision, hyper);
}

static void test_updates_of_many_ranges_match_the_cpu_bit_for_bit(void **state)
{
    (void)state;
    pair_needed();
    for (int64_t step = 1; step <= 4; step += 3) {
        StepDecision decision = {.apply = 1, .update = 3, .lr = 6e-4, .grad_scale = 0.37};
        double sum = 0.25, back_sum = sum;
        Update there, here = update_drawn(BF16, F32, true, 2, cut_ranges(NULL, NULL, step)), back;
        for (int i = 0; i < 5; i++) {
            back.tensor[i] = pair_copy(here.tensor[i]);
            there.tensor[i] = device_put(&pair_cuda, here.tensor[i]);
        }
        StepDecision *far = device_put_bytes(&pair_cuda, &decision, sizeof decision);
        double *far_sum = device_put_bytes(&pair_cuda, &sum, sizeof sum);
        ranges_run(&pair_cpu, &here, &decision, &sum, step);
        ranges_run(&pair_cuda, &there, far, far_sum, step);
        device_take_bytes(&pair_cuda, &back_sum, far_sum, sizeof back_sum);
        device_take_bytes(&pair_cuda, &decision, far, sizeof decision);
        pair_same_bits(tensor_1d(&sum, F64, 1), tensor_1d(&back_sum, F64, 1), "norm of ranges");
        for (int i = 0; i < 5; i++) {
            device_take(&pair_cuda, back.tensor[i], there.tensor[i]);
            pair_same_bits(here.tensor[i], back.tensor[i], "ranges");
            free(here.tensor[i].data);
            free(back.tensor[i].data);
        }
    }
}

/* ---- state on the host ------------------------------------------------------------------------
 */

/* Returns how many blocks were launched so far; 0 on a real GPU, which does not count them. */
static int64_t blocks_launched(void)
{
    int64_t (*count)(void) = (int64_t(*)(void))dlsym(RTLD_DEFAULT, "emu_count_blocks");
    return count ? count() : 0;
}

/* Copies the tensor to page-locked memory, where the device's kernels reach it. */
static Tensor host_put(Tensor t)
{
    Tensor there = t;
    there.data = device_host_alloc(&pair_cuda, tensor_bytes(t), "test data");
    memcpy(there.data, t.data, tensor_bytes(t));
    return there;
}

/* Updates weights whose masters and moments are on the host, on the stream of copies. 16 blocks
 * must process the 40 tiles, and one more block computes the constants. The bits must be the same
 * as on the CPU. */
static void test_state_in_page_locked_memory_is_updated_by_few_blocks(void **state)
{
    enum { N = 40 * 4096 - 4, BLOCKS_MOST = 16 };
    (void)state;
    pair_needed();
    StepDecision decision = {.apply = 1, .update = 3, .lr = 6e-4, .grad_scale = 0.37};
    Device beside = device_on(&pair_cuda, pair_cuda.copy);
    for (int rule = 0; rule < 4; rule += 3) {
        Update here = update_drawn(BF16, F32, true, rule < 2 ? 2 : 1, N), there = here, back = here;
        for (int i = 0; i < 5; i++) {
            if (!tensor_present(here.tensor[i])) continue;
            back.tensor[i] = pair_copy(here.tensor[i]);
            there.tensor[i] =
                i < 2 ? device_put(&pair_cuda, here.tensor[i]) : host_put(here.tensor[i]);
        }
        StepDecision *far = device_put_bytes(&pair_cuda, &decision, sizeof decision);
        device_synchronize(&pair_cuda);
        int64_t before = blocks_launched();
        update_run(&pair_cpu, &here, &decision, rule);
        update_run(&beside, &there, far, rule);
        if (before > 0) assert_int_equal(blocks_launched() - before, 1 + BLOCKS_MOST);
        device_synchronize(&pair_cuda);
        device_take_bytes(&pair_cuda, &decision, far, sizeof decision);
        for (int i = 0; i < 5; i++) {
            if (!tensor_present(here.tensor[i])) continue;
            if (i < 2) device_take(&pair_cuda, back.tensor[i], there.tensor[i]);
            pair_same_bits(here.tensor[i], i < 2 ? back.tensor[i] : there.tensor[i], "on the host");
            if (i >= 2)
                device_host_release(&pair_cuda, there.tensor[i].data,
                                    tensor_bytes(there.tensor[i]));
            free(here.tensor[i].data);
            free(back.tensor[i].data);
        }
    }
}

/* Makes two updates of different weights at the same time, one on the compute stream and one on the
 * stream for updates. Neither may use memory that the other uses, so each must give the bits that
 * it gives alone. */
static void updates_at_once(int round)
{
    enum { N = 4096 + 5, TWO = 2, TIMES = 4 };
    Device beside = device_on(&pair_cuda, pair_cuda.update);
    StepDecision decision[TWO] = {{.apply = 1, .update = 3, .lr = 6e-4, .grad_scale = 0.37},
                                  {.apply = 1, .update = 9, .lr = 2e-2, .grad_scale = 3}},
                 *far[TWO];
    Update here[TWO], there[TWO];
    char name[64];
    snprintf(name, sizeof name, "on two streams, round %d", round);
    for (int k = 0; k < TWO; k++) {
        here[k] = there[k] = update_drawn(BF16, F32, true, 2, N - k);
        for (int i = 0; i < 5; i++)
            there[k].tensor[i] = device_put(&pair_cuda, here[k].tensor[i]);
        far[k] = device_put_bytes(&pair_cuda, &decision[k], sizeof decision[k]);
    }
    device_synchronize(&pair_cuda);
    for (int time = 0; time < TIMES; time++)
        for (int k = 0; k < TWO; k++) {
            update_run(&pair_cpu, &here[k], &decision[k], 0);
            update_run(k == 0 ? &pair_cuda : &beside, &there[k], far[k], 0);
        }
    device_synchronize(&pair_cuda);
    for (int k = 0; k < TWO; k++) {
        device_take_bytes(&pair_cuda, &decision[k], far[k], sizeof decision[k]);
        for (int i = 0; i < 5; i++) {
            Tensor back = pair_copy(here[k].tensor[i]);
            device_take(&pair_cuda, back, there[k].tensor[i]);
            pair_same_bits(here[k].tensor[i], back, name);
            free(here[k].tensor[i].data);
            free(back.data);
        }
    }
}

/* An emulated GPU takes the streams' work in another order in each round. */
static void test_updates_on_two_streams_at_once_have_the_same_bits_as_alone(void **state)
{
    (void)state;
    pair_needed();
    for (int round = 0; round < 6; round++) {
        char seed[16];
        snprintf(seed, sizeof seed, "%d", round);
        setenv("EMU_SEED", seed, 1);
        updates_at_once(round);
    }
    unsetenv("EMU_SEED");
}

/* ---- averages in bf16 -------------------------------------------------------------------------
 */

/* Updates with running averages in bf16, with and without masters, of two segments of a parameter's
 * part. The range begins at an address aligned for packs, or one element later. */
static void test_adamw_averages_in_bf16_match_the_cpu_bit_for_bit(void **state)
{
    enum { N = 9000 };
    (void)state;
    pair_needed();
    Segment part[2] = {{77, -8, 40, 36, 100}, {78, 4004, 0, 768, 768}};
    Tensor segments = tensor_2d(part, I64, 2, SEGMENT_WORDS);
    AdamW hyper = {.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .decoupled = true};
    for (int k = 0; k < 8; k++) {
        int64_t from = k / 4; /* first element of the range; if it is 1, packs do not fit */
        StepDecision decision = {.apply = 1, .update = 3 + k, .lr = 6e-4, .grad_scale = 0.37};
        Update here = update_drawn(BF16, k % 2 ? F32 : BF16, k / 2 % 2, 0, N), there, back;
        here.tensor[3] = pair_drawn(BF16, N, 4, 0.1, false);
        here.tensor[4] = pair_drawn(BF16, N, 5, 0.01, true);
        for (int i = 0; i < 5; i++) {
            back.tensor[i] = pair_copy(here.tensor[i]);
            there.tensor[i] = device_put(&pair_cuda, here.tensor[i]);
        }
        StepDecision *far = device_put_bytes(&pair_cuda, &decision, sizeof decision);
        Tensor far_segments = device_put(&pair_cuda, segments);
        for (int on = 0; on < 2; on++) {
            const Tensor *t = on ? there.tensor : here.tensor;
            UpdateRange range = {
                .weight = tensor_slice_rows(t[0], from, N - from),
                .grad = tensor_slice_rows(t[1], from, N - from),
                .master = tensor_present(t[2]) ? tensor_slice_rows(t[2], from, N - from) : t[2],
                .slot = {tensor_slice_rows(t[3], from, N - from),
                         tensor_slice_rows(t[4], from, N - from)},
                .rounding = {.seed = 9, .segments = on ? far_segments : segments}};
            op_adamw(on ? &pair_cuda : &pair_cpu, &range, 1, on ? far : &decision, &hyper);
        }
        device_take_bytes(&pair_cuda, &decision, far, sizeof decision);
        device_drop(&pair_cuda, far_segments);
        for (int i = 0; i < 5; i++) {
            device_take(&pair_cuda, back.tensor[i], there.tensor[i]);
            pair_same_bits(here.tensor[i], back.tensor[i], "averages in bf16");
            free(here.tensor[i].data);
            free(back.tensor[i].data);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optimizer_updates_match_the_cpu_bit_for_bit),
        cmocka_unit_test(test_updates_with_one_unaligned_tensor_match_the_cpu_bit_for_bit),
        cmocka_unit_test(test_updates_of_many_ranges_match_the_cpu_bit_for_bit),
        cmocka_unit_test(test_adamw_averages_in_bf16_match_the_cpu_bit_for_bit),
        cmocka_unit_test(test_state_in_page_locked_memory_is_updated_by_few_blocks),
        cmocka_unit_test(test_updates_on_two_streams_at_once_have_the_same_bits_as_alone),
    };
    setenv("EMU_STREAMS", "random", 0); /* otherwise emulated streams do their work at once */
    return cmocka_run_group_tests_name("updates on cuda", tests, pair_setup, pair_teardown);
}
