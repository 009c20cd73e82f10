/* bpe_train.c -- learns BPE merges: counts all pairs of adjacent symbols once, then repeatedly
 * merges the most frequent pair and updates only the counts that the merge changes.
 *
 * The text is reduced to distinct words with their frequencies, so the work depends on the number
 * of different words, not on the text's length. A heap yields the most frequent pair. Heap items
 * are not updated when counts change. After a pair has been pushed, its count can only fall, so an
 * item's count is never too low. If it is too high when the item reaches the top, the pair is
 * pushed again with its current count. */
#include "data/tokenizer/heap.h"
#include "data/tokenizer/pair_table.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/vocabulary.h"
#include "data/tokenizer/word_table.h"
#include "data/tokenizer/words.h"
#include "model/core/check.h"

#include <stdlib.h>
#include <string.h>

/* A pair of ids that are adjacent somewhere in the text. */
typedef struct {
    Merge pair;
    int64_t count; /* occurrences in the text, including overlapping ones */
    int64_t *word; /* (n_words) every word with the pair, and some words that no longer have it */
    int64_t n_words, capacity;
} PairCount;

/* The distinct words of a text. */
typedef struct {
    WordTable words;
    int64_t *frequency; /* (words) how often each word occurs in the text */
    int64_t capacity;
} WordCounts;

typedef struct {
    WordTable words;
    int64_t *frequency; /* (words) how often each word occurs in the text */
    int32_t *symbol;    /* ids of all words; those of word w start at words.word[w].start */
    int64_t *n_symbols; /* (words) number of ids of each word; at first one per byte */
    PairCount *pair;
    int32_t n_pairs, pairs_capacity;
    PairTable index; /* maps a pair of ids to its position in `pair` */
    Heap heap;       /* pairs that may be merged next, see offer_pair */
    int64_t *length; /* (vocab_size) number of bytes of each id */
} BpeTraining;

/* Returns the share of the work in whole percent, so that the progress line is redrawn at most once
 * per percent. */
static int percent(int64_t done, int64_t all)
{
    return (int)(100.0 * (double)done / (double)all);
}

/* ---- counting words -------------------------------------------------------------------------- */

static void add_word(WordCounts *c, const uint8_t *word, int64_t size, int64_t times)
{
    bool added;
    int64_t w = word_table_add(&c->words, word, size, &added);
    if (w >= c->capacity) {
        c->capacity = 2 * w + 1024;
        c->frequency = must_realloc(c->frequency, (size_t)c->capacity * sizeof *c->frequency);
    }
    c->frequency[w] = added ? times : c->frequency[w] + times;
}

/* Some parts of the text, whose words are counted on all threads; each thread has a table. */
typedef struct {
    const Splitter *splitter;
    const uint8_t *text;
    const int64_t *border; /* (parts + 1) where each part begins, and where the last ends */
    WordCounts *of_thread;
} CountingTask;

static void count_part(void *context, int64_t part, int thread)
{
    const CountingTask *c = context;
    for (int64_t at = c->border[part], end = c->border[part + 1]; at < end;) {
        int64_t length = word_length(c->splitter, c->text + at, end - at);
        add_word(&c->of_thread[thread], c->text + at, length, 1);
        at += length;
    }
}

/* Returns the first position at or after `at` where a word ends whatever the text around it. */
static int64_t next_border(const Splitter *splitter, const uint8_t *text, int64_t size, int64_t at)
{
    while (at < size && !word_border(splitter, text, size, at))
        at++;
    return at < size ? at : size;
}

/* Splits the text into words and counts how often each occurs. The order of the words depends on
 * which thread counted them, but training does not depend on their order. */
