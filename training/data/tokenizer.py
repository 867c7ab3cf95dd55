"""Tokenizers trained on one's own text, which AutoTokenizer loads back without any code: `leaner tokenizer`.

Kinds: `byte-bpe` (GPT-2's byte-level BPE, lossless on any text), `wordpiece` (BERT's, uncased), `bytes` (the 256 byte
values, as in Long Range Arena's text task), `words` (whole words between spaces, for ListOps).
The same texts give the same tokenizer, byte for byte, on any number of threads.
"""

import sys
from collections import Counter
from collections.abc import Iterable
from itertools import count

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, TokenizersBackend
from transformers.convert_slow_tokenizer import bytes_to_unicode

from .sources import checked_texts


TOKENIZER_KINDS = ("byte-bpe", "wordpiece", "bytes", "words")
SPECIAL_TOKENS = {  # of each family of text, by their roles, in the order of their numbers
    "bert": {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    },
    "gpt": dict.fromkeys(("bos_token", "eos_token", "pad_token"), "<|endoftext|>"),
}
AROUND = {"bert": ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")}  # one text, and two
MAX_ALPHABET = 1000  # characters that WordPiece keeps, the most frequent ones, as BERT's training in tokenizers does


def vocab_size_of(tokenizer: PreTrainedTokenizerBase) -> int:
    """The size of a vocabulary that has room for the highest id; ids may have gaps."""
    return max(tokenizer.get_vocab().values(), default=-1) + 1


def train_tokenizer(
    texts: Iterable[str], kind: str, vocab_size: int, max_length: int, family: str
) -> TokenizersBackend:
    """A tokenizer of one of `TOKENIZER_KINDS` with the special tokens of a family, which come first.

    `max_length` in tokens. Little text gives fewer tokens than `vocab_size`. `bytes` reads no text; `wordpiece` reads
    the texts twice, and keeps those of an iterator that can be read once in memory.

    Raises ValueError for too small a `vocab_size`, texts without a word, or a row that is not a string.
    """
    roles = dict(SPECIAL_TOKENS[family])
    special = list(dict.fromkeys(roles.values()))
    if kind in ("byte-bpe", "bytes"):
        tokenizer = _bytes(texts, kind, vocab_size, special)
    else:
        unknown = roles.setdefault("unk_token", special[0])
        if kind == "wordpiece":
            tokenizer = _wordpiece(texts, vocab_size, special, unknown)
        else:  # every word between spaces, in sorted order
            words = {word for text in checked_texts(texts, "texts", count()) for word in text.split()}
            vocabulary = {word: index for index, word in enumerate([*special, *sorted(words - set(special))])}
            tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
            tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
            tokenizer.add_special_tokens(special)
    needed = tokenizer.get_vocab_size()
    if not len(special) < needed <= vocab_size:
        problem = f"vocab_size={vocab_size} is too small: {needed} are needed, {len(special)} of them special"
        raise ValueError(problem if needed > vocab_size else "no text to train a tokenizer on")
    after = []
    if kind == "byte-bpe":  # offsets leave out the space that begins a token
        after.append(processors.ByteLevel(add_prefix_space=False, trim_offsets=True))
    if family in AROUND:
        single, pair = AROUND[family]
        inserted = [(token, special.index(token)) for token in special if token in single.split()]
        after.append(processors.TemplateProcessing(single=single, pair=pair, special_tokens=inserted))
    if after:
        tokenizer.post_processor = processors.Sequence(after)
    return TokenizersBackend(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        model_input_names=["input_ids", *(["token_type_ids"] if family in AROUND else []), "attention_mask"],
        clean_up_tokenization_spaces=False,
        **roles,
    )


def _bytes(texts: Iterable[str], kind: str, vocab_size: int, special: list[str]) -> Tokenizer:
    """Tokens of bytes of UTF-8: `byte-bpe` merges them over all 256 (Radford et al. 2019), `bytes` does not.

    Of `bytes` the id of byte b is b plus the number of special tokens.
    """
    characters = bytes_to_unicode()
    vocabulary = {token: index for index, token in enumerate([*special, *map(characters.get, range(256))])}
    merges = kind == "byte-bpe"
    tokenizer = Tokenizer(models.BPE() if merges else models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=merges)
    tokenizer.decoder = decoders.ByteLevel()
    if merges:
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=sys.stderr.isatty(),
        )
        tokenizer.train_from_iterator(checked_texts(texts, "texts", count()), trainer)
    else:
        tokenizer.add_special_tokens(special)
    return tokenizer


def _wordpiece(texts: Iterable[str], vocab_size: int, special: list[str], unknown: str) -> Tokenizer:
    """Uncased WordPiece (Devlin et al. 2019); a word of a character outside the alphabet is unknown."""
    if iter(texts) is texts:
        texts = list(texts)
    tokenizer = Tokenizer(models.WordPiece(unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=True, lowercase=True
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    # The most frequent normalised characters, and ##c for those that may continue a word.
    raw, counts = Counter(), Counter()
    for text in checked_texts(texts, "texts", count()):
        raw.update(text)
    for character, occurrences in raw.items():
        for normal in tokenizer.normalizer.normalize_str(character):
            counts[normal] += occurrences
    after_a = {
        character: tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(f"a{character}"))
        for character in counts
    }
    visible = [character for character in counts if after_a[character] != [("a", (0, 1))]]  # no spaces
    first = sorted(sorted(visible, key=lambda character: (-counts[character], character))[:MAX_ALPHABET])
    inner = [f"##{character}" for character in first if len(after_a[character]) == 1]
    # The trainer numbers ##characters in the random order of a hash map and breaks ties between merges by number.
    # As special tokens they are numbered beforehand; the model below has the right special tokens again.
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*special, *first, *inner],
        initial_alphabet=first,
        limit_alphabet=len(first),
        show_progress=sys.stderr.isatty(),
    )
    tokenizer.train_from_iterator(iter(texts), trainer)
    trained = Tokenizer(models.WordPiece(tokenizer.get_vocab(), unk_token=unknown))
    trained.normalizer = tokenizer.normalizer
    trained.pre_tokenizer = tokenizer.pre_tokenizer
    trained.decoder = decoders.WordPiece(cleanup=False)
    trained.add_special_tokens(special)
    return trained
