/* hash.c -- the hash of a tensor's bytes on the CPU. */
#include "model/kernels/cpu/spans.h"
#include "model/kernels/hash_rule.h"

typedef struct {
    Tensor x; /* dense */
    int64_t first;
    uint64_t *partial; /* one sum per task */
    int64_t tasks;
} HashJob;

/* Returns the sum of the hash numbers of words [from, to) of x, whose first word has the index
 * job->first. */
static uint64_t hash_words_between(const HashJob *job, int64_t from, int64_t to)
{
    const uint8_t *bytes = job->x.data;
    uint64_t sum = 0;
    for (int64_t i = from; i < to; i++) {
        uint64_t word;
        memcpy(&word, bytes + 8 * i, sizeof word);
        sum += hash_word((uint64_t)(job->first + i), word);
    }
    return sum;
}

static void hash_body(void *context, int64_t task, int worker)
{
    const HashJob *job = context;
    int64_t words = (int64_t)(tensor_bytes(job->x) / 8);
    (void)worker;
    job->partial[task] = hash_words_between(job, pool_cut(words, job->tasks, 1024, task),
                                            pool_cut(words, job->tasks, 1024, task + 1));
}

void CPU(hash)(Device *dev, Tensor sum, Tensor x, int64_t first)
{
    int64_t bytes = (int64_t)tensor_bytes(x), words = bytes / 8;
    HashJob job = {.x = x, .first = first, .tasks = tasks_for(dev, words + 1)};
    job.partial = pool_workspace(dev->pool, 0, sizeof(uint64_t) * (size_t)job.tasks);
    pool_run(dev->pool, job.tasks, hash_body, &job);
    uint64_t *all = sum.data, last = 0;
    for (int64_t i = 0; i < job.tasks; i++)
        *all += job.partial[i];
    if (bytes % 8 == 0) return;
    memcpy(&last, (const uint8_t *)x.data + 8 * words, (size_t)(bytes % 8));
    *all += hash_word((uint64_t)(first + words), last);
}
