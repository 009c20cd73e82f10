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

/* A pair of ids that are adjacent somewhere in the text. */
typedef struct {
    Merge pair;
    int64_t count; /* occurrences in the text, including overlapping ones */
    int64_t *word; /* (n_words) every word with the pair, and some words that no longer have it */
    int64_t n_words, capacity;
} PairCount;

typedef struct {
    WordTable words;
    int64_t *frequency; /* (words) how often each word occurs in the text */
    int64_t frequency_capacity;
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

/* Splits the text into words and counts how often each occurs. */
static void count_words(BpeTraining *t, const uint8_t *text, int64_t size, Progress *progress)
{
    enum { PIECE = 1 << 18 }; /* bytes between two updates of the progress line */
    for (int64_t at = 0, next = 0; at < size;) {
        if (at >= next) {
            progress_print(progress, "tokenizer: words of %.1f MB of text, %d %%",
                           1e-6 * (double)size, percent(at, size));
            next = at + PIECE;
        }
        int64_t length = word_length(text + at, size - at);
        bool added;
        int64_t w = word_table_add(&t->words, text + at, length, &added);
        if (w >= t->frequency_capacity) {
            t->frequency_capacity = 2 * w + 1024;
            t->frequency =
                must_realloc(t->frequency, (size_t)t->frequency_capacity * sizeof *t->frequency);
        }
        t->frequency[w] = added ? 1 : t->frequency[w] + 1;
        at += length;
    }
}

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

/* Values of count_pairs' parameter `made` that are not an id. */
enum { LIST_ALL = -1, LIST_NONE = -2 };

/* Adds sign * frequency to the count of every adjacent pair of a word, and adds the word to lists
 * of words per pair. `made` is the id that a merge has just created in the word: the word is then
 * added only to the lists of pairs with that id, because it is already in the lists of all other
 * pairs. LIST_ALL (the first count) adds it to all lists; LIST_NONE (subtracting counts) to
 * none. */
static void count_pairs(BpeTraining *t, int64_t w, int sign, int32_t made)
{
    const int32_t *s = t->symbol + t->words.word[w].start;
    for (int64_t i = 0; i + 1 < t->n_symbols[w]; i++) {
        int32_t at = find_pair(t, s[i], s[i + 1]); /* this may move t->pair */
        PairCount *p = &t->pair[at];
        p->count += sign * t->frequency[w];
        if (made == LIST_NONE || (made >= 0 && s[i] != made && s[i + 1] != made)) continue;
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
static void training_start(BpeTraining *t, const uint8_t *text, int64_t size, int64_t vocab_size,
                           Progress *progress)
{
    *t = (BpeTraining){0};
    word_table_init(&t->words);
    pair_table_init(&t->index, 4096);
    t->length = must_calloc((size_t)vocab_size, sizeof *t->length);
    count_words(t, text, size, progress);
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
        count_pairs(t, w, 1, LIST_ALL);
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

/* Finds the most frequent pair; among equals, the one with the smaller ids. Returns false if there
 * is none left. A pair whose token would be too long is dropped for good.
 *
 * The merged token is always new, so there is no check for two merges that make the same bytes. The
 * reason: a merge replaces every occurrence of a pair inside words, from left to right. So a byte
 * string that no token extends into from outside is always divided into tokens in the same way.
 * Once a pair has merged into it, no other pair can spell it. */
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

/* Replaces the pair by its token, from left to right, and closes the gaps between symbols. */
static void replace_in_word(BpeTraining *t, int64_t w, Merge m, int32_t id)
{
    int32_t *s = t->symbol + t->words.word[w].start;
    int64_t kept = 0, n = t->n_symbols[w];
    for (int64_t i = 0; i < n; i++) {
        bool joins = s[i] == m.left && i + 1 < n && s[i + 1] == m.right;
        s[kept++] = joins ? id : s[i];
        i += joins;
    }
    t->n_symbols[w] = kept;
}

/* Merges a pair into token `id` in every word that has it. For each of these words, all its pair
 * counts are subtracted, the word is rewritten, and its new counts are added. This is simpler than
 * finding the neighbours of each occurrence, and needs no special case for overlapping pairs
 * ("aaa"). */
static void apply_merge(BpeTraining *t, int32_t pair, int32_t id)
{
    Merge m = t->pair[pair].pair;
    t->length[id] = t->length[m.left] + t->length[m.right];
    int64_t *word = t->pair[pair].word, n_words = t->pair[pair].n_words;
    int32_t first_new = t->n_pairs;
    /* Take the list out of the pair: counting may move t->pair, and a merged pair never occurs
     * again. */
    t->pair[pair].word = NULL;
    t->pair[pair].n_words = t->pair[pair].capacity = 0;
    for (int64_t i = 0; i < n_words; i++) {
        count_pairs(t, word[i], -1, LIST_NONE);
        replace_in_word(t, word[i], m, id);
        count_pairs(t, word[i], 1, id);
    }
    free(word);
    for (int32_t p = first_new; p < t->n_pairs; p++)
        offer_pair(t, &t->pair[p]);
}

/* Makes at most n_merges merges of pairs that occur at least `least` times. Returns how many. */
static int64_t make_merges(BpeTraining *t, Merge *merge, int64_t n_merges, int64_t least,
                           int64_t size, Progress *progress)
{
    int64_t made = 0;
    int32_t pair;
    for (; made < n_merges && next_merge(t, &pair) && t->pair[pair].count >= least; made++) {
        progress_print(progress, "tokenizer: %lld ids from %.1f MB of text, %d %%",
                       (long long)n_merges + N_BYTES + 1, 1e-6 * (double)size,
                       percent(made, n_merges));
        merge[made] = t->pair[pair].pair;
        apply_merge(t, pair, (int32_t)(N_BYTES + made));
    }
    return made;
}

/* Learns at most as many merges as vocab_size asks for. Sets *merge, which the caller frees, and
 * returns their number; -1, with `err` set, if vocab_size is out of range. */
static int64_t learn(const uint8_t *text, int64_t size, int64_t vocab_size, int64_t least,
                     Merge **merge, Progress *progress, char *err, size_t n)
{
    int64_t n_merges = vocab_size - N_BYTES - 1;
    *merge = NULL;
    if (n_merges < 1 || vocab_size > MAX_VOCAB) {
        error_set(err, n, "a byte-level vocabulary has between %d and %d ids, not %lld",
                  N_BYTES + 2, (int)MAX_VOCAB, (long long)vocab_size);
        return -1;
    }
    BpeTraining t;
    training_start(&t, text, size, vocab_size, progress);
    *merge = must_alloc((size_t)n_merges * sizeof **merge);
    int64_t made = make_merges(&t, *merge, n_merges, least, size, progress);
    /* Free this first, so that counts and tokenizer are not in memory at the same time. */
    training_free(&t);
    return made;
}

bool tokenizer_train(const uint8_t *text, int64_t size, int64_t vocab_size, Tokenizer **out,
                     Progress *progress, int64_t *most, char *err, size_t n)
{
    *out = NULL;
    if (most) *most = 0;
    Merge *merge;
    int64_t made = learn(text, size, vocab_size, 1, &merge, progress, err, n);
    if (made < 0) return false;
    /* A short text runs out of pairs before the vocabulary is full. Filling it up with ids that
     * never occur would train useless embeddings, so this is an error that says how many ids are
     * possible. */
    bool full = made == vocab_size - N_BYTES - 1, good = full;
    if (full)
        good = tokenizer_from_merges(merge, made, out, err, n);
    else
        error_set(err, n, "the text has pairs for a vocabulary of at most %lld ids, not %lld",
                  (long long)made + N_BYTES + 1, (long long)vocab_size);
    if (most && made > 0 && !full) *most = made + N_BYTES + 1;
    free(merge);
    return good;
}

bool tokenizer_train_up_to(const uint8_t *text, int64_t size, int64_t vocab_size, Tokenizer **out,
                           Progress *progress, char *err, size_t n)
{
    *out = NULL;
    Merge *merge;
    int64_t made = learn(text, size, vocab_size, 2, &merge, progress, err, n);
    bool good = made > 0 && tokenizer_from_merges(merge, made, out, err, n);
    if (made == 0) error_set(err, n, "no two neighbouring bytes of the text occur twice");
    free(merge);
    return good;
}