static WordCounts count_words(const BpeRequest *r, const Splitter *splitter)
{
    enum { PART = 1 << 18, PARTS = 64 }; /* bytes of a part; parts per progress update */
    int threads = r->pool ? pool_threads(r->pool) : 1, most = r->pool ? PARTS : 1;
    WordCounts *of_thread = must_calloc((size_t)threads, sizeof *of_thread), all;
    for (int i = 0; i < threads; i++)
        word_table_init(&of_thread[i].words);
    for (int64_t at = 0; at < r->size;) {
        int64_t border[PARTS + 1] = {at}, parts = 0;
        CountingTask task = {
            .splitter = splitter, .text = r->text, .border = border, .of_thread = of_thread};
        progress_print(r->progress, "tokenizer: words of %.1f MB of text, %d %%",
                       1e-6 * (double)r->size, percent(at, r->size));
        for (; parts < most && at < r->size; parts++)
            border[parts + 1] = at = next_border(splitter, r->text, r->size, at + PART);
        if (r->pool)
            pool_run(r->pool, parts, count_part, &task);
        else
            for (int64_t i = 0; i < parts; i++)
                count_part(&task, i, 0);
    }
    all = of_thread[0];
    for (int i = 1; i < threads; i++) {
        const WordTable *w = &of_thread[i].words;
        for (int64_t k = 0; k < w->n_words; k++)
            add_word(&all, w->bytes + w->word[k].start, w->word[k].size, of_thread[i].frequency[k]);
        word_table_free(&of_thread[i].words);
        free(of_thread[i].frequency);
    }
    free(of_thread);
    return all;
}

/* ---- counting pairs -------------------------------------------------------------------------- */

/* Pushes a pair onto the heap with its current count. The heap yields the smallest item first, so
 * the count is negated. Of equally frequent pairs, the one with smaller ids comes first. */
static void offer_pair(BpeTraining *t, const PairCount *p)
{
    if (p->count > 0)
        heap_push(&t->heap,
                  (HeapItem){.first = -p->count, .second = pair_key(p->pair.left, p->pair.right)});
}

/* Returns the pair's position in t->pair; a new pair is added with count 0. */
static int32_t find_pair(BpeTraining *t, int32_t left, int32_t right)
{
    int32_t found = pair_table_get(&t->index, left, right);
    if (found >= 0) return found;
    if (t->n_pairs == t->pairs_capacity) {
        t->pairs_capacity = t->pairs_capacity ? 2 * t->pairs_capacity : 4096;
        t->pair = must_realloc(t->pair, (size_t)t->pairs_capacity * sizeof *t->pair);
    }
    t->pair[t->n_pairs] = (PairCount){.pair = {.left = left, .right = right}};
    pair_table_set(&t->index, left, right, t->n_pairs);
    return t->n_pairs++;
}

enum { EVERY_PAIR = -1 };

/* Adds the word's frequency to the counts of its adjacent pairs, and the word to the lists of these
 * pairs. `made` is the id that a merge has just made in the word; then only pairs with this id are
 * new. EVERY_PAIR: the word is counted for the first time. */
static void count_pairs(BpeTraining *t, int64_t w, int32_t made)
{
    const int32_t *s = t->symbol + t->words.word[w].start;
    for (int64_t i = 0; i + 1 < t->n_symbols[w]; i++) {
        if (made >= 0 && s[i] != made && s[i + 1] != made) continue;
        int32_t at = find_pair(t, s[i], s[i + 1]); /* this may move t->pair */
        PairCount *p = &t->pair[at];
        p->count += t->frequency[w];
        /* A word that has the pair twice is listed once; words are processed one after another. */
        if (p->n_words > 0 && p->word[p->n_words - 1] == w) continue;
        if (p->n_words == p->capacity) {
            p->capacity = p->capacity ? 2 * p->capacity : 4;
            p->word = must_realloc(p->word, (size_t)p->capacity * sizeof *p->word);
        }
        p->word[p->n_words++] = w;
    }
}

