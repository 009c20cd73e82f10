/* published_runs.c -- the table of published.h, with its sources. */
#include "tests/support/plan/published.h"

/* Tensors that kernels move per layer, beyond those of our graph, are counted from each program's
 * list of kernels: norms, sums of bias, dropout and residual, GELU, biases' gradients, copies that
 * rearrange heads, casts. Our graph has norms with their residual sums, GELU where the product does
 * not contain it, and the gradients of biases.
 *
 * Megatron-LM in 2021: apex norms; fused bias + dropout + residual, with masks; fused bias + GELU;
 * copies of q, k, v for batched products; gradients of biases and dropout in kernels of their own;
 * loss in f32; its optimizer moves gradients and weights between f16 and f32. */
static const Program megatron_2021 = {.name = "Megatron-LM 2021",
                                      .materialised = true,
                                      .whole_forward = 1,
                                      .whole_backward = 13,
                                      .cut_forward = 8,
                                      .cut_backward = 15,
                                      .kernels = 6,
                                      .loss_bytes = 52,
                                      .update = 1.8,
                                      .recomputes_all = true,
                                      .scatters = true};
/* NeMo and Megatron Core with Transformer Engine: GELU is a kernel of its own; communication of all
 * axes overlaps with computation (userbuffers, distributed optimizer). */
static const Program megatron_core = {.name = "Megatron Core",
                                      .whole_forward = 1,
                                      .whole_backward = 2,
                                      .cut_forward = 8,
                                      .cut_backward = 12,
                                      .kernels = 2,
                                      .loss_bytes = 52,
                                      .update = 1,
                                      .hides_tensor = true,
                                      .overlaps = true};
/* MosaicML's llm-foundry in eager PyTorch: each addition, clipping, copy and activation is a
 * kernel; loss in f32 by autocast. */
static const Program foundry = {.name = "llm-foundry",
                                .whole_forward = 20,
                                .whole_backward = 32,
                                .kernels = 10,
                                .loss_bytes = 32,
                                .update = 1.2,
                                .overlaps = true};

/* arXiv:2104.04473, table 1: NVIDIA/Megatron-LM@50a4b5fa images/cases_april2021.png; micro-batches
 * and chunks: @d98e8a64 examples/academic_paper_scripts/sc21/run_table_1.sh. The seconds follow
 * from the TFLOP/s and 96 B T L C^2 (1 + T / 6C + V / 16LC). Table 2: cli99/llm-analysis@d841e40
 * figures/megatron-lm-2nd-table-2.png; the chunks are not published; 2 are assumed. */
#define TABLE_1(name, layers, width, heads, tp, pp, dp, chunks, micro, batch, seconds)             \
    {                                                                                              \
        name, "T1", "a100", &megatron_2021, layers, width, heads, 4 * (width), 51200, 2048, tp,    \
            pp, dp, chunks, micro, batch, true, false, 0, seconds                                  \
    }
#define TABLE_2(name, dp, seconds)                                                                 \
    {                                                                                              \
        name, "T2", "a100", &megatron_2021, 96, 12288, 96, 49152, 51200, 2048, 8, 12, dp, 2, 1,    \
            1536, true, false, 0, seconds                                                          \
    }
/* arXiv:2201.11990, section 2.4: seconds on 280, 350 and 420 nodes; cli99/llm-analysis@d841e40
 * examples/megatron-turing-nlg/README.md quotes them. One chunk and micro-batches of one sequence
 * are assumed. No constants are fitted to these runs: with the same program and model, T1 530B took
 * a quarter less time per sequence and GPU. Chunks explain a tenth; the rest is not published. */
#define MT_NLG(name, dp, seconds)                                                                  \
    {                                                                                              \
        name, PUBLISHED_NOT_FITTED, "a100", &megatron_2021, 105, 20480, 128, 81920, 50272, 2048,   \
            8, 35, dp, 1, 1, 1920, true, false, 0, seconds                                         \
    }
/* NVIDIA/dgxc-benchmarking@8f5cbb3 nemo_megatron/README_175b.md: 12 chunks (its yaml says 6). */
#define NEMO(name, dp, batch, seconds)                                                             \
    {                                                                                              \
        name, "175B", "h100", &megatron_core, 96, 12288, 96, 49152, 51200, 2048, 4, 8, dp, 12, 1,  \
            batch, false, true, 1, seconds                                                         \
    }
/* NVIDIA/Megatron-LM@d98e8a64 images/model_table.png and README.md; micro-batches and chunks are
 * not published; assumed. The seconds follow from 72 B T L C^2 (1 + T / 6C + V / 12LC). */
