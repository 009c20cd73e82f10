/* prepare_fixture.c -- makes a text, a cache folder and a config for the tests of preparing text.
 */
#include "tests/support/files/prepare_fixture.h"

#include "model/core/check.h"
#include "tests/support/files/data_support.h"

#include <stdlib.h>

PrepareFixture prepare_fixture_open(void)
{
    PrepareFixture f = {.folder = folder_new(), .text = drawn_text(61, 3000)};
    f.cache = text_format("%s/deep/corpora", f.folder);
    f.text_path = text_file_new(f.folder, "My text.txt", f.text);
    f.items = must_alloc(sizeof *f.items);
    f.items[0] = f.text_path;
    f.config.data.text = (StringList){1, f.items};
    f.config.data.text_key = "text";
    f.config.data.tokenizer_vocab_size = 300;
    f.config.data.val_fraction = 0.1;
    f.config.data.seq_length = 16;
    f.config.data.cache = f.cache;
    return f;
}

void prepare_fixture_close(PrepareFixture *f)
{
    free(f->items);
    free(f->cache);
    free(f->text_path);
    free(f->text);
    folder_drop(f->folder);
}

DataSet prepare_fixture_data(const PrepareFixture *f)
{
    char err[512];
    ExitCode code;
    DataSet d;
    bool good = data_open(&f->config, &d, err, sizeof err, &code);
    CHECK(good, "%s", err);
    return d;
}
