"""The tokenizer, against SentencePiece: on a small vocabulary trained here, and on the default model's."""

import io
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from unittest import mock

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2 as proto

from transom.errors import BadRequest, ConfigError, RequestTooLarge
from transom.text.budget import TextBudget
from transom.text.chat import ChatTemplate
from transom.text.control import ControlTokens
from transom.text.merges import merges
from transom.text.spelling import SPACE
from transom.text.tokenizer import Tokenizer
from transom.text.vocabulary import PieceKind, SentencePiece, Vocabulary
from transom.weights.builtin import resolve_model
from transom.weights.gguf import read_gguf
from transom.weights.vocabulary import read_vocabulary

CORPUS = """
The quick brown fox jumps over the lazy dog, again and again, while the dog is dreaming of foxes.
In a hole in the ground there lived a reader of old books who read the oldest of them twice.
Größe, Straße, Übermut: naïve façades; el niño comió piña; Привет, мир! Как дела, мир?
aaa aaaa aaaaa abab ababab banana bananas ananas an ban aba abacab cabaca acacac bcbc cbcb
def f(x): return x * (x + 1) if x > 0 else -x  # for x in range(10): print(f(x))
""" * 3  # fmt: skip

# ---------------------------------------------------------------- SentencePiece


def trained() -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS.splitlines()),
        model_writer=model,
        model_type="bpe",
        vocab_size=560,
        character_coverage=1.0,
        byte_fallback=True,
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        split_by_whitespace=False,
        user_defined_symbols=[2 * SPACE, 3 * SPACE, "\n", "\n\n", "<td>", "</td>"],
        control_symbols=["<turn>"],
        minloglevel=2,
    )
    return model.getvalue()


def vocabulary_of(model: bytes) -> Vocabulary:
    """As a converter to GGUF writes it: user-defined pieces hold their spaces."""
    pieces = proto.ModelProto.FromString(model).pieces
    kinds = np.array([piece.type for piece in pieces], dtype=np.int32)
    return Vocabulary(
        pieces=[
            piece.piece.replace(SPACE, " ") if piece.type == PieceKind.USER_DEFINED else piece.piece
            for piece in pieces
        ],
        kinds=kinds,
        bos=1,
        eos=2,
        unknown=0,
        adds_bos=True,
        stop_ids=frozenset({2}),
        chat_template=None,
        spelling=SentencePiece(np.array([piece.score for piece in pieces], dtype=np.float32)),
    )


def model_of(vocabulary: Vocabulary) -> bytes:
    """The way back."""
    model = proto.ModelProto()
    model.trainer_spec.model_type = proto.TrainerSpec.BPE
    model.trainer_spec.byte_fallback = True
    model.trainer_spec.unk_piece = "<unk>"
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = False
    model.normalizer_spec.remove_extra_whitespaces = False
    model.normalizer_spec.escape_whitespaces = True
    assert isinstance(vocabulary.spelling, SentencePiece)
    for piece, score, kind in zip(
        vocabulary.pieces, vocabulary.spelling.scores.tolist(), vocabulary.kinds.tolist(), strict=True
    ):
        if kind == PieceKind.USER_DEFINED:
            piece = piece.replace(" ", SPACE)
        kind = PieceKind.UNKNOWN if piece == "<unk>" else kind
        model.pieces.add(piece=piece, score=score, type=kind)
    return model.SerializeToString()


def processor(model: bytes) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=model)


SMALL_MODEL = trained()
SMALL_ORACLE = processor(SMALL_MODEL)
SMALL = vocabulary_of(SMALL_MODEL)


needs_extension = pytest.mark.skipif(
    find_spec("transom._native") is None, reason="the extension is not built"
)


def twins() -> Iterator[object]:
    yield pytest.param("0", id="python")
    missing = find_spec("transom._native") is None
    yield pytest.param(
        "1", id="native", marks=pytest.mark.skipif(missing, reason="the extension is not built")
    )


@pytest.fixture(scope="module", params=twins())
def small(request: pytest.FixtureRequest) -> Tokenizer:
    with mock.patch.dict(os.environ, TRANSOM_NATIVE=request.param):
        return Tokenizer(SMALL)


WORDS = [
    "a",
    "b",
    "ab",
    "an",
    "ana",
    "ban",
    "the",
    " the ",
    "dog",
    "f(x)",
    "ing",
    "ß",
    "Прив",
    "é",
    "漢",
    "👩‍🚀",
]
BREAKS = [" ", "  ", "    ", "\n", "\n\n\n", "\t", "<td>", "</td", SPACE, "\0", "\ufffd"]
SNIPPETS = st.sampled_from(WORDS) | st.sampled_from(BREAKS)
TEXTS = st.lists(SNIPPETS | st.text(max_size=4), max_size=25).map("".join) | st.text("abc n", max_size=40)


