"""Headers of GGUF files: good ones, hostile ones, cut ones; and the arithmetic that stands on them."""

import os
import re
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgeguardd.cli import edgeguardctl
from edgeguardd.isolate.sizing.advice import MIB, SizingError, Wish, advise
from edgeguardd.isolate.sizing.gguf import GgufError, read
from edgeguardd.isolate.sizing.model import load
from tests.support.ggufs import GIB, LLAMA, header, model, tensor


def test_a_cache_is_layers_times_heads_times_lengths(tmp_path: Path) -> None:
    """32 x 8 x (128 + 128) x 2 bytes = 128 KiB a token; with q8_0, 34 bytes for 32 numbers."""
    found = load(model(tmp_path))
    assert (found.key_length, found.value_length, len(found.kv_heads)) == (128, 128, 32)
    assert found.kv_bytes(8192, "f16", "f16") == GIB
    assert found.kv_bytes(8192, "q8_0", "q8_0") == GIB * 34 // 64


def test_layers_may_have_heads_of_their_own(tmp_path: Path) -> None:
    """Hybrid models: layers without a cache among them; lengths that are given count."""
    keys = {**LLAMA, "llama.attention.head_count_kv": (8, 0) * 16, "llama.attention.key_length": 64}
    found = load(model(tmp_path, keys))
    assert found.kv_bytes(1, "f16", "f16") == 16 * 8 * (64 + 128) * 2


def test_a_vocabulary_is_counted_not_kept(tmp_path: Path) -> None:
    """Arrays of texts are passed over."""
    found = read(model(tmp_path, {**LLAMA, "tokenizer.ggml.tokens": ["a", "bc"] * 500, "last": 7}))
    assert found["tokenizer.ggml.tokens.count"] == 1000
    assert found["last"] == 7


def test_a_split_model_is_all_its_parts(tmp_path: Path) -> None:
    """Named by one of them; one that is missing is said."""
    first, second = (tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2))
    first.write_bytes(header({**LLAMA, "split.count": 2}))
    with pytest.raises(GgufError, match="No such file"):
        load(str(first))
    second.write_bytes(whole(header({"split.count": 2}, tensor(0, (500,), 1)), 1000))
    assert load(str(first)).file_bytes == first.stat().st_size + second.stat().st_size
    os.truncate(second, second.stat().st_size - 1)
    with pytest.raises(GgufError, match=r"cannot use .*-00002-of-00002.gguf: it is cut: its tensors end at "):
        load(str(first))


def whole(head: bytes, data_bytes: int, alignment: int = 32) -> bytes:
    """A file of that header and so much data."""
    return head + bytes(-len(head) % alignment + data_bytes)


@pytest.mark.parametrize(
    ("keys", "tensors", "data_bytes", "alignment"),
    [
        (LLAMA, (tensor(0, (1024, 2), 0), tensor(8192, (256, 3), 12)), 8192 + 3 * 144, 32),
        (LLAMA, (tensor(576, (32,), 8), tensor(0, (32, 32), 2)), 576 + 34, 32),
        ({**LLAMA, "general.alignment": 4096}, (tensor(0, (100,), 30),), 200, 4096),
        # A type that is yet to come: it is at least where it begins.
        (LLAMA, (tensor(0, (4,), 0), tensor(64, (1 << 40,), 999)), 64, 32),
        # Two at the same place cannot be: together they take what both take.
        (LLAMA, (tensor(0, (8,), 0), tensor(0, (8,), 0)), 64, 32),
    ],
)
def test_a_file_is_as_long_as_its_table_of_tensors_says(
    keys: dict[str, object], tensors: tuple[bytes, ...], data_bytes: int, alignment: int, tmp_path: Path
) -> None:
    """A download that broke off would be taken for a small model, and get limits in which it cannot run."""
    path = tmp_path / "m.gguf"
    data = whole(header(keys, *tensors), data_bytes, alignment)
    path.write_bytes(data)
    assert load(str(path)).file_bytes == len(data)
    path.write_bytes(data[:-1])
    with pytest.raises(GgufError) as caught:
        load(str(path))
    sentence = f"it is cut: its tensors end at {len(data)} bytes, it has {len(data) - 1}; get it anew"
    assert str(caught.value) == f"cannot use {path}: {sentence}"


