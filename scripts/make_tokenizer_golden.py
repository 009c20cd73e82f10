#!/usr/bin/env python3
"""Writes small tokenizers, one of each kind that the program reads, and the ids that they give to some texts.

The tokenizers are trained, written and run by PyPI's `tokenizers` (0.23.3), and the byte-level ones are also run by `tiktoken`
(0.14.0), which must give the same ids. Writes tests/fuzz/corpus/tokenizer/KIND.json and llama3.tiktoken, and
tests/golden/tokenizer_ids.txt: a line "KIND MODE TEXT IDS" for each text. MODE is "text" where special tokens in the text are text,
and "special" where they become themselves. With MODE "split", the numbers are the sizes in bytes of the words that the pattern
makes of the text. TEXT is in hexadecimal.
Run in the repository's root: python3 scripts/make_tokenizer_golden.py
"""
import base64
import json
import random

import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
           r"|\s+(?!\S)|\s+")
GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SPACE = "\u2581"

TRAINING = [
    "The quick brown fox didn't jump over the lazy dog; the dog's owner said: I'll see.\n" * 3,
    "int main(void)\n{\n    for (int i = 0; i < 1234; i++)\n        printf(\"%d\\n\", i);\n}\n" * 3,
    "Der Zug fährt über die Brücke. Où est l'été? Москва и Киев. Το σπίτι. שלום עולם. नमस्ते दुनिया। 日本語の文章です。",
    "".join(chr(code) for code in range(32, 127)),
    "e\u0301te\u0301 a\u030a o\u0323\u0302 \u1112\u1161\u11ab\uae00 12345 67 890 1 22 333 4444    spaces      and\t\ttabs\r\n\r\n",
]

TEXTS = [
    "", "Hello world", "  two  spaces, then\n\n\nthree lines\n", "it's we'll I'M DON'T 'tis they'Ve 'S 'ſ x'rE", "a\nb \n c\n  ", " ", "   ",
    "\n", "\r\n\r\n x", "tabs\t\tand\r\nreturns   ", "1 12 123 1234 12345678 a1b22c333", "x  1 y   22", "٣٤٥٦ ½ Ⅷ 一二三",
    "naïve façade — Größe, 12345 and ½", "日本語のテキスト 안녕하세요", "e\u0301 a\u030a\u0323 \u0958 \u212b \u1112\u1161\u11ab \uac00\u11a8",
    "o\u0323\u0302 o\u0302\u0323 \u0344 \ufb1d \u2126", "\u00a0no-break\u3000wide\u2003em", "🙂🙃 emoji 👩\u200d👩\u200d👧 🇩🇪", "<|end|>", "a<|end|>b <|end|> c",
    "<|mid|>\n<|mid|>  x  <|mid|>", "x <strip>  y<strip>z", "  <strip>", "run        of    eight", "            x" + " " * 21 + "y",
    "I'Mx 'LLama x'ſy 'REx 'Tt", "a\u0363\u0301 e\u0313\u0300",
    "<s>a</s> b<unk>", "<0x0A>", "<é> <e\u0301> e\u0301<é>",
    "for (i = 0; i < n; i++) {\n\t\tif (!p[i]) return -1;\n\n    }\n", "don\u2019t \u201cquote\u201d \u2026!!!\n\n???\r\n", "\u2581\u2581a \u2581 b", "Ünïcödé שלום नमस्ते",
    "\ufffd\ufffd x\ufffd", "\u0001\u001c\u0085\u200b\ufeffx", "a" * 70, "ab " * 40, "\U0001d518\U0001d52b\U00020000\U0010fffd", "\u05d0\u05b9\u0597 \u09cd\u09fe",
]


def byte_level(split, model=None, **arguments):
    tokenizer = Tokenizer(model or models.BPE(**arguments))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split in ("gpt2", "digits"))
    if split == "gpt2":
        tokenizer.pre_tokenizer = level
    elif split == "digits":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated"), level])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def trained(tokenizer, size, specials=(), alphabet=True):
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(specials), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else [])
    tokenizer.train_from_iterator(TRAINING, trainer)
    return tokenizer


def with_bytes(tokenizer, **arguments):
    """A tokenizer of characters, with a token for each byte added before the others."""
    data = json.loads(tokenizer.to_str())
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    tokens += [token for token in data["model"]["vocab"] if token not in tokens]
    merges = [tuple(merge) for merge in data["model"]["merges"]]
    tokenizer.model = models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges, unk_token="<unk>", fuse_unk=True,
                                 byte_fallback=True, **arguments)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in tokens[:3]])
    return tokenizer


