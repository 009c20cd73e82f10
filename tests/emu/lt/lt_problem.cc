/* lt_problem.cc -- decides which products the emulated cuBLASLt supports.
 *
 * It refuses what the library documents as unsupported. Only a GPU can show whether the library
 * really has a kernel for everything else. Tests select other behaviour with the environment
 * variable EMU_LT: "plain" refuses all epilogues, "in_place" a C that is not D, and "none" all
 * products, to test the callers' fallbacks. "invalid" reports all epilogues as invalid,
 * "all_invalid" all products. With "broken" the library cannot be opened, with "full" creating a
 * product fails for lack of memory, and with "old" the library reports the major version before
 * that of the header. With "split" it offers only algorithms that add parts of a sum in the
 * result. "approximate", "erf" and "rounded" change its GELU (lt_compute.cc). */
#include "tests/emu/lt/lt.h"

#include <stdlib.h>
#include <string.h>

enum { AUX_PACK = 8, EPILOGUE_ALIGNMENT = 16 }; /* alignment of bias and aux */

bool emu_lt_is_bias(uint32_t epilogue)
{
    return epilogue < 256 && (epilogue & CUBLASLT_EPILOGUE_BIAS) != 0;
}

bool emu_lt_is_bias_gradient(uint32_t epilogue)
{
    return epilogue == CUBLASLT_EPILOGUE_BGRADA || epilogue == CUBLASLT_EPILOGUE_BGRADB ||
           epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD;
}

bool emu_lt_has_aux(uint32_t epilogue)
{
    return epilogue < 256 && (epilogue & 128) != 0;
}

static bool epilogue_known(uint32_t epilogue)
{
    switch (epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_RELU:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_DGELU_BGRAD:
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_BGRADB: return true;
    default: return false;
    }
}

/* ---- supported products ---------------------------------------------------------------------- */

static bool layout_valid(const EmuLtLayout *l)
{
    if (l->order != CUBLASLT_ORDER_COL && l->order != CUBLASLT_ORDER_ROW) return false;
    uint64_t line = l->order == CUBLASLT_ORDER_COL ? l->rows : l->cols;
    return emu_lt_size(l->type) > 0 && l->rows > 0 && l->cols > 0 && l->ld > 0 &&
           (uint64_t)l->ld >= line && l->batches >= 1;
}

static bool types_supported(const EmuLtProduct *p, const EmuLtProblem *problem)
{
    const EmuLtLayout *const *l = problem->layout;
    uint32_t in = l[LT_A]->type, out = l[LT_D]->type;
    bool compute = p->compute == CUBLAS_COMPUTE_32F || p->compute == CUBLAS_COMPUTE_32F_PEDANTIC ||
                   (p->compute == CUBLAS_COMPUTE_32F_FAST_TF32 && in == CUDA_R_32F);
    return compute && p->scale == CUDA_R_32F && p->pointer_mode == CUBLASLT_POINTER_MODE_HOST &&
           in == l[LT_B]->type && l[LT_C]->type == out && (out == in || out == CUDA_R_32F) &&
           l[LT_C]->order == l[LT_D]->order && p->transpose_c == CUBLAS_OP_N;
}

bool emu_lt_asked_to_be(const char *word)
{
    const char *given = getenv("EMU_LT");
    return given != NULL && strcmp(given, word) == 0;
}

static bool pointer_fits(const void *p)
{
    return p != NULL && (uintptr_t)p % EPILOGUE_ALIGNMENT == 0;
}

/* Returns true if the attributes of the epilogue are valid. Only the values of the pointers are
 * checked, not the memory that they point to. */
static bool epilogue_complete(const EmuLtProduct *p)
{
    if (emu_lt_asked_to_be("all_invalid")) return false;
    if (p->epilogue != CUBLASLT_EPILOGUE_DEFAULT && emu_lt_asked_to_be("invalid")) return false;
    bool bias = emu_lt_is_bias(p->epilogue) || emu_lt_is_bias_gradient(p->epilogue);
    if (bias && !pointer_fits(p->bias)) return false;
    return !emu_lt_has_aux(p->epilogue) || (pointer_fits(p->aux) && p->aux_ld > 0);
}

static bool epilogue_supported(const EmuLtProduct *p, const EmuLtProblem *problem)
{
    const EmuLtLayout *d = problem->layout[LT_D];
    if (emu_lt_asked_to_be("none")) return false;
    if (p->epilogue == CUBLASLT_EPILOGUE_DEFAULT) return true;
    if (emu_lt_asked_to_be("plain")) return false;
    if (!epilogue_known(p->epilogue) || d->order == CUBLASLT_ORDER_ROW) return false;
    if (emu_lt_has_aux(p->epilogue) && (p->aux_ld < problem->m || p->aux_ld % AUX_PACK != 0))
        return false;
    return emu_lt_type(p->bias_type, d) == d->type && emu_lt_type(p->aux_type, d) == d->type;
}

cublasStatus_t emu_lt_problem(EmuLtProblem *problem, const EmuLtProduct *product,
                              const EmuLtLayout *a, const EmuLtLayout *b, const EmuLtLayout *c,
                              const EmuLtLayout *d)
{
    if (!product || !a || !b || !c || !d) return CUBLAS_STATUS_INVALID_VALUE;
    if (!layout_valid(a) || !layout_valid(b) || !layout_valid(c) || !layout_valid(d))
        return CUBLAS_STATUS_INVALID_VALUE;
    bool ta = product->transpose_a != CUBLAS_OP_N, tb = product->transpose_b != CUBLAS_OP_N;
    *problem = {product,
                {a, b, c, d},
                (int64_t)d->rows,
                (int64_t)d->cols,
                (int64_t)(ta ? a->rows : a->cols)};
    bool fits = (int64_t)(ta ? a->cols : a->rows) == problem->m &&
                (int64_t)(tb ? b->rows : b->cols) == problem->n &&
                (int64_t)(tb ? b->cols : b->rows) == problem->k && c->rows == d->rows &&
                c->cols == d->cols && a->batches == d->batches && b->batches == d->batches &&
                c->batches == d->batches;
    if (!fits || !epilogue_complete(product)) return CUBLAS_STATUS_INVALID_VALUE;
    return types_supported(product, problem) && epilogue_supported(product, problem)
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* The hash is FNV-1a. */
uint64_t emu_lt_hash(const EmuLtProblem *problem)
{
    uint64_t hash = 0xcbf29ce484222325ull;
    auto add = [&hash](uint64_t x) { hash = (hash ^ x) * 0x100000001b3ull; };
    const EmuLtProduct *p = problem->product;
    add((uint64_t)p->compute);
    add((uint64_t)p->transpose_a << 1 | (uint64_t)p->transpose_b);
    add(p->epilogue);
    add((uint64_t)p->aux_ld);
    for (const EmuLtLayout *l : problem->layout) {
        add((uint64_t)l->type << 1 | (uint64_t)l->order);
        add(l->rows);
        add(l->cols);
        add((uint64_t)l->ld);
        add((uint64_t)l->batches);
        add((uint64_t)l->batch_stride);
    }
    return hash;
}