/* Counts words, represents them as single bytes, and counts and pushes the pairs of bytes. */
static void training_start(BpeTraining *t, const BpeRequest *r)
{
    Splitter splitter;
    splitter_init(&splitter, r->split);
    WordCounts counts = count_words(r, &splitter);
    splitter_free(&splitter);
    *t = (BpeTraining){.words = counts.words, .frequency = counts.frequency};
    pair_table_init(&t->index, 4096);
    t->length = must_calloc((size_t)r->vocab_size, sizeof *t->length);
    int32_t byte_id[N_BYTES];
    for (int k = 0; k < N_BYTES; k++) {
        uint8_t byte = (uint8_t)byte_of_order(k);
        byte_id[byte] = k;
        t->length[k] = 1;
    }
    t->symbol = must_alloc((size_t)t->words.n_bytes * sizeof *t->symbol + 1);
    t->n_symbols = must_alloc((size_t)t->words.n_words * sizeof *t->n_symbols + 1);
    for (int64_t i = 0; i < t->words.n_bytes; i++)
        t->symbol[i] = byte_id[t->words.bytes[i]];
    for (int64_t w = 0; w < t->words.n_words; w++) {
        t->n_symbols[w] = t->words.word[w].size;
        count_pairs(t, w, EVERY_PAIR);
    }
    for (int32_t p = 0; p < t->n_pairs; p++)
        offer_pair(t, &t->pair[p]);
}

static void training_free(BpeTraining *t)
{
    for (int32_t p = 0; p < t->n_pairs; p++)
        free(t->pair[p].word);
    word_table_free(&t->words);
    free(t->length);
    pair_table_free(&t->index);
    free(t->frequency);
    free(t->symbol);
    free(t->n_symbols);
    free(t->pair);
    heap_free(&t->heap);
}

/* Finds the most frequent pair; among equally frequent pairs, the one with the smaller ids. Returns
 * false if no pair is left. A pair whose token would be too long is dropped for good.
 *
 * The merged token is always new, so two merges never make the same bytes, and no check is needed.
 * The reason: a merge replaces every occurrence of a pair inside words, from left to right. So a
 * byte string is always divided into tokens in the same way, unless a token extends into it from
 * outside. Therefore, once a merge has made this byte string into a token, no other pair of tokens
 * can make it. */
static bool next_merge(BpeTraining *t, int32_t *pair)
{
    while (t->heap.n > 0) {
        HeapItem item = heap_pop(&t->heap);
        int32_t at =
            pair_table_get(&t->index, pair_key_left(item.second), pair_key_right(item.second));
        const PairCount *p = &t->pair[at];
        if (item.first != -p->count) {
            offer_pair(t, p);
        } else if (t->length[p->pair.left] + t->length[p->pair.right] <= MAX_TOKEN_BYTES) {
            *pair = at;
            return true;
        }
    }
    return false;
}

static void uncount_pair(BpeTraining *t, int64_t w, int32_t left, int32_t right)
{
    t->pair[find_pair(t, left, right)].count -= t->frequency[w];
}

/* Replaces the pair by its token, from left to right, and closes the gaps between symbols.
 * Subtracts from the counts of the pairs that disappear: those of a replaced symbol and its
 * neighbour. The count of the replaced pair itself is not updated, because the pair never occurs
 * again. */
static void replace_in_word(BpeTraining *t, int64_t w, Merge m, int32_t id)
{
    int32_t *s = t->symbol + t->words.word[w].start,
            before = -1; /* the old symbol before s[i]; -1: none */
    int64_t kept = 0, n = t->n_symbols[w];
    bool replaced = false; /* the symbol before s[i] was replaced */
    for (int64_t i = 0; i < n; i++) {
        bool joins = s[i] == m.left && i + 1 < n && s[i + 1] == m.right;
        if (before >= 0 && (replaced || joins)) uncount_pair(t, w, before, s[i]);
        before = joins ? m.right : s[i];
        replaced = joins;
        s[kept++] = joins ? id : s[i];
        i += joins;
    }
    t->n_symbols[w] = kept;
}

/* Merges a pair into token `id` in every word that has it. Words are far apart in memory, so the
 * next words are prefetched. */
