/* test_config_taken.c -- tests config_taken, which lists the values used for keys that a config
 * does not give. */
#include "configs/advice.h"
#include "model/core/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Returns "key value (remark)" of all keys that the config leaves open, one per line. */
static char *taken(const char *text)
{
    ConfigReport report;
    ConfigTaken *row;
    char *out;
    size_t size;
    FILE *to = text_stream(&out, &size);
    const Config *config = config_parse(NULL, "c.json", text, strlen(text), 0, NULL, &report);
    if (config == NULL) fail_msg("%s", report.error[0]);
    int n = config_taken(config, &row);
    for (int i = 0; i < n; i++)
        fprintf(to, "%s %s (%s)\n", row[i].key, row[i].value, row[i].remark);
    fclose(to);
    config_taken_free(row, n);
    config_free(config);
    config_report_free(&report);
    return out;
}

static void config_taken_lists_the_defaults_of_a_nearly_empty_config(void **state)
{
    (void)state;
    char *rows = taken("{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 8}");
    assert_string_equal(
        rows, "model 12 layers, 768 wide, 12 heads (the shape of GPT-2 124M)\n"
              "data.seq_length 1024 (tokens in a sequence)\n"
              "train_steps 1000 ()\n"
              "optimizer.type AdamW ()\n"
              "optimizer.params.lr 0.001 (PyTorch's and DeepSpeed's default)\n"
              "optimizer.params.weight_decay 0 (DeepSpeed's default)\n"
              "scheduler.type Constant (no schedule: the learning rate stays as it is)\n"
              "gradient_clipping 1 (DeepSpeed's default since mid-2026; before: no clipping)\n"
              "bf16.enabled false (fp16.enabled neither: all numbers are fp32)\n");
    free(rows);
}

static void config_taken_lists_keys_set_to_auto_but_not_given_ones(void **state)
{
    (void)state;
    char *rows = taken(
        "{\"data\": {\"text\": \"x\", \"seq_length\": 64}, \"train_batch_size\": 12, "
        "\"train_micro_batch_size_per_gpu\": \"auto\", \"train_tokens\": 10000, "
        "\"model\": {\"num_layers\": 2}, \"gradient_clipping\": 0, \"bf16\": {\"enabled\": true}, "
        "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1, "
        "\"betas\": \"auto\"}}, \"scheduler\": {\"type\": \"WarmupLR\", \"params\": "
        "{\"warmup_num_steps\": 2}}}");
    assert_string_equal(
        rows, "model.hidden_size 768 ()\n"
              "model.num_attention_heads 12 ()\n"
              "train_micro_batch_size_per_gpu 4 (the largest power of two up to 8 that divides the "
              "batch)\n"
              "optimizer.weight_decay_on matrices (biases and norms do not decay; in DeepSpeed "
              "they do)\n"
              "optimizer.params.betas [0.9, 0.999] (for \"auto\")\n");
    free(rows);
}

static void the_auto_learning_rate_equals_hugging_faces_default(void **state)
{
    (void)state;
    char *rows =
        taken("{\"data\": {\"text\": \"x\", \"seq_length\": 64}, \"train_batch_size\": 8, "
              "\"train_steps\": 5, \"model\": {\"num_layers\": 2, \"hidden_size\": 64, "
              "\"num_attention_heads\": 4}, \"gradient_clipping\": 0, \"zero_optimization\": "
              "{\"stage\": \"auto\"}, \"fp16\": {\"enabled\": true}, "
              "\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": \"auto\", "
              "\"weight_decay\": 0}}, \"scheduler\": {\"type\": \"Constant\"}}");
    assert_string_equal(rows, "optimizer.params.lr 5e-05 (for \"auto\": Hugging Face's default)\n");
    free(rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(config_taken_lists_the_defaults_of_a_nearly_empty_config),
        cmocka_unit_test(config_taken_lists_keys_set_to_auto_but_not_given_ones),
        cmocka_unit_test(the_auto_learning_rate_equals_hugging_faces_default),
    };
    return cmocka_run_group_tests_name("config taken", tests, NULL, NULL);
}