@settings(max_examples=1000)
@given(text=TEXTS)
def test_ids_equal_sentencepiece_s(small: Tokenizer, text: str) -> None:
    # SentencePiece takes "<turn>" for text, as a literal in a chat message is.
    ids = small.encode_batch([text], bos=False)[0]
    assert ids.tolist() == SMALL_ORACLE.encode(text)


@given(text=TEXTS)
def test_decoding_gives_the_text_back(small: Tokenizer, text: str) -> None:
    assert small.decode(small.encode(text)) == text.replace(SPACE, " ")


@given(ids=st.lists(st.integers(0, 559), max_size=40), skip=st.booleans())
def test_any_ids_decode_alike_in_a_stream_and_as_a_whole(
    small: Tokenizer, ids: list[int], skip: bool
) -> None:
    stream = small.detokenizer(skip_special=skip)
    texts = [*(stream.feed(token) for token in ids), stream.finish()]
    assert (
        "".join(texts)
        == small.decode(ids, skip_special=skip)
        == small.decode(np.array(ids), skip_special=skip)
    )


@needs_extension
def test_the_extension_keeps_one_of_the_merges_of_every_piece() -> None:
    def listed(native: str) -> list[tuple[str, str]]:
        with mock.patch.dict(os.environ, TRANSOM_NATIVE=native):
            assert isinstance(SMALL.spelling, SentencePiece)
            return merges(SMALL, SMALL.spelling.scores)

    kept, every = listed("1"), listed("0")
    assert set(kept) <= set(every) and len(kept) < len(every)
    assert [left + right for left, right in kept] == list(
        dict.fromkeys(left + right for left, right in every)
    )


# ---------------------------------------------------------------- beginnings, control tokens, errors


def test_bos_is_added_once_and_only_on_request(small: Tokenizer) -> None:
    plain = small.encode("the dog", bos=False).tolist()
    assert small.encode("the dog").tolist() == [1, *plain]
    assert small.encode("<s>the dog").tolist() == [1, *plain]
    assert small.encode("").tolist() == [1] and small.encode("", bos=False).tolist() == []


def test_a_model_without_bos_gets_no_bos() -> None:
    settled = Vocabulary(**{**{name: getattr(SMALL, name) for name in SMALL.__slots__}, "adds_bos": False})
    assert Tokenizer(settled).encode("a").tolist() == SMALL_ORACLE.encode("a")


def test_control_tokens_count_in_prompts_and_not_in_messages(small: Tokenizer) -> None:
    turn = small.piece_id("<turn>")
    assert turn in small.encode("a<turn>b").tolist()
    template = ChatTemplate("<s><turn>{{ messages[0].content }}<turn>", small.control)
    ids = small.encode_chat(template.render([{"role": "user", "content": "a<turn>b  </s>"}])).tolist()
    assert ids == [1, turn, *SMALL_ORACLE.encode("a<turn>b  </s>"), turn]


@given(text=st.text("ab aab.\n  ▁>é", max_size=80), size=st.integers(1, 9))
@settings(max_examples=300)
def test_pieces_of_a_text_have_the_tokens_of_the_whole(small: Tokenizer, text: str, size: int) -> None:
    text = small._spelling.prepare(text)
    pieces = list(small._cutter.cut(text, size))
    assert "".join(pieces) == text
    ids = [token for piece in pieces for token in small.encode_batch([piece], bos=False)[0]]
    assert ids == small.encode_batch([text], bos=False)[0].tolist()


def test_a_text_with_spaces_is_cut_and_one_without_is_not(small: Tokenizer) -> None:
    # In the small vocabulary, some pieces hold a space behind a letter.
    letter = next(letter for letter in "zqwvjk" if letter not in small._cutter._unsafe)
    assert len(list(small._cutter.cut(f"{letter * 4} " * 50, 20))) > 9
    assert len(list(small._cutter.cut("a" * 1000, 20))) == 1


def test_a_text_beyond_the_budget_is_refused_before_it_is_tokenized_to_its_end(small: Tokenizer) -> None:
    looks = []
    budget = TextBudget(tokens=100, carry_on=lambda: looks.append(1))
    with pytest.raises(RequestTooLarge, match="characters"):
        small.encode("x" * (100 * small.characters_of_token + 1), budget=budget)
    assert not looks
    with pytest.raises(RequestTooLarge, match="more than 100 tokens"):
        small.encode("<turn>x" * 90, budget=budget)
    assert len(looks) < 60
    assert len(small.encode("x", budget=TextBudget(tokens=2))) == 2


def test_a_text_that_repeats_the_start_of_control_tokens_is_split_in_linear_time() -> None:
    """In the calls of functions, which must not grow with the text."""
    control = ControlTokens({f"<unused{n}>": n for n in range(5000)})
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        assert control.split("<" * 100_000) == ["<" * 100_000]
    finally:
        sys.setprofile(None)
    assert calls < 100


