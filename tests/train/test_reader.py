"""The reader of text: marks, encodings that are told by their characters, damage, .gz; against Python's own codecs."""

import gzip
import io
import os
import shutil
import subprocess

import numpy as np
import pytest

from gpt2tf.train import reader
from gpt2tf.train.reader import NotText, text_reader

MARKED = {"utf-8-sig": b"\xef\xbb\xbf", "utf-16-le": b"\xff\xfe", "utf-16-be": b"\xfe\xff"}
MARKED |= {"utf-32-le": b"\xff\xfe\0\0", "utf-32-be": b"\0\0\xfe\xff"}
TEXTS = {
    "french": "Où étais-tu passé l'été dernier ? À la mer, près des rochers : la forêt brûlait déjà, m'a-t-on dit. ",
    "german": "Am frühen Morgen hörte er die Vögel über den Dächern; draußen, auf der Ölmühle, fiel kühler Regen. ",
    "spanish": "El niño salió a la calle sin paraguas, ¿y qué pasó después? Se mojó más que el año anterior. ",
    "english": "“I don’t know,” she said — “and I won’t ask.” He didn’t answer; the door’s lock clicked. ",
    "swedish": "Hon såg ut över sjön på kvällen; båten låg kvar där den hade legat hela året, öde och tyst på ängen. ",
    "polish": "Żółta łódka płynęła powoli środkiem rzeki, a na brzegu ktoś śpiewał cichą piosenkę o świcie. ",
    "czech": "Příští den ráno šel ke starému mlýnu, kde ho čekala žena s košíkem plným hrušek a švestek, řekl děkuji. ",
    "hungarian": "A kertben ült az öregember, és nézte, hogyan folyik a víz a kőről; este későn ment be a házába. ",
    "turkish": "Çocuk ağacın altında oturuyordu, güneş batıyordu ve kuşlar şarkı söylüyordu; çok güzel bir gündü. ",
    "greek": "Το πρωί βγήκε στον κήπο και είδε τη θάλασσα, που ήταν ήρεμη όπως πάντα· ύστερα γύρισε στο σπίτι. ",
    "russian": "Утром он вышел в сад и увидел, что снег уже растаял; вечером они долго сидели у огня и молчали. ",
    "ukrainian": "Уранці він вийшов у сад і побачив, що сніг уже розтанув; увечері їх довго не було вдома. ",
    "japanese": "朝早く起きて、庭に出ると、雪がもう解けていました。夜は火のそばに座って、長い間黙っていた。",
    "simplified": "早上他走到花园里，看见雪已经化了。晚上他们坐在火边，很久没有说话，只听见外面的风声。",
    "traditional": "早上他走到花園裡，看見雪已經化了。晚上他們坐在火邊，很久沒有說話，只聽見外面的風聲。",
    "korean": "아침에 그는 정원으로 나가서 눈이 벌써 녹은 것을 보았다. 저녁에는 불가에 오래 앉아 있었다. ",
}
ENCODINGS = {
    "french": "WINDOWS-1252", "german": "WINDOWS-1252", "spanish": "WINDOWS-1252", "english": "WINDOWS-1252",
    "swedish": "WINDOWS-1252", "polish": "WINDOWS-1250 ISO-8859-2", "czech": "WINDOWS-1250 ISO-8859-2",
    "hungarian": "WINDOWS-1250", "turkish": "WINDOWS-1254", "greek": "WINDOWS-1253",
    "russian": "WINDOWS-1251 KOI8-R IBM866", "ukrainian": "WINDOWS-1251 KOI8-U",
    "japanese": "SHIFT_JIS EUC-JP", "simplified": "GB18030",
    "traditional": "BIG5", "korean": "EUC-KR",
}  # fmt: skip
CASES = [(language, encoding) for language, names in ENCODINGS.items() for encoding in names.split()]
CASES += [(language, encoding) for language in TEXTS for encoding in ("UTF-16LE", "UTF-16BE", "UTF-32LE", "UTF-32BE")]