#define CORE(name, layers, width, heads, tp, pp, chunks, batch, seconds)                           \
    {                                                                                              \
        name, "Mcore", "h100", &megatron_core, layers, width, heads, 4 * (width), 131072, 4096,    \
            tp, pp, 48, chunks, 1, batch, false, true, 1, seconds                                  \
    }
/* mosaicml/llm-foundry@8c8dd48f scripts/train/benchmarking/README.md (H100, bf16), and
 * yamls/pretrain/mpt-*.yaml. */
#define MPT(name, layers, width, heads, dp, micro, recompute, seconds)                             \
    {                                                                                              \
        name, "MPT", "h100", &foundry, layers, width, heads, 4 * (width), 50368, 2048, 1, 1, dp,   \
            1, micro, (micro) * (dp), recompute, false, 3, seconds                                 \
    }

const PublishedRun published_runs[] = {
    TABLE_1("T1 1.7B", 24, 2304, 24, 1, 1, 32, 1, 16, 512, 3.528),
    TABLE_1("T1 3.6B", 30, 3072, 32, 2, 1, 32, 1, 16, 512, 3.697),
    TABLE_1("T1 7.5B", 36, 4096, 32, 4, 1, 32, 1, 16, 512, 3.696),
    TABLE_1("T1 18B", 40, 6144, 48, 8, 1, 32, 1, 8, 1024, 9.399),
    TABLE_1("T1 39B", 48, 8192, 64, 8, 2, 32, 1, 4, 1536, 14.45),
    TABLE_1("T1 76B", 60, 10240, 80, 8, 4, 32, 3, 2, 1792, 16.06),
    TABLE_1("T1 145B", 80, 12288, 96, 8, 8, 24, 2, 2, 2304, 24.82),
    TABLE_1("T1 310B", 96, 16384, 128, 8, 16, 15, 2, 1, 2160, 37.61),
    TABLE_1("T1 530B", 105, 20480, 128, 8, 35, 9, 3, 1, 2520, 54.08),
    TABLE_1("T1 1T", 128, 25600, 160, 8, 64, 6, 1, 1, 3072, 102.6),
    TABLE_2("T2 175B 384", 4, 76.78),
    TABLE_2("T2 175B 768", 8, 39.42),
    TABLE_2("T2 175B 1536", 16, 20.83),
    MT_NLG("MT-NLG 2240", 8, 60.1),
    MT_NLG("MT-NLG 2800", 10, 50.2),
    MT_NLG("MT-NLG 3360", 12, 44.4),
    NEMO("175B 128", 4, 256, 8.309),
    NEMO("175B 256", 8, 512, 8.408),
    NEMO("175B 512", 16, 1024, 8.42),
    NEMO("175B 1024", 32, 2048, 8.453),
    NEMO("175B 2048", 64, 4096, 8.49),
    CORE("Mcore 1.7B", 24, 2048, 16, 1, 1, 1, 192, 0.4519),
    CORE("Mcore 7.1B", 30, 4096, 32, 2, 1, 1, 192, 0.8),
    CORE("Mcore 16B", 32, 6144, 48, 4, 1, 1, 192, 0.8498),
    CORE("Mcore 32B", 48, 7168, 56, 8, 1, 1, 192, 0.8917),
    CORE("Mcore 70B", 84, 8192, 64, 8, 2, 7, 384, 2.177),
    CORE("Mcore 462B", 112, 18432, 144, 8, 16, 7, 3072, 12.72),
    MPT("MPT 30b 512", 48, 7168, 56, 512, 8, true, 7.747),
    MPT("MPT 30b 128", 48, 7168, 56, 128, 8, true, 7.451),
    MPT("MPT 7b 512", 32, 4096, 32, 512, 6, false, 1.271),
    MPT("MPT 7b 128", 32, 4096, 32, 128, 6, false, 1.173),
    MPT("MPT 3b 256", 32, 2560, 20, 256, 8, false, 0.7195),
    MPT("MPT 7b 8", 32, 4096, 32, 8, 6, false, 1.155),
};
const int published_count = sizeof published_runs / sizeof *published_runs;

const PublishedOmission published_omissions[] = {
    {"Llama3-405B 8192", "arXiv:2407.21783 table 4: neither chunks, micro-batch nor the convention "
                         "of its 430 TFLOP/s are published"},
};
const int published_omission_count = sizeof published_omissions / sizeof *published_omissions;
