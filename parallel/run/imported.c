/* imported.c -- implements imported.h. */
#include "parallel/run/imported.h"

#include "model/core/check.h"
#include "model/core/figures.h"
#include "model/core/files.h"
#include "model/core/new_folder.h"
#include "model/core/progress.h"
#include "model/core/version.h"
#include "model/layers.h"
#include "model/weights/fit.h"
#include "optim/step_constants.h"
#include "parallel/checkpoint/checkpoint.h"

#include <stdlib.h>
#include <string.h>

/* The state of an import: the model's parameters, and the pieces of the checkpoint that is written.
 */
typedef struct {
    const ImportedRun *run;
    GptLayers layers;
    ParamTable table;
    Piece *weights;
    int *index; /* for each parameter: number of its tensor in the source */
    void *rows; /* rows of a source tensor, in the source's dtype */
    size_t rows_bytes;
    int64_t overflows; /* finite weights that became infinite in the run's dtype */
    int overflowed;    /* the source's number of the first tensor with such weights */
    int64_t done, all; /* elements read so far; elements of all weights */
    Progress progress;
    ImportedResult *result;
} Importing;

/* ---- the weights ----------------------------------------------------------------------------- */

/* Reads elements of a weight: reads the whole rows that contain them from the source, and converts
 * them. */
static bool read_weight(void *context, int weight, int64_t from, int64_t count, void *out,
                        char *err, size_t n)
{
    Importing *im = context;
    const Param *p = &im->table.param[weight];
    WeightSource *source = im->run->source;
    const SourceTensor *t = &source->tensor[im->index[weight]];
    int64_t cols = p->ndim > 1 ? p->dim[1] : 1, first = from / cols,
            rows = (from + count - 1) / cols + 1 - first;
    weights_reserve(&im->rows, &im->rows_bytes, (size_t)(rows * source_row_bytes(t)));
    if (!source->read(source, im->index[weight], first, rows, im->rows, err, n)) return false;
    const char *wanted =
        (const char *)im->rows + (size_t)(from - first * cols) * dtype_size(t->dtype);
    int64_t overflows = weights_convert(out, p->dtype, wanted, t->dtype, count);
    if (im->overflows == 0) im->overflowed = im->index[weight];
    im->overflows += overflows;
    im->result->not_finite += weights_not_finite(out, p->dtype, count) - overflows;
    im->done += count;
    progress_count(&im->progress, im->done, im->all, "importing the weights");
    return true;
}

static void build(Importing *im)
{
    GptShape shape = gpt_shape(im->run->config, 1);
    gpt_layers_build(&im->layers, &im->table, &shape, &LAYERS_WHOLE);
    size_t n = (size_t)im->table.n_params;
    im->weights = must_calloc(n, sizeof *im->weights);
    im->index = must_calloc(n, sizeof *im->index);
    for (int i = 0; i < im->table.n_params; i++) {
        const Param *p = &im->table.param[i];
        int64_t count = param_count(p), cols = p->ndim > 1 ? p->dim[1] : 1;
        im->weights[i] = piece_of_row(p->name, p, p->dtype);
        im->weights[i].extent =
            (ParamExtent){.param = i, .count = count, .cols = cols, .whole_cols = cols};
        im->weights[i].data = tensor_1d(NULL, p->dtype, count);
        im->index[i] = weight_source_find(im->run->source, p->name);
        im->all += count;
        if (im->index[i] >= 0 && im->run->source->tensor[im->index[i]].dtype != p->dtype)
            im->result->rounded++;
    }
}

static void release(Importing *im)
{
    free(im->weights);
    free(im->index);
    free(im->rows);
    gpt_layers_free(&im->layers);
    param_table_free(&im->table);
}

static bool check_fit(Importing *im, char *err, size_t n)
{
    int misfits = weights_misfits(im->run->source, &im->table, stderr);
    return misfits == 0 ||
           error_set(err, n, "%s: %d tensor%s, named above, %s not fit the model of its config",
                     im->run->origin, misfits, misfits > 1 ? "s" : "", misfits > 1 ? "do" : "does");
}

/* Returns true if no finite weight became infinite in the run's dtype; otherwise sets err and
 * *code. Such a weight would make every result of the model infinite or NaN. */
static bool check_range(const Importing *im, ExitCode *code, char *err, size_t n)
{
    if (im->overflows == 0) return true;
    const SourceTensor *t = &im->run->source->tensor[im->overflowed];
    DType to = im->table.param[0].dtype;
    *code = EXIT_CONFIG;
    return error_set(err, n,
                     "%s: %s %s beyond the range of %s, the first in %s; import the weights with "
                     "--dtype %s",
                     im->run->origin, figure_of(im->overflows, "weight").text,
                     im->overflows == 1 ? "is" : "are", dtype_name(to), t->name,
                     dtype_name(t->dtype));
}

/* ---- the folder ------------------------------------------------------------------------------ */

static bool write_config(const char *folder, const Config *config, char *err, size_t n)
{
    char *text;
    size_t size;
    FILE *to = text_stream(&text, &size);
    config_print_json(config, to);
    fclose(to);
    bool good = file_write_in(&fs_system, folder, "config.json", text, size, err, n);
    free(text);
    return good;
}

/* Writes everything into the folder; config.json, which makes it the folder of a run, comes last.
 */
static bool fill_folder(Importing *im, const char *folder, const CheckpointContents *contents,
                        char *err, size_t n)
{
    const ImportedRun *run = im->run;
    CheckpointIo io;
    checkpoint_io_open(&io, NULL, NULL);
    bool good = checkpoint_write(&io, folder, contents, err, n);
    checkpoint_io_close(&io);
    for (int i = 0; good && i < run->n_files; i++)
        good = file_write_in(&fs_system, folder, run->file[i].name, run->file[i].text,
                             run->file[i].bytes, err, n);
    return good && write_config(folder, run->config, err, n);
}

bool imported_run_write(const char *out, const ImportedRun *run, ImportedResult *result, char *err,
                        size_t n, ExitCode *code)
{
    Importing im = {.run = run, .result = result};
    NewFolder folder;
    *result = (ImportedResult){0};
    *code = EXIT_CANNOT_CREATE;
    if (!new_folder_begin(&folder, &fs_system, out, err, n)) return false;
    build(&im);
    StepState state = step_state_initial(run->config);
    char *config = config_text(run->config),
         *code_text = text_format("%s; imported from %s", program_version(), run->origin);
    WeightReader reader = {.read = read_weight, .context = &im};
    CheckpointContents contents = {.weights = im.weights,
                                   .n_weights = im.table.n_params,
                                   .reader = &reader,
                                   .state = &state,
                                   .config = config,
                                   .machine = "none: imported",
                                   .code = code_text,
                                   .data = run->data};
    *code = EXIT_DAMAGED;
    bool good = check_fit(&im, err, n);
    result->bytes = checkpoint_bytes(&contents);
    if (good) *code = EXIT_INPUT_OUTPUT;
    good = good && file_room(&fs_system, out, result->bytes, err, n);
    im.progress = progress_begin();
    good = good && fill_folder(&im, folder.temporary, &contents, err, n);
    progress_end(&im.progress);
    good = good && check_range(&im, code, err, n);
    good = good && new_folder_commit(&folder, err, n);
    if (!good) new_folder_abort(&folder);
    free(code_text);
    free(config);
    release(&im);
    return good;
}