def read(raw, name="a.txt"):
    return text_reader(io.BytesIO(raw), name).read()


def wrong(text):
    """How many bytes of it were not text."""
    return text.count("\udcff")


# Marks


@pytest.mark.parametrize("encoding", MARKED)
@pytest.mark.parametrize("shift", range(4))
def test_a_mark_chooses_the_encoding_and_is_not_text(encoding, shift):
    text = "x" * shift + "é\r\n日\r\ufeff🤗\n\r" * 20_000
    raw = MARKED[encoding] + text.encode(encoding.removesuffix("-sig"))
    assert read(raw) == text.replace("\r\n", "\n").replace("\r", "\n")


@pytest.mark.parametrize("encoding", MARKED)
def test_a_mark_alone_is_no_text(encoding):
    assert read(MARKED[encoding]) == ""


@pytest.mark.parametrize("language", TEXTS)
def test_utf8_of_any_language_is_read(language):
    for copies in (1, 2000):
        assert read(TEXTS[language].encode() * copies) == TEXTS[language] * copies


@pytest.mark.parametrize("raw, expected", [(b"\xff\xfea\0\0\xd8b\0", "a??b"), (b"\xff\xfea\0b", "a?")], ids=ascii)
def test_what_does_not_belong_in_utf16_is_marked_byte_by_byte(raw, expected):
    assert read(raw) == expected.replace("?", "\udcff")


# Other encodings


@pytest.mark.parametrize("language, encoding", CASES)
@pytest.mark.parametrize("copies", [1, 1500])
def test_another_encoding_is_refused_by_its_name(language, encoding, copies):
    raw = (TEXTS[language] * copies).encode(encoding)
    with pytest.raises(ValueError) as raised:
        read(raw, "my book.txt")
    command = f"iconv -f {encoding} -t UTF-8 'my book.txt' > 'my book.utf8.txt'"
    assert str(raised.value) == f"my book.txt is not UTF-8, but looks like {encoding}; convert it: {command}"


def test_utf16_of_chinese_has_no_zero_byte():
    raw = TEXTS["simplified"].encode("utf-16-le")
    assert b"\0" not in raw and not isinstance(pytest.raises(ValueError, read, raw).value, NotText)


@pytest.mark.parametrize("text", ["你好世界", "สวัสดีตอนเช้า"])
def test_utf16_of_which_all_bytes_are_ascii(text):
    """But many are control characters, and no text has those."""
    raw = (text * 20).encode("utf-16-le")
    assert raw.isascii()
    with pytest.raises(ValueError, match="looks like UTF-16LE"):
        read(raw)


def test_control_characters_may_be_text():
    for text in "\x1b[1mbold\x1b[0m\n", "N\x08NA\x08AM\x08ME\x08E\n", "rings: \x07\x07\x07\x07\x07\x07\x07\n\x0c":
        assert read(text.encode() * 30) == text * 30


@pytest.mark.parametrize("text", ["你好世界", "中文"])
def test_of_two_encodings_that_fit_it_is_the_more_likely(text):
    with pytest.raises(ValueError, match="looks like GB18030"):
        read((text * 20).encode("gb18030"))


@pytest.mark.skipif(not shutil.which("iconv"), reason="there is no iconv")
@pytest.mark.parametrize("name", ["my book.txt", "a.csv", "no ending", "b.txt.gz"])
@pytest.mark.parametrize("language, encoding", [("german", "WINDOWS-1252"), ("simplified", "UTF-16LE")])
def test_the_command_converts_it(tmp_path, language, encoding, name):
    raw = TEXTS[language].encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    with open(tmp_path / name, "rb") as file, pytest.raises(ValueError) as raised:
        text_reader(file, name)
    before = set(os.listdir(tmp_path))
    subprocess.run(str(raised.value).split("convert it: ")[1], shell=True, cwd=tmp_path, check=True)
    (made,) = set(os.listdir(tmp_path)) - before
    assert read((tmp_path / made).read_bytes()) == TEXTS[language]