static void apply_merge(BpeTraining *t, int32_t pair, int32_t id)
{
    enum { AHEAD = 8 };
    Merge m = t->pair[pair].pair;
    t->length[id] = t->length[m.left] + t->length[m.right];
    int64_t *word = t->pair[pair].word, n_words = t->pair[pair].n_words;
    int32_t first_new = t->n_pairs;
    /* Take the list out of the pair: counting may move t->pair, and a merged pair never occurs
     * again. */
    t->pair[pair].word = NULL;
    t->pair[pair].n_words = t->pair[pair].capacity = 0;
    for (int64_t i = 0; i < n_words; i++) {
        if (i + AHEAD < n_words)
            __builtin_prefetch(t->symbol + t->words.word[word[i + AHEAD]].start);
        if (i + 2 * AHEAD < n_words) __builtin_prefetch(&t->words.word[word[i + 2 * AHEAD]]);
        replace_in_word(t, word[i], m, id);
        count_pairs(t, word[i], id);
    }
    free(word);
    for (int32_t p = first_new; p < t->n_pairs; p++)
        offer_pair(t, &t->pair[p]);
}

/* ---- training -------------------------------------------------------------------------------- */

/* Makes at most n_merges merges of pairs that occur at least `least` times. Returns how many. */
static int64_t make_merges(BpeTraining *t, Merge *merge, int64_t n_merges, const BpeRequest *r)
{
    int64_t made = 0, least = r->at_most ? 2 : 1;
    int32_t pair;
    for (; made < n_merges && next_merge(t, &pair) && t->pair[pair].count >= least; made++) {
        progress_print(r->progress, "tokenizer: %lld ids from %.1f MB of text, %d %%",
                       (long long)n_merges + N_BYTES + 1, 1e-6 * (double)r->size,
                       percent(made, n_merges));
        merge[made] = t->pair[pair].pair;
        apply_merge(t, pair, (int32_t)(N_BYTES + made));
    }
    return made;
}

bool tokenizer_learn(const BpeRequest *r, Tokenizer **out, int64_t *most, char *err, size_t n)
{
    int64_t n_merges = r->vocab_size - N_BYTES - 1;
    *out = NULL;
    if (most) *most = 0;
    if (n_merges < 1 || r->vocab_size > MAX_VOCAB)
        return error_set(err, n, "a byte-level vocabulary has between %d and %d ids, not %lld",
                         N_BYTES + 2, (int)MAX_VOCAB, (long long)r->vocab_size);
    BpeTraining t;
    training_start(&t, r);
    Merge *merge = must_alloc((size_t)n_merges * sizeof *merge);
    int64_t made = make_merges(&t, merge, n_merges, r);
    /* Free the counts before the tokenizer is made, so that counts and tokenizer are not in memory
     * at the same time. */
    training_free(&t);
    /* A short text runs out of pairs before the vocabulary is full. Ids that never occur would only
     * add useless embeddings, so this is an error, which gives the possible number of ids. */
    bool enough = r->at_most ? made > 0 : made == n_merges, good = enough;
    if (enough)
        good = vocabulary_from_merges(merge, made, r->split, out, err, n);
    else if (r->at_most)
        error_set(err, n, "no two neighbouring bytes of the text occur twice");
    else
        error_set(err, n, "the text has pairs for a vocabulary of at most %lld ids, not %lld",
                  (long long)made + N_BYTES + 1, (long long)r->vocab_size);
    if (most && made > 0 && !enough) *most = made + N_BYTES + 1;
    free(merge);
    return good;
}

bool tokenizer_train(const uint8_t *text, int64_t size, int64_t vocab_size, Tokenizer **out,
                     Progress *progress, int64_t *most, char *err, size_t n)
{
    const BpeRequest r = {
        .text = text, .size = size, .vocab_size = vocab_size, .progress = progress};
    return tokenizer_learn(&r, out, most, err, n);
}

bool tokenizer_train_up_to(const uint8_t *text, int64_t size, int64_t vocab_size, Tokenizer **out,
                           Progress *progress, char *err, size_t n)
{
    const BpeRequest r = {.text = text,
                          .size = size,
                          .vocab_size = vocab_size,
                          .at_most = true,
                          .progress = progress};
    return tokenizer_learn(&r, out, NULL, err, n);
}