def characters(prefix):
    tokenizer = Tokenizer(models.BPE())
    if prefix == "always":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
        # Words are only needed to train; the tokenizer itself has no pattern.
        tokenizer.pre_tokenizer = pre_tokenizers.Split(SPACE, "merged_with_next")
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=prefix, split=True)
    trained(tokenizer, 260, alphabet=False)
    if prefix == "always":
        tokenizer.pre_tokenizer = None
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=prefix, split=False)
    return with_bytes(tokenizer)


def make_all():
    made = {"gpt2": trained(byte_level("gpt2"), 400)}
    made["gpt2"].add_special_tokens(["<|end|>", "<|endoftext|>"])
    made["gpt2"].add_tokens([AddedToken(" " * 8, normalized=True), AddedToken(" " * 12, normalized=True),
                             AddedToken("<|mid|>", normalized=False)])
    made["llama3"] = trained(byte_level(PATTERN.replace("DIGITS", "{1,3}")), 500)
    llama3 = json.loads(made["llama3"].to_str())
    llama3["model"]["ignore_merges"] = True
    llama3["model"]["vocab"]["Hello"] = 500  # a token that merges do not make
    made["llama3"] = Tokenizer.from_str(json.dumps(llama3))
    made["llama3"].add_special_tokens(["<|end|>", AddedToken("<strip>", lstrip=True, rstrip=True)])
    made["qwen2"] = trained(byte_level(PATTERN.replace("DIGITS", "")), 450, ["<|mid|>"])
    made["qwen2"].normalizer = normalizers.NFC()
    made["qwen2"].add_special_tokens(["<|end|>"])
    made["qwen2"].add_tokens([AddedToken("<e\u0301>", normalized=True)])
    made["smollm"] = trained(byte_level("digits"), 360, ["<|end|>", "<|mid|>"], alphabet=False)
    made["llama2"] = characters("always")
    made["mistral"] = characters("first")
    return made


def write_tiktoken(tokenizer):
    """Writes the ordinary tokens of llama3 with their ids as ranks, and returns them."""
    chars = {char: byte for byte, char in enumerate(byte_characters())}
    vocabulary = json.loads(tokenizer.to_str())["model"]["vocab"]
    ranks = {bytes(chars[char] for char in token): rank for token, rank in vocabulary.items()}
    with open("tests/fuzz/corpus/tokenizer/llama3.tiktoken", "w") as file:
        for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
            file.write(f"{base64.b64encode(token).decode()} {rank}\n")
    return ranks


def byte_characters():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)]


def drawn_texts():
    draw = random.Random(28)
    pieces = [piece for text in TEXTS for piece in (text, text[:3], text[-2:])] + ["'ll", "7", "\n", " ", "  ", "\t", "e\u0301", "é"]
    return ["".join(draw.choice(pieces) for _ in range(12)) for _ in range(12)]


def line(kind, mode, text, numbers):
    return f"{kind} {mode} {text.encode().hex() or '-'} {','.join(map(str, numbers)) or '-'}"


def main():
    made, lines = make_all(), []
    for kind, tokenizer in made.items():
        tokenizer.save(f"tests/fuzz/corpus/tokenizer/{kind}.json", pretty=False)
        for mode in "text", "special":
            tokenizer.encode_special_tokens = mode == "text"
            for text in TEXTS + drawn_texts():
                ids = tokenizer.encode(text, add_special_tokens=False).ids
                lines.append(line(kind, mode, text, ids))
        for text in TEXTS + drawn_texts() if kind not in ("llama2", "mistral") else []:
            # ByteLevel has made a character of each byte.
            sizes = [len(word) for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
            lines.append(line(kind, "split", text, sizes))
    ranks = write_tiktoken(made["llama3"])
    tiktokens = tiktoken.Encoding("llama3", pat_str=PATTERN.replace("DIGITS", "{1,3}"), mergeable_ranks=ranks, special_tokens={})
    made["llama3"].encode_special_tokens = True
    for text in TEXTS + drawn_texts():
        ids = made["llama3"].encode(text, add_special_tokens=False).ids
        assert ids == tiktokens.encode_ordinary(text), text
    with open("tests/golden/tokenizer_ids.txt", "w") as file:
        file.write("\n".join(lines) + "\n")


main()