def test_size_refuses_a_broken_download(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """5 GiB by its table, 2 KB on the disk."""
    path = tmp_path / "m.gguf"
    path.write_bytes(whole(header(LLAMA, *(tensor(n * GIB, (GIB // 2,), 1) for n in range(5))), 1024))
    assert edgeguardctl.main(["size", str(path), "--ram", "8G", "--others", "1G"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "it is cut: its tensors end at 5368" in shown.err


def test_a_recurrent_model_has_no_heads(tmp_path: Path) -> None:
    """And no KV cache: its header says 0."""
    keys = {key.replace("llama.", "mamba."): value for key, value in LLAMA.items() if not key.endswith("_kv")}
    keys |= {"general.architecture": "mamba", "mamba.attention.head_count": 0, "mamba.ssm.conv_kernel": 4}
    assert load(model(tmp_path, keys)).kv_bytes(8192, "f16", "f16") == 0


def test_a_box_without_ram_is_no_box(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor the one that it is asked on."""
    with pytest.raises(SystemExit) as caught:
        edgeguardctl.main(["size", "--measured", "1G", "--ram", "0"])
    assert caught.value.code == 2
    assert "cannot use '0': a box has some RAM" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "it is cut, or its header never ends"),
        (b"ELF\x7f" + bytes(100), "it does not begin with GGUF"),
        (header(LLAMA, version=1), "its version is 1, and 2 and 3 are known"),
        (header(LLAMA, version=3 << 24), "are known"),
        (header(LLAMA)[:-3], "it is cut"),
        (header(LLAMA, count=1 << 60), "keys"),
        (header({}, count=1) + struct.pack("<Q", 1 << 62), "it claims a text of"),
        (header({"a": struct.pack("<I", 99)}), "a value of type 99"),
        (header({"a": struct.pack("<IIQ", 9, 9, 1)}), "an array of type 9"),
        (header({"a": struct.pack("<IIQ", 9, 8, 1 << 60)}), "items"),
        (header({"a": struct.pack("<IIQ", 9, 0, 1 << 24)}), "it is cut"),
        (header({}), "its header names no architecture"),
        (header({"general.architecture": "../x y"}), "its header names no architecture"),
        (header({"general.architecture": "x"}), "x.block_count of its header is missing"),
        (header({**LLAMA, "llama.block_count": 1 << 31}), "no plain number, or out of bounds"),
        (header({**LLAMA, "llama.attention.head_count_kv": (1, 2)}), "not one plain number a layer"),
        (header({**LLAMA, "llama.block_count": 0}), "llama.block_count of its header is no plain number, or out of"),
        (header({**LLAMA, "llama.embedding_length": 0}), "llama.embedding_length of its header is no plain number"),
        (header({**LLAMA, "llama.context_length": 0}), "llama.context_length of its header is no plain number"),
        (header({**LLAMA, "llama.attention.head_count": 0}), "attention.head_count of its header is less than its KV"),
        (
            header({**LLAMA, "llama.attention.head_count": 0, "llama.attention.head_count_kv": 0}),
            "attention.head_count of its header is 0; get",
        ),
        (header(LLAMA, claimed=1), "it is cut"),
        (header(LLAMA, claimed=1 << 60), "it claims 1152921504606846976 tensors"),
        (header(LLAMA, tensor(0, (1,) * 9, 0)), "a tensor claims 9 dimensions"),
        (header({**LLAMA, "general.alignment": 0}, tensor(0, (1,), 0)), "general.alignment is no number above 0"),
    ],
)
def test_what_is_no_model_costs_one_sentence(data: bytes, sentence: str, tmp_path: Path) -> None:
    """Whatever the file claims."""
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(GgufError) as caught:
        load(str(path))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(at=st.integers(0, len(header(LLAMA)) - 1), byte=st.integers(0, 255), cut=st.integers(0, len(header(LLAMA))))
def test_no_byte_crashes_the_reader(at: int, byte: int, cut: int, tmp_path: Path) -> None:
    """Mutated and cut headers are read, or refused."""
    data = bytearray(header(LLAMA))
    data[at] = byte
    path = tmp_path / "fuzz.gguf"
    path.write_bytes(bytes(data[:cut]))
    refused = None
    try:
        load(str(path))
    except GgufError as error:
        refused = str(error)
    assert refused is None or "\n" not in refused


def test_the_arithmetic_adds_up(tmp_path: Path) -> None:
    """Every line is there; limits rise and stay within what is left."""
    advice = advise(Wish(8 * GIB, GIB, load(model(tmp_path)), tokens=4096))
    sizes = {line.what: line.size_bytes for line in advice.lines}
    assert sizes["= left to the server"] == sizes["RAM"] + sizes["- other services"] + sizes["- kept free"]
    assert sizes["= at rest"] == sizes["model file"] + sizes["+ KV cache"] + sizes["+ buffers"]
    assert sizes["+ KV cache"] == 512 * MIB
    assert sizes["= at rest"] < advice.high_bytes < advice.max_bytes <= sizes["= left to the server"]


def test_as_long_a_context_as_fits_is_proposed(tmp_path: Path) -> None:
    """Less than the model was made for, where that would not fit; a quantised cache holds more."""
    found = load(model(tmp_path))
    plain = advise(Wish(8 * GIB, GIB, found)).flags
    packed = advise(Wish(8 * GIB, GIB, found, key_type="q8_0", value_type="q8_0")).flags
    assert plain is not None
    assert packed is not None
    assert 512 <= plain.tokens < packed.tokens <= 32768
    assert plain.tokens % 256 == 0


def test_a_measured_peak_replaces_the_estimate(tmp_path: Path) -> None:
    """Though the weights are at least their file."""
    advice = advise(Wish(8 * GIB, GIB, load(model(tmp_path)), tokens=512, measured_bytes=5 * GIB))
    assert advice.high_bytes > 5 * GIB


def test_a_measured_peak_alone_is_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server of any kind: limits above what it took, no flags of llama-server's, and what to type next."""
    words = ["size", "--ram", "8G", "--others", "1G", "--measured", "2G"]
    assert edgeguardctl.main(words) == 0
    shown = capsys.readouterr().out
    assert 'memory_high = "2253M"\nmemory_max = "2651M"' in shown
    assert "llama-server:" not in shown
    assert "edgeguardctl provision --dry-run" in shown
    assert edgeguardctl.main([*words, "--toml"]) == 0
    (tmp_path / "f.toml").write_text(capsys.readouterr().out)
    assert edgeguardctl.main(["check-config", str(tmp_path / "f.toml")]) == 0
    assert edgeguardctl.main([*words[:-1], "7G"]) == 1
    assert "cannot fit a server that took 7168M: that is 1424M more than the" in capsys.readouterr().err


def test_what_the_measured_server_holds_now_is_no_other_services(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measured while it runs, its memory is in use; counted twice, nothing would fit."""
    (tmp_path / "memory.peak").write_text(f"{GIB // 2}\n")
    (tmp_path / "memory.stat").write_text(f"anon {1 << 60}\nfile 5\n")
    assert edgeguardctl.main(["size", "--ram", "64G", "--measured", str(tmp_path)]) == 0
    assert re.search(r"^- other services +-?0.0M", capsys.readouterr().out, re.MULTILINE)


def test_neither_model_nor_peak_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """With what to give."""
    with pytest.raises(SystemExit) as caught:
        edgeguardctl.main(["size", "--ram", "8G"])
    assert caught.value.code == 2
    assert "name a .gguf MODEL, or give the peak of a real run with --measured SIZE" in capsys.readouterr().err


@pytest.mark.parametrize("tokens", [None, 65536])
def test_what_does_not_fit_is_said_by_how_much(tokens: int | None, tmp_path: Path) -> None:
    """And what would."""
    found = load(model(tmp_path))
    with pytest.raises(SizingError, match="cannot fit Test 7B"):
        advise(Wish(5 * GIB, GIB, found, tokens=tokens))


def test_what_size_prints_provision_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--toml alone is a configuration."""
    path = model(tmp_path, size=GIB)
    words = ["size", path, "--ram", "8G", "--others", "1G", "--ctx-size", "4096", "--unit", "a@b.service"]
    assert edgeguardctl.main([*words, "--toml"]) == 0
    printed = capsys.readouterr().out
    (tmp_path / "f.toml").write_text(printed)
    assert edgeguardctl.main(["check-config", str(tmp_path / "f.toml")]) == 0
    capsys.readouterr()
    assert edgeguardctl.main(words) == 0
    shown = capsys.readouterr().out
    assert "32 layers x 8 KV heads x (128 f16 + 128 f16) = 131072 bytes a token; x 4096 tokens" in shown
    assert "--ctx-size 4096 --parallel 1 --cache-ram" in shown
    assert printed in shown


def test_a_peak_is_read_from_a_cgroup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """memory.peak, else memory.current; anything else is one sentence."""
    path = model(tmp_path, size=GIB)
    (tmp_path / "memory.peak").write_text(f"{3 * GIB}\n")
    words = ["size", path, "--ram", "8G", "--others", "1G", "--ctx-size", "512", "--measured"]
    assert edgeguardctl.main([*words, str(tmp_path)]) == 0
    assert "= measured instead        3072.0M" in capsys.readouterr().out
    assert edgeguardctl.main([*words, "nonsense"]) == 2
    assert "neither a size" in capsys.readouterr().err


def test_others_that_need_more_than_there_is_are_said_by_how_much(capsys: pytest.CaptureFixture[str]) -> None:
    """Not as a server that is too large for nothing."""
    assert edgeguardctl.main(["size", "--measured", "900M", "--ram", "8G", "--others", "9G"]) == 1
    said = capsys.readouterr().err
    assert "cannot fit a server: what else runs (9216M)" in said
    assert "more than the 8192M there are" in said


def test_whose_peak_it_was_is_for_the_operator_to_name(capsys: pytest.CaptureFixture[str]) -> None:
    """A unit of another server would get limits that are none of its business."""
    words = ["size", "--measured", "900M", "--ram", "8G", "--others", "1G", "--toml"]
    assert edgeguardctl.main(words) == 0
    assert 'name = "NAME.service"' in capsys.readouterr().out
    assert edgeguardctl.main([*words, "--unit", "mine.service"]) == 0
    assert 'name = "mine.service"' in capsys.readouterr().out
