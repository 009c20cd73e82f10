/* grid_world.c -- makes a config from a GridWorld and a GridModel. */
#include "tests/support/grid/grid_world.h"

#include "tests/support/files/config_support.h"

#include <stdlib.h>

int grid_world_ranks(const GridWorld *w)
{
    return w->pp * w->dp * w->tp;
}

/* The models: 2, 3 and 4 tensor-parallel ranks can split their sizes, but no number of ranks
 * divides their vocabularies. Some have so few key/value heads that ranks must share them. */
static const struct {
    int kv;
    const char *model, *optimizer;
} models[] = {
    {12, "\"vocab_size\":127",
     "{\"type\":\"AdamW\",\"params\":{\"lr\":0.01,\"eps\":1e-4,\"weight_decay\":0.1}}"},
    {2,
     "\"vocab_size\":53,\"num_key_value_heads\":2,\"norm\":\"rmsnorm\",\"position\":\"rope\","
     "\"activation\":\"swiglu\",\"bias\":false,\"tie_word_embeddings\":false",
     "{\"type\":\"SGD\",\"params\":{\"lr\":0.05,\"momentum\":0.9,\"weight_decay\":0.01}}"},
    {1,
     "\"vocab_size\":17,\"num_key_value_heads\":1,\"norm\":\"rmsnorm\",\"position\":\"rope\","
     "\"qk_norm\":true,\"activation\":\"relu2\"",
     "{\"type\":\"AdamW\",\"params\":{\"lr\":0.01,\"eps\":1e-4,\"weight_decay\":0.1}}"},
};
static const struct {
    DType dtype;
    const char *json;
} dtypes[] = {{F64, "\"fp64\":{\"enabled\":true}"},
              {BF16, "\"bf16\":{\"enabled\":true}"},
              {F16, "\"fp16\":{\"enabled\":true,\"loss_scale\":1024}"},
              {BF16, "\"bf16\":{\"enabled\":true,\"bf16_master_weights_and_grads\":true}"},
              {BF16, "\"bf16\":{\"enabled\":true,\"bf16_optimizer_states\":true}"}};

bool grid_world_fits(const GridWorld *w, const GridModel *what)
{
    int kv = models[what->model].kv;
    return kv % w->tp == 0 || w->tp % kv == 0;
}

DType grid_world_dtype(const GridModel *what)
{
    return dtypes[what->dtype].dtype;
}

Config *grid_world_config(const GridWorld *w, const GridModel *what, int64_t batch)
{
    int mine = (int)batch / w->dp;
    const char *device = grid_world_dtype(what) == F64 ? NULL : getenv("TEST_DEVICE");
    char *text = text_format(
        "{\"model\":{\"num_layers\":5,\"hidden_size\":24,\"num_attention_heads\":12,"
        "\"intermediate_size\":24,%s},\"data\":{\"text\":\"x\",\"seq_length\":12},\"seed\":11,"
        "\"train_batch_size\":%d,\"train_micro_batch_size_per_gpu\":%d,\"train_steps\":100,"
        "\"optimizer\":%s,\"scheduler\":{\"type\":\"Constant\"},\"gradient_clipping\":0.5,"
        "\"zero_optimization\":{\"stage\":%d,\"stage3_param_persistence_threshold\":0},%s,"
        "\"checkpoint\":{\"writers\":%d},"
        "\"device\":\"%s\",\"cpu\":{\"threads\":1,\"blas\":\"builtin\"}}",
        models[what->model].model, mine, mine / w->micros, models[what->model].optimizer, w->stage,
        dtypes[what->dtype].json, w->writers, device ? device : "cpu");
    Config *config = (Config *)config_test_parse(text, 0, NULL);
    free(text);
    config->eval.sample_tokens = 0; /* the sequences are too short for samples */
    config->train_batch_size = batch;
    if (w->offload)
        config->zero_optimization.offload_optimizer =
            (OffloadConfig){OFFLOAD_CPU, w->offload / 100.0, true};
    config->parallel.data = w->dp;
    config->parallel.shard = w->shard;
    config->parallel.tensor = w->tp;
    config->parallel.pipeline = w->pp;
    config->parallel.sequence_parallel = w->sequence_parallel;
    config->parallel.pipeline_chunks = w->chunks;
    if (w->chunks > 1) config->parallel.schedule = SCHEDULE_INTERLEAVED;
    return config;
}