def test_a_batch_is_its_texts_one_by_one(small: Tokenizer) -> None:
    texts = ["the dog", "", "<turn>", "a<turn>b<turn>", "naïve"]
    assert [ids.tolist() for ids in small.encode_batch(texts)] == [
        small.encode(text).tolist() for text in texts
    ]
    assert small.encode_batch([]) == []


def test_ids_are_int32(small: Tokenizer) -> None:
    assert small.encode("a").dtype == np.int32 == small.encode("", bos=False).dtype


def test_special_tokens_show_only_on_request(small: Tokenizer) -> None:
    ids = small.encode("<turn>a").tolist()
    assert small.decode(ids) == "a"
    assert small.decode(ids, skip_special=False) == "<s><turn>a"


@pytest.mark.parametrize("token", [-1, 560, 2**40])
def test_an_id_outside_the_vocabulary_is_a_bad_request(small: Tokenizer, token: int) -> None:
    for call in (
        lambda: small.decode([token]),
        lambda: small.piece(token),
        lambda: small.detokenizer().feed(token),
    ):
        with pytest.raises(BadRequest, match=f"{token} is not in the vocabulary; ids are between 0 and 559"):
            call()


def test_half_a_surrogate_pair_is_a_bad_request(small: Tokenizer) -> None:
    with pytest.raises(BadRequest, match="not valid Unicode"):
        small.encode("a\ud83d")


def test_pieces_and_ids_name_each_other(small: Tokenizer) -> None:
    assert [small.piece_id(small.piece(i)) for i in range(small.vocab_size)] == list(range(560))
    assert small.piece_id("no such piece") is None


def test_the_bytes_of_a_piece_are_what_it_adds_to_a_text(small: Tokenizer) -> None:
    ids = small.encode("a<turn>b  漢\0").tolist()
    assert b"".join(map(small.piece_bytes, ids)).decode() == "<s>a<turn>b  漢\0"


# ---------------------------------------------------------------- chat templates


def test_a_given_template_takes_precedence_over_the_file_s() -> None:
    values = {name: getattr(SMALL, name) for name in SMALL.__slots__}
    tokenizer = Tokenizer(Vocabulary(**{**values, "chat_template": "{{ bos_token }}own{{ eos_token }}"}))
    user = [{"role": "user", "content": "x"}]
    assert tokenizer.chat_template().render(user).text == "<s>own</s>"
    assert tokenizer.chat_template("given").render(user).text == "given"


def test_without_any_template_there_is_no_chat(small: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="no chat template"):
        small.chat_template()


# ---------------------------------------------------------------- the default model

SCRIPTS = """\
The quick brown fox jumps over the lazy dog; it's 3:45 p.m. and £12.50 isn't enough!
Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich – „schön“, sagte er.
Portez ce vieux whisky au juge blond qui fume ; l'été, où êtes-vous ?
El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia. ¿Añoraba? ¡Sí!
À noite, vovô Kowalsky vê o ímã cair no pé do pinguim queixoso.
Pchnąć w tę łódź jeża lub ośm skrzyń fig. Žluťoučký kůň pěl ďábelské ódy.
Pijamalı hasta yağız şoföre çabucak güvendi. İstanbul'da ılık bir gün.
Съешь же ещё этих мягких французских булок, да выпей чаю. Чуєш їх, доцю, га?
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Τι ώρα είναι;
צפוני, דג סקרן שט בים מאוכזב ולפתע מצא לו חברה.
نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر. چه خبر؟ ٣٫١٤
ऋषियों को सताने वाले दुष्ट राक्षसों का राजा। १२३ ৳৫০ আমি বাংলায় গান গাই।
யாமறிந்த மொழிகளிலே தமிழ்மொழி போல் இனிதாவது எங்கும் காணோம். తెలుగు ಕನ್ನಡ മലയാളം
เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน ພາສາລາວ ភាសាខ្មែរ မြန်မာ
我能吞下玻璃而不伤身体。視野無限廣，窗外有藍天。
いろはにほへと ちりぬるを。カタカナもＦＵＬＬＷＩＤＴＨも㍿も使う。
다람쥐 헌 쳇바퀴에 타고파. 키스의 고유조건은 입술끼리 만나야 한다.
ქართული ენა, Հայոց լեզու, አማርኛ, ᏣᎳᎩ, ᐃᓄᒃᑎᑐᑦ, བོད་ཡིག, ᠮᠣᠩᠭᠣᠯ
Tiếng Việt: Trăm năm trong cõi người ta, chữ tài chữ mệnh khéo là ghét nhau. e\u0301 vs é
👩‍👩‍👧‍👦 family, 🏳️‍🌈 flag, 🇩🇪🇯🇵, 👍🏽 thumbs, ☃️ snow, 🫠🪿 new ones
∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β ⇒ ∫₀^∞ e^{-x²} dx = √π/2 ≠ ½; H₂O → 2·H₂ + O₂
def f(x: int) -> str:\\n    return f"{x!r:>10}"  # comment\\n\\n\\nclass A(B):\\n\\tpass\\n
for (int i = 0; i < n; ++i) { a[i] += b[i] << 2; }  /* C */ std::cout << "\\\\n";
<html><body class="x">\\n  <td>1</td>\\t<b>bold</b>&nbsp;</body></html>
{"key": [1, 2.5e-3, null, true], "nested": {"a": "\\u00e9"}}\\r\\n
https://example.org/a%20b?q=1&r=2#frag user@example.com C:\\\\Temp\\\\x.txt /usr/lib/*.so
SELECT * FROM "t" WHERE a >= 10 AND b LIKE '%x_'; -- sql
𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝒻𝒶𝓃𝒸𝓎 𓀀𓁐 𐍈 𒀀 🂡 \U0010ffff \ue000 \ufeff \u200b\u200d \u2028 \u00a0 \u3000
\x00\x01\x02\x07\x08\x0b\x0c\x1b[31m\x7f\x80\x85\x9f control
1234567890 0x1F600 1,000,000.00 ١٢٣ १२३ Ⅳ ² ½ 10⁻³
aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa hahahahahahaha !!!!!!!!!!!!! -------------------- ................
"""