def test_of_stdin_there_is_no_file_to_name():
    error = pytest.raises(ValueError, read, TEXTS["german"].encode("latin-1"), "stdin").value
    assert str(error).endswith("convert it: iconv -f WINDOWS-1252 -t UTF-8")


def test_what_cannot_be_told_is_refused_without_a_name():
    raw = TEXTS["french"].encode() + TEXTS["french"].encode("latin-1") + TEXTS["polish"].encode("iso-8859-2")
    with pytest.raises(ValueError, match=r"a is not UTF-8 \(26 of its first 304 bytes are not\); convert it: iconv -f "
                       r"ITS_ENCODING -t UTF-8 a > a\.utf8, where -c -f UTF-8 drops"):  # fmt: skip
        read(raw, "a")


# Damage


@pytest.mark.parametrize("few", [1, 3])
def test_few_bytes_in_a_short_text_are_damage(few):
    assert wrong(read(b"caf" + b"\xe9" * few)) == few
    with pytest.raises(ValueError, match="is not UTF-8"):
        read(b"caf" + b"\xe9" * 4)


@pytest.mark.parametrize("share, refused", [(1 / 1000, False), (1 / 250, False), (1 / 150, True), (1 / 30, True)])
def test_a_large_share_is_another_encoding(share, refused):
    raw = (b"x" * (int(1 / share) - 1) + b"\xe9") * 3000
    if refused:
        with pytest.raises(ValueError, match="a.txt is not UTF-8, but looks like WINDOWS-1252"):
            read(raw)
    else:
        assert wrong(read(raw)) == 3000


def test_a_character_on_the_edge_of_what_is_looked_at_is_whole():
    for shift in range(4):
        text = "x" * (reader.HEAD - shift) + "🤗 é"
        assert read(text.encode()) == text


@pytest.mark.parametrize(
    "raw",
    [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"PK\3\4\x14\0\0\0\x08\0", b"a\0b", b"a\0b\n", b"\x7fELF\2\1\1" + bytes(9),
     bytes(1000), np.random.default_rng(0).bytes(5000), gzip.compress(b"text", mtime=0), b"\xff\xfe" + bytes(30),
     np.arange(3000).tobytes()],
    ids=lambda raw: ascii(raw[:6]),
)  # fmt: skip
def test_what_is_no_text_in_any_encoding(raw):
    with pytest.raises(
        NotText, match="a.txt is not text, it holds (zero bytes|control characters); unpack it, or save"
    ):
        read(raw)


def test_a_live_stream_is_read_line_by_line():
    source, sink = os.pipe()
    with open(sink, "wb", buffering=0) as answers, open(source, "rb") as stream:
        answers.write("\ufeffé\r\n".encode("utf-16-le"))
        lines = text_reader(stream, "stdin", live=True)
        assert lines.readline() == "é\n"
        answers.write("日\n".encode("utf-16-le"))
        assert lines.readline() == "日\n"
        answers.close()
        assert lines.readline() == ""


# .gz


@pytest.mark.parametrize("name", ["a.gz", "a.txt.GZ"])
def test_gz_is_unpacked_by_its_name(name):
    text = TEXTS["japanese"] * 3000
    for encoding in "utf-8", "utf-16":
        assert read(gzip.compress(text.encode(encoding)), name) == text
    both = gzip.compress(text.encode()) + gzip.compress(b"and more\r\n")
    assert read(both, name) == text + "and more\n"


def test_a_gz_that_is_damaged_is_said_in_one_line():
    raw = gzip.compress(np.random.default_rng(0).integers(97, 123, 300_000, np.uint8).tobytes())
    flipped = bytearray(raw)
    flipped[len(raw) // 2] ^= 255
    for bad in (raw[:-1], raw[:5], raw[: len(raw) // 2], bytes(flipped), raw[:-6] + bytes(6), b"text", raw + b"more"):
        with pytest.raises(ValueError, match=r"^a\.gz is damaged \(.*\); get it again, or pack the text again$"):
            read(bad, "a.gz")