def texts() -> list[str]:
    lines = [
        line.replace("\\n", "\n").replace("\\t", "\t").replace("\\r", "\r") for line in SCRIPTS.splitlines()
    ]
    random = np.random.default_rng(0)
    result = list(lines)
    for line in lines:
        words = line.split(" ")
        result += [
            line.upper(),
            line[::-1],
            line.replace(" ", ""),
            "".join(word + " " * int(random.integers(1, 40)) for word in words),
            "\n".join(words) + "\n" * int(random.integers(1, 40)),
            "\t" * int(random.integers(1, 40)) + line,
            "".join(random.permutation(list(line))),
            line + random.choice(lines) + random.choice(lines),
            " " + line.title() + " ",
        ]
    result += [" " * n for n in range(1, 70)] + ["\n" * n + " x" for n in range(1, 40)]
    codes = random.integers(1, 0x3000, 4000)
    result += ["".join(map(chr, codes[i : i + 100])) for i in range(0, 4000, 100)]
    return result


@pytest.fixture(scope="module")
def gemma() -> Tokenizer:
    return Tokenizer(read_vocabulary(read_gguf(resolve_model(None))))


@pytest.mark.model
def test_the_default_model_s_ids_equal_sentencepiece_s_on_many_scripts(gemma: Tokenizer) -> None:
    oracle = processor(model_of(read_vocabulary(read_gguf(resolve_model(None)))))
    samples = texts()
    assert len(samples) > 400
    wrong = [
        text
        for text, ids in zip(samples, gemma.encode_batch(samples, bos=False), strict=True)
        if ids.tolist() != oracle.encode(text)
    ]
    assert wrong == []


@pytest.mark.model
def test_the_default_model_gives_every_text_back(gemma: Tokenizer) -> None:
    for text, ids in zip(texts(), gemma.encode_batch(texts()), strict=True):
        expected = text.replace(SPACE, " ")
        assert gemma.decode(ids) == expected
        stream = gemma.detokenizer()
        assert "".join([*map(stream.feed, ids.tolist()), stream.finish()]) == expected


@pytest.mark.model
def test_the_default_model_s_ids_are_those_its_makers_publish(gemma: Tokenizer) -> None:
    assert (gemma.vocab_size, gemma.bos, gemma.eos, gemma.stop_ids) == (262_144, 2, 1, {1, 106})
    ids = gemma.encode_chat(gemma.chat_template().render([{"role": "user", "content": "Hi<eos>"}])).tolist()
    assert ids[:4] == [2, 105, 2364, 107] and ids[-5:] == [106, 107, 105, 4368, 107]
    assert 1 not in ids and gemma.decode(ids, skip_special=False).startswith(
        "<bos><start_of_turn>user\nHi<eos>"
    )


@pytest.mark.model
@needs_extension
def test_the_extension_keeps_merges_of_the_default_model_in_their_order() -> None:
    vocabulary = read_vocabulary(read_gguf(resolve_model(None)))
    assert isinstance(vocabulary.spelling, SentencePiece)
    kept = merges(vocabulary, vocabulary.spelling.scores)
    with mock.patch.dict(os.environ, TRANSOM_NATIVE="0"):
        scores = vocabulary.spelling.scores
        every = {pair: i for i, pair in enumerate(merges(vocabulary, scores))}
    places = [every[pair] for pair in kept]
    assert places == sorted(places) and len(kept) > 236_000
